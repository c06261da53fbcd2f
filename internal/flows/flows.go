// Package flows monitors the flows of a host: packets and bytes of each inner flow and SID from the
// flow counter, with the MPTCP connection and the TCP metrics from sock_diag.
//
// It changes no packet, route or socket, and keeps no history: the caller receives snapshots.
package flows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/bpf/flowcount"
	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// DefaultInterval is the default of Options.Interval.
	DefaultInterval = 100 * time.Millisecond
	// MinInterval bounds Options.Interval: below, reading takes too large a part of it.
	MinInterval = 10 * time.Millisecond
	// MaxInterval bounds Options.Interval.
	MaxInterval = time.Hour
	// DefaultIdle is the default of Options.Idle.
	DefaultIdle = 30 * time.Second

	// grace is how long a flow must be quiet whose socket is gone: its last packets may be under
	// way.
	grace = time.Second
	// DefaultShare is the default of Options.Share.
	DefaultShare = 0.02
	// socketShare is the part of that which is for sockets, the rest is for counters.
	socketShare = 0.25
)

// Options configure a Watcher.
type Options struct {
	// Interfaces are the names of those whose packets are counted.
	Interfaces []string
	// Interval is how often flows are read; 0 means DefaultInterval.
	Interval time.Duration
	// Idle is how long a flow without a socket carries nothing before it ends; 0 means DefaultIdle.
	Idle time.Duration
	// MaxFlows is how many flows there is room for in the kernel; 0 means
	// flowcount.DefaultMaxFlows. When a quarter of it is left, the flows that were quiet longest,
	// and for a second at least, end early.
	MaxFlows int
	// Share is the part of one processor that reading may take, above 0 and up to 1; 0 means
	// DefaultShare. Sockets have a quarter of it, and are read as seldom as that takes. The rest is
	// for counters: with so many flows, or so many that begin and end, that an interval takes more,
	// the next one is longer. Nothing is lost by that, and snapshots say how long they are.
	Share float64
	// Peers are names for the local addresses of subflows: the egress peer that each leads to.
	Peers map[netip.Addr]string
	// Sink takes each snapshot; an error ends Run. The snapshot and its flows are valid during the
	// call only.
	Sink func(*Snapshot) error
	Log  *slog.Logger
}

func (o *Options) check() error {
	switch {
	case len(o.Interfaces) == 0:
		return errors.New("no interface is named")
	case o.Interval < MinInterval || o.Interval > MaxInterval:
		return fmt.Errorf("interval must be between %v and %v, got %v", MinInterval, MaxInterval, o.Interval)
	case !(o.Share > 0 && o.Share <= 1):
		return fmt.Errorf("share of a processor must be above 0 and up to 1, got %v", o.Share)
	case o.Idle < o.Interval:
		return fmt.Errorf("a flow is quiet after no less than an interval, got %v", o.Idle)
	}
	for i, name := range o.Interfaces {
		if slices.Contains(o.Interfaces[:i], name) {
			return fmt.Errorf("interface %q is named twice", name)
		}
	}
	return nil
}

// counter counts packets per flow.
type counter interface {
	Each(func(slot int, key *flowcount.Key, count flowcount.Count))
	Reasons() ([flowcount.NumReasons]flowcount.Count, error)
}

// slots are what the counter keeps flows in.
type slots interface {
	Remove(slot int) error
	Reuse(slot int) error
}

// sockets lists those of the host.
type sockets interface {
	Sockets(mptcp.Family, func(*mptcp.Socket)) error
	Connections(mptcp.Family, func(mptcp.Connection)) error
}

// Watcher reads flows at an interval.
type Watcher struct {
	options Options
	counter counter
	slots   slots
	sockets sockets
	closers []io.Closer
	// cost is the processor time that the calling thread has used.
	cost func() time.Duration

	// mu protects the tracker: metrics are asked for by others.
	mu sync.Mutex
	t  *tracker
	// next and nextSockets are when counters and sockets may be read again; deaf, that sockets
	// cannot be.
	next, nextSockets time.Time
	deaf              error
}

