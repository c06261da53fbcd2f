package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/report"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labrun"
	"github.com/tabane/tabane/internal/sim/simrun"
)

type sweepFlags struct {
	set                     []string
	pattern                 string
	traffic, transport, out string
	seeds, jobs             int
	seed                    uint64
	summary                 bool
	shard, report           string
}

func (a *app) simSweep() *cobra.Command {
	var f sweepFlags
	c := &cobra.Command{
		Use:               "sweep NAME|FILE",
		ValidArgsFunction: cli.CompleteNameOrFile(scenarioNames),
		Short:             "Simulate a scenario over a grid of parameters, to a CSV file",
		Long: `Sweep simulates one case of a scenario with every combination of the values that --set gives, and adds a row for each run to
a CSV file. A sweep that was stopped or killed continues where it was: rows of the same simulation that are in the file are not
run again. The same scenario, parameters and seeds give the same file.

What --set can name (LINK is a link of the scenario):

` + parameterList() + `
Exit code 0: all rows are there; 1: they are, and some say that a delivery failed; 2: it could not run, or was interrupted.`,
		Example: `  tabane sim sweep reseq-loss --transport mptcp --set path2.forward.loss=0,1e-4,1e-3,1e-2 --set rbuf=65kB,260kB,unlimited --out loss.csv
  tabane sim sweep reseq-rate --set path2.rate=1Mbit/s,2Mbit/s,5Mbit/s,10Mbit/s --seeds 12 --out rate.csv --report out/rate
  tabane sim sweep reseq-delay --set path2.delay=20ms,50ms,100ms --set path2.rate=2Mbit/s,10Mbit/s --seeds 12 --summary --out grid.csv`,
		Args: cli.Arguments(1, 1, "one scenario"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case f.out == "":
				return cli.Usage(c, errors.New("--out must name a file"))
			case f.shard != "" && f.report != "":
				return cli.Usage(c, errors.New("--report needs all rows: merge the shards first"))
			case f.seeds < 1:
				return cli.Usage(c, fmt.Errorf("--seeds must be > 0, got %d", f.seeds))
			case f.seed < 1:
				return cli.Usage(c, fmt.Errorf("--seed must be > 0, got %d", f.seed))
			case c.Flags().Changed("jobs") && f.jobs < 1:
				return cli.Usage(c, fmt.Errorf("--jobs must be > 0, got %d", f.jobs))
			}
			return a.sweep(c.Context(), args[0], f)
		},
	}
	flags := c.Flags()
	flags.StringArrayVar(&f.set, "set", nil, "a parameter and its values, as `NAME=VALUE,VALUE...`; may be given several times")
	flags.StringVar(&f.pattern, "case", "", "the case that is changed (default: the scenario's first)")
	flags.StringVar(&f.traffic, "traffic", "", "only this traffic (default: all)")
	flags.StringVar(&f.transport, "transport", "", "only this transport (default: all)")
	flags.IntVar(&f.seeds, "seeds", 1, "runs of each combination")
	flags.Uint64Var(&f.seed, "seed", simrun.FirstSeed, "the first seed; each further run has the next")
	flags.StringVar(&f.out, "out", "", "the CSV `file` that rows are added to")
	flags.BoolVar(&f.summary, "summary", false, "one row for all seeds, with mean and standard deviation of each metric")
	flags.StringVar(&f.shard, "shard", "", "simulate only every Nth row, from row I on (0 to N-1), as `I/N`; see sim merge")
	flags.StringVar(&f.report, "report", "", "`directory` for a report with figures; an earlier result in it is replaced")
	flags.IntVar(&f.jobs, "jobs", 0, "number of parallel simulations (default: number of processors)")
	return c
}

