package labrun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/lab/browser"
	"github.com/tabane/tabane/internal/lab/certificate"
	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
	"github.com/tabane/tabane/internal/study/qoe"
)

// The names of the certificate's files in the lab's directory, which goes with the lab.
const (
	certificateFile = "site.pem"
	keyFile         = "site-key.pem"
)

const (
	// firstWebPort is the port of the first listener that a run adds to the site.
	firstWebPort = 8443
	// minIdle is the share of idle time of the processors below which a trial is disturbed, and
	// maxLate the share of late frames above which it is.
	minIdle, maxLate = 0.10, 0.01
	// maxDisturbed is how often a disturbed trial is repeated, and repeatShare the share of the
	// trials that are repeated in all: a host that disturbs more of them would disturb their
	// repetitions too.
	maxDisturbed, repeatShare = 2, 0.125
)

// NoteDisturbed is the note of a run that was disturbed to the last, and why.
const NoteDisturbed = "disturbed"

// NoteRecording is the note of a run whose recording failed, and why.
const NoteRecording = "recording"

// web is what an experiment of scenario.KindWeb has beside its labs.
type web struct {
	certificate certificate.Certificate
	// ports are those of the site's listeners, by congestion control.
	ports map[string]uint16
	// world is the site's.
	world *content.World
	// program is the browser's, self that of tabane.
	program, self string

	mu sync.Mutex
	// repeats is how many disturbed trials can still be repeated.
	repeats int
	// browsers are those of each lab. One is kept for further trials: its first page takes longer.
	browsers map[string]map[browserKind]*browser.Browser
	// archives have the requests of the last trial of each job, until archive takes them.
	archives map[runID][]byte
}

// runID identifies a run of an experiment.
type runID struct {
	result.CellKey
	trial int
}

// browserKind is what cannot be changed while a browser runs.
type browserKind struct {
	mptcp bool
	http  string
}

// newWeb returns the spec with a listener of the site for each congestion control, over TLS with a
// certificate of the run, and what else the experiment needs.
func (r *runner) newWeb() (*web, *scenario.Spec, error) {
	e := r.Spec.Experiment
	w := &web{repeats: repeatsOf(r.total), ports: map[string]uint16{}, browsers: map[string]map[browserKind]*browser.Browser{}, self: r.Binary}
	var err error
	if w.program, err = browser.Find(); err != nil {
		return nil, nil, err
	}
	if w.self == "" {
		if w.self, err = os.Executable(); err != nil {
			return nil, nil, err
		}
	}
	if w.certificate, err = certificate.New(e.Server); err != nil {
		return nil, nil, err
	}
	server := *r.Spec.Nodes[e.Server]
	config := *server.Site
	config.Listen = slices.Clone(config.Listen)
	w.world = content.New(config.Seed)
	for _, name := range e.TransportNames() {
		control := r.controlOf(name)
		if _, taken := w.ports[control]; taken {
			continue
		}
		port := uint16(firstWebPort + len(w.ports))
		w.ports[control] = port
		config.Listen = append(config.Listen, httpd.Listen{
			Address: netip.AddrPortFrom(netip.IPv6Unspecified(), port), Congestion: control, Certificate: certificateFile, Key: keyFile,
		})
	}
	server.Site = &config
	spec := *r.Spec
	spec.Nodes = maps.Clone(r.Spec.Nodes)
	spec.Nodes[e.Server] = &server
	return w, &spec, nil
}

// controlOf returns the kernel's name of a transport's congestion control, or nothing.
func (r *runner) controlOf(transport string) string {
	name, _ := r.offers.control(r.Spec.Experiment.Transports[transport].Settings)
	return name
}

// webOffers returns what the kernel offers, or an error if it lacks a congestion control of the
// spec.
func webOffers(spec *scenario.Spec) (offers, error) {
	o, err := kernelOffers()
	if err != nil {
		return o, err
	}
	for _, name := range spec.Experiment.TransportNames() {
		if _, err := tune(spec.Experiment.Transports[name].Settings, false, 1, o); err != nil {
			return o, fmt.Errorf("transport %q: %w", name, err)
		}
	}
	return o, nil
}

// close ends the browsers.
func (w *web) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, kinds := range w.browsers {
		for _, b := range kinds {
			errs = append(errs, b.Close())
		}
	}
	return errors.Join(errs...)
}

