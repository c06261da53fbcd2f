package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/openplane"
	"github.com/tabane/tabane/internal/gateway/relay"
	"github.com/tabane/tabane/internal/gateway/sealed"
	"github.com/tabane/tabane/internal/gateway/tun"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Options describe a Gateway.
type Options struct {
	// Config has passed Files.
	Config Config
	// Keep leaves the routes in the kernel at a clean stop. Without the tunnel's interface, they
	// make the peers' prefixes unreachable, but for those of open peers: the programs go on.
	Keep bool
	Log  *slog.Logger
	// Plane makes the data plane with the tunnel's interface of that name. Default: the sealed
	// plane, and the open one if the configuration has open peers.
	Plane func(tunnel string, log *slog.Logger) (dataplane.Carrier, error)
}

// Gateway is the control plane of a gateway.
type Gateway struct {
	log           *slog.Logger
	loop          *daemon.Loop
	plane         dataplane.Carrier
	names         resolver
	namespaceLock io.Closer
	namespace     *netns.Handle
	keep          bool

	reloading sync.Mutex
	// translating serializes what conditions do with translation.
	translating sync.Mutex

	// The rest belongs to the loop.
	config Config
	keys   keys
	// links are the interfaces that are up, addresses those of endpoints' names.
	links     map[string]bool
	addresses map[string][]netip.Addr
	connected []route.Address // of the host
	installed map[route.Key]bool
	mtu       int
	metering  *metering
	// translation is the desired table of nftables, nil for none. What it points to is the
	// condition's.
	translation *nft.Translation
	wall        func() time.Time
	// stale: the plane's state has to be applied again. rejected is why it rejected the last one.
	stale    bool
	rejected error
}

// pins is where programs are pinned.
func pins() (string, error) { return bpf.PinDir(pinName) }

// pinName begins the name of their directory.
const pinName = "gateway"

// keys are the secrets that the configuration names.
type keys struct {
	own       handshake.PrivateKey
	preshared map[string]handshake.PresharedKey // by peer
}

func readKeys(c *Config) (keys, error) {
	k := keys{preshared: map[string]handshake.PresharedKey{}}
	var err error
	if k.own, err = readKey(c.Key, handshake.ParsePrivateKey); err != nil {
		return keys{}, err
	}
	for _, s := range c.secrets() {
		if k.preshared[s.of], err = readKey(*s.file, handshake.ParsePresharedKey); err != nil {
			return keys{}, err
		}
	}
	return k, nil
}

// New connects to the kernel and makes the data plane. It does not change the kernel yet.
func New(o Options) (*Gateway, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	k, err := readKeys(&o.Config)
	if err != nil {
		return nil, err
	}
	if err := condition.Require(o.Config.conditions()); err != nil {
		return nil, err
	}
	mine, err := netns.Lock(lockName, ErrRunning)
	if err != nil {
		return nil, err
	}
	namespace, err := netns.Current()
	if err != nil {
		return nil, errors.Join(err, mine.Close())
	}
	l, err := daemon.NewLoop(daemon.LoopOptions{Protocol: route.Gateway, Keep: o.Keep, Log: o.Log})
	if err != nil {
		return nil, errors.Join(err, namespace.Close(), mine.Close())
	}
	if o.Plane == nil {
		o.Plane = func(tunnel string, log *slog.Logger) (dataplane.Carrier, error) {
			if err := relay.Clear(); err != nil {
				return nil, err
			}
			if !o.Config.Open() {
				left, err := bpf.PinPath(pinName)
				if err == nil {
					err = openplane.Clear(left)
				}
				switch {
				case err != nil:
					return nil, err
				case o.Config.Role == RoleMember:
					return newMember(tunnel, log)
				}
				return sealed.New(sealed.Options{Interface: tunnel, Log: log})
			}
			return openplane.New(openplane.Options{Log: log, Pins: pins, Keep: o.Keep, Sealed: func(open dataplane.Open) (openplane.Sealed, error) {
				return sealed.New(sealed.Options{Interface: tunnel, Log: log, Open: open})
			}})
		}
	}
	quotas := &metering{}
	lock, err := quotas.claim(&o.Config)
	if err != nil {
		return nil, errors.Join(err, l.Close(), namespace.Close(), mine.Close())
	}
	quotas = newMetering(&o.Config, o.Log)
	quotas.keep(&o.Config, lock)
	p, err := o.Plane(o.Config.tunnelName(), o.Log)
	if err != nil {
		quotas.release()
		return nil, errors.Join(err, l.Close(), namespace.Close(), mine.Close())
	}
	return &Gateway{
		log: o.Log, loop: l, plane: p, names: systemNames{}, namespaceLock: mine, namespace: namespace, keep: o.Keep, config: o.Config, keys: k,
		metering: quotas, wall: time.Now,
		links: map[string]bool{}, addresses: map[string][]netip.Addr{}, installed: map[route.Key]bool{},
	}, nil
}

