package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/report"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/lab/labrun"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/sim/simrun"
)

type runFlags struct {
	out    string
	trials int
	// sessions are of scenarios of kind web.
	sessions int
	quick    bool
	keep     bool
	routers  string
	jobs     int
	compare  string
	har      bool
	cells    scenario.Selection
	name     string
	family   string
}

func (a *app) labRun() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:               "run NAME|FILE",
		ValidArgsFunction: cli.CompleteNameOrFile(scenarioNames),
		Short:             "Run a scenario's experiment and write a report",
		Long: `Run builds the scenario's network, delivers every traffic over every transport in every case, and removes the network. The
result is written to a directory: result.json, CSV files, figures, and report.html with all of it.

Exit code 0: it ran and all expectations hold; 1: it ran, and some do not; 2: it could not run, or was interrupted. If it ends
early, it removes the labs, and writes the result of the runs that were done. An earlier result in the directory then stays,
and the new one goes beside it, to DIR-part1 or the next number. "lab merge" joins parts. If it is killed, the next run with the
directory finds the runs that were done until a minute before, and puts them there.`,
		Example: `  tabane lab run epe-steady --quick
  tabane lab run epe-steady --trials 5 --out /tmp/epe
  tabane lab run epe-failure --case a-down,a-hole --transport mptcp-epe
  tabane lab run epe-routes --routers embedded,frr
  tabane lab run reseq-rate --compare sim
  tabane lab run webqoe --case env3 --traffic map --har
  tabane lab run ./my.yaml --keep`,
		Args: cli.Arguments(1, 1, "one scenario"),
		RunE: func(c *cobra.Command, args []string) error {
			_, err := parseRouters(f.routers, true)
			switch {
			case err != nil:
				return cli.Usage(c, err)
			case c.Flags().Changed("trials") && f.trials < 1:
				return cli.Usage(c, fmt.Errorf("--trials must be > 0, got %d", f.trials))
			case c.Flags().Changed("sessions") && (f.sessions < 1 || f.sessions > scenario.MaxSessions):
				return cli.Usage(c, fmt.Errorf("--sessions must be from 1 to %d, got %d", scenario.MaxSessions, f.sessions))
			case c.Flags().Changed("jobs") && f.jobs < 1:
				return cli.Usage(c, fmt.Errorf("--jobs must be > 0, got %d", f.jobs))
			case f.compare != "" && f.compare != simrun.Backend:
				return cli.Usage(c, fmt.Errorf("--compare must be %s, got %q", simrun.Backend, f.compare))
			}
			return a.run(c.Context(), args[0], f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.out, "out", "", "`directory` for the result (default out/NAME); an earlier result in it is replaced")
	flags.IntVar(&f.trials, "trials", 0, "trials of each cell (default: those of the scenario, 1 with --quick)")
	flags.IntVar(&f.sessions, "sessions", 0, "tasks on web pages that each trial plays at the same time (default: those of the scenario)")
	flags.BoolVar(&f.quick, "quick", false, "bound each run, for a first look: some expectations need a full run")
	flags.BoolVar(&f.keep, "keep", false, "leave the labs up afterwards")
	flags.StringVar(&f.routers, "routers", lab.RoutersEmbedded, "what routers and reflectors run: embedded, frr, or embedded,frr to compare them in scenarios of kind routes")
	flags.IntVar(&f.jobs, "jobs", 0, "labs that run in parallel (default: one for each case, at most four for each processor; more where all links are slow)")
	flags.StringVar(&f.compare, "compare", "", "sim: simulate the same experiment and compare the results")
	flags.BoolVar(&f.har, "har", false, "write the requests of each trial on web pages: pages/*/webpage.har")
	selectionFlags(flags, &f.cells)
	familyFlag(flags, &f.family)
	flags.StringVar(&f.name, "name", "", "`name` of the labs, the result and its directory (default: the scenario's)")
	return c
}

// runPlan is what lab run does.
type runPlan struct {
	// whole is the scenario, spec what the lab runs of it.
	whole, spec *scenario.Spec
	// simulation is what the simulator runs, nil without --compare.
	simulation *scenario.Spec
	routers    []string
}

