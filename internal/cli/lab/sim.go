package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/files"
	"github.com/tabane/tabane/internal/experiment/report"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labrun"
	"github.com/tabane/tabane/internal/sim/simrun"
	"github.com/tabane/tabane/scenarios"
)

func (a *app) simCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "sim",
		Short:   "Run a scenario's experiment in a simulator, once or over a grid of parameters",
		GroupID: "lab",
		Long: `Sim takes the same scenarios as lab and simulates them packet by packet: TCP and MPTCP with their windows, losses and
timers over links with rates, delays, queues and losses. It needs no privileges, and a run of 30 s takes some milliseconds.
There are no daemons and no BGP in it: a subflow takes the shortest way over its link.`,
		Example: `  tabane sim run reseq-delay
  tabane sim run epe-steady
  tabane sim sweep reseq-delay --set path2.delay=20ms,50ms,100ms --seeds 12 --out delay.csv
  tabane sim worlds --count 100`,
	}
	cli.Group(c)
	c.AddCommand(a.simRun(), a.simSweep(), a.simMerge(), a.simWorlds(), a.simNetworks(), a.simValidate())
	return c
}

type simFlags struct {
	out    string
	trials int
	quick  bool
	seed   uint64
	jobs   int
	pcap   string
	cells  scenario.Selection
	name   string
}