// browser returns the lab's browser of a kind, which it starts if there is none.
func (r *runner) browser(ctx context.Context, l *lab.Lab, k browserKind, url string) (*browser.Browser, error) {
	w := r.web
	w.mu.Lock()
	b := w.browsers[l.Name()][k]
	w.mu.Unlock()
	if b != nil {
		if b.Ended() == nil {
			return b, nil
		}
		if err := w.drop(l, k); err != nil {
			return nil, err
		}
	}
	b, err := browser.Start(ctx, browser.Options{
		Program: w.program, Trust: []string{w.certificate.Pin}, HTTP1: k.http != scenario.HTTP2,
		Command: func(argv []string) (*exec.Cmd, error) {
			if k.mptcp {
				argv = append([]string{w.self, "mptcpify", "--"}, argv...)
			}
			// Not with ctx, which ends with the trial.
			return l.Command(context.Background(), r.Spec.Experiment.Client, argv)
		},
	})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	if w.browsers[l.Name()] == nil {
		w.browsers[l.Name()] = map[browserKind]*browser.Browser{}
	}
	w.browsers[l.Name()][k] = b
	w.mu.Unlock()
	// The first page of a browser takes longer than all others.
	p, err := b.Open(ctx, browser.PageOptions{})
	if err != nil {
		return nil, err
	}
	_, err = p.Navigate(ctx, url)
	if err = errors.Join(err, p.Close()); err != nil {
		return nil, fmt.Errorf("load a first page: %w", err)
	}
	return b, nil
}

// keep keeps the requests of a page for archive.
func (w *web) keep(j job, p *browser.Page, title string) error {
	data, err := p.HAR(title)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.archives == nil {
		w.archives = map[runID][]byte{}
	}
	w.archives[runID{j.CellKey, j.trial}] = data
	return nil
}

// archive returns the requests of a job's last trial, or nil without any.
func (w *web) archive(j job) *result.Archive {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	id := runID{j.CellKey, j.trial}
	data := w.archives[id]
	delete(w.archives, id)
	if data == nil {
		return nil
	}
	return &result.Archive{CellKey: j.CellKey, Trial: j.trial, HAR: data}
}

// drop ends the lab's browser of a kind after a failure, so that the next trial starts another.
func (w *web) drop(l *lab.Lab, k browserKind) error {
	w.mu.Lock()
	b := w.browsers[l.Name()][k]
	delete(w.browsers[l.Name()], k)
	w.mu.Unlock()
	if b == nil {
		return nil
	}
	return b.Close()
}

// visited is what a job visits: its tasks, the browser for them and the URL of their first view.
func (r *runner) visited(j job) (tasks []content.Task, kind browserKind, url string) {
	e := r.Spec.Experiment
	t := j.cell.Traffic
	tasks = tasksOf(r.web.world, t, j.trial)
	server := net.JoinHostPort(e.Server, strconv.Itoa(int(r.web.ports[r.controlOf(j.Transport)])))
	return tasks, browserKind{e.Transports[j.Transport].MPTCP, t.Web.HTTP}, "https://" + server + tasks[0].Path
}

// tasksOf returns the tasks of the sessions of a trial.
func tasksOf(w *content.World, t *scenario.Traffic, trial int) (tasks []content.Task) {
	for _, seed := range t.Web.Tasks(trial) {
		tasks = append(tasks, w.Task(t.Web.Service, t.Web.Heavy, seed))
	}
	return tasks
}

// thinking returns how long a player of a task thinks, in a quick pass or not.
func thinking(task content.Task, t *scenario.Traffic, quick bool) time.Duration {
	sum := task.Think()
	return time.Duration(t.ThinkTimes(sum, quick) * float64(sum))
}

// beginning returns when a session of a trial begins: evenly over the mean think time of a step, as
// users do not arrive together.
func beginning(tasks []content.Task, session int, t *scenario.Traffic, quick bool) time.Duration {
	think, steps := time.Duration(0), 0
	for _, task := range tasks {
		think += thinking(task, t, quick)
		steps += len(task.Loads) - 1
	}
	return think / time.Duration(max(1, steps)) * time.Duration(session) / time.Duration(len(tasks))
}

// preflight starts the browsers of the first jobs with and without MPTCP, which load a page. Where
// that fails, so would every trial.
func (r *runner) preflight(ctx context.Context, l *lab.Lab, jobs []job) error {
	ctx, cancel := context.WithTimeoutCause(ctx, browserPatience, fmt.Errorf("the browser is not ready after %s", browserPatience))
	defer cancel()
	begun := map[bool]bool{}
	for _, j := range jobs {
		_, kind, url := r.visited(j)
		if begun[kind.mptcp] {
			continue
		}
		begun[kind.mptcp] = true
		if _, err := r.browser(ctx, l, kind, url); err != nil {
			return fmt.Errorf("no page can be loaded over transport %q: %w", j.Transport, err)
		}
	}
	return nil
}