// parameterList returns the parameters of --set, wrapped for a terminal.
func parameterList() string {
	const columns = 100
	var b strings.Builder
	line := " "
	for _, p := range simrun.Parameters() {
		if strings.HasPrefix(p.Name, "LINK.forward.") || strings.HasPrefix(p.Name, "LINK.backward.") {
			continue
		}
		if len(line)+len(p.Name)+2 > columns {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + p.Name
	}
	return b.String() + line + `

Keys of links without a direction are of both; LINK.forward.KEY and LINK.backward.KEY are of one, for
` + linkmodel.Properties("and") + `.
Keys and values are those of a scenario's file ("tabane help lab set" has short forms); a name may be shortened to its last
part, packets for LINK.buffer.packets.
`
}

func (a *app) sweep(ctx context.Context, name string, f sweepFlags) error {
	const what = "sweep scenario"
	spec, err := loadScenario(name)
	if err != nil {
		return err
	}
	grid := simrun.Grid{
		Spec: spec, Case: f.pattern, Traffic: f.traffic, Transport: f.transport, Seeds: f.seeds, Seed: f.seed, Version: a.Version, Summary: f.summary,
	}
	if grid.Shard, grid.Shards, err = parseShard(f.shard); err != nil {
		return &cli.Failure{What: "use --shard", Name: f.shard, Why: err, Do: "see tabane sim sweep --help"}
	}
	if spec.Experiment != nil {
		spec, err = simulated(name, grid.Cells(), false)
	} else {
		spec, err = simulated(name, scenario.Selection{}, false)
	}
	if err != nil {
		return err
	}
	grid.Spec = spec
	if f.report != "" {
		made, err := resultDirectory(f.report)
		if err != nil {
			return err
		}
		defer made.leave()
	}
	for _, text := range f.set {
		axis, err := simrun.ParseAxis(spec, text)
		if err != nil {
			return &cli.UsageError{Why: fmt.Sprintf("--set %s: %v", text, err), Do: "see tabane sim sweep --help"}
		}
		grid.Axes = append(grid.Axes, axis)
	}
	p := newProgress(a.Err, cli.Width(a.Err), "rows")
	begun := time.Now()
	result, err := simrun.Sweep(ctx, simrun.SweepOptions{Grid: grid, File: f.out, Jobs: f.jobs, Progress: p.show})
	p.clear()
	var path *fs.PathError
	switch {
	case ctx.Err() != nil:
		return simFailure(ctx, what, name, err, "the rows so far are in "+f.out+"; the same command continues from there")
	case errors.Is(err, simrun.ErrOtherFile), errors.Is(err, simrun.ErrNotRegular), errors.Is(err, simrun.ErrBusy):
		return &cli.Failure{What: what, Name: name, Why: err, Do: "choose another with --out"}
	case errors.As(err, &path):
		return cli.FileFailure("write rows to", path.Path, path)
	case err != nil:
		return &cli.Failure{What: what, Name: name, Why: err}
	}
	text := fmt.Sprintf("%s: %s", f.out, cli.Quantity(result.Rows, "row"))
	if result.Kept > 0 {
		text += fmt.Sprintf(", %d of them there before", result.Kept)
	}
	if result.Repaired {
		text += ", one cut off and simulated again"
	}
	if result.Failed > 0 {
		text += fmt.Sprintf(", %d whose delivery failed", result.Failed)
	}
	fmt.Fprintf(a.Out, "%s; %.1f s\n", text, time.Since(begun).Seconds())
	if f.report != "" {
		shown, r, err := grid.Experiment(f.out, labrun.Host(a.Version))
		if err != nil {
			return &cli.Failure{What: "report sweep", Name: f.out, Why: err}
		}
		if err := replaceResult(f.report, func(dir string) error { return report.Write(dir, r, shown, report.Extra{Command: f.command(name)}) }); err != nil {
			return err
		}
		fmt.Fprintf(a.Out, "report: %s\n", filepath.Join(f.report, "report.html"))
	}
	if result.Failed > 0 {
		return cli.ErrUnmet
	}
	return nil
}

// command returns the command line of the sweep.
func (f sweepFlags) command(name string) string {
	parts := []string{"tabane sim sweep", name}
	add := func(flag, value string) {
		if value != "" {
			parts = append(parts, flag+" "+value)
		}
	}
	add("--case", f.pattern)
	add("--traffic", f.traffic)
	add("--transport", f.transport)
	for _, s := range f.set {
		add("--set", s)
	}
	add("--seeds", strconv.Itoa(f.seeds))
	if f.seed != simrun.FirstSeed {
		add("--seed", strconv.FormatUint(f.seed, 10))
	}
	if f.summary {
		parts = append(parts, "--summary")
	}
	add("--out", f.out)
	return strings.Join(parts, " ")
}

// parseShard parses "I/N", I from 0 to N-1. Empty text means no shards.
func parseShard(text string) (shard, shards int, err error) {
	if text == "" {
		return 0, 0, nil
	}
	i, n, ok := strings.Cut(text, "/")
	shard, errI := strconv.Atoi(i)
	shards, errN := strconv.Atoi(n)
	if !ok || errI != nil || errN != nil || shards < 1 || shard < 0 || shard >= shards {
		return 0, 0, errors.New("want I/N, I from 0 to N-1, like 0/8")
	}
	return shard, shards, nil
}

func (a *app) simMerge() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "merge FILE...",
		Short: "Merge the CSV files of a sweep's shards",
		Long: `Merge writes the rows of all shards of a sweep to one CSV file, in the order of the grid: the same file that the sweep writes
without --shard. A shard that is missing or not done is an error.`,
		Example: `  tabane sim merge --out grid.csv shard-*.csv`,
		Args:    cli.Arguments(1, -1, "the files of all shards"),
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return cli.Usage(c, errors.New("--out must name a file"))
			}
			rows, err := simrun.Merge(out, args)
			var path *fs.PathError
			switch {
			case errors.As(err, &path):
				return cli.FileFailure("merge shard", path.Path, path)
			case err != nil:
				return &cli.Failure{What: "merge shards", Why: err}
			}
			fmt.Fprintf(a.Out, "%s: %s of %s\n", out, cli.Quantity(rows, "row"), cli.Quantity(len(args), "shard"))
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "", "the CSV `file` to write; it must not exist")
	return c
}
