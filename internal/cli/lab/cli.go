// Package lab is the command line of the program tabane-lab: experiments in labs and in the
// simulator, and their analysis.
//
// What both programs have is of the package cli. The commands are part of the command line of
// tabane, which hands them over.
package lab

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/study/site"
)

const help = `tabane-lab has the experiments of tabane: "lab" runs the daemons on this machine and measures them, "sim" simulates the same
experiments. "tabane lab" and the others run it.` + cli.ExitCodesHelp

// app has the verbs of one command line.
type app struct{ *cli.App }

// Run executes one command line of the program tabane-lab. See cli.Run.
func Run(ctx context.Context, o cli.Options) int {
	a := &app{cli.NewApp(o)}
	return a.Execute(ctx, a.command())
}

// Command returns the command line of the program tabane-lab. See cli.Command.
func Command(o cli.Options) *cobra.Command { return (&app{cli.NewApp(o)}).command() }

func (a *app) command() *cobra.Command {
	root := a.Root(help)
	root.AddCommand(a.commands()...)
	root.AddCommand(a.CheckFiles(checkAny))
	return root
}

// commands returns the commands that only this program has.
func (a *app) commands() []*cobra.Command {
	return append(a.labCommands(), a.simCommand(), a.diffCommand(), a.reseqCommand(), a.qoeCommand(), a.papersCommand(), a.loadCommand(), a.http3Command(), a.measureCommand(), a.siteCommand())
}

func (a *app) siteCommand() *cobra.Command {
	r, ok := role.Named(role.Site)
	if !ok {
		panic("BUG: there is no daemon site")
	}
	return a.DaemonCommand(r.StartedBy(func(_ context.Context, s *role.Sections, o role.Options) (role.Machine, error) {
		return site.New(site.Options{Config: *s.Site, Log: o.Log})
	}))
}

// product returns the path of the program tabane, which runs the daemons and clients of a lab.
func product(what string) (string, error) {
	path, err := role.FindProgram(role.Product)
	if err != nil {
		return "", &cli.Failure{What: what, Why: err, Do: "install the package tabane"}
	}
	return path, nil
}
