// Package cli is the command line of tabane: it parses arguments, runs the command, and prints the
// result with an exit code.
//
// The verbs read input, call other packages and print. Only Main exits the process and installs
// signal handlers other than those for SIGHUP and SIGCONT. No verb uses a global logger. The verbs
// of experiments are in the package lab below, which the program tabane does not have.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/sighup"
)

// Options are the parameters of Run.
type Options struct {
	// Args are the arguments without the program's name.
	Args     []string
	Out, Err io.Writer
	Build    Build
}

// Run executes one command line of the program tabane until it is done or ctx ends, and returns the
// process's exit code: 0 on success, 1 if it ran but a check or expectation failed, 2 if it could
// not run. Errors are printed to Err.
func Run(ctx context.Context, o Options) int {
	a := NewApp(o)
	return a.Execute(ctx, a.command())
}

// Command returns the command line of the program tabane, for documents of it.
func Command(o Options) *cobra.Command { return NewApp(o).command() }

func (a *App) command() *cobra.Command {
	root := a.Root(productHelp)
	root.AddCommand(a.daemonCommands()...)
	root.AddCommand(a.laboratoryCommands()...)
	root.AddCommand(a.serveCommand(), a.fetchCommand(), a.flowsCommand(), a.ccCommand(), a.mptcpifyCommand(), a.statusCommand(), a.dashboardCommand(), a.reloadCommand(), a.clearCommand(), a.checkCommand(), a.doctorCommand())
	return root
}

// daemonGroup is the group of the commands that run a daemon.
const daemonGroup = "daemons"

// App is what the verbs of one command line have in common.
type App struct {
	Out, Err  io.Writer
	Version   string
	args      []string
	logLevel  string
	logFormat string
	build     Build
}

// NewApp returns the App of a command line.
func NewApp(o Options) *App {
	return &App{Out: o.Out, Err: o.Err, Version: o.Build.Version, build: o.Build, args: o.Args}
}

// Execute runs the command line, and returns the exit code.
func (a *App) Execute(ctx context.Context, root *cobra.Command) int {
	out := &output{Writer: a.Out}
	a.Out = out
	root.SetArgs(a.args)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	return a.finish(out.failure(root.ExecuteContext(ctx)))
}

const ExitCodesHelp = `

Exit codes: 0 success; 1 it ran, but a check or expectation failed; 2 it could not run, and one line on standard error says
what failed, on what, why, and what to do.`

const productHelp = `tabane sends content over every path a network has.

A content provider with several upstreams runs "asbr" on its border routers, "reflector" anywhere, and "edge" on its
servers: each connection then uses several egress paths at once. A site with several lines runs "gateway". "lab" runs
all of it on this machine and measures it; "sim" simulates the same experiments.` + ExitCodesHelp

// Root returns the root command with what both programs have. The command line is one: commands are
// called by the name of the program tabane.
func (a *App) Root(long string) *cobra.Command {
	root := &cobra.Command{
		Use:           "tabane",
		Short:         "Send content over every path a network has",
		Long:          long,
		Version:       a.build.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	Group(root)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagFailure)
	flags := root.PersistentFlags()
	flags.StringVar(&a.logLevel, "log-level", "", "minimum log level: debug, info, warn or error (default info for daemons, warn otherwise)")
	flags.StringVar(&a.logFormat, "log-format", "text", "log format on standard error: text or json")
	root.AddGroup(
		&cobra.Group{ID: daemonGroup, Title: "Daemons:"},
		&cobra.Group{ID: "lab", Title: "Experiments:"},
		&cobra.Group{ID: "tools", Title: "Tools:"},
	)
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if _, err := a.Logger(io.Discard, slog.LevelInfo); err != nil {
			return err
		}
		if c.GroupID != daemonGroup {
			sighup.Default()
		}
		if c.Name() != mptcpifyName {
			runtime.UnlockOSThread() // package main has locked it
		}
		return nil
	}
	root.SetHelpCommand(a.helpCommand())
	root.AddCommand(a.versionCommand())
	return root
}

// Group configures a command that only has subcommands: without arguments it prints its help, and
// an unknown subcommand is a one-line error.
func Group(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return unknownCommand(c, args)
	}
}

// unknownCommand returns the error for a subcommand that c does not have.
func unknownCommand(c *cobra.Command, args []string) error {
	hint := ""
	// Two edits turn any name of three letters into another.
	c.SuggestionsMinimumDistance = min(2, len(args[0])/2)
	if s := c.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "did you mean " + strings.Join(s, " or ") + "? "
	}
	return &UsageError{fmt.Sprintf("unknown command %q", strings.Join(args, " ")), hint + "see " + c.CommandPath() + " --help"}
}

// Arguments checks the number of arguments and returns a one-line error.
func Arguments(least, most int, want string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return Usage(c, errors.New("want "+want+", got "+Quantity(len(args), "argument")))
		}
		return nil
	}
}

// Logger makes the log that the flags ask for; where it goes and its level are the verb's own
// choice.
func (a *App) Logger(w io.Writer, level slog.Level) (*slog.Logger, error) {
	if a.logLevel != "" {
		if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
			return nil, Invalid("--log-level", a.logLevel, "debug, info, warn or error")
		}
	}
	options := &slog.HandlerOptions{Level: level}
	switch a.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, Invalid("--log-format", a.logFormat, "text or json")
}

// Width returns the number of columns of the terminal w, 0 if w is not a terminal.
func Width(w io.Writer) int {
	const usual = 80
	f, ok := fileOf(w)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	switch {
	case err != nil:
		return 0
	case size.Col == 0: // a terminal of unknown size, such as a serial line
		return usual
	}
	return int(size.Col)
}