// plan checks whether a scenario can be run as the flags say.
func (f runFlags) plan(name string) (p runPlan, err error) {
	if p.whole, p.spec, err = chosenCells(name, f.family, f.cells, f.quick); err != nil {
		return p, err
	}
	if p.spec, err = renamed(p.spec, f.name); err != nil {
		return p, err
	}
	if f.har && (p.whole.Experiment == nil || p.whole.Experiment.Kind != scenario.KindWeb) {
		return p, &cli.Failure{What: "run scenario", Name: name, Why: errors.New("it has no web pages, whose requests --har records"), Do: "leave out --har"}
	}
	if err := cli.Require("run scenario", role.Namespaces, role.MPTCP, role.SRv6); err != nil {
		return p, err
	}
	if p.routers, err = parseRouters(f.routers, true); err != nil {
		return p, err
	}
	if f.compare != "" {
		if err := simulable(name, p.whole, p.spec.ForSimulator()); err != nil {
			return p, err
		}
	}
	p.spec = p.spec.ForLab()
	if err := locate(name, inFile(p.whole, p.spec, labrun.Check(p.spec))); err != nil {
		return p, err
	}
	compares := p.spec.Experiment != nil && p.spec.Experiment.Kind == scenario.KindRoutes
	if len(p.routers) > 1 && !compares {
		return p, &cli.Failure{What: "run scenario", Name: name, Why: errors.New("it does not compare routers"), Do: "give --routers one kind"}
	}
	if err := needRouters("run scenario", p.routers...); err != nil {
		return p, err
	}
	if p.spec = p.spec.WithRouters(p.routers); compares && len(p.spec.Experiment.Transports) == 0 {
		return p, &cli.Failure{What: "run scenario", Name: name, Why: fmt.Errorf("none of its transports has routers %s", f.routers), Do: "choose others with --routers"}
	}
	if f.compare != "" {
		if p.simulation, err = labrun.OnKernel(p.spec.ForSimulator()); err != nil {
			return p, &cli.Failure{What: "simulate scenario", Name: name, Why: err}
		}
	}
	return p, nil
}

func (a *app) run(ctx context.Context, name string, f runFlags) error {
	o, unwritten := a.measured(ctx, name, &f)
	if o.spec == nil {
		return unwritten
	}
	if err := report.Table(a.Out, o.lab, o.spec, cli.Width(a.Out)); err != nil {
		return err
	}
	if o.simulated != nil {
		fmt.Fprintln(a.Out)
		if err := report.Comparison(a.Out, result.Compare(o.lab, *o.simulated), cli.Width(a.Out)); err != nil {
			return err
		}
	}
	if unwritten != nil {
		return unwritten
	}
	fmt.Fprintf(a.Out, "\nreport: %s\n", filepath.Join(f.out, "report.html"))
	if !o.lab.Holds() {
		a.noteQuick(f.quick)
		return cli.ErrUnmet
	}
	return nil
}

// labOutcome is what came out of a run in a lab.
type labOutcome struct {
	spec *scenario.Spec
	lab  result.Result
	// simulated is the same experiment in the simulator, nil without --compare.
	simulated *result.Result
	// saved is the file of the runs so far.
	saved string
}

// measured runs a scenario in a lab and writes the report, without printing a table. Where it ran but
// the report could not be written, it returns both the outcome and the error.
func (a *app) measured(ctx context.Context, name string, f *runFlags) (o labOutcome, err error) {
	p, err := f.plan(name)
	if err != nil {
		return o, err
	}
	if f.out == "" {
		f.out = filepath.Join("out", p.spec.Name)
	}
	made, err := resultDirectory(f.out)
	if err != nil {
		return o, err
	}
	defer made.leave()
	if err := a.setKilledAside(f.out); err != nil {
		return o, err
	}
	saved := filepath.Join(f.out, savedFile)
	if e := p.whole.Experiment; f.quick && e != nil && !e.Quick.All() {
		fmt.Fprintf(a.Err, "--quick selects %s where no others are given\n", strings.Join(selectionArguments(e.Quick), " "))
	}
	ctx, progress, stop := untilUnread(ctx, a.Err)
	defer stop()
	screen := newScreen(progress, cli.Width(a.Err))
	log, err := a.Logger(screen, slog.LevelWarn)
	if err != nil {
		return o, err
	}
	var series []result.Trace
	var archives []result.Archive
	binary, err := product("run scenario")
	if err != nil {
		return o, err
	}
	outcome, err := labrun.Run(ctx, labrun.RunOptions{
		Binary: binary,
		Spec:   p.spec, Routers: p.routers[0], Trials: f.trials, Sessions: f.sessions, Quick: f.quick, Parallel: f.jobs, Keep: f.keep, Commit: a.Version, Log: log,
		Resequencing: f.compare != "", HAR: f.har,
		Progress: func(e labrun.Event) {
			if e.Archive != nil {
				archives = append(archives, *e.Archive)
			}
			if e.Trace != nil {
				series = append(series, *e.Trace)
			}
			screen.event(e)
		},
		Save: func(r result.Result) {
			var b bytes.Buffer
			err := r.Encode(&b)
			if err == nil {
				err = writeFile(saved, b.Bytes())
			}
			if err != nil {
				log.Warn("runs so far are not saved", "file", saved, "err", err)
			}
		},
	})
	screen.clear()
	if err != nil && len(outcome.Runs) == 0 {
		return o, labFailure(ctx, "run scenario", name, err)
	}
	fmt.Fprintf(a.Err, "took %s\n", clock(time.Duration(outcome.Seconds*float64(time.Second))))
	extra := report.Extra{Series: series, Archives: archives, Command: f.command(name), Text: scenarioText(name, p.spec), Made: time.Now(), Quick: f.quick}
	if err != nil {
		return a.writePart(ctx, name, f, labOutcome{spec: p.spec, lab: outcome, saved: saved}, extra, err)
	}
	if p.simulation != nil {
		// After the lab, because the simulator uses all CPUs.
		simulated, err := simrun.Run(ctx, simrun.Options{
			Spec: p.simulation, Trials: max(f.trials, simrun.ComparedTrials), Quick: f.quick, Lateness: simrun.LabLateness, Host: labrun.Host(a.Version),
		})
		if err != nil {
			return o, simFailure(ctx, "simulate scenario", name, err, "the lab's result was not written")
		}
		extra.Simulated = &simulated
	}
	o = labOutcome{p.spec, outcome, extra.Simulated, saved}
	return o, o.write(f.out, extra)
}

