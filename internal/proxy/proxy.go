// Package proxy is the daemon that carries TCP connections of hosts without MPTCP over MPTCP, and
// back. It has listeners with their upstreams, SOCKS5 and HTTP CONNECT for clients that name their
// destination, and captures connections transparently.
//
// The connections themselves are carried by the package relay. The daemon takes no part in the
// choice of paths: that is the kernel's MPTCP with its endpoints.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/kernel/handover"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/proxy/relay"
)

// Options describe a Proxy.
type Options struct {
	Config Config
	// Keep leaves the kernel state in place at a clean stop.
	Keep bool
	// Inherited are sockets of a process that this one replaces; nil: none.
	Inherited *handover.Sockets
	Log       *slog.Logger

	most   int     // connections; 0: what the limit of descriptors permits
	lookup resolve // nil: the resolver of the host
}

// Proxy is a running proxy.
type Proxy struct {
	log    *slog.Logger
	engine *relay.Engine
	router *router
	loop   *daemon.Loop
	keep   bool
	// replaced is closed when another process has taken over.
	replaced chan struct{}
	once     sync.Once
	// owns is closed once the captures of the network namespace, with their rules and routes, are
	// this proxy's, from its first transparent listener on to its end; the loop runs then.
	owns chan struct{}
	// ended is closed at the end of Run.
	ended chan struct{}

	reloading sync.Mutex
	// What follows is changed with mu locked.
	mu      sync.Mutex
	config  Config
	control string // congestion control of MPTCP connections
	running []*running
	// leaving are the transparent listeners that a reload has removed, and whose connections go on.
	leaving []*running
	left    bool              // for good: no connection is accepted any more
	lock    *net.UnixListener // of the network namespace

	wanted wanted
}

// running is a listener with its sockets.
type running struct {
	listener Listener
	served   *served
	service  *relay.Service
	sockets  []int
	at       []netip.AddrPort
}

