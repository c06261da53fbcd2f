package lab

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/scenarios"
)

// scenarioNames are those of the scenarios that come with the program.
func scenarioNames(context.Context) []string { return scenarios.Names() }

// labNames are those of the labs of this machine.
func labNames(context.Context) []string {
	var list []string
	infos, _ := lab.List() // without them there is nothing to complete
	for _, i := range infos {
		list = append(list, i.Name)
	}
	return list
}

// nodeNames are those of the nodes of a lab, or of all labs without one.
func nodeNames(name *string) cli.Names {
	return func(context.Context) []string {
		var list []string
		infos, _ := lab.List() // without them there is nothing to complete
		for _, i := range infos {
			if *name == "" || i.Name == *name {
				list = append(list, i.Nodes...)
			}
		}
		return list
	}
}

// completeCapture completes a node and a file.
func completeCapture(name *string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return cli.Complete(nodeNames(name))(c, args, word)
	}
}

// linkNames are those of the links of a lab, or of the user's labs without one.
func linkNames(name *string) cli.Names {
	return func(ctx context.Context) []string {
		of := []string{*name}
		if *name == "" {
			infos, _ := lab.List() // without them there is nothing to complete
			of = usable(infos, lab.User())
		}
		var list []string
		for _, n := range of {
			l, err := lab.Open(n)
			if err != nil {
				continue
			}
			v, err := l.View(ctx)
			if err != nil {
				continue
			}
			for _, link := range v.Links {
				list = append(list, link.Name)
			}
		}
		return list
	}
}