// write writes the report to a directory. If that fails, as on a full disk, it writes the result alone
// to a temporary file, which the error names: the runs may have taken hours.
func (o labOutcome) write(dir string, extra report.Extra) error {
	err := replaceResult(dir, func(dir string) error { return report.Write(dir, o.lab, o.spec, extra) })
	if err == nil {
		if err := os.Remove(o.saved); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return cli.FileFailure("remove saved runs", o.saved, err)
		}
		return nil
	}
	file, other := os.CreateTemp("", o.spec.Name+"-*.json")
	if other != nil {
		return err
	}
	if other = errors.Join(o.lab.Encode(file), file.Close()); other != nil {
		_ = os.Remove(file.Name()) // it is not whole
		return err
	}
	return fmt.Errorf("%w; the result without figures is in %s, of which tabane lab merge writes the report", err, file.Name())
}

// setKilledAside gives what a killed run with a directory has saved a directory of its own.
func (a *app) setKilledAside(dir string) error {
	saved := filepath.Join(dir, savedFile)
	if _, err := os.Lstat(saved); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	part, err := besideDirectory(dir)
	if err != nil {
		return err
	}
	if err := os.Rename(saved, filepath.Join(part, resultFile)); err != nil {
		return errors.Join(cli.FileFailure("move saved runs", saved, err), os.Remove(part))
	}
	fmt.Fprintf(a.Err, "an earlier run was killed; tabane lab merge joins the runs that were done with others: they are in %s\n", part)
	return nil
}

// writePart writes the report of an experiment that ended early, for the reason why, which is part of
// the error it returns.
func (a *app) writePart(ctx context.Context, name string, f *runFlags, o labOutcome, extra report.Extra, why error) (labOutcome, error) {
	dir, left, err := f.out, "all runs were done, and are in ", error(nil)
	if o.lab.Planned > 0 {
		left = fmt.Sprintf("tabane lab merge joins the %d of %d runs that were done with others: they are in ", len(o.lab.Runs), o.lab.Planned)
		dir, err = partDirectory(dir)
	}
	if err == nil {
		err = o.write(dir, extra)
	}
	if err != nil {
		return o, errors.Join(labFailure(ctx, "run scenario", name, why), err)
	}
	f.out = dir
	if ctx.Err() != nil {
		why = cli.ErrInterrupted
	}
	return o, &cli.Failure{What: "run scenario", Name: name, Why: why, Do: left + dir}
}

// command returns the command line that reproduces the result.
func (f runFlags) command(name string) string {
	parts := append([]string{"tabane lab run", name}, selectionArguments(f.cells)...)
	if f.name != "" {
		parts = append(parts, "--name "+f.name)
	}
	if f.quick {
		parts = append(parts, "--quick")
	}
	if f.trials > 0 {
		parts = append(parts, fmt.Sprintf("--trials %d", f.trials))
	}
	if f.har {
		parts = append(parts, "--har")
	}
	if f.sessions > 0 {
		parts = append(parts, fmt.Sprintf("--sessions %d", f.sessions))
	}
	if f.routers != lab.RoutersEmbedded {
		parts = append(parts, "--routers "+f.routers)
	}
	if f.jobs > 0 {
		parts = append(parts, fmt.Sprintf("--jobs %d", f.jobs))
	}
	if f.compare != "" {
		parts = append(parts, "--compare "+f.compare)
	}
	return strings.Join(parts, " ")
}
