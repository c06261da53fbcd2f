package sealed

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/reseq"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/session"
	"github.com/tabane/tabane/internal/tun"
	"github.com/tabane/tabane/internal/udp"
)

// Options configure a Plane.
type Options struct {
	// Interface is the name of the TUN device that New creates.
	Interface string
	Log       *slog.Logger
}

// Plane carries packets between a TUN device and other gateways. Its methods are safe for concurrent
// use.
type Plane struct {
	log    *slog.Logger
	enter  func(func() error) error // runs in the network namespace of the plane
	start  time.Time
	device *tun.Device

	// wake has the control loop look again at what is due.
	wake chan struct{}
	// expires is for packets that are held, paces for those in the queues of paths.
	expires, paces *alarm
	// handshakes are messages that wait for an exchange of keys.
	handshakes chan handshake
	ctx        context.Context
	loops      sync.WaitGroup // receiving sockets

	mu    sync.Mutex // guards the following
	state plane.State
	lines []*line
	peers map[session.PublicKey]*peer

	guardMu sync.Mutex
	guard   *session.Guard

	// routing is what packets are looked up in; it is replaced as a whole.
	routing atomic.Pointer[routing]

	keysMu sync.RWMutex
	keys   map[uint32]*keys // by the index that peers send
	// pending are the peers that initiations of these indices were sent to.
	pending map[uint32]*peer

	writeMu sync.Mutex // one writer of the device at a time
	counts  counters
}

// routing is an immutable view of the configuration.
type routing struct {
	table  bart.Table[*peer]
	policy plane.Policy
	lines  []*line
	peers  []*peer
	// same: all rules hold packets alike.
	same bool
}

// hold returns how long a received packet may be held for its order.
func (r *routing) hold(packet []byte) reseq.Hold {
	rule := 0
	if !r.same {
		var h parsed
		if !h.parse(packet) {
			return reseq.Off
		}
		rule = r.policy.First(&h.Packet)
	}
	if rule < 0 || rule >= len(r.policy) {
		return reseq.Auto
	}
	switch o := r.policy[rule].Resequence; o.Mode {
	case plane.ResequenceOff:
		return reseq.Off
	case plane.ResequenceFixed:
		return reseq.Hold(o.Bound)
	case plane.ResequenceAuto:
	}
	return reseq.Auto
}

// defaultMTU is that of the device before the first Apply.
const defaultMTU = 1400

// New creates the TUN device, which is down and has no addresses.
func New(o Options) (*Plane, error) {
	return newPlane(o, func(f func() error) error { return f() })
}