// ErrRunning is the error of a second gateway in a network namespace.
var ErrRunning = errors.New("another gateway runs in this network namespace: stop it, or give it these peers and paths, too")

// lockName keeps two gateways out of a network namespace: they would replace each other's routes,
// rules and programs.
const lockName = "@tabane-gateway"

// Running returns ErrRunning if a gateway runs in the network namespace of the calling thread.
func Running() error {
	mine, err := netns.Lock(lockName, ErrRunning)
	if err != nil {
		return err
	}
	return mine.Close()
}

// relayingPlane is the plane of a member, with the program that relays open messages.
type relayingPlane struct {
	*sealed.Plane
	program *relay.Program
}

// newMember makes the plane of a member. Without the program it relays sealed messages.
func newMember(tunnel string, log *slog.Logger) (dataplane.Carrier, error) {
	program, err := relay.Load(relay.Options{})
	if err != nil {
		log.Warn("open messages are not relayed", "err", err)
		return sealed.New(sealed.Options{Interface: tunnel, Log: log})
	}
	p, err := sealed.New(sealed.Options{Interface: tunnel, Log: log, Relays: program})
	if err != nil {
		return nil, errors.Join(err, program.Close())
	}
	return &relayingPlane{p, program}, nil
}

// Run implements dataplane.Carrier.
func (m *relayingPlane) Run(ctx context.Context) error {
	return errors.Join(m.Plane.Run(ctx), m.program.Close())
}

// conditions returns what the gateway needs of the host, which else drops its packets.
func (c *Config) conditions() []condition.Condition {
	var list []condition.Condition
	inner := append(slices.Clone(c.LAN.Interfaces), c.tunnelName())
	if c.Masquerade {
		inner = append(inner, c.pathInterfaces()...)
	}
	versions := c.forwarded()
	for _, v := range versions {
		list = append(list, condition.Forwarding(v, inner...))
	}
	if slices.Contains(versions, bgp.IPv6) {
		list = append(list, condition.IPv6(inner...))
	}
	if len(c.LAN.Interfaces) > 0 {
		list = append(list, condition.Unique(inner...), condition.Unclaimed(c.LAN.Interfaces...))
	}
	return append(list, condition.ReversePath(c.interfaces()...), condition.Tracked())
}

// conditioned is a plane with conditions of the host.
type conditioned interface{ Conditions() []condition.Condition }

// Conditions implements daemon.Conditioned. The tunnel's interface is the gateway's own.
func (g *Gateway) Conditions() []condition.Condition {
	ctx := context.Background()
	list := append(g.config.conditions(), openplane.Marks(SocketMark), g.masquerading(), g.firewall(), condition.Condition{
		Name: "tunnel interface", Good: "the tunnel's interface is as the gateway has set it",
		Examine: func() (problems []health.Problem, err error) {
			g.loop.Do(ctx, func() { problems, err = g.examineTunnel() })
			return problems, err
		},
		Restore: func() (err error) {
			g.loop.Do(ctx, func() { err = g.loop.SetLink(g.config.tunnelName(), g.mtu) })
			return err
		},
	})
	if unlisted := g.config.unlisted(g.connected); len(unlisted) > 0 {
		list = append(list, openplane.LAN(g.config.LAN.Interfaces, unlisted))
	}
	if p, ok := g.plane.(conditioned); ok {
		list = append(list, p.Conditions()...)
	}
	return list
}

// examineTunnel returns a problem if the tunnel's interface is down or has another MTU than was
// set.
func (g *Gateway) examineTunnel() ([]health.Problem, error) {
	name := g.config.tunnelName()
	link, err := g.loop.Link(name)
	if err != nil || g.rejected != nil || link.Admin && link.MTU == g.mtu {
		return nil, err
	}
	return []health.Problem{{
		Text:   fmt.Sprintf("another program changed the tunnel's interface %q", name),
		Remedy: fmt.Sprintf("ip link set %s mtu %d up", name, g.mtu),
	}}, nil
}