// New attaches the counters to the interfaces of the calling thread's network namespace. They count
// from then on until Close. Errors wrap errors.ErrUnsupported when this host cannot, and
// fs.ErrNotExist when there is no such interface.
func New(o Options) (_ *Watcher, err error) {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Share == 0 {
		o.Share = DefaultShare
	}
	if o.Idle == 0 {
		o.Idle = max(DefaultIdle, o.Interval)
	}
	if o.MaxFlows == 0 {
		o.MaxFlows = flowcount.DefaultMaxFlows
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("watch flows: %w", err)
	}
	f, err := flowcount.New(flowcount.Options{MaxFlows: o.MaxFlows})
	if err != nil {
		return nil, err
	}
	w := &Watcher{options: o, counter: f, slots: f, closers: []io.Closer{f}, cost: threadTime}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	names := map[uint32]string{}
	for _, name := range o.Interfaces {
		if err := f.Attach(name); err != nil {
			return nil, err
		}
		l, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("watch interface %q: %w", name, err)
		}
		// Names of interfaces are bytes, those in metrics text.
		names[uint32(l.Index)] = strings.ToValidUTF8(name, "?")
	}
	d, err := mptcp.DialDiag()
	if err != nil {
		return nil, err
	}
	w.sockets, w.closers = d, append(w.closers, d)
	w.t = newTracker(names, o.Peers, o.Idle, o.MaxFlows)
	return w, nil
}

// Close detaches the counters. It is not called while Run runs.
func (w *Watcher) Close() error {
	var errs []error
	for _, c := range w.closers {
		errs = append(errs, c.Close())
	}
	w.closers = nil
	return errors.Join(errs...)
}

// Run reads the flows at each interval and calls the sink with them, until ctx ends or an error
// occurs. It takes a last snapshot before it returns.
func (w *Watcher) Run(ctx context.Context) error {
	// What reading costs is measured as this thread's time.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ticker := time.NewTicker(w.options.Interval)
	defer ticker.Stop()
	last := time.Now()
	for {
		stop := false
		select {
		case <-ctx.Done():
			stop = true
		case <-ticker.C:
		}
		now := time.Now()
		if !stop && now.Before(w.next) {
			continue
		}
		if err := w.read(now, now.Sub(last)); err != nil {
			return err
		}
		if stop {
			return ctx.Err()
		}
		last = now
	}
}

// read makes one snapshot and gives it away.
func (w *Watcher) read(now time.Time, elapsed time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	start := w.cost()
	if err := w.t.read(w.counter, now, elapsed); err != nil {
		return err
	}
	counted := w.cost()
	w.join(now)
	finish := w.cost()
	if err := w.t.finish(w.slots, now); err != nil {
		return err
	}
	w.next = now.Add(pause(w.cost()-finish+counted-start, w.options.Share*(1-socketShare)))
	if w.options.Sink == nil {
		return nil
	}
	return w.options.Sink(&w.t.snapshot)
}

// join reads the sockets when there is TCP and they have not been read too much already.
func (w *Watcher) join(now time.Time) {
	if w.deaf != nil || now.Before(w.nextSockets) {
		return
	}
	families := w.t.families()
	if len(families) == 0 {
		return
	}
	start := w.cost()
	w.t.startSockets(now)
	for _, family := range families {
		err := w.sockets.Sockets(family, w.t.socket)
		if err == nil && len(w.t.connections) > 0 {
			err = w.sockets.Connections(family, w.t.describe)
		}
		if err != nil {
			// Counting continues without them.
			w.deaf = err
			w.options.Log.Warn("flows are shown without connections and TCP metrics; the kernel needs CONFIG_INET_TCP_DIAG and CONFIG_INET_MPTCP_DIAG", "err", err)
			return
		}
	}
	w.t.endSockets()
	w.nextSockets = now.Add(pause(w.cost()-start, w.options.Share*socketShare))
}

// pause is how long to wait until what takes the cost has taken no more than the share.
func pause(cost time.Duration, share float64) time.Duration {
	return time.Duration(float64(cost) / share)
}

// threadTime is the processor time that the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		// It exists since Linux 2.6.12 and takes no argument that could be wrong.
		panic("BUG: read thread time: " + err.Error())
	}
	return time.Duration(t.Nano())
}