func newPlane(o Options, enter func(func() error) error) (*Plane, error) {
	p := &Plane{
		log: o.Log, enter: enter, start: time.Now(),
		wake: make(chan struct{}, 1), expires: newAlarm(), paces: newAlarm(), handshakes: make(chan handshake, maxHandshakes),
		peers: map[session.PublicKey]*peer{}, keys: map[uint32]*keys{}, pending: map[uint32]*peer{},
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.routing.Store(new(routing))
	err := enter(func() (err error) {
		p.device, err = tun.Open(o.Interface, defaultMTU)
		return err
	})
	return p, err
}

// Interface returns the name of the TUN device.
func (p *Plane) Interface() string { return p.device.Name() }

// now returns the time on the plane's monotonic clock.
func (p *Plane) now() time.Duration { return time.Since(p.start) }

// Apply brings the plane to a state. It may be called any number of times; sessions with peers that do
// not change go on. A path whose socket cannot be opened is an error in its status, and is tried again.
func (p *Plane) Apply(s plane.State) error {
	if len(s.Paths) > plane.MaxPaths {
		return fmt.Errorf("apply state: %d paths, more than %d", len(s.Paths), plane.MaxPaths)
	}
	for i, r := range s.Policy {
		if _, err := sched.New(r.Discipline.Name, sched.Options{}); err != nil {
			return fmt.Errorf("apply state: policy[%d]: %w", i, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.MTU != p.state.MTU && s.MTU > 0 {
		if err := p.enter(func() error { return p.device.SetMTU(s.MTU) }); err != nil {
			return fmt.Errorf("apply state: %w", err)
		}
	}
	if s.Key != p.state.Key {
		// Another gateway: no session goes on.
		for key, r := range p.peers {
			r.end()
			delete(p.peers, key)
		}
		p.guardMu.Lock()
		p.guard = session.NewGuard(s.Key.Public(), rand.Reader)
		p.guardMu.Unlock()
	}
	next := &routing{policy: slices.Clone(s.Policy)}
	next.same = !slices.ContainsFunc(s.Policy, func(r plane.Rule) bool { return r.Resequence != s.Policy[0].Resequence })
	p.applyPaths(s)
	next.lines = slices.Clone(p.lines)
	keep := map[session.PublicKey]bool{}
	for _, c := range s.Peers {
		keep[c.Public] = true
		r := p.peers[c.Public]
		if r != nil && r.conf.Preshared != c.Preshared {
			r.end()
			r = nil
		}
		if r == nil {
			r = newPeer(p, s.Key, c)
			p.peers[c.Public] = r
		}
		if err := r.configure(c, s, p.lines); err != nil {
			return fmt.Errorf("apply state: peer %q: %w", c.Name, err)
		}
		next.peers = append(next.peers, r)
		for _, prefix := range c.Prefixes {
			next.table.Insert(prefix, r)
		}
	}
	for key, r := range p.peers {
		if !keep[key] {
			r.end()
			delete(p.peers, key)
		}
	}
	p.state = s
	p.routing.Store(next)
	p.kick()
	return nil
}

// applyPaths makes lines of the paths of a state. Lines are matched by name and keep their sockets
// where interface and port are the same.
func (p *Plane) applyPaths(s plane.State) {
	old := map[string]*line{}
	for _, l := range p.lines {
		old[l.name] = l
	}
	lines := make([]*line, len(s.Paths))
	for i, c := range s.Paths {
		l := old[c.Name]
		if l == nil || l.device != c.Interface || l.port != s.Port {
			l = &line{plane: p, name: c.Name, device: c.Interface, port: s.Port}
		} else {
			delete(old, c.Name)
		}
		l.conf.Store(&s.Paths[i])
		lines[i] = l
	}
	// First, because a new line may have the port of an old one.
	for _, l := range old {
		l.close()
	}
	p.lines = lines
	for _, l := range p.lines {
		l.open()
	}
}

// lineStates returns the configured paths.
func (p *Plane) lineStates() []plane.Path {
	lines := p.routing.Load().lines
	paths := make([]plane.Path, len(lines))
	for i, l := range lines {
		paths[i] = *l.conf.Load()
	}
	return paths
}

// kick wakes the control loop.
func (p *Plane) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run carries packets until the context ends. It says goodbye to the peers and removes the device. It
// is called once.
func (p *Plane) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	p.ctx = ctx
	for _, l := range p.lines {
		l.open()
	}
	p.mu.Unlock()
	p.loops.Go(func() { p.control(ctx) })
	p.loops.Go(func() { p.shake(ctx) })
	p.loops.Go(func() { p.expires.run(ctx, p, p.expiry) })
	p.loops.Go(func() {
		b := newBatch(p, slabLen)
		p.paces.run(ctx, p, func(now time.Duration) time.Duration { return p.pace(b, now) })
	})
	failed := make(chan error, 1)
	p.loops.Go(func() { failed <- p.send() })
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	p.mu.Lock()
	for _, r := range p.peers {
		r.bye()
	}
	p.ctx = nil
	for _, l := range p.lines {
		l.close()
	}
	p.mu.Unlock()
	cancel()
	closed := p.device.Close()
	p.loops.Wait()
	if errors.Is(err, fs.ErrClosed) {
		err = nil
	}
	return errors.Join(err, closed)
}

// Close removes the device of a plane that was never run.
func (p *Plane) Close() error { return p.device.Close() }

// newIndex returns an index for a session, which no other one has.
func (p *Plane) newIndex() uint32 {
	p.keysMu.RLock()
	defer p.keysMu.RUnlock()
	for {
		var b [4]byte
		rand.Read(b[:])
		if i := binary.NativeEndian.Uint32(b[:]); p.keys[i] == nil {
			return i
		}
	}
}

// find returns the keys by an index, or nil.
func (p *Plane) find(index uint32) *keys {
	p.keysMu.RLock()
	defer p.keysMu.RUnlock()
	return p.keys[index]
}

// line is a path of this gateway: a socket.
type line struct {
	plane  *Plane
	name   string
	device string
	port   uint16
	conf   atomic.Pointer[plane.Path]

	socket atomic.Pointer[udp.Socket]
	index  int // of the interface that the socket is bound to
	mtu    atomic.Int32
	closed bool

	failing        atomic.Bool // the last messages were not sent
	sent, received count
	mu             sync.Mutex
	err            string
}

// open opens the socket if it is not open, or belongs to an interface that is gone. The plane's mutex
// is locked.
func (l *line) open() {
	p := l.plane
	if l.closed || p.ctx == nil {
		return
	}
	var found *net.Interface
	err := p.enter(func() (err error) {
		if l.device != "" {
			found, err = net.InterfaceByName(l.device)
		}
		return err
	})
	if err == nil && found != nil {
		l.mtu.Store(int32(found.MTU))
	}
	old := l.socket.Load()
	if err == nil && old != nil && (found == nil || found.Index == l.index) {
		return
	}
	if old != nil {
		l.socket.Store(nil)
		old.Close()
	}
	if err != nil {
		l.fail(err)
		return
	}
	var s *udp.Socket
	if err := p.enter(func() (err error) {
		s, err = udp.Listen(udp.Options{Local: netip.AddrPortFrom(netip.Addr{}, l.port), Interface: l.device})
		return err
	}); err != nil {
		l.fail(err)
		return
	}
	if found != nil {
		l.index = found.Index
	} else {
		l.mtu.Store(1500)
	}
	l.fail(nil)
	l.socket.Store(s)
	p.loops.Go(func() { p.receive(l, s) })
}

func (l *line) close() {
	l.closed = true
	if s := l.socket.Swap(nil); s != nil {
		s.Close()
	}
}

// fail records the last error of the socket, which is logged when it changes.
func (l *line) fail(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	l.mu.Lock()
	changed := l.err != text
	l.err = text
	l.mu.Unlock()
	if changed && err != nil {
		l.plane.log.Warn("path has an error", "path", l.name, "error", err)
	}
}

// send sends datagrams.
func (l *line) send(all []udp.Datagram) {
	s := l.socket.Load()
	if s == nil {
		l.plane.counts.drop(dropNoPath, uint64(len(all)))
		return
	}
	failed, err := s.Send(all)
	if err != nil {
		if errors.Is(err, fs.ErrClosed) {
			l.plane.counts.drop(dropNoPath, uint64(failed))
			return
		}
		l.plane.counts.drop(dropSend, uint64(failed))
		l.failing.Store(true)
		l.fail(err)
	} else if l.failing.Load() {
		l.failing.Store(false)
		l.fail(nil)
	}
	bytes := 0
	for i := range all {
		bytes += len(all[i].Data)
	}
	l.sent.add(len(all), bytes)
}

// count counts packets and their bytes.
type count struct{ packets, bytes atomic.Uint64 }

func (c *count) add(packets, bytes int) {
	c.packets.Add(uint64(packets))
	c.bytes.Add(uint64(bytes))
}

func (c *count) value() plane.Count {
	return plane.Count{Packets: c.packets.Load(), Bytes: c.bytes.Load()}
}

// reason is why a packet or message was not carried.
type reason uint8

const (
	dropNoRoute reason = iota
	dropNoSession
	dropNoPath
	dropSend
	dropTooBig
	dropMalformed
	dropTruncated
	dropUnknownSession
	dropReplayed
	dropForged
	dropSource
	dropCongestion
	dropDuplicate
	dropStranger
	dropHandshake
	dropBusy
	dropDevice
	dropQueue
	reasons
)

// reasonNames are the reasons in status.
var reasonNames = [reasons]string{
	dropNoRoute: "no route", dropNoSession: "no session", dropNoPath: "no path", dropSend: "send failed", dropTooBig: "too big",
	dropMalformed: "malformed", dropTruncated: "truncated", dropUnknownSession: "unknown session", dropReplayed: "replayed",
	dropForged: "forged", dropSource: "source not of peer", dropCongestion: "congestion mark not possible",
	dropDuplicate: "duplicate", dropStranger: "stranger", dropHandshake: "handshake refused", dropBusy: "busy", dropDevice: "device refused",
	dropQueue: "queue of path",
}

type counters struct {
	received, delivered count
	dropped             [reasons]atomic.Uint64
}

func (c *counters) drop(r reason, n uint64) { c.dropped[r].Add(n) }

// Status returns what the plane does now.
func (p *Plane) Status() plane.Status {
	p.mu.Lock()
	lines, peers := slices.Clone(p.lines), slices.Collect(maps.Values(p.peers))
	p.mu.Unlock()
	s := plane.Status{Received: p.counts.received.value(), Delivered: p.counts.delivered.value(), Dropped: map[string]uint64{}}
	for r, name := range reasonNames {
		if n := p.counts.dropped[r].Load(); n > 0 {
			s.Dropped[name] = n
		}
	}
	for _, l := range lines {
		l.mu.Lock()
		s.Paths = append(s.Paths, plane.PathStatus{
			Name: l.name, Interface: l.device, Usable: l.conf.Load().Usable, Sent: l.sent.value(), Received: l.received.value(), Error: l.err,
		})
		l.mu.Unlock()
	}
	now := p.now()
	for _, r := range peers {
		s.Peers = append(s.Peers, r.status(now))
	}
	slices.SortFunc(s.Peers, func(a, b plane.PeerStatus) int { return compare(a.Name, b.Name) })
	return s
}