func (a *app) simRun() *cobra.Command {
	var f simFlags
	c := &cobra.Command{
		Use:               "run NAME|FILE",
		ValidArgsFunction: cli.CompleteNameOrFile(scenarioNames),
		Short:             "Simulate a scenario's experiment and write a report",
		Long: `Run simulates every traffic over every transport in every case. The result goes to a directory: result.json, CSV files,
figures, and report.html with all of it, as "lab run" writes them. The same scenario and seed give the same result.

Exit code 0: it ran and all expectations hold; 1: it ran, and some do not; 2: it could not run, or was interrupted.`,
		Example: `  tabane sim run reseq-buffer
  tabane sim run epe-change --quick
  tabane sim run reseq-rate --case r2 --transport mptcp --pcap r2.pcap && tabane reseq r2.pcap
  tabane sim run epe-failure --case 'a-*' --transport mptcp-epe
  tabane sim run ./my.yaml --trials 50 --out /tmp/mine`,
		Args: cli.Arguments(1, 1, "one scenario"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case c.Flags().Changed("trials") && f.trials < 1:
				return cli.Usage(c, fmt.Errorf("--trials must be > 0, got %d", f.trials))
			case c.Flags().Changed("jobs") && f.jobs < 1:
				return cli.Usage(c, fmt.Errorf("--jobs must be > 0, got %d", f.jobs))
			case f.seed < 1:
				return cli.Usage(c, fmt.Errorf("--seed must be > 0, got %d", f.seed))
			}
			return a.simulate(c.Context(), args[0], f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.out, "out", "", "`directory` for the result (default out/sim-NAME); an earlier result in it is replaced")
	flags.IntVar(&f.trials, "trials", 0, "trials of each cell (default: those of the scenario, 1 with --quick)")
	flags.BoolVar(&f.quick, "quick", false, "bound each run, for a first look: some expectations need a full run")
	flags.Uint64Var(&f.seed, "seed", simrun.FirstSeed, "seed of the first trial; each further one has the next")
	flags.IntVar(&f.jobs, "jobs", 0, "number of parallel simulations (default: number of processors)")
	flags.StringVar(&f.pcap, "pcap", "", "write a capture at the client, of the first trial, to this `file`; needs --case, --traffic and --transport of one cell")
	selectionFlags(flags, &f.cells)
	flags.StringVar(&f.name, "name", "", "`name` of the result and its directory (default: the scenario's)")
	return c
}

// severalTimes is said of flags that take a list.
const severalTimes = "; several with commas or several times"

// selectionFlags adds the flags that choose cells of an experiment.
func selectionFlags(flags *pflag.FlagSet, l *scenario.Selection) {
	const which = severalTimes + ", * matches any text (default: all)"
	flags.StringSliceVar(&l.Cases, "case", nil, "only `case`s of that name"+which)
	flags.StringSliceVar(&l.Traffic, "traffic", nil, "only `traffic` of that name"+which)
	flags.StringSliceVar(&l.Transports, "transport", nil, "only `transport`s of that name"+which)
}

// selectionArguments returns the command-line arguments of the selection.
func selectionArguments(l scenario.Selection) []string {
	var parts []string
	for _, flag := range []struct {
		name   string
		values []string
	}{{"--case", l.Cases}, {"--traffic", l.Traffic}, {"--transport", l.Transports}} {
		for _, v := range flag.values {
			if strings.Contains(v, "*") {
				v = "'" + v + "'"
			}
			parts = append(parts, flag.name+" "+v)
		}
	}
	return parts
}

// simulated reads a scenario, selects cells of it, and refuses cells that the simulator does not
// support.
func simulated(name string, cells scenario.Selection, quick bool) (*scenario.Spec, error) {
	spec, chosen, err := chosenCells(name, "", cells, quick)
	if err != nil {
		return nil, err
	}
	chosen = chosen.ForSimulator()
	return chosen, simulable(name, spec, chosen)
}

// chosenCells reads a scenario in a family and selects cells of it: those of a quick pass where the
// command line chooses none.
func chosenCells(name, family string, cells scenario.Selection, quick bool) (whole, chosen *scenario.Spec, err error) {
	if whole, err = loadFamily(name, family); err != nil {
		return nil, nil, err
	}
	if quick && whole.Experiment != nil {
		cells = cells.Or(whole.Experiment.Quick)
	}
	if chosen, err = whole.Select(cells); err != nil {
		return nil, nil, &cli.Failure{What: "choose cells of", Name: name, Why: err}
	}
	return whole, chosen, nil
}

// renamed returns the scenario under another name, unless that is empty. The name is also that of
// its lab.
func renamed(spec *scenario.Spec, name string) (*scenario.Spec, error) {
	if name == "" {
		return spec, nil
	}
	other := *spec
	other.Name = name
	for _, f := range other.Check() {
		if f.Path == "name" {
			return nil, &cli.Failure{What: "use --name", Name: name, Why: errors.New(f.Message)}
		}
	}
	return &other, nil
}

// simulable returns the faults of chosen cells that the simulator does not support, with their
// positions in the scenario's file.
func simulable(name string, whole, chosen *scenario.Spec) error {
	if whole.Experiment == nil {
		return &cli.Failure{What: "simulate scenario", Name: name, Why: errors.New("it has no experiment"), Do: "see docs/scenarios.md"}
	}
	return locate(name, inFile(whole, chosen, simrun.Check(chosen)))
}

// inFile returns faults of chosen cells as those of the whole scenario, whose indexes count all
// cases.
func inFile(whole, chosen *scenario.Spec, faults fault.List) fault.List {
	for i, f := range faults {
		var n int
		if _, err := fmt.Sscanf(f.Path, "experiment.cases[%d]", &n); err == nil {
			in := slices.IndexFunc(whole.Experiment.Cases, func(c scenario.Case) bool { return c.Name == chosen.Experiment.Cases[n].Name })
			faults[i].Path = strings.Replace(f.Path, fmt.Sprintf("[%d]", n), fmt.Sprintf("[%d]", in), 1)
		}
	}
	return faults
}

// locate gives faults of a scenario that is otherwise valid their places in its file; nil where
// there are none.
func locate(name string, faults fault.List) error {
	if len(faults) == 0 {
		return nil
	}
	read := texts.read
	if !fromFile(name) {
		read = scenarios.Read
	}
	data, err := read(name)
	if err != nil {
		return cli.FileFailure("read scenario", name, err)
	}
	if !fromFile(name) {
		name = builtIn(name)
	}
	return files.Locate(name, data, faults)
}

func (a *app) simulate(ctx context.Context, name string, f simFlags) error {
	spec, r, err := a.simulation(ctx, name, &f)
	if err != nil {
		return err
	}
	if err := report.Table(a.Out, r, spec, cli.Width(a.Out)); err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "\nreport: %s\n", filepath.Join(f.out, "report.html"))
	if !r.Holds() {
		a.noteQuick(f.quick)
		return cli.ErrUnmet
	}
	return nil
}

// noteQuick says what a quick pass in which an expectation failed does not show.
func (a *app) noteQuick(quick bool) {
	if quick {
		fmt.Fprintln(a.Out, "what fails in a quick pass may hold in a full one: run it without --quick")
	}
}

