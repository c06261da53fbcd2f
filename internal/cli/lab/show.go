package lab

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/lab"
)

func (a *app) labShow() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show [NAME]",
		Short: "Show a lab's nodes, addresses, daemons and links as they are now",
		Long: `Show reads addresses, the state of interfaces and the shapes of links from the kernel, and asks each daemon whether it is ready.
Without a name it shows the only lab of this user.`,
		Example:           "  tabane lab show\n  tabane lab show epe-steady --json",
		Args:              cli.Arguments(0, 1, "at most one lab"),
		ValidArgsFunction: cli.Complete(labNames),
		RunE: func(c *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			l, err := a.openLab(c.Context(), "show lab", name, "with tabane lab show NAME")
			if err != nil {
				return err
			}
			v, err := l.View(c.Context())
			if err != nil {
				return labFailure(c.Context(), "show lab", l.Name(), err)
			}
			if asJSON {
				e := json.NewEncoder(a.Out)
				e.SetIndent("", "  ")
				return e.Encode(v)
			}
			return showLab(a.Out, v)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// listWidth is how many columns the addresses of an interface and the ends of a link have: one
// address, or two ends with usual names.
const listWidth = 40

// showLab prints a line for each interface and link, followed by the problems of daemons.
func showLab(out io.Writer, v lab.View) error {
	fmt.Fprintf(out, "lab %s: scenario %s, %s\n\n", v.Name, v.Scenario, v.Condition)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tINTERFACE\tSTATE\tADDRESSES\tDAEMONS")
	var problems []string
	for _, n := range v.Nodes {
		var daemons []string
		for _, d := range n.Daemons {
			text := d.Role
			if d.Problem != "" {
				text += " (not ready)"
				problems = append(problems, fmt.Sprintf("%s %s: %s (log: %s)", n.Name, d.Role, d.Problem, d.Log))
			}
			daemons = append(daemons, text)
		}
		name, list := n.Name, strings.Join(daemons, ", ")
		for _, i := range n.Interfaces {
			state := "down"
			if i.Up {
				state = "up"
			}
			var addresses []string
			for _, p := range i.Addresses {
				addresses = append(addresses, p.String())
			}
			interfaceName := i.Name
			for _, line := range cli.Wrap(cmp.Or(strings.Join(addresses, " "), "-"), listWidth) {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", name, interfaceName, state, line, list)
				name, interfaceName, state, list = "", "", "", ""
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "LINK\tKIND\tENDS\tMTU\tSHAPE")
	for _, l := range v.Links {
		var ends []string
		for _, e := range l.Ends {
			ends = append(ends, e.Node+":"+e.Interface)
		}
		shape := brief(l.Text)
		for _, h := range l.Blackholes {
			shape += fmt.Sprintf(", drops what %s:%s sends", h.Node, h.Interface)
		}
		lines := cli.Wrap(strings.Join(ends, " "), listWidth)
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", l.Name, l.Kind, lines[0], l.MTU, shape)
		for _, line := range lines[1:] {
			fmt.Fprintf(w, "\t\t%s\t\t\n", line)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(problems) > 0 {
		fmt.Fprintln(out)
	}
	for _, p := range problems {
		fmt.Fprintln(out, p)
	}
	return nil
}

// brief removes the key of the rate, which comes first in a shape.
func brief(shape string) string { return strings.TrimPrefix(shape, "rate=") }