// reviveFor bounds the time until a restarted server or link is ready, exitDelay that until the
// exit of a process is known whose connections are closed.
const (
	reviveFor = 30 * time.Second
	exitDelay = 500 * time.Millisecond
)

// revive restarts the server and the links that have exited, with the shapes of a cell.
func (r *runner) revive(ctx context.Context, l *lab.Lab, c *cell.Cell) error {
	err := l.Daemons().Revive()
	if err == nil {
		err = l.WaitReady(ctx, reviveFor)
	}
	if err == nil {
		err = r.setCase(l, c)
	}
	if err != nil {
		return fmt.Errorf("restart what has exited: %w", err)
	}
	return nil
}

// browse plays a job's task and adds its metrics to the run. The exit of a process of the lab ends
// it.
func (r *runner) browse(ctx context.Context, l *lab.Lab, j job, run *result.Run) error {
	guarded, stop := l.Daemons().Guard(ctx)
	defer stop()
	err := r.undisturbed(guarded, l, j, run)
	// The browser may notice that a connection is closed before the exit of the process is known.
	if err == nil || sleep(guarded, exitDelay) != nil {
		return err
	}
	// Without an exit the browser may be what is broken.
	_, kind, _ := r.visited(j)
	return errors.Join(err, r.web.drop(l, kind))
}

// repeatsOf returns how many disturbed trials of an experiment are repeated.
func repeatsOf(trials int) int {
	return max(maxDisturbed, int(repeatShare*float64(trials)))
}

// repeat reports whether a disturbed trial is repeated.
func (w *web) repeat() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.repeats--
	return w.repeats >= 0
}

// undisturbed plays a job's task, again while the trial is disturbed.
func (r *runner) undisturbed(ctx context.Context, l *lab.Lab, j job, run *result.Run) error {
	t := j.cell.Traffic
	tasks, kind, url := r.visited(j)
	for repeated := 0; ; repeated++ {
		why, err := r.trial(ctx, l, j, tasks, kind, url, run)
		if err != nil {
			return err
		}
		run.Metrics[result.Disturbed] = float64(repeated)
		if why == "" {
			break
		}
		if repeated == maxDisturbed || !r.web.repeat() {
			run.Metrics[result.Disturbed]++
			run.Notes[NoteDisturbed] = why
			break
		}
	}
	if r.Quick {
		return nil // it takes a third of the time
	}
	if err := r.recording(ctx, l, kind, url, t.Duration, run); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		run.Notes[NoteRecording] = oneLine(err)
		return r.web.drop(l, kind)
	}
	return nil
}

// trial plays tasks once. why says what disturbed it.
func (r *runner) trial(
	ctx context.Context, l *lab.Lab, j job, tasks []content.Task, kind browserKind, url string, run *result.Run,
) (why string, err error) {
	t := j.cell.Traffic
	guarded := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, t.Duration+browserPatience, fmt.Errorf("the browser is not ready after %s", browserPatience))
	defer cancel()
	b, err := r.browser(ctx, l, kind, url)
	if err != nil {
		return "", err
	}
	var pages []*browser.Page
	defer func() {
		if err == nil || guarded.Err() != nil { // else the browser is killed
			for _, p := range pages {
				err = errors.Join(err, p.Close())
			}
		}
	}()
	for i := range tasks {
		// The archive of a trial is that of its first session.
		recorded := r.HAR && i == 0
		p, err := b.Open(ctx, browser.PageOptions{Requests: recorded})
		if err != nil {
			return "", err
		}
		pages = append(pages, p)
	}
	if r.HAR {
		defer func() { err = errors.Join(err, r.web.keep(j, pages[0], url)) }()
	}
	others, err := r.visit(ctx, l, j)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, others.stop()) }()
	before, err := r.usage(ctx, l)
	if err != nil {
		return "", err
	}
	paths, err := r.watchPaths(l, j)
	if err != nil {
		return "", err
	}
	defer paths.stop()
	limited, cancelTask := context.WithTimeoutCause(ctx, t.Duration, fmt.Errorf("took longer than %s", t.Duration))
	defer cancelTask()
	loading, err := r.sessions(limited, pages, j, tasks, url, run)
	if err != nil {
		return "", err
	}
	if err := paths.put(loading, run); err != nil {
		return "", err
	}
	after, err := r.usage(ctx, l)
	if err != nil {
		return "", err
	}
	others.put(after, before, paths.total(), run)
	return after.since(before, run), nil
}

// browserPatience bounds the time until a browser is ready.
const browserPatience = time.Minute