// simulation simulates a scenario and writes the report, without printing a table.
func (a *app) simulation(ctx context.Context, name string, f *simFlags) (spec *scenario.Spec, r result.Result, err error) {
	if spec, err = simulated(name, f.cells, f.quick); err != nil {
		return nil, r, err
	}
	if spec, err = renamed(spec, f.name); err != nil {
		return nil, r, err
	}
	if f.out == "" {
		f.out = filepath.Join("out", "sim-"+spec.Name)
	}
	made, err := resultDirectory(f.out)
	if err != nil {
		return nil, r, err
	}
	defer made.leave()
	var capture io.Writer
	if f.pcap != "" {
		file, err := os.Create(f.pcap)
		if err != nil {
			return nil, r, cli.FileFailure("write capture", f.pcap, err)
		}
		defer file.Close()
		capture = file
	}
	var series []result.Trace
	p := newProgress(a.Err, cli.Width(a.Err), "runs")
	r, err = simrun.Run(ctx, simrun.Options{
		Spec: spec, Trials: f.trials, Quick: f.quick, Seed: f.seed, Jobs: f.jobs, Capture: capture, Host: labrun.Host(a.Version),
		Progress: func(e simrun.Event) {
			if e.Trace != nil {
				series = append(series, *e.Trace)
			}
			p.show(e.Done, e.Total, e.Elapsed, e.ETA)
		},
	})
	p.clear()
	if of, ok := errors.AsType[*fs.PathError](err); ok && of.Path == f.pcap {
		return nil, r, cli.FileFailure("write capture", f.pcap, of)
	}
	if errors.Is(err, simrun.ErrCells) {
		return nil, r, &cli.Failure{What: "write capture", Name: f.pcap, Why: err, Do: "choose it with --case, --traffic and --transport"}
	}
	if err != nil {
		return nil, r, simFailure(ctx, "simulate scenario", name, err, "nothing was written")
	}
	extra := report.Extra{Series: series, Command: f.command(name), Text: scenarioText(name, spec), Made: time.Now(), Quick: f.quick, Seed: f.seed}
	if err := replaceResult(f.out, func(dir string) error { return report.Write(dir, r, spec, extra) }); err != nil {
		return nil, r, err
	}
	return spec, r, nil
}

// simFailure returns the failure of a simulation. left is the remedy after an interruption.
func simFailure(ctx context.Context, what, on string, err error, left string) error {
	if ctx.Err() != nil {
		return &cli.Failure{What: what, Name: on, Why: cli.ErrInterrupted, Do: left}
	}
	return &cli.Failure{What: what, Name: on, Why: err}
}

// command returns the command line of the run.
func (f simFlags) command(name string) string {
	parts := append([]string{"tabane sim run", name}, selectionArguments(f.cells)...)
	if f.name != "" {
		parts = append(parts, "--name "+f.name)
	}
	if f.quick {
		parts = append(parts, "--quick")
	}
	if f.trials > 0 {
		parts = append(parts, fmt.Sprintf("--trials %d", f.trials))
	}
	if f.seed != simrun.FirstSeed {
		parts = append(parts, fmt.Sprintf("--seed %d", f.seed))
	}
	return strings.Join(parts, " ")
}

// progress shows the progress of many short runs: a line that is overwritten on a terminal,
// otherwise a line at intervals.
type progress struct {
	w       io.Writer
	columns int
	// noun is the plural of the counted unit.
	noun  string
	last  time.Time
	drawn bool
}

// seldom is the interval between lines without a terminal.
const seldom = 5 * time.Second

func newProgress(w io.Writer, columns int, noun string) *progress {
	return &progress{w: w, columns: columns, noun: noun, last: time.Now()}
}

func (p *progress) show(done, total int, elapsed, eta time.Duration) {
	pause := cli.Redraw
	if p.columns == 0 {
		pause = seldom
	}
	if time.Since(p.last) < pause {
		return
	}
	p.last = time.Now()
	text := fmt.Sprintf("%d of %d %s done, %s elapsed, about %s to go", done, total, p.noun, clock(elapsed), clock(eta))
	if p.columns == 0 {
		fmt.Fprintln(p.w, text)
		return
	}
	if len(text) >= p.columns {
		text = text[:p.columns-1]
	}
	fmt.Fprint(p.w, "\r\x1b[K"+text)
	p.drawn = true
}

// clear removes the live line from the terminal.
func (p *progress) clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}
