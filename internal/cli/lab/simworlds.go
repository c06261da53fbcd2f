package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/base/ablation"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/files"
	"github.com/tabane/tabane/internal/experiment/worlds"
	"github.com/tabane/tabane/internal/sim/simrun"
)

type worldsFlags struct {
	kind, traffic          string
	seed                   uint64
	count, number, packets int
	runs, worst, jobs      int
	shard, csv, from, out  string
	ablate                 bool
	constants              []string
}

func (a *app) simWorlds() *cobra.Command {
	f := worldsFlags{}
	c := &cobra.Command{
		Use:   "worlds",
		Short: "Draw networks at random and judge all paths by the best of them alone",
		Long: `Worlds draws networks that nobody has named: 2 to 4 paths of 1 Mbit/s to 1 Gbit/s and 1 to 400 ms, with jitter, losses, queues and
events of all kinds, and traffic over them. It simulates each with all paths, and with each path alone, which is the judge. It prints
the distribution of what all paths brought, and the worlds in which it was farthest from its goal (docs/worlds.md).

A world is known by its kind, seed and number: the same ones draw the same world.

Exit code 0: all worlds were simulated, whatever came out; 2: it could not run, or was interrupted.`,
		Example: `  tabane sim worlds --count 100
  tabane sim worlds --kind epe --seed 7 --count 200 --out worst && tabane sim run worst/epe-7-42.yaml
  tabane sim worlds --traffic bulk --runs 3 --seed 41
  tabane sim worlds --kind epe --count 20 --ablate
  tabane sim worlds --ablate --constants burst,copyWait --runs 3
  tabane sim worlds --count 1000 --shard 0/2 --csv shard-0.csv
  tabane sim merge --out all.csv shard-*.csv && tabane sim worlds --from all.csv`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkWorlds(c, worlds.Kinds(), f.kind, f.count, f.number); err != nil {
				return err
			}
			switch {
			case f.packets < 0:
				return cli.Usage(c, fmt.Errorf("--packets must be > 0, got %d", f.packets))
			case f.runs < 1 || f.runs > maxRuns:
				return cli.Usage(c, fmt.Errorf("--runs must be from 1 to %d, got %d", maxRuns, f.runs))
			case f.traffic != "" && !slices.Contains(worlds.Traffic(worlds.Kind(f.kind)), f.traffic):
				return cli.Usage(c, fmt.Errorf("--traffic of %s must be one of %s, got %q", f.kind, strings.Join(worlds.Traffic(worlds.Kind(f.kind)), ", "), f.traffic))
			case f.worst < 0:
				return cli.Usage(c, fmt.Errorf("--worst must not be negative, got %d", f.worst))
			case c.Flags().Changed("jobs") && f.jobs < 1:
				return cli.Usage(c, fmt.Errorf("--jobs must be > 0, got %d", f.jobs))
			case f.shard != "" && f.csv == "":
				return cli.Usage(c, errors.New("--shard needs --csv: the shards are merged from their files"))
			case f.ablate && (f.csv != "" || f.from != "" || f.out != ""):
				return cli.Usage(c, errors.New("--ablate prints a table of its own: leave out --csv, --from and --out"))
			case len(f.constants) > 0 && !f.ablate:
				return cli.Usage(c, errors.New("--constants needs --ablate"))
			case f.from != "" && (f.shard != "" || f.csv != ""):
				return cli.Usage(c, errors.New("--from reads worlds that were simulated before: leave out --shard and --csv"))
			}
			defer debug.SetGCPercent(debug.SetGCPercent(worldsGC))
			if f.ablate {
				return a.ablate(c.Context(), f)
			}
			return a.worlds(c.Context(), f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.kind, "kind", string(worlds.Gateway), "`kind` of worlds: "+kindList(worlds.Kinds()))
	flags.StringVar(&f.traffic, "traffic", "", "simulate this `traffic` only, in the worlds that have it")
	flags.Uint64Var(&f.seed, "seed", simrun.FirstSeed, "`seed` of all worlds")
	flags.IntVar(&f.count, "count", 100, "number of worlds")
	flags.IntVar(&f.number, "number", 0, "number of the first world, to repeat one: --number 42 --count 1")
	flags.IntVar(&f.packets, "packets", worlds.DefaultPackets, "packets that all paths can carry in a transfer, which bounds its time")
	flags.IntVar(&f.runs, "runs", 1, "how often each cell runs, with other random numbers each time: means are compared")
	flags.IntVar(&f.worst, "worst", 10, "how many of the worst worlds to show")
	flags.StringVar(&f.out, "out", "", "`directory` for the worst worlds: scenarios, which sim run and lab run take, and why")
	flags.StringVar(&f.csv, "csv", "", "CSV `file` that a row is added to for each world; worlds in it are not simulated again")
	flags.StringVar(&f.from, "from", "", "show the worlds of this CSV `file` instead of simulating any")
	flags.StringVar(&f.shard, "shard", "", "simulate only every Nth world, from I on (0 to N-1), as `I/N`; see sim merge")
	flags.BoolVar(&f.ablate, "ablate", false, "simulate the worlds with half of each constant of the decisions, twice as much, and without it")
	flags.StringSliceVar(&f.constants, "constants", nil, "with --ablate, these `names` of constants only (default: all)")
	flags.IntVar(&f.jobs, "jobs", 0, "number of worlds simulated in parallel (default: number of processors)")
	return c
}

// worldsGC is GOGC in percent: a simulation is over before it needs the memory that is saved by
// collecting more often.
const worldsGC = 400

// maxWorlds bounds the number of worlds, maxRuns that of the runs of each cell.
const maxWorlds, maxRuns = 1_000_000, 1000

// checkWorlds checks the flags that choose worlds.
func checkWorlds(c *cobra.Command, of []worlds.Kind, kind string, count, number int) error {
	switch {
	case !slices.Contains(of, worlds.Kind(kind)):
		return cli.Usage(c, fmt.Errorf("--kind must be %s, got %q", kindList(of), kind))
	case count < 1 || number < 0 || count > maxWorlds || number > maxWorlds:
		return cli.Usage(c, fmt.Errorf("--count must be from 1 and --number from 0 to %d, got %d and %d", maxWorlds, count, number))
	}
	return nil
}

func kindList(of []worlds.Kind) string {
	list := string(of[0])
	for _, k := range of[1 : len(of)-1] {
		list += ", " + string(k)
	}
	return list + " or " + string(of[len(of)-1])
}

func (a *app) worlds(ctx context.Context, f worldsFlags) error {
	judged, err := a.judgedWorlds(ctx, f)
	if err != nil || f.shard != "" {
		return err
	}
	kind := judged[0].Kind
	list, err := worlds.Distribute(kind, simrun.Values(judged))
	if err != nil {
		return &cli.Failure{What: "judge worlds", Why: err}
	}
	if err := printDistributions(a.Out, list); err != nil {
		return err
	}
	worst := simrun.Worst(judged, f.worst)
	if err := printWorst(a.Out, worst); err != nil || f.out == "" {
		return err
	}
	return a.writeWorlds(ctx, f.out, worst)
}

func (a *app) worldsOptions(f worldsFlags) simrun.WorldsOptions {
	return simrun.WorldsOptions{
		Draw:  worlds.Options{Kind: worlds.Kind(f.kind), Seed: f.seed, Number: f.number, Packets: f.packets, Runs: f.runs},
		Count: f.count, Traffic: f.traffic, Version: a.Version, File: f.csv, Jobs: f.jobs,
	}
}

// judgedWorlds simulates or reads worlds.
func (a *app) judgedWorlds(ctx context.Context, f worldsFlags) ([]simrun.Judged, error) {
	const what = "simulate worlds"
	if f.from != "" {
		judged, err := simrun.ReadWorlds(f.from)
		return judged, worldsFailure("read worlds", f.from, err, "name a file that sim worlds --csv or sim merge wrote")
	}
	o := a.worldsOptions(f)
	var err error
	if o.Shard, o.Shards, err = parseShard(f.shard); err != nil {
		return nil, &cli.Failure{What: "use --shard", Name: f.shard, Why: err, Do: "see tabane sim worlds --help"}
	}
	if o.Base, err = loadScenario(o.Draw.Kind.Base()); err != nil {
		return nil, err
	}
	p := newProgress(a.Err, cli.Width(a.Err), "worlds")
	o.Progress = p.show
	begun := time.Now()
	judged, err := simrun.Worlds(ctx, o)
	p.clear()
	switch {
	case ctx.Err() != nil && f.csv != "":
		return nil, simFailure(ctx, what, "", err, "the worlds so far are in "+f.csv+"; the same command continues from there")
	case ctx.Err() != nil:
		return nil, simFailure(ctx, what, "", err, "nothing was written; with --csv the worlds so far are kept")
	case err != nil:
		return nil, worldsFailure(what, f.csv, err, "choose another with --csv")
	}
	fmt.Fprintf(a.Err, "%s in %.1f s\n", cli.Quantity(len(judged), "world"), time.Since(begun).Seconds())
	if f.csv != "" {
		judged, err = simrun.ReadWorlds(f.csv)
		return judged, worldsFailure("read worlds", f.csv, err, "")
	}
	return judged, nil
}

// ablate prints what each constant of the decisions is worth.
func (a *app) ablate(ctx context.Context, f worldsFlags) error {
	const what = "change constants"
	o := a.worldsOptions(f)
	var err error
	if o.Base, err = loadScenario(o.Draw.Kind.Base()); err != nil {
		return err
	}
	of := simrun.Constants(o.Draw.Kind)
	for _, name := range f.constants {
		if !slices.ContainsFunc(of, func(c ablation.Constant) bool { return c.Name == name }) {
			return &cli.Failure{What: what, Name: name, Why: fmt.Errorf("the decisions in worlds of kind %s have no such constant", f.kind), Do: "see their names in docs/worlds.md"}
		}
	}
	if len(f.constants) > 0 {
		of = slices.DeleteFunc(of, func(c ablation.Constant) bool { return !slices.Contains(f.constants, c.Name) })
	}
	p := newProgress(a.Err, cli.Width(a.Err), "variants")
	o.Progress = p.show
	list, err := simrun.Ablate(ctx, o, of)
	p.clear()
	switch {
	case ctx.Err() != nil:
		return simFailure(ctx, what, "", err, "nothing was written")
	case err != nil:
		return &cli.Failure{What: what, Why: err}
	}
	return printAblation(a.Out, list)
}

// printAblation prints a table of what other values of constants change.
func printAblation(out io.Writer, list []simrun.Ablation) error {
	lines := [][]string{{"CONSTANT", "CHANGED", "MISSES", "BETTER", "WORSE", "GAIN, %", "5 %"}}
	for i, x := range list {
		name, changed := x.Name, x.Value+" to "+x.Changed
		if name == "" {
			name, changed = "(as they are)", x.Changed
		}
		if i == 0 { // what the others are compared with
			lines = append(lines, []string{name, "", strconv.Itoa(x.Misses), "", "", "", x.Low})
			continue
		}
		lines = append(lines, []string{name, changed, strconv.Itoa(x.Misses), strconv.Itoa(x.Better), strconv.Itoa(x.Worse), fmt.Sprintf("%.1f ±%.1f", 100*x.Gain, 100*x.Within), x.Low})
	}
	return writeColumns(out, lines, 2, cli.Width(out), "")
}

// worldsFailure returns the failure of reading or simulating worlds; nil without an error.
func worldsFailure(what, file string, err error, do string) error {
	var path *fs.PathError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &path):
		return cli.FileFailure(what, path.Path, path)
	case errors.Is(err, simrun.ErrOtherFile), errors.Is(err, simrun.ErrNotRegular), errors.Is(err, simrun.ErrBusy), errors.Is(err, simrun.ErrNotWorlds):
		return &cli.Failure{What: what, Name: file, Why: err, Do: do}
	}
	return &cli.Failure{What: what, Why: err}
}

