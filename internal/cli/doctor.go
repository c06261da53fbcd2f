package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "doctor",
		Short:   "Check what this host supports, and what to change",
		GroupID: "tools",
		Long: `Doctor checks every feature of the host that tabane uses, in a temporary network namespace, and says which daemons can run here.
It changes nothing. Without privileges it checks what it can.

Exit code 0: all required features are available; 1: some are missing.`,
		Example: `  tabane doctor
  tabane doctor --json`,
		Args: arguments(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			findings := doctor.Examine()
			if asJSON {
				e := json.NewEncoder(a.out)
				e.SetIndent("", "  ")
				if err := e.Encode(findings); err != nil {
					return err
				}
			} else if err := a.printFindings(findings); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Needed && (f.State == doctor.Missing || f.State == doctor.Unknown) {
					return errUnmet
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the findings as JSON")
	return c
}

func (a *app) printFindings(findings []doctor.Finding) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CHECK\tSTATE\tMEANING\tREMEDY")
	var missing []string
	for _, f := range findings {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Check, f.State, oneLine(f.Meaning), f.Remedy)
		if f.Needed && (f.State == doctor.Missing || f.State == doctor.Unknown) {
			missing = append(missing, f.Check)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(missing) > 0 {
		_, err := fmt.Fprintf(a.out, "\nrequired, but missing or unknown: %s\n", strings.Join(missing, ", "))
		return err
	}
	_, err := fmt.Fprintln(a.out, "\nthis host supports delivery over every egress path and the lab")
	return err
}
