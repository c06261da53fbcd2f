package lab

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/report"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

type mergeFlags struct {
	out, summary, name string
	metrics            []string
}

func (a *app) labMerge() *cobra.Command {
	var f mergeFlags
	c := &cobra.Command{
		Use:   "merge NAME|FILE RESULT...",
		Short: "Join results of parts of a scenario's experiment",
		Long: `Merge joins results of one scenario, such as of several "lab run" with other cases or further trials, into one: each a
directory that "lab run" or "sim run" wrote, or its result.json. Runs of the same case, traffic and transport become its
trials. The expectations are judged and the report is written again; series and pages stay in the parts.

All parts must be of the same kernel and number of CPUs; the report lists their commits.

Exit code 0: all expectations hold; 1: some do not; 2: the results cannot be joined.`,
		Example: `  tabane lab merge epe-unequal out/monday out/tuesday --out out/both
  tabane lab merge gateway-sweep out/* --summary measured.json --metric goodput_bps`,
		Args: cli.Arguments(2, -1, "a scenario and results"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkMetrics(f.metrics); err != nil {
				return cli.Usage(c, err)
			}
			if len(f.metrics) > 0 && f.summary == "" {
				return cli.Usage(c, errors.New("--metric needs --summary"))
			}
			return a.merge(args[0], args[1:], f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.out, "out", "", "`directory` for the result (default out/NAME-merged, none with --summary); an earlier result in it is replaced")
	flags.StringVar(&f.summary, "summary", "", "write the result without its runs to this `file`")
	flags.StringVar(&f.name, "name", "", "`name` that the results were given by --name (default: the scenario's)")
	metricFlag(flags, &f.metrics, "a `metric` of --summary", "all")
	return c
}

func (a *app) merge(name string, parts []string, f mergeFlags) error {
	const what = "merge results of scenario"
	spec, err := loadScenario(name)
	if err != nil {
		return err
	}
	if spec, err = renamed(spec, f.name); err != nil {
		return err
	}
	var list []result.Result
	for _, part := range parts {
		r, err := readResult(part)
		if err != nil {
			return err
		}
		list = append(list, r)
	}
	whole, err := result.Merge(list)
	if err == nil && whole.Scenario != spec.Name {
		err = fmt.Errorf("they are of scenario %s, or ran with --name %[1]s", whole.Scenario)
	}
	if err != nil {
		return &cli.Failure{What: "merge results", Name: strings.Join(parts, ", "), Why: err, Do: "name results of parts of one experiment"}
	}
	if spec, err = ofParts(spec, whole); err != nil {
		return &cli.Failure{What: what, Name: name, Why: err, Do: "name the scenario as it was when they ran"}
	}
	if whole, err = spec.Conclude(whole); err != nil {
		return &cli.Failure{What: what, Name: name, Why: err}
	}
	if f.out == "" && f.summary == "" {
		f.out = filepath.Join("out", spec.Name+"-merged")
	}
	if f.out != "" {
		made, err := resultDirectory(f.out)
		if err != nil {
			return err
		}
		defer made.leave()
		command := "tabane lab merge " + strings.Join(append([]string{name}, parts...), " ")
		extra := report.Extra{Command: command, Text: scenarioText(name, spec), Made: time.Now()}
		if err := replaceResult(f.out, func(dir string) error { return report.Write(dir, whole, spec, extra) }); err != nil {
			return err
		}
	}
	if f.summary != "" {
		var b bytes.Buffer
		if err := whole.Published(f.metrics).Encode(&b); err != nil {
			return &cli.Failure{What: what, Name: name, Why: err}
		}
		if err := writeFile(f.summary, b.Bytes()); err != nil {
			return cli.FileFailure("write summary", f.summary, err)
		}
	}
	if err := report.Table(a.Out, whole, spec, cli.Width(a.Out)); err != nil {
		return err
	}
	if f.out != "" {
		fmt.Fprintf(a.Err, "\nreport: %s\n", filepath.Join(f.out, "report.html"))
	}
	if !whole.Holds() {
		return cli.ErrUnmet
	}
	return nil
}

// ofParts returns the scenario with the cells of a result alone; a cell that it does not have is an
// error.
func ofParts(spec *scenario.Spec, r result.Result) (*scenario.Spec, error) {
	if spec.Experiment == nil {
		return nil, errors.New("it has no experiment")
	}
	if r.Backend == result.BackendSim {
		spec = spec.ForSimulator()
	} else {
		spec = spec.ForLab()
	}
	cells := spec.Experiment.Cells()
	var l scenario.Selection
	for _, run := range r.Runs {
		if !slices.Contains(cells, run.CellKey) {
			return nil, fmt.Errorf("it has no cell %s", run.CellKey)
		}
		l.Cases, l.Traffic, l.Transports = append(l.Cases, run.Case), append(l.Traffic, run.Traffic), append(l.Transports, run.Transport)
	}
	return spec.Select(l)
}