// New opens the listening sockets. It does not change the kernel yet.
func New(o Options) (*Proxy, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	if o.Inherited == nil {
		o.Inherited = &handover.Sockets{}
	}
	limit, err := relay.DescriptorLimit()
	if err != nil {
		return nil, err
	}
	most := o.most
	if most == 0 {
		most = relay.ConnectionsWithin(limit)
	}
	p := &Proxy{log: o.Log, router: newRouter(o.Log, o.lookup), config: o.Config, keep: o.Keep, replaced: make(chan struct{}), owns: make(chan struct{}), ended: make(chan struct{})}
	p.engine, err = relay.New(relay.Options{Loops: processors(), Connections: most, Router: p.router, Log: o.Log})
	if err != nil {
		return nil, err
	}
	if err := p.congest(&o.Config); err != nil {
		return nil, errors.Join(err, p.engine.Close())
	}
	if p.loop, err = daemon.NewLoop(daemon.LoopOptions{Protocol: route.Proxy, Keep: o.Keep, Log: o.Log}); err != nil {
		return nil, errors.Join(err, p.engine.Close())
	}
	switch err = p.lockNamespace(o.Inherited); {
	case o.Config.Transparent():
		if err == nil {
			p.claim()
		}
	case errors.Is(err, errCaptures):
		err = nil // they are not touched
	}
	for i := range o.Config.Listeners {
		if err != nil {
			break
		}
		err = p.open(o.Config.Listeners[i], o.Inherited)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	p.router.listen(p.addresses())
	for _, lack := range o.Config.lacks() {
		p.log.Warn("host does not provide what is needed", "problem", lack.Text, "remedy", lack.Remedy)
	}
	return p, nil
}

// processors returns how many the process may use. The scheduler of Go gets one more, so that one
// is idle while each has a loop: otherwise it takes those of loops that wait for events away from
// them, and looks for them every 20 us, which takes a tenth of the CPU time.
var processors = sync.OnceValue(func() int {
	n := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(n + 1)
	return n
})

// congest sets the congestion control of new MPTCP connections. The caller has locked mu, or is
// alone.
func (p *Proxy) congest(c *Config) error {
	name, host, err := c.congestion()
	if err != nil {
		return err
	}
	if name != p.control && (p.control != "" || name != host) {
		p.engine.Congest(name)
	}
	p.control = name
	return nil
}

// close releases what New has opened.
func (p *Proxy) close() error {
	return errors.Join(p.engine.Close(), p.loop.Close(), p.unlock())
}

// unlock releases the network namespace.
func (p *Proxy) unlock() error {
	if p.lock == nil {
		return nil
	}
	err := p.lock.Close()
	p.lock = nil
	return err
}

// lockName keeps two proxies that capture connections out of a network namespace: each would
// replace the rules of the other.
const lockName = "@tabane-proxy"

var errCaptures = errors.New("another proxy captures connections in this network namespace: stop it, or give it these listeners, too")

// lockNamespace takes the lock, or that of the process that is replaced.
func (p *Proxy) lockNamespace(inherited *handover.Sockets) error {
	if p.lock != nil {
		return nil
	}
	l, err := handover.Unix(inherited, lockName)
	switch {
	case err != nil:
		return fmt.Errorf("lock network namespace: %w", err)
	case l != nil:
		p.claim()
	default:
		if l, err = netns.Lock(lockName, errCaptures); err != nil {
			return err
		}
	}
	p.lock = l
	return nil
}

// open opens the sockets of a listener, and begins to accept.
func (p *Proxy) open(l Listener, inherited *handover.Sockets) error {
	r := &running{listener: l, served: p.router.serve(l)}
	for _, o := range sockets(l) {
		fd, err := listening(o, inherited)
		if err != nil && o.Transparent && o.At.Addr().Is6() && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)) {
			continue // this host has no IPv6
		}
		if err != nil {
			return errors.Join(err, closeAll(r.sockets))
		}
		r.sockets = append(r.sockets, fd)
		r.at = append(r.at, relay.LocalAddress(fd))
	}
	s, err := p.engine.Add(relay.ServiceOptions{
		Name: l.Listen.String(), Sockets: r.sockets, Requests: l.Listen.Kind == SOCKS, Header: l.AcceptProxyProtocol,
		Local: l.Listen.Kind != SOCKS && len(r.served.upstreams) == 0 || l.ProxyProtocol != 0,
		Allow: allow(l.Allow), Idle: l.idle(), Pace: uint64(l.Pace), Tag: r.served,
	})
	if err != nil {
		return err
	}
	r.service = s
	p.running = append(p.running, r)
	return nil
}

