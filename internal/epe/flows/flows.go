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

	"github.com/tabane/tabane/internal/epe/flowcount"
	"github.com/tabane/tabane/internal/kernel/clock"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// DefaultInterval is the default of Options.Interval.
	DefaultInterval = 100 * time.Millisecond
	// MinInterval is the minimum of Options.Interval: with shorter intervals, reading takes too
	// large a share of the time.
	MinInterval = 10 * time.Millisecond
	// MaxInterval is the maximum of Options.Interval.
	MaxInterval = time.Hour
	// DefaultIdle is the default of Options.Idle.
	DefaultIdle = 30 * time.Second

	// followInterval is the time between examinations of the interfaces.
	followInterval = time.Second
	// grace is the idle time after which a flow without its socket ends: its last packets may
	// still be in flight.
	grace = time.Second
	// DefaultShare is the default of Options.Share.
	DefaultShare = 0.02
	// socketShare is the fraction of the share for reading sockets; the rest is for counters.
	socketShare = 0.25
)

// Options configure a Watcher.
type Options struct {
	// Interfaces are the names of the interfaces whose packets are counted. One that is made again
	// is counted again.
	Interfaces []string
	// List returns the names of the interfaces to count now, of which there may be new ones; nil:
	// Interfaces.
	List func() ([]string, error)
	// Interval is the time between reads of the flows; 0 means DefaultInterval.
	Interval time.Duration
	// Idle is the idle timeout of a flow without a socket; 0 means DefaultIdle.
	Idle time.Duration
	// MaxFlows is the capacity of the flow table in the kernel; 0 means
	// flowcount.DefaultMaxFlows. If less than a quarter of it is free, the flows idle for
	// longest are evicted, but only after at least a second without packets.
	MaxFlows int
	// Share is the maximum fraction of one CPU that reading uses, above 0 and up to 1; 0 means
	// DefaultShare. A quarter of it is for sockets, which are read less often if necessary. The
	// rest is for counters: if reading takes more than that, the next interval is longer. No
	// counts are lost, and a snapshot includes its interval.
	Share float64
	// Peers are the names of egress peers by the local address of their subflows.
	Peers map[netip.Addr]string
	// Gateway is what this host is, nil if it is no gateway.
	Gateway *Gateway
	// Sink is called with each snapshot; an error ends Run. The snapshot and its flows are
	// valid only during the call.
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

// slots are the entries of the flow table in the kernel.
type slots interface {
	Remove(slot int) error
	Reuse(slot int) error
}

// sockets lists the sockets of the host.
type sockets interface {
	Sockets(mptcp.Family, func(*mptcp.Socket)) error
	Connections(mptcp.Family, func(mptcp.Connection)) error
	Listeners() ([]mptcp.Listener, error)
}

// Watcher reads flows at an interval.
type Watcher struct {
	options Options
	counter counter
	slots   slots
	sockets sockets
	closers []io.Closer
	// cost returns the CPU time of the calling thread.
	cost func() time.Duration

	// mu protects the tracker, because metrics are collected by other goroutines.
	mu sync.Mutex
	t  *tracker
	// next and nextSockets are the earliest times of the next read of counters and sockets;
	// socketsErr is the error after which sockets are no longer read.
	next, nextSockets time.Time
	socketsErr        error

	// attached follows the interfaces of the namespace, unless it is nil; failed are those whose
	// fault was logged.
	attached   attacher
	namespace  *netns.Handle
	nextFollow time.Time
	failed     map[string]bool
}

// attacher attaches counters to interfaces.
type attacher interface {
	Renew(link string) (changed bool, err error)
	Index(link string) int
	Attached() []string
}

// New attaches the counters to the interfaces of the calling thread's network namespace. They count
// until Close. Errors wrap errors.ErrUnsupported if this host does not support the counters, and
// fs.ErrNotExist if an interface does not exist.
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
	w := &Watcher{options: o, counter: f, slots: f, attached: f, closers: []io.Closer{f}, cost: clock.Thread, failed: map[string]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.namespace, err = netns.Current(); err != nil {
		return nil, err
	}
	w.closers = append(w.closers, w.namespace)
	names := map[uint32]string{}
	for _, name := range o.Interfaces {
		if err := f.Attach(name); err != nil {
			return nil, err
		}
		l, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("watch interface %q: %w", name, err)
		}
		// Interface names are arbitrary bytes, but metric labels must be valid UTF-8.
		names[uint32(l.Index)] = strings.ToValidUTF8(name, "?")
	}
	d, err := mptcp.DialDiag()
	if err != nil {
		return nil, err
	}
	w.sockets, w.closers = d, append(w.closers, d)
	w.t = newTracker(names, o.Peers, o.Idle, o.MaxFlows)
	w.t.gateway = o.Gateway
	return w, nil
}

// Close detaches the counters. It must not be called while Run runs.
func (w *Watcher) Close() error {
	var errs []error
	for _, c := range w.closers {
		errs = append(errs, c.Close())
	}
	w.closers = nil
	return errors.Join(errs...)
}

// Run reads the flows at each interval and calls the sink with a snapshot, until ctx ends or an
// error occurs. It takes a final snapshot before it returns.
func (w *Watcher) Run(ctx context.Context) error {
	// The cost of reading is measured as the CPU time of this thread.
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
		if w.attached != nil && !now.Before(w.nextFollow) {
			w.nextFollow = now.Add(followInterval)
			w.follow()
		}
	}
}

// follow attaches the counters to interfaces that are new or were made again, and to those where
// another program was attached before them. Those that are gone are released.
func (w *Watcher) follow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	report := func(name string, err error) {
		if err != nil && !w.failed[name] {
			w.options.Log.Warn("flows of an interface are not counted", "interface", name, "err", err)
		}
		w.failed[name] = err != nil
	}
	err := w.namespace.Do(func() error {
		// Those that are gone are not listed any more.
		names := append(w.attached.Attached(), w.options.Interfaces...)
		if w.options.List != nil {
			more, err := w.options.List()
			if err != nil {
				return err
			}
			names = append(names, more...)
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			_, err := w.attached.Renew(name)
			if i := w.attached.Index(name); i != 0 {
				w.t.interfaces[uint32(i)] = strings.ToValidUTF8(name, "?")
			}
			report(name, err)
		}
		return nil
	})
	if err != nil {
		report("", err)
	}
}

// read takes one snapshot and passes it to the sink.
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

// join reads the sockets if there are TCP flows and the share for sockets allows it.
func (w *Watcher) join(now time.Time) {
	if w.socketsErr != nil || now.Before(w.nextSockets) {
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
			// Counting continues without sockets.
			w.socketsErr = err
			w.options.Log.Warn("flows are shown without connections and TCP metrics; the kernel needs CONFIG_INET_TCP_DIAG and CONFIG_INET_MPTCP_DIAG", "err", err)
			return
		}
	}
	w.t.endSockets()
	w.t.listeners = nil
	if w.t.lacking() {
		// Without them the host is taken to accept subflows.
		w.t.listeners, _ = w.sockets.Listeners()
	}
	w.nextSockets = now.Add(pause(w.cost()-start, w.options.Share*socketShare))
}

// pause returns how long to wait so that the cost does not exceed the share of the time.
func pause(cost time.Duration, share float64) time.Duration {
	return time.Duration(float64(cost) / share)
}
