package labrun

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/mptcp/ccbpf"
)

// pathsEvery is how often the sockets of a server are read.
const pathsEvery = 50 * time.Millisecond

// pathSockets is what is known of the server's sockets on one path.
type pathSockets struct {
	bytes uint64
	// windows is the sum of the congestion windows in samples with data in flight.
	windows, samples uint64
}

// pathWatch reads the sockets of a site's listener while a task runs.
type pathWatch struct {
	cancel context.CancelFunc
	done   chan struct{}
	// Of a run until done.
	paths   map[netip.Addr]*pathSockets // by the server's address
	acked   map[pair]uint64
	old     map[pair]bool
	mptcp   bool
	repairs uint64
	err     error

	links int
	want  bool // MPTCP
}

// watchPaths starts to read the sockets of a job's transport.
func (r *runner) watchPaths(l *lab.Lab, j job) (*pathWatch, error) {
	e := r.Spec.Experiment
	n, err := l.Node(e.Server)
	if err != nil {
		return nil, err
	}
	var diag *mptcp.Diag
	if err := n.Do(func() error { diag, err = mptcp.DialDiag(); return err }); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := e.Transports[j.Transport]
	w := &pathWatch{
		cancel: cancel, done: make(chan struct{}), paths: map[netip.Addr]*pathSockets{}, acked: map[pair]uint64{}, old: map[pair]bool{},
		links: len(t.Links), want: t.MPTCP,
	}
	port := r.web.ports[r.controlOf(j.Transport)]
	names := ccbpf.MapNames{}
	first := true
	read := func() error {
		return diag.Storages(mptcp.IPv6, func(s *mptcp.Socket, storages []mptcp.Storage) {
			if s.State == mptcp.Listening || s.Local.Port() != port {
				return
			}
			key := pair{s.Local, s.Remote}
			if first || w.old[key] {
				w.old[key] = true // of an earlier page
				return
			}
			w.sample(key, s)
			for _, v := range storages {
				if names.Has(v.Map) {
					if st, err := ccbpf.DecodeStats(v.Value); err == nil {
						w.repairs = max(w.repairs, uint64(st.Repairs))
					}
				}
			}
		})
	}
	if err := read(); err != nil {
		cancel()
		return nil, errors.Join(err, diag.Close())
	}
	first = false
	go func() {
		defer close(w.done)
		tick := time.NewTicker(pathsEvery)
		defer tick.Stop()
		for w.err == nil && ctx.Err() == nil {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
			w.err = read()
		}
		w.err = errors.Join(w.err, diag.Close())
	}()
	return w, nil
}

// sample counts a reading of a socket.
func (w *pathWatch) sample(key pair, s *mptcp.Socket) {
	w.mptcp = w.mptcp || s.Token != 0
	p := w.paths[s.Local.Addr()]
	if p == nil {
		p = &pathSockets{}
		w.paths[s.Local.Addr()] = p
	}
	p.bytes += s.Acked - min(s.Acked, w.acked[key])
	w.acked[key] = s.Acked
	if s.InFlight > 0 {
		p.windows += uint64(s.Window)
		p.samples++
	}
}

// stop ends the readings after one more.
func (w *pathWatch) stop() {
	w.cancel()
	<-w.done
}

// total returns the acknowledged bytes of all paths, after stop.
func (w *pathWatch) total() (n uint64) {
	for _, p := range w.paths {
		n += p.bytes
	}
	return n
}

// put stops and adds the metrics of the paths to a run, of views that loaded for so long.
func (w *pathWatch) put(loading time.Duration, run *result.Run) error {
	w.stop()
	switch {
	case w.err != nil:
		return w.err
	case w.want && !w.mptcp:
		return errors.New("the connections fell back from MPTCP to TCP")
	case !w.want && w.mptcp:
		return errors.New("a connection used MPTCP, which its transport does not")
	}
	total, least, windows, used := w.total(), w.total(), 0.0, 0
	for _, p := range w.paths {
		least = min(least, p.bytes)
		if p.samples > 0 {
			windows += float64(p.windows) / float64(p.samples)
			used++
		}
	}
	if total == 0 {
		return errors.New("the server's sockets have sent nothing")
	}
	if len(w.paths) < w.links {
		least = 0
	}
	delete(run.Metrics, result.PathWindow) // of a trial that was repeated
	delete(run.Metrics, result.Repairs)
	if used > 0 && w.repairs == 0 {
		run.Metrics[result.PathWindow] = windows / float64(used)
	}
	run.Metrics[result.PathThroughput] = 8 * float64(total) / loading.Seconds() / float64(w.links)
	if w.want {
		run.Metrics[result.LeastPath] = float64(least) / float64(total)
	}
	if w.repairs > 0 {
		run.Metrics[result.Repairs] = float64(w.repairs)
	}
	return nil
}

// usage is what a trial is judged by: times of the processors in ticks, and frames of the emulated
// links.
type usage struct {
	idle, total     uint64
	late, delivered uint64
	// toward has the bytes of frames that each link delivered toward the client: from its end at
	// the server, or from its first end if neither is at one of them.
	toward map[string]uint64
	at     time.Time
}

// usage reads those of the host and of a lab.
func (r *runner) usage(ctx context.Context, l *lab.Lab) (u usage, err error) {
	u.toward, u.at = map[string]uint64{}, time.Now()
	if u.idle, u.total, err = processorTimes(); err != nil {
		return u, err
	}
	for name := range r.Spec.Links {
		report, ok, err := l.Links().Report(ctx, name)
		if err != nil {
			return u, err
		}
		if ok {
			u.late += report.Forward.Late.Over + report.Backward.Late.Over
			u.delivered += report.Forward.Delivered + report.Backward.Delivered
			u.toward[name] = report.Forward.DeliveredBytes
			if e := r.Spec.Experiment; r.Spec.Links[name].Ends[0].Node == e.Client || r.Spec.Links[name].Ends[1].Node == e.Server {
				u.toward[name] = report.Backward.DeliveredBytes
			}
		}
	}
	return u, nil
}

// since adds the metrics of the time since before to a run, and says what disturbed it, if anything
// did.
func (u usage) since(before usage, run *result.Run) string {
	idle := float64(u.idle-before.idle) / float64(max(1, u.total-before.total))
	late := float64(u.late-before.late) / float64(max(1, u.delivered-before.delivered))
	run.Metrics[result.Idle], run.Metrics[result.LateShare] = idle, late
	switch n := run.Metrics[result.Repairs]; {
	case n > 0:
		return fmt.Sprintf("the kernel skipped programs of the congestion control: %.0f values contained", n)
	case idle < minIdle:
		return fmt.Sprintf("the processors were idle for %.0f %% of the time", 100*idle)
	case late > maxLate:
		return fmt.Sprintf("links delivered %.1f %% of the frames more than 5 ms late", 100*late)
	}
	return ""
}

// processorTimes reads the idle and the whole time of all processors since the start of the host
// (proc_stat(5)).
func processorTimes() (idle, total uint64, _ error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read processor times: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("read processor times: unknown line %q", line)
	}
	for i, f := range fields[1:9] { // guest times are in user times already
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read processor times: %w", err)
		}
		total += n
		if i == 3 || i == 4 { // idle and iowait
			idle += n
		}
	}
	return idle, total, nil
}