// listening returns a listening socket: an inherited one, or a new one.
func listening(o relay.SocketOptions, inherited *handover.Sockets) (int, error) {
	fd, ok := inherited.Take(func(fd int) bool { return relay.Matches(fd, o) })
	if !ok {
		return relay.OpenSocket(o)
	}
	if err := relay.SetReusePort(fd, o.ReusePort); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func closeAll(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

// sockets returns what a listener listens with. Hosts whose connections are captured may have
// MPTCP, which cannot be paced.
func sockets(l Listener) []relay.SocketOptions {
	if l.Listen.Kind == Transparent {
		return []relay.SocketOptions{
			{At: netip.AddrPortFrom(netip.IPv6Loopback(), 0), Only6: true, Transparent: true, Multipath: l.Pace == 0},
			{At: netip.AddrPortFrom(loopback4, 0), Transparent: true, Multipath: l.Pace == 0},
		}
	}
	return []relay.SocketOptions{{At: l.Listen.Address, Multipath: l.Listen.Kind == MPTCP, ReusePort: l.ReusePort}}
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// allow returns the function that reports whether a client is in one of the prefixes; nil for none.
func allow(prefixes []netip.Prefix) func(netip.Addr) bool {
	if len(prefixes) == 0 {
		return nil
	}
	return func(a netip.Addr) bool {
		a = a.Unmap().WithZone("")
		return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}
}

// addresses returns where the proxy listens. The caller has locked mu, or is alone.
func (p *Proxy) addresses() []netip.AddrPort {
	var all []netip.AddrPort
	for _, r := range p.running {
		all = append(all, r.at...)
	}
	return all
}

// Run carries connections until ctx ends and they have ended or had their time, or another process
// has taken over and the connections of this one have ended.
func (p *Proxy) Run(ctx context.Context) (err error) {
	defer func() {
		p.mu.Lock()
		err = errors.Join(err, p.unlock())
		p.mu.Unlock()
		close(p.ended)
	}()
	carrying, stop := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() {
		if e := p.engine.Run(carrying); e != nil {
			p.log.Error("connections are not carried", "err", e)
		}
	})
	// A clean stop leaves the kernel's state in place until the connections have ended: captured
	// ones need it.
	deciding, decided := context.WithCancel(context.WithoutCancel(ctx))
	background.Go(func() { p.probe(deciding) })
	background.Go(func() {
		select {
		case <-p.replaced:
		case <-ctx.Done():
			p.finish(deciding)
		case <-deciding.Done():
		}
		decided()
	})
	p.mu.Lock()
	if p.owner() {
		err = p.capture(func(f func()) { f() }) // the loop does not run yet
	} else {
		err = p.clear()
	}
	p.mu.Unlock()
	if err == nil && p.own(deciding) {
		err = p.loop.Run(deciding, p)
	} else {
		err = errors.Join(err, p.loop.Close())
	}
	decided()
	select {
	case <-p.replaced:
		p.drain(ctx)
		if ctx.Err() != nil {
			p.finish(context.Background())
		}
	default:
		if !p.keep {
			err = errors.Join(err, p.release())
		}
	}
	stop()
	background.Wait()
	return err
}

// claim closes owns. The caller has locked mu, or is alone.
func (p *Proxy) claim() {
	if !p.owner() {
		close(p.owns)
	}
}

// owner reports whether owns is closed.
func (p *Proxy) owner() bool {
	select {
	case <-p.owns:
		return true
	default:
		return false
	}
}

// own waits until owns is closed; it is false if ctx ends before.
func (p *Proxy) own(ctx context.Context) bool {
	select {
	case <-p.owns:
		return true
	case <-ctx.Done():
		return p.owner()
	}
}

// drain has the connections of a replaced process end, for as long as the configuration says.
func (p *Proxy) drain(ctx context.Context) {
	limit := p.leave(func(c *Config) time.Duration { return c.DrainTime() })
	p.mu.Lock()
	if err := p.unlock(); err != nil { // the other process has a copy of it
		p.log.Warn("lock of the network namespace is not released", "err", err)
	}
	p.mu.Unlock()
	p.log.Info("replaced, connections go on", "connections", p.engine.Open(), "at_most", limit)
	p.await(ctx, limit)
}

// finish has the connections end at a clean stop.
func (p *Proxy) finish(ctx context.Context) {
	limit := p.leave(func(c *Config) time.Duration { return c.FinishTime() })
	if n := p.engine.Open(); n > 0 {
		p.log.Info("stopping, connections go on", "connections", n, "at_most", limit)
	}
	p.await(ctx, limit)
}

// leave stops accepting connections for good, and returns a time of the configuration.
func (p *Proxy) leave(of func(*Config) time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.running {
		p.engine.Remove(r.service)
	}
	p.running, p.left = nil, true
	return of(&p.config)
}

// awaitEvery is how often the connections that have to end are counted.
const awaitEvery = 100 * time.Millisecond

// await waits until the connections have ended, or ctx or the time.
func (p *Proxy) await(ctx context.Context, limit time.Duration) {
	ends := time.NewTimer(limit)
	defer ends.Stop()
	every := time.NewTicker(awaitEvery)
	defer every.Stop()
	for p.engine.Open() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-ends.C:
			p.log.Warn("connections are reset, they have not ended in time", "connections", p.engine.Open())
			return
		case <-every.C:
		}
	}
}

// Sockets returns the listening sockets, for the process that replaces this one. The caller does
// not close them.
func (p *Proxy) Sockets() ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []int
	for _, r := range p.running {
		all = append(all, r.sockets...)
	}
	if p.lock != nil {
		fd, err := handover.Descriptor(p.lock)
		if err != nil {
			return nil, err
		}
		all = append(all, fd)
	}
	return all, nil
}

// Replaced stops accepting and leaves the kernel's state to another process, which has the sockets.
// Run returns once the connections have ended.
func (p *Proxy) Replaced() {
	p.once.Do(func() {
		if p.owner() {
			p.loop.Do(context.Background(), p.loop.KeepState)
		}
		close(p.replaced)
	})
}

