package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/measurement"
	"github.com/tabane/tabane/internal/kernel/database"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/mptcp"
)

// measureCommand returns the command that tabane shares, with the verbs that only this program has.
func (a *app) measureCommand() *cobra.Command {
	c := a.MeasureCommand()
	c.AddCommand(a.measureRunCommand(), a.measureReportCommand(), a.measureExportCommand())
	return c
}

type measureRunFlags struct {
	modes                []string
	trials               int
	out, resume          string
	name, key            string
	bytes, object        string
	objects              int
	stream               string
	time                 time.Duration
	paired, whole, check bool
	maxBytes             string
	maxTime              time.Duration
	seed                 uint64
}

// defaultTrial is the time of a bulk trial, as that of iperf3.
const defaultTrial = 10 * time.Second

// defaultPhase is the time in each mode of a switched connection, of which the second half counts:
// in the first one, congestion control makes good what a switch has lost. Five pairs take 104 s.
const defaultPhase = 8 * time.Second

func (a *app) measureRunCommand() *cobra.Command {
	var f measureRunFlags
	c := &cobra.Command{
		Use:   "run URL --out DIR | --resume DIR",
		Short: "Measure the modes of a server from this host",
		Long: `Run compares modes of delivery with the first one, TCP over BGP's best path. In each block, every mode is measured once, in random
order, so that the time of day affects all of them. Each trial is stored in DIR as soon as it is made; after a break, --resume continues. It
ends early when the 99 % intervals of all modes are beyond ±5 %, or within.

Modes:
` + measure.ModesHelp() + `

A trial is bulk for --time, or of --bytes; or --objects of --object-size, one after the other; or a --stream for --time. Beside it, small
requests on another connection measure the latency under load. It needs no privileges, and works behind NAT.`,
		Example: `  tabane measure run http://server:8080/ --out isp-e
  tabane measure run http://server:8080/ --modes tcp,multipath,single:transit-b,parallel:3 --trials 20 --bytes 20MB --out isp-e
  tabane measure run http://server:8080/ --modes multipath-best,multipath --paired --out isp-e-paired
  tabane measure run --resume isp-e
  tabane measure run http://server:8080/ --check`,
		Args: cli.Arguments(0, 1, "at most one URL"),
		RunE: func(c *cobra.Command, args []string) error { return a.measureRun(c, strings.Join(args, ""), f) },
	}
	flags := c.Flags()
	flags.StringSliceVar(&f.modes, "modes", []string{measure.TCP, measure.Multipath}, "`modes` to compare, the first with the others")
	flags.IntVar(&f.trials, "trials", 10, "`number` of trials of each mode; with --resume, the new number")
	flags.StringVarP(&f.out, "out", "o", "", "new `directory` of the trials")
	flags.StringVar(&f.resume, "resume", "", "continue the measurement in this `directory`")
	flags.StringVar(&f.name, "name", "", "`name` of the client's network in figures (default that of the directory)")
	flags.StringVar(&f.key, "key", "", "`file` with the key that the server shares")
	flags.StringVar(&f.bytes, "bytes", "", "`size` of a bulk trial, instead of a time")
	flags.IntVar(&f.objects, "objects", 0, "get `n` objects, one after the other, instead of bulk")
	flags.StringVar(&f.object, "object-size", "50kB", "`size` of each object")
	flags.StringVar(&f.stream, "stream", "", "get a stream of this `rate`, such as 25Mbit/s, instead of bulk")
	flags.DurationVar(&f.time, "time", 0, "how long a trial lasts, with bytes or objects at most (default "+defaultTrial.String()+", paired "+defaultPhase.String()+")")
	flags.BoolVar(&f.paired, "paired", false, "switch one connection between two modes, which needs far fewer trials; --trials are pairs")
	flags.BoolVar(&f.whole, "all-trials", false, "make all trials, also if fewer decide")
	flags.StringVar(&f.maxBytes, "max-bytes", "", "end before this `size` is exceeded, as for a contract with a volume")
	flags.DurationVar(&f.maxTime, "max-time", 0, "end before this time is exceeded")
	flags.Uint64Var(&f.seed, "seed", 0, "`seed` of the random order (default a random one)")
	flags.BoolVar(&f.check, "check", false, "print what the server and this host can do, and measure nothing")
	return c
}

