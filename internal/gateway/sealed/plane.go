package sealed

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tun"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// Options configure a Plane.
type Options struct {
	// Interface is the name of the TUN device that New creates.
	Interface string
	Log       *slog.Logger
	// Open carries the packets of open peers; nil if there are none.
	Open dataplane.Open
	// Relays relays the open messages of leaders; nil if the gateway is no member, or cannot.
	Relays dataplane.Relays
}

// Plane carries packets between a TUN device and other gateways. Its methods are safe for
// concurrent use.
type Plane struct {
	log    *slog.Logger
	enter  func(func() error) error // runs in the network namespace of the plane
	start  time.Time
	clock  func() time.Duration // monotonic, from start on
	wall   func() time.Time     // the time of day, which may jump
	device *tun.Device
	opened dataplane.Open
	opens  dataplane.Relays // of open messages
	// turnAfter is the constant of that name, which a test may change.
	turnAfter time.Duration

	// wake wakes the control loop.
	wake chan struct{}
	// expires is for packets that are held, paces for those in the queues of paths.
	expires, paces *deadline
	paced          int // times that queues were looked at; of the pacing loop
	// exchanges are messages that wait for an exchange of keys.
	exchanges *exchanges
	ctx       context.Context
	loops     sync.WaitGroup // receiving sockets

	mu    sync.Mutex // guards the following
	state dataplane.State
	lines []*line
	peers map[handshake.PublicKey]*peer

	guard     atomic.Pointer[handshake.Guard] // what judges initiations is guarded by guardMu
	guardMu   sync.Mutex                      // guards the following
	busyUntil time.Duration
	// admitted are the latest initiations, of so many.
	admitted   [maxAdmitted]handshakeMessage
	admissions int

	// routing is what packets are looked up in; it is replaced as a whole.
	routing atomic.Pointer[routing]

	// fastest is the encryption that this CPU is fast at.
	fastest tunnel.Suite

	keysMu sync.RWMutex
	keys   map[uint32]*keys // by the index that peers send
	// pending are the peers that initiations of these indices were sent to.
	pending map[uint32]*peer

	// probers maps the place that compatible probes come from to a probed.
	probers sync.Map
	// relays are what this gateway relays as a member, by where messages of the leaders come from.
	relaysMu sync.RWMutex
	relays   map[place]*relay
	// stopping: no relay begins any more.
	stopping atomic.Bool

	writeMu sync.Mutex // one writer of the device at a time

	// out has packets from the device that are sealed, and unsent says that there are some. Others
	// that seal packets send these first, because a path must not reorder what it does not have to.
	outMu  sync.Mutex // after that of a peer
	out    *batch
	unsent atomic.Bool
	counts counters
}

// routing is an immutable view of the configuration.
type routing struct {
	table  bart.Table[*peer] // nil: of addresses that no peer has
	policy dataplane.Policy
	lines  []*line
	peers  []*peer
	// uniformHold: all rules hold packets alike.
	uniformHold bool
}

// line returns the path with a name, nil if there is none.
func (r *routing) line(name string) *line {
	i := slices.IndexFunc(r.lines, func(l *line) bool { return l.name == name })
	if i < 0 {
		return nil
	}
	return r.lines[i]
}