// resolveEvery is how often the names of endpoints are resolved again, resolveRetry the shortest
// time between two attempts while one is unknown or a path is dead.
const resolveEvery, resolveRetry = time.Minute, 2 * time.Second

// KeepState leaves at the end of Run what Options.Keep does. It may be called while Run runs.
func (g *Gateway) KeepState() {
	g.loop.Do(context.Background(), func() {
		g.keep = true
		g.loop.KeepState()
		if p, ok := g.plane.(interface{ KeepState() }); ok {
			p.KeepState()
		}
	})
}

// Run carries packets until ctx ends. It always closes what New opened.
func (g *Gateway) Run(ctx context.Context) error {
	return errors.Join(g.run(ctx), g.namespace.Close(), g.namespaceLock.Close())
}

func (g *Gateway) run(ctx context.Context) error {
	g.Addresses()
	g.configure()
	g.countQuotas(true)
	err := g.apply()
	if err == nil {
		err = tun.SetUp(g.config.tunnelName())
	}
	g.reportForeign()
	if err == nil {
		// A kernel without nf_tables has no table of a previous instance either.
		if err = g.translate(); !g.config.translates() {
			err = nil
		}
	}
	if err != nil {
		if g.config.translates() && !g.keep {
			// The kernel may have made the table although an answer was lost.
			err = errors.Join(err, g.untranslate())
		}
		if !g.keep {
			err = errors.Join(err, g.forbid()) // what a killed instance has left
		}
		g.metering.close(g.config.Paths)
		return errors.Join(err, g.loop.Close())
	}
	g.permitOrLog()
	// The routes go before the interface: packets to the peers must not leave by another one.
	planeCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	loopCtx, end := context.WithCancel(ctx)
	defer end()
	var background sync.WaitGroup
	var failed error
	background.Go(func() {
		failed = g.plane.Run(planeCtx)
		end()
	})
	background.Go(func() {
		contain.Repeat(loopCtx, contain.GatewayTimer, g.log, func() { g.followNames(loopCtx) })
	})
	background.Go(func() { g.meter(loopCtx) })
	background.Go(func() {
		contain.Repeat(loopCtx, contain.Reconcile, g.log, func() { g.followFirewall(loopCtx) })
	})
	err = g.loop.Run(loopCtx, g)
	if g.config.translates() && !g.keep {
		g.translating.Lock() // what began to be restored is, before it is removed
		err = errors.Join(err, g.untranslate())
		g.translating.Unlock()
	}
	if !g.keep {
		err = errors.Join(err, g.forbid())
	}
	stop()
	end()
	background.Wait()
	g.countQuotas(true) // the plane carries nothing any more
	g.metering.close(g.config.Paths)
	if failed == nil && ctx.Err() == nil && err == nil {
		failed = errors.New("data plane stopped by itself")
	}
	return errors.Join(err, failed)
}

// configure sets the desired state of the kernel. The MTU is that of the paths' interfaces now.
func (g *Gateway) configure() {
	g.mtu = g.tunnelMTU()
	g.route()
	g.stale = true
}

// route sets the desired routes, rules and addresses.
func (g *Gateway) route() {
	desired := map[route.Key]bool{}
	for _, o := range kernelObjects(&g.config, g.connected) {
		g.loop.Kernel.Set(o)
		desired[o.Key()] = true
	}
	for k := range g.installed {
		if !desired[k] {
			g.loop.Kernel.Delete(k)
		}
	}
	g.installed = desired
}

// Addresses implements daemon.AddressReactor: networks that are connected are not reached through
// the tunnel.
func (g *Gateway) Addresses() {
	connected, err := g.loop.Addresses()
	if err != nil {
		g.log.Error("read addresses of host failed, retrying in half a minute", "err", err)
		return
	}
	if !slices.Equal(connected, g.connected) {
		before := g.config.unlisted(g.connected)
		g.connected, g.stale = connected, true
		g.route()
		for _, name := range g.config.unlisted(connected) {
			if !slices.Contains(before, name) {
				g.log.Warn("interface has an address of the LAN, and is not in lan.interfaces: packets of its hosts may all be sealed", "interface", name)
			}
		}
	}
}

// tunnelMTU returns the largest packet that fits into the tunnel on every path.
func (g *Gateway) tunnelMTU() int {
	if m := g.config.Tunnel.MTU; m != 0 {
		return m
	}
	smallest := 0
	for _, p := range g.config.Paths {
		if link, err := g.loop.Link(p.Interface); err == nil && (smallest == 0 || link.MTU < smallest) {
			smallest = link.MTU
		}
	}
	return g.config.mtuOver(smallest)
}

