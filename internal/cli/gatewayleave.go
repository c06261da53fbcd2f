package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli/setup"
)

func (a *App) gatewayLeaveCommand() *cobra.Command {
	var f setupFlags
	c := &cobra.Command{
		Use:   "leave",
		Short: "Undo what init or join did on this host",
		Long: `Leave stops the gateway, and undoes the other steps of tabane gateway init or join, the last one first: rules, files, kernel
parameters that nobody has changed since. A file that was edited is kept as FILE.old. It prints what it will do, and asks.`,
		Example: "  tabane gateway leave\n  tabane gateway leave --dry-run",
		Args:    Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			const what = "undo setup"
			record, err := setup.ReadRecord(setup.Files{Dir: f.dir}.Record())
			if err != nil {
				return &Failure{What: what, Why: err}
			}
			var lines []string
			steps := record.Steps()
			for i := len(steps) - 1; i >= 0; i-- {
				lines = append(lines, steps[i].Undo())
			}
			if ok, err := a.confirm(c.Context(), &f, what, lines); !ok {
				return err
			}
			kept, err := record.UndoAll(c.Context())
			for _, k := range kept {
				fmt.Fprintln(a.Out, "kept, because it was edited: "+k)
			}
			if err != nil {
				return &Failure{What: what, Why: err, Do: "repeat tabane gateway leave"}
			}
			return nil
		},
	}
	f.addCommon(c)
	return c
}