// hold returns how long a received packet may be held for its order.
func (r *routing) hold(packet []byte) reseq.Hold {
	rule := 0
	if !r.uniformHold {
		var h inet.Header
		if !h.Parse(packet) {
			return reseq.Off
		}
		rule = r.policy.First(&h.Packet)
	}
	if rule >= 0 && rule < len(r.policy) {
		switch o := r.policy[rule].Resequence; o.Mode {
		case dataplane.ResequenceOff:
			return reseq.Off
		case dataplane.ResequenceFixed:
			return reseq.Hold(o.Bound)
		case dataplane.ResequenceAuto:
		}
	}
	// Acknowledgments are cumulative: the sender of the data ignores one that others have
	// overtaken. Were they held, its round trips would be as long as those of the slowest packets.
	if inet.IsAcknowledgment(packet) {
		return reseq.Off
	}
	// Calls, games and names do not wait for what was lost; full packets may be QUIC's, which takes
	// three that overtake another for its loss.
	if inet.TCP(packet) == nil && !full(1, len(packet)) {
		return reseq.Prompt
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
	p := withoutDevice(o, enter)
	err := enter(func() (err error) {
		p.device, err = tun.Open(o.Interface, defaultMTU)
		return err
	})
	return p, err
}

// withoutDevice returns a plane that has no device yet.
func withoutDevice(o Options, enter func(func() error) error) *Plane {
	p := &Plane{
		log: o.Log, opened: o.Open, opens: o.Relays, enter: enter, start: time.Now(), wall: time.Now,
		wake: make(chan struct{}, 1), expires: newDeadline(), paces: newDeadline(), exchanges: newExchanges(),
		fastest: tunnel.FastestSuite(), turnAfter: turnAfter, peers: map[handshake.PublicKey]*peer{}, keys: map[uint32]*keys{}, pending: map[uint32]*peer{},
		relays: map[place]*relay{},
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.clock = func() time.Duration { return time.Since(p.start) }
	p.out = newBatch(p, slabLen)
	p.routing.Store(new(routing))
	return p
}

// Interface returns the name of the TUN device.
func (p *Plane) Interface() string { return p.device.Name() }

// now returns the time on the plane's monotonic clock.
func (p *Plane) now() time.Duration { return p.clock() }

// Apply applies a state. It may be called any number of times; sessions with peers that do not
// change continue. A path whose socket cannot be opened is an error in its status, and is tried
// again.
func (p *Plane) Apply(s dataplane.State) error {
	if len(s.Paths) > dataplane.MaxPaths {
		return fmt.Errorf("apply state: %d paths, more than %d", len(s.Paths), dataplane.MaxPaths)
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
			r.remove()
			delete(p.peers, key)
		}
		p.guard.Store(handshake.NewGuard(s.Key.Public(), rand.Reader))
	}
	next := &routing{policy: slices.Clone(s.Policy)}
	next.uniformHold = !slices.ContainsFunc(s.Policy, func(r dataplane.Rule) bool { return r.Resequence != s.Policy[0].Resequence })
	p.applyPathsLocked(s)
	next.lines = slices.Clone(p.lines)
	keep := map[handshake.PublicKey]bool{}
	for _, c := range s.Peers {
		keep[c.Public] = true
		r := p.peers[c.Public]
		if r != nil && r.conf.Preshared != c.Preshared {
			r.remove()
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
	}
	for prefix, owner := range s.Owners() {
		if owner == dataplane.Nobody {
			next.table.Insert(prefix, nil)
		} else {
			next.table.Insert(prefix, next.peers[owner])
		}
	}
	for key, r := range p.peers {
		if !keep[key] {
			r.remove()
			delete(p.peers, key)
		}
	}
	p.state = s
	p.routing.Store(next)
	p.wakeControl()
	return nil
}

// applyPathsLocked makes lines of the paths of a state. Lines are matched by name and keep their
// sockets where interface, port and mark are the same.
func (p *Plane) applyPathsLocked(s dataplane.State) {
	old := map[string]*line{}
	for _, l := range p.lines {
		old[l.name] = l
	}
	lines := make([]*line, len(s.Paths))
	for i, c := range s.Paths {
		port := s.Port
		if c.Member != "" {
			port = 0 // several members may be on one interface; this gateway begins
		}
		l := old[c.Name]
		if l == nil || l.device != c.Interface || l.port != port || l.mark != s.Mark || l.conf.Load().Member != c.Member {
			l = &line{plane: p, name: c.Name, device: c.Interface, port: port, mark: s.Mark}
		} else {
			delete(old, c.Name)
		}
		l.conf.Store(&s.Paths[i])
		lines[i] = l
	}
	// First, because a new line may have the port of an old one.
	for _, l := range old {
		l.closeLocked()
	}
	p.lines = lines
	for _, l := range p.lines {
		l.openLocked()
	}
}

// lineStates returns the configured paths.
func (p *Plane) lineStates() []dataplane.Path {
	lines := p.routing.Load().lines
	paths := make([]dataplane.Path, len(lines))
	for i, l := range lines {
		paths[i] = *l.conf.Load()
	}
	return paths
}

// Active has the paths to an open peer probed as often as those of one that packets are sent to.
func (p *Plane) Active(name string) {
	now := p.now()
	for _, r := range p.routing.Load().peers {
		r.activeOpen(name, now)
	}
}

// activeOpen is Active for the peer, if it has the name.
func (r *peer) activeOpen(name string, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conf.Name != name || !r.conf.Mode.Open() {
		return
	}
	if before := r.active.Swap(int64(now)); now-time.Duration(before) > busyWindow {
		r.prober.probeNow(now)
	}
}

// wakeControl wakes the control loop.
func (p *Plane) wakeControl() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run carries packets until the context ends. At its end it sends a bye to the peers and removes
// the device. It is called once.
func (p *Plane) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.begin(ctx)
	p.loops.Go(func() { p.control(ctx) })
	p.loops.Go(func() { p.handshakeLoop(ctx) })
	p.loops.Go(func() {
		b := newBatch(p, 1<<16)
		p.expires.run(ctx, p, func(now time.Duration) time.Duration { return p.expiry(b, now) })
	})
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
	p.end()
	cancel()
	closed := p.device.Close()
	p.loops.Wait()
	if errors.Is(err, fs.ErrClosed) { // by another one: it was open until now
		err = fmt.Errorf("another program removed the tunnel's interface %q", p.device.Name())
	}
	return errors.Join(err, closed)
}

// begin opens the sockets of paths.
func (p *Plane) begin(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx = ctx
	for _, l := range p.lines {
		l.openLocked()
	}
}

// end ends the sessions of peers and closes the sockets of paths.
func (p *Plane) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping.Store(true)
	for _, r := range p.peers {
		r.close()
	}
	p.ctx = nil
	for _, l := range p.lines {
		l.closeLocked()
	}
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