// state returns the desired state of the plane.
func (g *Gateway) state() dataplane.State {
	s := planeState(&g.config, g.keys, g.mtu, g.links, g.addresses, g.connected)
	for i := range g.config.Paths {
		s.Paths[i].Use, s.Paths[i].Limit = g.metering.use(&g.config.Paths[i]), g.metering.limit(&g.config.Paths[i])
	}
	return s
}

// apply applies the desired state to the plane.
func (g *Gateway) apply() error {
	g.stale = false
	err := g.plane.Apply(g.state())
	if err != nil {
		err = fmt.Errorf("apply state to data plane: %w", err)
	}
	return err
}

// Link implements daemon.Reactor: a path rests as soon as its interface is down.
func (g *Gateway) Link(name string, up bool) {
	i := slices.IndexFunc(g.config.Paths, func(p Path) bool { return p.Interface == name })
	path := name
	switch {
	case i >= 0:
		path = g.config.Paths[i].Name
	case !slices.Contains(g.config.ShortLinks, name):
		return
	}
	if g.links[name] != up {
		g.log.Info("path changed", "path", path, "interface", name, "up", up)
		g.stale = true
	}
	g.links[name] = up
	if m := g.tunnelMTU(); m != g.mtu {
		g.mtu, g.stale = m, true
	}
	if g.stale {
		g.applyChanged()
	}
}

// applyChanged applies a changed state and logs a new error.
func (g *Gateway) applyChanged() {
	err := g.apply()
	if err != nil && (g.rejected == nil || err.Error() != g.rejected.Error()) {
		g.log.Error("data plane rejected the new state and keeps the previous one", "err", err)
	}
	g.rejected = err
}

// Settled implements daemon.Reactor.
func (g *Gateway) Settled() bool {
	if g.stale {
		g.applyChanged()
	}
	return false
}

// followNames resolves the names of endpoints until ctx ends: every minute, and while one is
// unknown or a peer does not answer at its addresses, after 2 s, then after twice that, up to a
// minute.
func (g *Gateway) followNames(ctx context.Context) {
	var next lookup
	for {
		var names []string
		silent := false
		if !g.loop.Do(ctx, func() {
			if names = g.config.hostNames(); len(names) > 0 {
				silent = g.peerSilent()
			}
		}) {
			return
		}
		if len(names) > 0 && next.due(time.Now(), silent) && !g.resolveNames(ctx, names) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// lookup paces lookups of names. The zero value has made none.
type lookup struct {
	at    time.Time
	pause time.Duration // after which a silent peer's name is looked up again
}

// due reports whether names are to be looked up now, which is then the time of the last lookup.
func (l *lookup) due(now time.Time, silent bool) bool {
	if !silent || l.pause == 0 {
		l.pause = resolveRetry
	}
	wait := resolveEvery
	if silent {
		wait = l.pause
	}
	if !l.at.IsZero() && now.Sub(l.at) < wait {
		return false
	}
	if silent && !l.at.IsZero() {
		l.pause = min(2*l.pause, resolveEvery)
	}
	l.at = now
	return true
}

// resolveNames looks names up and applies what is found. It reports false if ctx has ended.
func (g *Gateway) resolveNames(ctx context.Context, names []string) bool {
	found := map[string][]netip.Addr{}
	for _, name := range names {
		list, err := g.names.resolve(ctx, name)
		if ctx.Err() != nil {
			return false
		}
		if err == nil && len(list) > 0 {
			found[name] = list
		}
	}
	return g.loop.Change(ctx, func() {
		// What is not known any more keeps its last addresses.
		merged := maps.Clone(g.addresses)
		maps.Copy(merged, found)
		maps.DeleteFunc(merged, func(name string, _ []netip.Addr) bool { return !slices.Contains(g.config.hostNames(), name) })
		if !maps.EqualFunc(merged, g.addresses, slices.Equal) {
			g.addresses, g.stale = merged, true
		}
	})
}

// peerSilent reports whether a name is unknown, or a path to a peer whose endpoints have names is
// dead.
func (g *Gateway) peerSilent() bool {
	for _, name := range g.config.hostNames() {
		if len(g.addresses[name]) == 0 {
			return true
		}
	}
	for _, p := range g.plane.Status().Peers {
		for _, l := range p.Links {
			if l.State == stateDead || l.State == stateUnproven {
				return true
			}
		}
	}
	return false
}
