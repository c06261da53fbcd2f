package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/simrun"
)

type sweepFlags struct {
	set                     []string
	pattern                 string
	traffic, transport, out string
	seeds, jobs             int
	seed                    uint64
	summary                 bool
}

func (a *app) simSweep() *cobra.Command {
	var f sweepFlags
	c := &cobra.Command{
		Use:   "sweep NAME|FILE",
		Short: "Simulate a scenario over a grid of parameters, to a CSV file",
		Long: `Sweep simulates one case of a scenario with every combination of the values that --set gives, and adds a row for each run to
a CSV file. It can be stopped at any time, in any way, and goes on where it was: rows of the same simulation that are in the
file are not run again. The same scenario, parameters and seeds give the same file.

What --set can name (LINK is a link of the scenario):

` + parameterList() + `
Exit code 0: all rows are there; 1: they are, and some say that a delivery failed; 2: it could not run, or was interrupted.`,
		Example: `  tabane sim sweep reseq-loss --transport mptcp --set path2.forward.loss=0,1e-4,1e-3,1e-2 --set rbuf=65kB,260kB,unlimited --out loss.csv
  tabane sim sweep reseq-delay --set path2.delay=20ms,50ms,100ms --set path2.rate=2Mbit/s,10Mbit/s --seeds 12 --summary --out grid.csv`,
		Args: arguments(1, 1, "one scenario"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case f.out == "":
				return usage(c, errors.New("--out must name a file"))
			case f.seeds < 1:
				return usage(c, fmt.Errorf("--seeds must be > 0, got %d", f.seeds))
			case f.seed < 1:
				return usage(c, fmt.Errorf("--seed must be > 0, got %d", f.seed))
			case c.Flags().Changed("jobs") && f.jobs < 1:
				return usage(c, fmt.Errorf("--jobs must be > 0, got %d", f.jobs))
			}
			return a.sweep(c.Context(), args[0], f)
		},
	}
	flags := c.Flags()
	flags.StringArrayVar(&f.set, "set", nil, "`NAME=VALUE,VALUE...`: a parameter and its values; may be given several times")
	flags.StringVar(&f.pattern, "case", "", "the case that is changed (default: the scenario's first)")
	flags.StringVar(&f.traffic, "traffic", "", "only this traffic (default: all)")
	flags.StringVar(&f.transport, "transport", "", "only this transport (default: all)")
	flags.IntVar(&f.seeds, "seeds", 1, "how many runs there are of each combination")
	flags.Uint64Var(&f.seed, "seed", simrun.FirstSeed, "the first seed; each further run has the next")
	flags.StringVar(&f.out, "out", "", "the CSV `file` that rows are added to")
	flags.BoolVar(&f.summary, "summary", false, "one row for all seeds, with mean and standard deviation of each metric")
	flags.IntVar(&f.jobs, "jobs", 0, "how many runs are simulated side by side (default: as many as there are processors)")
	return c
}

// parameterList says what --set can name, in lines of a terminal's width.
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

Keys of links without a direction are of both; LINK.forward.KEY and LINK.backward.KEY are of one, for rate, delay, jitter,
loss, duplicate and queue. Keys and values are those of a scenario's file ("tabane help lab set" has short forms); a name may
be shortened to its last part, packets for LINK.buffer.packets.
`
}

func (a *app) sweep(ctx context.Context, name string, f sweepFlags) error {
	const what = "sweep the scenario"
	spec, err := simulated(name)
	if err != nil {
		return err
	}
	grid := simrun.Grid{
		Spec: spec, Case: f.pattern, Traffic: f.traffic, Transport: f.transport, Seeds: f.seeds, Seed: f.seed, Version: a.version, Summary: f.summary,
	}
	for _, text := range f.set {
		axis, err := simrun.ParseAxis(spec, text)
		if err != nil {
			return &usageError{fmt.Sprintf("--set %s: %v", text, err), "see tabane sim sweep --help"}
		}
		grid.Axes = append(grid.Axes, axis)
	}
	p := newProgress(a.err, width(a.err), "rows")
	begun := time.Now()
	result, err := simrun.Sweep(ctx, simrun.SweepOptions{Grid: grid, File: f.out, Jobs: f.jobs, Progress: p.show})
	p.clear()
	var path *fs.PathError
	switch {
	case ctx.Err() != nil:
		return simFailure(ctx, what, name, err, "the rows so far are in "+f.out+"; the same command goes on from there")
	case errors.Is(err, simrun.ErrOtherFile), errors.Is(err, simrun.ErrBusy):
		return &failure{what: what, on: name, why: err, do: "choose another with --out"}
	case errors.As(err, &path):
		return fileFailure("write the rows", path.Path, path)
	case err != nil:
		return &failure{what: what, on: name, why: err}
	}
	text := fmt.Sprintf("%s: %s", f.out, quantity(result.Rows, "row"))
	if result.Kept > 0 {
		text += fmt.Sprintf(", %d of them there before", result.Kept)
	}
	if result.Repaired {
		text += ", one cut off and made again"
	}
	if result.Failed > 0 {
		text += fmt.Sprintf(", %d whose delivery failed", result.Failed)
	}
	fmt.Fprintf(a.out, "%s; %.1f s\n", text, time.Since(begun).Seconds())
	if result.Failed > 0 {
		return errUnmet
	}
	return nil
}
