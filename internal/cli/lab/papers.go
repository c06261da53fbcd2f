package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/papers"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/sim/simrun"
)

func (a *app) papersCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "papers [FIGURE...]",
		Short:   "Show which figures of the papers are reproduced, or reproduce one",
		GroupID: "lab",
		Long: `Papers shows the figures of the five papers (docs/papers.md): what reproduces each, what was published, what came out here, and
whether the paper's findings hold. A figure is the letter of its paper and its number, as D8; without names all are shown.`,
		Example: `  tabane papers
  tabane papers B9 D8
  tabane papers run D8`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := entries(args)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(a.Out, list)
			}
			for i, e := range list {
				if i > 0 {
					fmt.Fprintln(a.Out)
				}
				showEntry(a.Out, e)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(a.papersRun())
	return c
}

type figureFlags struct {
	out, backend string
	trials       int
	quick, json  bool
}

func (a *app) papersRun() *cobra.Command {
	var f figureFlags
	c := &cobra.Command{
		Use:   "run FIGURE",
		Short: "Reproduce a figure and compare it with the paper and with what came out before",
		Long: `Run runs the scenario of a figure, in the cells that the figure needs, and compares each finding of the paper with what came out
now and when the table was written. The report is that of "sim run" or "lab run".

Exit code 0: each finding holds, or does not, as in the table; 1: some do not as in the table; 2: it could not run, or was interrupted.`,
		Example: `  tabane papers run D8
  tabane papers run B9 --backend lab --trials 4`,
		Args: cli.Arguments(1, 1, "one figure"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case c.Flags().Changed("trials") && f.trials < 1:
				return cli.Usage(c, fmt.Errorf("--trials must be > 0, got %d", f.trials))
			case f.backend != "" && f.backend != result.BackendLab && f.backend != result.BackendSim:
				return cli.Usage(c, fmt.Errorf("--backend must be %s or %s, got %q", result.BackendSim, result.BackendLab, f.backend))
			}
			return a.reproduce(c.Context(), args[0], f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.out, "out", "", "`directory` for the report (default out/FIGURE); an earlier result in it is replaced")
	flags.StringVar(&f.backend, "backend", "", "where to run it: sim or lab (default: the figure's)")
	flags.IntVar(&f.trials, "trials", 0, "trials of each cell (default: those of the scenario, 1 with --quick)")
	flags.BoolVar(&f.quick, "quick", false, "bound each run, for a first look; values then differ from those of the table")
	flags.BoolVar(&f.json, "json", false, "print the comparison as JSON")
	return c
}

// figureSpec returns the scenario of a figure with the figure's cells, nil if it has none.
func figureSpec(f papers.Figure) (*scenario.Spec, error) {
	if f.Scenario == "" {
		return nil, nil
	}
	_, spec, err := chosenCells(f.Scenario, "", f.Cells, false)
	return spec, err
}

// findFigure returns a figure by its name.
func findFigure(name string) (papers.Figure, error) {
	f, ok := papers.Find(name)
	if !ok {
		var all []string
		for _, f := range papers.All() {
			all = append(all, f.ID)
		}
		return f, &cli.Failure{What: "find figure", Name: name, Why: errors.New("no paper has it, or it measures nothing"), Do: "there are " + strings.Join(all, ", ")}
	}
	return f, nil
}

// entries returns the named figures, or all, with what was recorded of them.
func entries(names []string) ([]papers.Entry, error) {
	figures := papers.All()
	if len(names) > 0 {
		figures = nil
	}
	for _, name := range names {
		f, err := findFigure(name)
		if err != nil {
			return nil, err
		}
		figures = append(figures, f)
	}
	record := papers.Recorded()
	var list []papers.Entry
	for _, f := range figures {
		spec, err := figureSpec(f)
		if err != nil {
			return nil, err
		}
		e, err := f.Enter(spec, record[f.ID])
		if err != nil {
			return nil, &cli.Failure{What: "read figure", Name: f.ID, Why: err}
		}
		list = append(list, e)
	}
	return list, nil
}

// tableWidth is the number of columns of the table.
const tableWidth = 80

func showEntry(w io.Writer, e papers.Entry) {
	show := func(key, text string) {
		if text != "" {
			cli.PrintWrapped(w, fmt.Sprintf("     %-11s", key), strings.Repeat(" ", 16), text, tableWidth)
		}
	}
	cli.PrintWrapped(w, fmt.Sprintf("%-5s", e.ID), "     ", e.Title, tableWidth)
	show("command", e.CommandLine())
	show("published", e.Published)
	show("ours", strings.ReplaceAll(e.Got, "`", ""))
	show("verdict", string(e.Outcome))
	show("because", strings.ReplaceAll(e.Because, "`", ""))
}

// figureJSON is a figure in JSON.
type figureJSON struct {
	Figure    string      `json:"figure"`
	Title     string      `json:"title"`
	Command   string      `json:"command"`
	Published string      `json:"published"`
	Ours      string      `json:"ours"`
	Verdict   string      `json:"verdict"`
	Because   string      `json:"because"`
	Claims    []claimJSON `json:"claims"`
}

// claimJSON is a finding of a paper. Now is what came out in this run, of "papers run" alone.
type claimJSON struct {
	Name     string          `json:"name"`
	Want     string          `json:"want"`
	Recorded result.Verdict  `json:"recorded"`
	Now      *result.Verdict `json:"now,omitempty"`
}

func inJSON(e papers.Entry, now []result.Verdict) figureJSON {
	j := figureJSON{e.ID, e.Title, e.CommandLine(), e.Published, e.Got, string(e.Outcome), e.Because, []claimJSON{}}
	for i, v := range e.Claimed {
		c := claimJSON{Name: v.Name, Want: v.Want, Recorded: v}
		if now != nil {
			c.Now = &now[i]
		}
		j.Claims = append(j.Claims, c)
	}
	return j
}

func writeJSON(w io.Writer, list []papers.Entry) error {
	all := make([]figureJSON, len(list))
	for i, e := range list {
		all[i] = inJSON(e, nil)
	}
	return encodeIndented(w, all)
}

func encodeIndented(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// reproduce runs the scenario of a figure and compares.
func (a *app) reproduce(ctx context.Context, name string, f figureFlags) error {
	figure, err := findFigure(name)
	if err != nil {
		return err
	}
	if figure.Scenario == "" {
		return &cli.Failure{What: "reproduce figure", Name: figure.ID, Why: errors.New("it is not compared"), Do: "run " + figure.CommandLine()}
	}
	list, err := entries([]string{name})
	if err != nil {
		return err
	}
	before := list[0]
	f.out = cmp.Or(f.out, filepath.Join("out", figure.ID))
	// Verdicts are of the backend that ran.
	figure = figure.On(cmp.Or(f.backend, figure.Backend))
	var spec *scenario.Spec
	var r result.Result
	if figure.Backend == result.BackendSim {
		spec, r, err = a.simulation(ctx, figure.Scenario, &simFlags{out: f.out, trials: f.trials, quick: f.quick, seed: simrun.FirstSeed, cells: figure.Cells})
	} else {
		run := runFlags{out: f.out, trials: f.trials, quick: f.quick, cells: figure.Cells, routers: cmp.Or(figure.Routers, lab.RoutersEmbedded)}
		if figure.Captures() {
			run.compare = simrun.Backend
		}
		var o labOutcome
		o, err = a.measured(ctx, figure.Scenario, &run)
		spec, r = o.spec, o.lab
	}
	if err != nil {
		return err
	}
	figure.Values = ownValues(figure, before.Figure)
	now, err := figure.Enter(spec, map[string][]result.Cell{figure.Backend: r.Summary})
	if err != nil {
		return &cli.Failure{What: "compare figure", Name: figure.ID, Why: err}
	}
	if f.json {
		err = encodeIndented(a.Out, inJSON(before, now.Claimed))
	} else {
		showComparison(a.Out, before, now)
		fmt.Fprintf(a.Out, "\nreport: %s\n", filepath.Join(f.out, "report.html"))
	}
	if err != nil {
		return err
	}
	for i, v := range now.Claimed {
		if v.Holds != before.Claimed[i].Holds {
			return cli.ErrUnmet
		}
	}
	return nil
}

// ownValues returns the values of a figure that the backend which ran has measured.
func ownValues(ran, before papers.Figure) (values []papers.Value) {
	for _, v := range before.Values {
		if ran.Backend == before.Backend && !v.Kernel {
			values = append(values, v)
		} else if ran.Backend == result.BackendLab && v.Kernel {
			v.Kernel = false
			values = append(values, v)
		}
	}
	return values
}

func showComparison(w io.Writer, before, now papers.Entry) {
	cli.PrintWrapped(w, fmt.Sprintf("%-5s", before.ID), "     ", before.Title, tableWidth)
	show := func(key, text string) {
		if text != "" {
			cli.PrintWrapped(w, fmt.Sprintf("     %-11s", key), strings.Repeat(" ", 16), text, tableWidth)
		}
	}
	show("published", before.Published)
	show("recorded", strings.ReplaceAll(before.Got, "`", ""))
	show("now", strings.ReplaceAll(now.Got, "`", ""))
	for i, v := range now.Claimed {
		fmt.Fprintln(w)
		cli.PrintWrapped(w, "     ", "     ", v.Name, tableWidth)
		show("want", v.Want)
		show("recorded", holds(before.Claimed[i]))
		show("now", holds(v))
	}
	fmt.Fprintln(w)
	show("recorded", string(before.Outcome))
	show("now", string(now.Outcome))
	show("because", strings.ReplaceAll(before.Because, "`", ""))
}

func holds(v result.Verdict) string {
	if v.Holds {
		return v.Got + ": holds"
	}
	return v.Got + ": does not hold"
}
