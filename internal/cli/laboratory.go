package cli

import (
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/role"
)

// Verb is a command of the program tabane-lab that tabane lists and hands over.
type Verb struct{ Name, Group, Short string }

// Laboratory lists the commands of the program tabane-lab, apart from what every program has.
var Laboratory = []Verb{
	{"diff", "lab", "Compare two results of one scenario"},
	{"http3", "tools", "Serve content over HTTP/3, or fetch it and measure how it arrives"},
	{"lab", "lab", "Build a scenario's network on this machine and run experiments in it"},
	{"load", "tools", "Load a site with visits, as browsers request pages"},
	{measureName, "tools", measureShort},
	{"papers", "lab", "Show which figures of the papers are reproduced, or reproduce one"},
	{"qoe", "tools", "Run a study in which people rate web pages under several conditions"},
	{"reseq", "tools", "Measure the resequencing of MPTCP in captures"},
	{"sim", "lab", "Run a scenario's experiment in a simulator, once or over a grid of parameters"},
	{"site", daemonGroup, "Serve two web services, a map and a shop, for studies of web pages"},
}

// laboratoryCommands returns a command for each verb of the program tabane-lab, which replaces this
// process.
func (a *App) laboratoryCommands() []*cobra.Command {
	var list []*cobra.Command
	for _, v := range Laboratory {
		c := &cobra.Command{
			Use: v.Name, Short: v.Short, GroupID: v.Group,
			DisableFlagParsing: true,
			RunE:               func(*cobra.Command, []string) error { return a.handOver("run tabane "+v.Name, nil) },
			ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				_ = a.handOver("complete", nil) // without the program there is nothing to complete
				return nil, cobra.ShellCompDirectiveError
			},
		}
		if v.Name == measureName {
			c.AddCommand(a.MeasureServeCommand()) // a content server does not need the other program
		}
		list = append(list, c)
	}
	return list
}

// isLaboratory reports whether a command is of the program tabane-lab.
func isLaboratory(c *cobra.Command) bool {
	return c.DisableFlagParsing && slices.ContainsFunc(Laboratory, func(v Verb) bool { return v.Name == c.Name() })
}

// handOver has the program tabane-lab replace this process, with the same arguments. It returns
// only on failure. because is the reason for which this program cannot run the command, nil if it
// has none.
func (a *App) handOver(what string, because error) error {
	path, err := role.FindProgram(role.Laboratory)
	if err == nil {
		err = os.NewSyscallError("exec", syscall.Exec(path, append([]string{role.Laboratory}, a.args...), os.Environ()))
	}
	if because != nil {
		err = fmt.Errorf("%w; %w", because, err)
	}
	return &Failure{What: what, Why: err, Do: "install the package tabane-lab"}
}