// Draining is closed once another process has taken over.
func (p *Proxy) Draining() <-chan struct{} { return p.replaced }

// Link implements daemon.Reactor: captures match an interface by its name, also one that comes
// later.
func (p *Proxy) Link(string, bool) {}

// Settled implements daemon.Reactor.
func (p *Proxy) Settled() bool { return false }

// Reload replaces the configuration and returns what has changed, one line each. Connections go on.
// An error means that nothing has changed.
func (p *Proxy) Reload(now Config) ([]string, error) {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	if err := now.Check().Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return nil, errors.New("the proxy is stopping, and accepts no connections any more")
	}
	var faults fault.List
	fault.Fixed(&faults, "control", p.config.Control, now.Control)
	fault.Fixed(&faults, "status", p.config.Status, now.Status)
	if err := faults.Err(); err != nil {
		return nil, err
	}
	difference := daemon.Compare(p.config.Listeners, now.Listeners, func(l Listener) string { return l.Listen.String() },
		func(a, b Listener) bool { return reflect.DeepEqual(a, b) })
	before, config, control := slices.Clone(p.running), p.config, p.control
	if _, _, err := now.congestion(); err != nil {
		return nil, err
	}
	if err := p.replace(now); err != nil {
		p.restore(before)
		return nil, err
	}
	if err := p.congest(&now); err != nil {
		p.log.Warn("congestion control is not changed", "err", err) // it was unloaded meanwhile
	}
	lines := difference.Lines("listener")
	if control != p.control {
		lines = append(lines, fmt.Sprintf("congestion is %s", p.control))
	}
	if config.Drain != now.Drain {
		lines = append(lines, fmt.Sprintf("drain is %v", now.DrainTime()))
	}
	if config.Finish != now.Finish {
		lines = append(lines, fmt.Sprintf("finish is %v", now.FinishTime()))
	}
	return lines, nil
}

// change runs f in the loop, unless that has ended, and then applies the desired state.
func (p *Proxy) change(f func()) { p.loop.Change(context.Background(), f) }

// replace opens the listeners that are new or different, and closes those that are not in the
// configuration any more. A socket that is needed again stays open, so that nothing is refused.
func (p *Proxy) replace(now Config) error {
	if now.Transparent() {
		if err := p.lockNamespace(&handover.Sockets{}); err != nil {
			return err
		}
		p.claim()
	}
	old := p.running
	p.running = nil
	for i := range now.Listeners {
		l := now.Listeners[i]
		at := slices.IndexFunc(old, func(r *running) bool { return r.listener.Listen == l.Listen })
		switch {
		case at < 0:
			if err := p.open(l, &handover.Sockets{}); err != nil {
				return err
			}
		case reflect.DeepEqual(old[at].listener, l):
			p.running = append(p.running, old[at])
		default:
			// The same sockets with other options: copies of them, as those of a replaced process.
			again, err := copies(old[at].sockets)
			if err != nil {
				return err
			}
			if err := errors.Join(p.open(l, again), again.Ready()); err != nil { // Ready closes the others
				return err
			}
		}
	}
	for _, r := range old {
		if r.listener.Listen.Kind == Transparent && !slices.ContainsFunc(p.running, func(o *running) bool { return o.listener.Listen == r.listener.Listen }) {
			p.leaving = append(p.leaving, r)
		}
	}
	if err := p.capture(p.change); err != nil {
		return err
	}
	for _, r := range old {
		if !slices.Contains(p.running, r) {
			p.engine.Remove(r.service)
		}
	}
	p.config = now
	p.router.listen(p.addresses())
	return nil
}

// restore closes what replace has opened.
func (p *Proxy) restore(before []*running) {
	for _, r := range p.running {
		if !slices.Contains(before, r) {
			p.engine.Remove(r.service)
		}
	}
	p.running = before
	if err := p.capture(p.change); err != nil {
		p.log.Error("captures are not restored", "err", err)
	}
}

// copies returns copies of sockets, as if they were inherited.
func copies(fds []int) (*handover.Sockets, error) {
	var list []int
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("copy socket: %w", err), closeAll(list))
		}
		list = append(list, dup)
	}
	return handover.Of(list), nil
}