// printDistributions prints a table of distributions.
func printDistributions(out io.Writer, list []worlds.Distribution) error {
	lines := [][]string{{"MEASURE", "N", "WORST", "1 %", "5 %", "MEDIAN", "95 %", "GOAL 1 %", "MEET IT"}}
	for _, d := range list {
		lines = append(lines, []string{d.Title, strconv.Itoa(d.Worlds), d.Text(d.Least), d.Text(d.P1), d.Text(d.P5), d.Text(d.Median), d.Text(d.P95), d.GoalText(), d.MetText()})
	}
	return writeColumns(out, lines, 1, cli.Width(out), "")
}

// printWorst prints the worst worlds.
func printWorst(out io.Writer, list []simrun.WorstWorld) error {
	if len(list) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nThe worst:")
	for _, x := range list {
		w := worlds.Draw(x.Options)
		if _, err := fmt.Fprintf(out, "%s: %s %s\n  %s\n", w.Name(), x.Measure.Name, x.Measure.Text(x.Values[x.Measure.Name]), strings.Join(w.Lines(), "\n  ")); err != nil {
			return err
		}
	}
	return nil
}

// writeWorlds writes worlds as scenario files, with the course of each beside it.
func (a *app) writeWorlds(ctx context.Context, dir string, list []simrun.WorstWorld) error {
	const what = "write worlds"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cli.FileFailure(what, dir, err)
	}
	write := func(name string, content []byte) error {
		if err := writeFile(filepath.Join(dir, name), content); err != nil {
			return &cli.Failure{What: what, Name: dir, Why: err, Do: "name a directory that this user can write"}
		}
		return nil
	}
	for _, x := range list {
		w := worlds.Draw(x.Options)
		base, err := loadScenario(w.Kind.Base())
		if err != nil {
			return err
		}
		text, err := files.Encode(w.Spec(base))
		if err != nil {
			return &cli.Failure{What: what, Name: w.Name(), Why: err}
		}
		if err := write(w.Name()+".yaml", text); err != nil {
			return err
		}
		course, err := simrun.Why(ctx, w, base, x.Measure)
		if err != nil {
			return simFailure(ctx, "simulate world", w.Name(), err, "")
		}
		if err := write(w.Name()+".txt", []byte(course)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.Out, "\n%s in %s: tabane sim run FILE, tabane lab run FILE\n", cli.Quantity(len(list), "scenario"), dir)
	return err
}
