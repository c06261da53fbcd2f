package lab

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/worlds"
	"github.com/tabane/tabane/internal/lab/labrun"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/sim/simrun"
)

type labWorldsFlags struct {
	kind, rate          string
	seed                uint64
	count, number, jobs int
}

func (a *app) labWorlds() *cobra.Command {
	f := labWorldsFlags{}
	c := &cobra.Command{
		Use:   "worlds",
		Short: "Run drawn worlds on the kernel and compare them with the simulator",
		Long: `Worlds runs worlds of "sim worlds" in labs, one after the other, and simulates each: the goodput of each cell in both shows how far
the verdicts of the simulator count for the kernel (docs/worlds.md); of downloads at once it is that of all, and of calls the 95th
percentile of the delay. Faster worlds than --rate are left out, because emulated links take CPU time. SIM is the median of nine
simulated runs with other random numbers each, LEAST and MOST what they span: no lab can be expected to be closer to the median than
these runs are.

Exit code 0: all ran, whatever came out; 2: it could not run, or was interrupted.`,
		Example: `  tabane lab worlds --count 5
  tabane lab worlds --kind clients --rate 40Mbit/s --count 3
  tabane lab worlds --kind epe --seed 7 --number 42 --count 1`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkWorlds(c, worlds.Kinds(), f.kind, f.count, f.number); err != nil {
				return err
			}
			if f.jobs < 1 {
				return cli.Usage(c, fmt.Errorf("--jobs must be > 0, got %d", f.jobs))
			}
			return a.runWorlds(c.Context(), f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.kind, "kind", string(worlds.Gateway), "`kind` of worlds: "+kindList(worlds.Kinds()))
	flags.Uint64Var(&f.seed, "seed", simrun.FirstSeed, "`seed` of all worlds")
	flags.IntVar(&f.count, "count", 30, "number of worlds")
	flags.IntVar(&f.number, "number", 0, "number of the first world")
	flags.IntVar(&f.jobs, "jobs", 1, "labs of a world that run in parallel: slow paths take time, but little CPU time")
	flags.StringVar(&f.rate, "rate", "100Mbit/s", "the most that all paths of a world may carry")
	return c
}

// skipped bounds the worlds that are left out in a row.
const skipped = 10_000

func (a *app) runWorlds(ctx context.Context, f labWorldsFlags) error {
	const what = "run worlds"
	most, err := unit.ParseBandwidth(f.rate)
	if err != nil {
		return cli.Invalid("--rate", f.rate, "a rate like 100Mbit/s")
	}
	if err := cli.Require(what, role.Namespaces, role.MPTCP, role.SRv6); err != nil {
		return err
	}
	kind := worlds.Kind(f.kind)
	base, err := loadScenario(kind.Base())
	if err != nil {
		return err
	}
	binary, err := product(what)
	if err != nil {
		return err
	}
	ctx, progress, stop := untilUnread(ctx, a.Err)
	defer stop()
	screen := newScreen(progress, cli.Width(a.Err))
	log, err := a.Logger(screen, slog.LevelWarn)
	if err != nil {
		return err
	}
	agreed, within, repeated, cells, left := 0, 0, 0, 0, 0
	for number, done := f.number, 0; done < f.count; number++ {
		w := worlds.Draw(worlds.Options{Kind: kind, Seed: f.seed, Number: number})
		if w.Rate() > most {
			if left++; left > skipped {
				return &cli.Failure{What: what, Why: fmt.Errorf("no world of %d is as slow as %s", skipped, most), Do: "raise --rate"}
			}
			continue
		}
		left = 0
		done++
		spec := w.InLab(base)
		outcome, err := labrun.Run(ctx, labrun.RunOptions{Binary: binary, Spec: spec, Parallel: f.jobs, Commit: a.Version, Log: log, Progress: screen.event})
		screen.clear()
		if err != nil {
			return labFailure(ctx, what, w.Name(), err)
		}
		simulated, err := simrun.Run(ctx, simrun.Options{Spec: spec, Trials: worldTrials, Seed: uint64(number + 1), Lateness: simrun.LabLateness})
		if err != nil {
			return simFailure(ctx, what, w.Name(), err, "")
		}
		list, err := worlds.Agree(outcome.Runs, simulated.Runs)
		if err != nil {
			return &cli.Failure{What: "compare world", Name: w.Name(), Why: err}
		}
		if err := printAgreement(a.Out, w, list); err != nil {
			return err
		}
		for _, x := range list {
			cells++
			if x.Agrees() {
				agreed++
			}
			if x.Within() {
				within++
			}
			if x.Sim.Repeats() {
				repeated++
			}
		}
	}
	_, err = fmt.Fprintf(a.Out, "\nOf %d cells, %d agree with the median of the simulator within %.0f %%, %d with what its runs span.\nIn %d, all of its runs agree with their median.\n",
		cells, agreed, 100*worlds.Tolerance, within, repeated)
	return err
}

// worldTrials is the number of simulated trials of each cell: what chance does in one of ten runs
// is within them.
const worldTrials = 9

// printAgreement prints the cells of a world.
func printAgreement(out io.Writer, world worlds.World, list []worlds.Agreement) error {
	fmt.Fprintln(out, world.Name())
	for _, line := range world.Lines() {
		fmt.Fprintln(out, "  "+line)
	}
	lines := [][]string{{"TRAFFIC", "TRANSPORT", "LAB", "SIM", "LEAST", "MOST", "SIM/LAB"}}
	ratio := func(sim, lab float64) string {
		if lab == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", sim/lab)
	}
	for _, x := range list {
		show := cli.Megabits
		if x.Delay() {
			show = func(seconds float64) string { return fmt.Sprintf("%.1f ms", 1e3*seconds) }
		}
		lines = append(lines, []string{x.Traffic, x.Transport, show(x.Lab), show(x.Sim.Median), show(x.Sim.Least), show(x.Sim.Most), ratio(x.Sim.Median, x.Lab)})
	}
	return writeColumns(out, lines, 2, cli.Width(out), "  ")
}