// plan returns the plan of the flags.
func (f measureRunFlags) plan(server string) (measurement.Plan, error) {
	p := measurement.Plan{Name: f.name, Server: server, Modes: f.modes, Trials: f.trials, Paired: f.paired, Whole: f.whole, Seed: f.seed}
	if p.Name == "" {
		p.Name = filepath.Base(filepath.Clean(f.out))
	}
	if p.Seed == 0 {
		p.Seed = rand.Uint64()
	}
	kinds := 0
	for _, given := range []bool{f.bytes != "", f.objects != 0, f.stream != ""} {
		if given {
			kinds++
		}
	}
	if kinds > 1 {
		return p, errors.New("--bytes, --objects and --stream exclude each other")
	}
	var err error
	p.Load.Time = f.time
	switch {
	case f.bytes != "":
		if p.Load.Bytes, err = unit.ParseSize(f.bytes); err != nil || p.Load.Bytes <= 0 {
			return p, cli.Invalid("--bytes", f.bytes, "a size like 20MB")
		}
	case f.objects != 0:
		p.Load.Objects = f.objects
		if p.Load.Bytes, err = unit.ParseSize(f.object); err != nil || p.Load.Bytes <= 0 {
			return p, cli.Invalid("--object-size", f.object, "a size like 50kB")
		}
	default:
		if p.Load.Time == 0 {
			p.Load.Time = defaultTrial
			if f.paired {
				p.Load.Time = defaultPhase
			}
		}
		if f.stream != "" {
			if p.Load.Rate, err = unit.ParseBandwidth(f.stream); err != nil || p.Load.Rate <= 0 {
				return p, cli.Invalid("--stream", f.stream, "a rate like 25Mbit/s")
			}
		}
	}
	return p, p.Check()
}

// checkRun returns an error for flags that do not fit together.
func (f measureRunFlags) checkRun(c *cobra.Command, server string) error {
	switch {
	case f.maxTime < 0:
		return cli.Invalid("--max-time", f.maxTime.String(), "a time like 30m")
	case f.time < 0:
		return cli.Invalid("--time", f.time.String(), "a time like 10s")
	case f.objects < 0:
		return cli.Invalid("--objects", strconv.Itoa(f.objects), "a number > 0")
	case f.trials < 1 || f.trials > measurement.MaxTrials:
		return cli.Invalid("--trials", strconv.Itoa(f.trials), fmt.Sprintf("1 to %d", measurement.MaxTrials))
	case f.resume == "" && server == "":
		return cli.Usage(c, errors.New("want the URL of a server, or --resume with a directory"))
	case f.resume != "" && (server != "" || f.out != ""):
		return cli.Usage(c, errors.New("--resume goes on with the server and the directory that it has: name no others"))
	case f.resume == "" && f.out == "" && !f.check:
		return cli.Usage(c, errors.New("want --out with a directory for the trials"))
	}
	return nil
}