// sessions plays tasks on pages side by side, adds the means of their metrics to the run, and
// returns how long views loaded in all of them.
func (r *runner) sessions(ctx context.Context, pages []*browser.Page, j job, tasks []content.Task, url string, run *result.Run) (loading time.Duration, _ error) {
	t := j.cell.Traffic
	played := make([]map[string]float64, len(pages))
	loads := make([]time.Duration, len(pages))
	group, playing := errgroup.WithContext(ctx)
	for i, p := range pages {
		group.Go(func() (err error) {
			if err := sleep(playing, beginning(tasks, i, t, r.Quick)); err != nil {
				return err
			}
			played[i], loads[i], err = r.play(playing, p, j, tasks[i], url)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	count := map[string]float64{}
	for i, metrics := range played {
		loading += loads[i]
		for name, v := range metrics {
			if count[name]++; count[name] == 1 {
				run.Metrics[name] = 0
			}
			run.Metrics[name] += (v - run.Metrics[name]) / count[name]
		}
	}
	return loading, nil
}

// play plays a task on a page, and returns its metrics and how long views loaded.
func (r *runner) play(ctx context.Context, p *browser.Page, j job, task content.Task, url string) (metrics map[string]float64, loading time.Duration, err error) {
	t := j.cell.Traffic
	first, err := p.Navigate(ctx, url)
	if err != nil {
		return nil, 0, err
	}
	m, err := p.Measure(ctx)
	if err != nil {
		return nil, 0, err
	}
	if want := map[bool]string{true: "h2", false: "http/1.1"}[t.Web.HTTP == scenario.HTTP2]; m.Protocol != want {
		return nil, 0, fmt.Errorf("the page was loaded over %q, not %q", m.Protocol, want)
	}
	factor := t.ThinkTimes(task.Think(), r.Quick)
	var waits []time.Duration
	longest := time.Duration(0)
	last, step := first, 0
	for i, s := range task.Steps {
		if err := sleep(ctx, time.Duration(factor*float64(s.Think))); err != nil {
			return nil, 0, err
		}
		if err := p.Perform(ctx, s); err != nil {
			return nil, 0, fmt.Errorf("step %d of %d: %w", i+1, len(task.Steps), err)
		}
		if !s.Loads {
			continue
		}
		step++
		if last, err = p.Wait(ctx, step); err != nil {
			return nil, 0, fmt.Errorf("step %d of %d: %w", i+1, len(task.Steps), err)
		}
		waits = append(waits, last.At-last.Input)
		longest = max(longest, last.At-last.Input)
	}
	end := p.Last()
	loading = first.At
	for _, w := range waits {
		loading += w
	}
	usability, err := qoe.Of(r.web.world.Met(task, end.Chosen), last.At)
	if err != nil {
		return nil, 0, err
	}
	waiting := loading / time.Duration(1+len(waits))
	mos, err := qoe.Waiting.Estimate(waiting)
	if err != nil {
		return nil, 0, err
	}
	metrics = map[string]float64{}
	for name, d := range map[string]time.Duration{
		result.TTFB: m.TTFB, result.FCP: m.FCP, result.LCP: m.LCP, result.PageLoad: m.Load, result.FirstView: first.At, result.TaskTime: last.At,
		result.Waiting: waiting, result.StepMax: longest,
	} {
		metrics[name] = d.Seconds()
	}
	if len(waits) > 0 {
		metrics[result.StepTime] = (loading - first.At).Seconds() / float64(len(waits))
	}
	metrics[result.CLS] = m.CLS
	metrics[result.ViewBytes], metrics[result.ViewRequests] = float64(m.Bytes), float64(m.Requests)
	metrics[result.Steps] = float64(len(waits))
	metrics[result.Effectiveness], metrics[result.Efficiency] = float64(usability.Effectiveness), usability.Efficiency
	metrics[result.EstimatedMOS] = mos.Score()
	return metrics, loading, nil
}

// recording loads the first view once more and records it.
func (r *runner) recording(ctx context.Context, l *lab.Lab, kind browserKind, url string, limit time.Duration, run *result.Run) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("took longer than %s", limit))
	defer cancel()
	b, err := r.browser(ctx, l, kind, url)
	if err != nil {
		return err
	}
	p, err := b.Open(ctx, browser.PageOptions{Record: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if _, err := p.Navigate(ctx, url); err != nil {
		return err
	}
	m, err := p.Measure(ctx)
	if err != nil {
		return err
	}
	frames, err := p.Frames(ctx, m)
	if err != nil {
		return err
	}
	v, err := qoe.Progress(frames)
	if err != nil {
		return err
	}
	run.Metrics[result.SpeedIndex] = v.SpeedIndex.Seconds()
	run.Metrics[result.FirstChange], run.Metrics[result.LastChange] = v.First.Seconds(), v.Last.Seconds()
	return nil
}