func (a *app) measureRun(c *cobra.Command, server string, f measureRunFlags) (err error) {
	ctx := c.Context()
	var key []byte
	if f.key != "" {
		if key, err = cli.ReadKey(f.key); err != nil {
			return err
		}
	}
	var maxBytes unit.Size
	if f.maxBytes != "" {
		if maxBytes, err = unit.ParseSize(f.maxBytes); err != nil || maxBytes <= 0 {
			return cli.Invalid("--max-bytes", f.maxBytes, "a size like 2GB")
		}
	}
	if err := f.checkRun(c, server); err != nil {
		return err
	}
	dir := f.out
	var store *measurement.Store
	var p measurement.Plan
	if f.resume != "" {
		dir = f.resume
		if store, err = measurement.Open(ctx, dir); err != nil {
			return storeFailure("continue measurement", dir, err)
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		if c.Flags().Changed("trials") {
			if err := store.Extend(ctx, f.trials); err != nil {
				return storeFailure("continue measurement", dir, err)
			}
		}
		p = store.Plan()
	} else if p, err = f.plan(server); err != nil {
		return planFailure(c, err)
	}
	if store == nil && dir != "" && measurement.Exists(dir) {
		return storeFailure("start measurement", dir, measurement.ErrExists)
	}
	t, err := newMeasurer(ctx, p, key, a.Version, f.check)
	if err != nil {
		return measureFailure(p.Server, err)
	}
	defer t.client.Close(context.WithoutCancel(ctx))
	if f.check {
		return t.print(a.Out)
	}
	if store == nil {
		if store, err = measurement.Create(ctx, dir, p); err != nil {
			return storeFailure("start measurement", dir, err)
		}
		defer func() { err = errors.Join(err, store.Close()) }()
	}
	screen := &measureScreen{out: a.Out, live: cli.NewLiveLine(a.Err), terminal: cli.Width(a.Err) > 0, plan: p}
	t.progress = screen
	stop, err := measurement.Run(ctx, measurement.RunOptions{
		Store: store, Measurer: t, MaxBytes: int64(maxBytes), MaxTime: f.maxTime, Progress: screen.show,
	})
	screen.live.Clear()
	again := "continue with tabane measure run --resume " + dir
	switch {
	case ctx.Err() != nil:
		return &cli.Failure{What: "measure", Name: p.Server, Why: cli.ErrInterrupted, Do: again}
	case isStoreError(err):
		return storeFailure("measure", dir, err)
	case err != nil:
		failure := measureFailure(p.Server, err)
		failure.Do = strings.TrimPrefix(failure.Do+", and "+again, ", and ")
		return failure
	}
	return a.printMeasurement(ctx, store, dir, stop)
}

// printMeasurement prints what the trials of a store say, after they ended for a reason.
func (a *app) printMeasurement(ctx context.Context, store *measurement.Store, dir string, stop measurement.Stop) error {
	rows, err := store.Rows(ctx)
	if err != nil {
		return storeFailure("read measurement", dir, err)
	}
	analysis, err := measurement.Analyze(store.Plan(), rows)
	if err != nil {
		return storeFailure("analyze measurement", dir, err)
	}
	fmt.Fprintf(a.Out, "\nEnded: %s.\n", stop)
	if err := printAnalysis(a.Out, analysis); err != nil {
		return err
	}
	if stop == measurement.ByteLimit || stop == measurement.TimeLimit {
		fmt.Fprintf(a.Out, "Go on with: tabane measure run --resume %s\n", dir)
	}
	return nil
}

func planFailure(c *cobra.Command, err error) error {
	var usage *cli.UsageError
	if errors.As(err, &usage) {
		return err
	}
	return cli.Usage(c, err)
}

// measurer makes the trials of a plan.
type measurer struct {
	plan     measurement.Plan
	client   *measure.Client
	offer    measure.Offer
	modes    map[string]measure.Mode
	version  string
	kernel   string // of this host
	progress *measureScreen
}

// newMeasurer connects to the server and, unless it is only to check what there is, checks that it
// and this host can do what the plan needs.
func newMeasurer(ctx context.Context, p measurement.Plan, key []byte, version string, check bool) (*measurer, error) {
	t := &measurer{plan: p, modes: map[string]measure.Mode{}, version: version}
	t.kernel, _ = netns.ReadSysctl("kernel.osrelease") // without it, it is not known
	var err error
	if t.client, err = measure.NewClient(p.Server, key); err != nil {
		return nil, err
	}
	multipath := false
	for _, name := range p.Modes {
		m, err := measure.ParseMode(name)
		if err != nil {
			return nil, err
		}
		t.modes[name] = m
		multipath = multipath || m.Multipath()
	}
	if multipath && !check {
		if err := canMultipath(); err != nil {
			return nil, err
		}
	}
	if t.offer, err = t.client.Open(ctx); err != nil {
		return nil, err
	}
	if check {
		return t, nil
	}
	if err := t.checkOffer(ctx); err != nil {
		t.client.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return t, nil
}

// checkOffer compares the plan with what the server offers.
func (t *measurer) checkOffer(ctx context.Context) error {
	length := t.length()
	if length > t.offer.Limits.Time {
		return fmt.Errorf("a trial of %s is longer than the server allows, %s", length, t.offer.Limits.Time)
	}
	if t.plan.Load.Bytes > t.offer.Limits.Bytes {
		return fmt.Errorf("a trial of %s is larger than the server allows, %s", t.plan.Load.Bytes, t.offer.Limits.Bytes)
	}
	if t.plan.Paired {
		if err := t.offer.CheckPaired(t.modes[t.plan.Modes[0]], t.modes[t.plan.Modes[1]]); err != nil {
			return err
		}
	}
	checked := false
	for _, name := range t.plan.Modes {
		m := t.modes[name]
		if err := t.offer.Check(m); err != nil && !t.plan.Paired {
			return err
		}
		if m.Multipath() && !checked {
			checked = true
			if err := t.client.Check(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// canMultipath returns why this host would measure TCP, or a single path, instead of MPTCP.
func canMultipath() error {
	if err := mptcp.Supported(); err != nil {
		return fmt.Errorf("multipath would measure TCP: %w", err)
	}
	conn, err := mptcp.Dial()
	if err != nil {
		return fmt.Errorf("multipath would measure TCP: %w", err)
	}
	defer conn.Close()
	// Any user may ask for the limits.
	limits, err := conn.Limits()
	if err == nil && (limits.AddAddrAccepted == 0 || limits.Subflows == 0) {
		return &remedy{fmt.Errorf("multipath would measure TCP: this host accepts %d addresses of servers and makes %d subflows", limits.AddAddrAccepted, limits.Subflows),
			"as root: ip mptcp limits set subflows 8 add_addr_accepted 8"}
	}
	return nil
}

// remedy is an error with what to do about it.
type remedy struct {
	error

	do string
}

func (r *remedy) Unwrap() error { return r.error }

// length is how long the server reserves for a trial.
func (t *measurer) length() time.Duration {
	switch l := t.plan.Load; {
	case t.plan.Paired:
		return measure.PairedTime(t.plan.Pairs(), t.plan.Load.Time)
	case l.Time > 0 && l.Rate > 0:
		return min(l.Time+5*time.Second, t.offer.Limits.Time)
	case l.Time > 0:
		return l.Time
	}
	return t.offer.Limits.Time
}

// Trial implements measurement.Measurer.
func (t *measurer) Trial(ctx context.Context, mode string) (r measure.Trial, c measurement.Conditions, err error) {
	err = t.turn(ctx, func() error {
		r, err = t.client.Trial(ctx, t.modes[mode], t.plan.Load, t.progress.bytes)
		return err
	})
	return r, t.conditions(), permanent(err)
}

// Paired implements measurement.Measurer.
func (t *measurer) Paired(ctx context.Context, orders [][2]int) (pairs [][2]measure.Trial, c measurement.Conditions, err error) {
	err = t.turn(ctx, func() error {
		pairs, err = t.client.Paired(ctx, [2]measure.Mode{t.modes[t.plan.Modes[0]], t.modes[t.plan.Modes[1]]}, orders, t.plan.Load.Time)
		return err
	})
	return pairs, t.conditions(), permanent(err)
}

// turn waits for a turn, in a new session if the server has forgotten the old one.
func (t *measurer) turn(ctx context.Context, f func() error) error {
	err := t.client.Turn(ctx, t.length(), t.progress.waiting)
	if errors.Is(err, measure.ErrSession) {
		if t.offer, err = t.client.Open(ctx); err == nil {
			if err = t.checkOffer(ctx); err == nil {
				err = t.client.Turn(ctx, t.length(), t.progress.waiting)
			}
		}
	}
	if err != nil {
		return err
	}
	defer t.client.EndTurn(context.WithoutCancel(ctx))
	return f()
}

// permanent marks the errors that another attempt would have as well.
func permanent(err error) error {
	for _, known := range []error{measure.ErrKey, measure.ErrPortal, measure.ErrProtocol, measure.ErrFallback} {
		if errors.Is(err, known) {
			return fmt.Errorf("%w (%w)", err, measurement.ErrPermanent)
		}
	}
	return err
}

func (t *measurer) conditions() measurement.Conditions {
	local, remote := t.client.Addresses()
	return measurement.Conditions{
		ClientVersion: t.version, ServerVersion: t.offer.Version, ClientKernel: t.kernel, ServerKernel: t.offer.Kernel,
		Congestion: t.offer.Congestion, Client: measurement.PrefixOf(local), Server: measurement.PrefixOf(remote),
	}
}

// print prints what can be measured.
func (t *measurer) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "server   %s, tabane %s, kernel %s, %s\nmodes    %s\nlimits   %s and %s for each trial\n",
		t.plan.Server, t.offer.Version, t.offer.Kernel, t.offer.Congestion, strings.Join(t.offer.Names(), ", "), t.offer.Limits.Bytes, t.offer.Limits.Time)
	if err == nil {
		if cannot := canMultipath(); cannot != nil {
			_, err = fmt.Fprintf(w, "host     %v\n", cannot)
		} else {
			_, err = fmt.Fprintln(w, "host     can use MPTCP")
		}
	}
	return err
}

// measureScreen shows the progress of a measurement: a line for each trial, and on a terminal a
// live one below.
type measureScreen struct {
	out  io.Writer
	live interface {
		Show(string)
		Clear()
	}
	terminal bool
	plan     measurement.Plan
	now      measurement.Progress
	meter    cli.RateMeter
	waited   bool
}

func (s *measureScreen) show(p measurement.Progress) {
	s.live.Clear()
	s.now, s.meter, s.waited = p, cli.RateMeter{}, false
	switch {
	case p.Note != "":
		fmt.Fprintf(s.out, "%s\n", p.Note)
	case p.Row != nil && p.Row.Failed != "":
		fmt.Fprintf(s.out, "%s  %-16s failed: %s\n", s.count(p), p.Mode, cli.OneLine(p.Row.Failed))
	case p.Row != nil:
		line := fmt.Sprintf("%s  %-16s %14s", s.count(p), p.Mode, cli.Megabits(p.Row.GoodputBps))
		if l := p.Row.Loaded; l.Count > 0 {
			line += fmt.Sprintf("  p95 %6.1f ms", 1e3*l.P95.Seconds())
		}
		if p.Left > 0 && p.Done < p.All {
			line += fmt.Sprintf("  %s left", p.Left.Round(time.Second))
		}
		fmt.Fprintln(s.out, line)
	default:
		s.draw("")
	}
}

func (s *measureScreen) count(p measurement.Progress) string {
	digits := len(strconv.Itoa(p.All))
	return fmt.Sprintf("%*d/%d", digits, p.Done, p.All)
}

// bytes shows what arrived in an interval.
func (s *measureScreen) bytes(n int64) {
	s.meter.Add(n, measure.Interval)
	s.draw(cli.Megabits(s.meter.Rate()))
}

// waiting shows that other clients are measuring.
func (s *measureScreen) waiting(t measure.Turn) {
	text := fmt.Sprintf("waiting for %s, up to %s", cli.Quantity(t.Ahead, "client"), t.Wait.Round(time.Second))
	if s.terminal {
		s.draw(text)
	} else if !s.waited {
		s.waited = true
		fmt.Fprintln(s.out, text)
	}
}

func (s *measureScreen) draw(text string) {
	if !s.terminal {
		return
	}
	line := fmt.Sprintf("block %d  %s  %s", s.now.Block+1, s.now.Mode, text)
	if s.now.Left > 0 {
		line += fmt.Sprintf("  %s left", s.now.Left.Round(time.Second))
	}
	s.live.Show(line)
}

// printAnalysis prints a line for each mode and the verdict.
func printAnalysis(w io.Writer, a measurement.Analysis) error {
	lines := [][]string{{"MODE", "MEDIAN", "RATIO", "95 % INTERVAL", "P95", "VERDICT"}}
	for i, m := range a.Modes {
		line := []string{m.Mode, "-", "", "", "-", ""}
		if len(m.Goodputs) > 0 {
			line[1] = cli.Megabits(m.Box.Median)
		}
		if m.LoadedP95 > 0 {
			line[4] = fmt.Sprintf("%.1f ms", 1e3*m.LoadedP95)
		}
		if i > 0 {
			line[5] = m.Words()
		}
		if m.Known {
			line[2], line[3] = fmt.Sprintf("%.2f", m.Ratio.Value), fmt.Sprintf("%.2f to %.2f", m.Ratio.Low, m.Ratio.High)
		}
		lines = append(lines, line)
	}
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, text := range line {
			widths[i] = max(widths[i], len(text))
		}
	}
	for _, line := range lines {
		var b strings.Builder
		for i, text := range line {
			fmt.Fprintf(&b, "%-*s  ", widths[i], text)
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	how := "over blocks"
	if a.Paired {
		how = "of pairs in one connection, by Student's t"
	} else if len(a.Modes) > 1 && a.Modes[1].Known {
		how = "over blocks, by " + string(a.Modes[1].Ratio.Method)
	}
	_, err := fmt.Fprintf(w, "%d %s; intervals %s. %s\n", a.Blocks, map[bool]string{true: "pairs", false: "complete blocks"}[a.Paired], how, a.Headline())
	for _, n := range a.Notes {
		if err == nil {
			_, err = fmt.Fprintf(w, "Note: %s.\n", n)
		}
	}
	return err
}

func measureFailure(server string, err error) *cli.Failure {
	f := &cli.Failure{What: "measure", Name: server, Why: err}
	var r *remedy
	switch {
	case errors.As(err, &r):
		f.Do = r.do
	case errors.Is(err, measure.ErrKey):
		f.Do = "name the server's key with --key"
	case errors.Is(err, measure.ErrPortal):
		f.Do = "log in to the network first"
	case errors.Is(err, measure.ErrBlocked):
		f.Do = "allow TCP port " + portOf(server) + ", or serve on another port with --listen"
	case errors.Is(err, measure.ErrProtocol):
		f.Do = "run tabane measure serve there, or check the port"
	case errors.Is(err, measure.ErrFallback):
		f.Do = "check that the server accepts MPTCP (tabane doctor), or leave multipath out of --modes"
	default:
		f.Do = cli.ConnectRemedy(err, "start tabane measure serve, or check port "+portOf(server))
	}
	return f
}

func portOf(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.Port() == "" {
		return "80"
	}
	return u.Port()
}

// isStoreError reports whether a run ended because of its store.
func isStoreError(err error) bool {
	return slices.ContainsFunc([]error{database.ErrFull, database.ErrLocked, database.ErrNotWrite, database.ErrForeign, database.ErrVersion},
		func(known error) bool { return errors.Is(err, known) })
}

func storeFailure(what, dir string, err error) error {
	f := &cli.Failure{What: what, Name: dir, Why: err}
	switch {
	case errors.Is(err, measurement.ErrExists):
		f.Do = "continue it with --resume, or name another directory"
	case errors.Is(err, database.ErrFull):
		f.Do = "free space, and continue with tabane measure run --resume " + dir
	case errors.Is(err, database.ErrLocked):
		f.Do = "end the program that uses it"
	case errors.Is(err, database.ErrNotWrite):
		f.Do = "check the permissions of its directory"
	case errors.Is(err, database.ErrVersion):
		f.Do = "use the version of tabane that made it"
	case errors.Is(err, database.ErrForeign):
		f.Do = "name a directory that tabane measure run has made"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		f.Do = "name a directory that tabane measure run has made"
	}
	return f
}
