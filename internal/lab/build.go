package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/kernel/offload"
	"github.com/tabane/tabane/internal/kernel/sockdiag"
	"github.com/tabane/tabane/internal/kernel/tc"
	ethernet "github.com/tabane/tabane/internal/lab/wire"
	"github.com/tabane/tabane/internal/mptcp"
)

// space is an open namespace.
type space struct {
	name   string
	file   *os.File // keeps the namespace alive, so that its inode number is not reused
	inode  uint64
	handle *netlink.Handle
}

func openSpace(name string) (*space, error) {
	s := &space{name: name}
	err := netns.Do(name, func() error {
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return errors.Join(fmt.Errorf("stat %q: %w", f.Name(), err), f.Close())
		}
		s.file, s.inode = f, st.Ino
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *space) close() {
	if s.handle != nil {
		s.handle.Close()
	}
	s.file.Close()
}

// builder creates the network of a plan.
type builder struct {
	plan   *plan
	log    *slog.Logger
	spaces map[string]*space
	wires  atomic.Int32
	// frames are the programs of links by what they do, nil where this host cannot load them. All
	// are loaded before any link is made.
	frames map[ethernet.Options]*ethernet.Program
}

// wireIndex is the interface index of the near end of the first wire. The kernel numbers the far
// ends from 2 on. It would report that the other end of a pair with equal indexes is down up to a
// second later (linkwatch_urgent_event).
const wireIndex = 1 << 20

// build creates namespaces, links, addresses, shapes and routes. If it fails, the caller must
// remove what it has created.
func build(ctx context.Context, p *plan, log *slog.Logger) error {
	b := &builder{plan: p, log: log, spaces: map[string]*space{}}
	defer func() {
		for _, s := range b.spaces {
			s.close()
		}
		for _, p := range b.frames {
			_ = p.Close()
		}
	}()
	if err := b.permitCongestion(); err != nil {
		return err
	}
	if err := b.makeSpaces(ctx); err != nil {
		return err
	}
	if err := b.loadFrames(); err != nil {
		return err
	}
	if err := each(ctx, p.links, b.makeLink); err != nil {
		return err
	}
	return each(ctx, p.nodes, b.finishNode)
}

// each calls f for all elements, up to 8 concurrently, and returns the first error.
func each[T any](ctx context.Context, list []T, f func(T) error) error {
	var g errgroup.Group
	g.SetLimit(8)
	for _, e := range list {
		g.Go(func() error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			return f(e)
		})
	}
	return g.Wait()
}

// permitCongestion allows namespaces to use the congestion controls that the scenario names. The
// kernel has one list for all namespaces; added entries are never removed, because another lab may
// use them.
func (b *builder) permitCongestion() error {
	const allowed = "net.ipv4.tcp_allowed_congestion_control"
	have, err := netns.ReadSysctl(allowed)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not the initial namespace, in which alone the list is visible
	}
	if err != nil {
		return err
	}
	available, err := netns.ReadSysctl("net.ipv4.tcp_available_congestion_control")
	if err != nil {
		return err
	}
	for _, cc := range b.plan.congestion {
		if slices.Contains(strings.Fields(have), cc) {
			continue
		}
		if !slices.Contains(strings.Fields(available), cc) {
			return fmt.Errorf("congestion control %q is not available (there are %s): try modprobe tcp_%s", cc, available, cc)
		}
		have += " " + cc
		if err := netns.Sysctl(allowed, have); err != nil {
			return fmt.Errorf("permit congestion control %q in namespaces: %w", cc, err)
		}
		b.log.Info("permitted a congestion control in all network namespaces", "name", cc, "sysctl", allowed)
	}
	return nil
}

func (b *builder) makeSpaces(ctx context.Context) error {
	early := map[string][]sysctl{}
	for _, n := range b.plan.nodes {
		early[n.netns] = n.early
	}
	names := b.plan.namespaces()
	made := make([]*space, len(names))
	defer func() {
		for _, s := range made {
			if s != nil {
				b.spaces[s.name] = s
			}
		}
	}()
	index := map[string]int{}
	for i, n := range names {
		index[n] = i
	}
	return each(ctx, names, func(name string) error {
		if err := netns.Create(name); err != nil {
			return err
		}
		s, err := openSpace(name)
		if err != nil {
			return err
		}
		made[index[name]] = s
		settings, isNode := early[name]
		if !isNode {
			// A switch has no address and must not send packets of its own.
			settings = []sysctl{{"net.ipv6.conf.all.disable_ipv6", "1"}, {"net.ipv6.conf.default.disable_ipv6", "1"}}
		}
		return netns.Do(name, func() error {
			if err := setSysctls(settings); err != nil {
				return fmt.Errorf("prepare namespace %q: %w", name, err)
			}
			if s.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
				return fmt.Errorf("open netlink in namespace %q: %w", name, err)
			}
			return s.up("lo")
		})
	})
}

// loadFrames loads the programs that have links carry frames of Ethernet. A host that cannot load
// them has links of veth.
func (b *builder) loadFrames() error {
	b.frames = map[ethernet.Options]*ethernet.Program{}
	for _, l := range b.plan.links {
		if l.frames == nil || b.frames[*l.frames] != nil {
			continue
		}
		p, err := ethernet.Load(*l.frames)
		var missing *feature.Error
		if errors.As(err, &missing) {
			b.log.Warn("links carry the frames of veth: none are padded to the 60 bytes of Ethernet", "err", err)
			return nil
		}
		if err != nil {
			return err
		}
		b.frames[*l.frames] = p
	}
	return nil
}

// frame prepares an interface for the frames of its link, which those of nodes make. It has no
// address yet, so it has sent none.
func (b *builder) frame(l *link, p port, node bool) error {
	var program *ethernet.Program
	if l.frames != nil && node {
		program = b.frames[*l.frames]
	}
	return netns.Do(p.netns, func() error {
		if !l.offloads {
			if err := offload.Prepare(p.iface); err != nil {
				return err
			}
		}
		if program == nil {
			return nil
		}
		return program.Attach(p.iface)
	})
}

func setSysctls(list []sysctl) error {
	for _, s := range list {
		if err := netns.Sysctl(s.key, s.value); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) makeLink(l *link) error {
	if l.netns != "" && l.relay == nil {
		if err := errors.Join(netns.Do(l.netns, passFrames), b.spaces[l.netns].makeBridge(l.mtu)); err != nil {
			return fmt.Errorf("make switch of link %q: %w", l.name, err)
		}
	}
	for _, w := range l.wires {
		if err := b.makeWire(l, w); err != nil {
			return fmt.Errorf("make link %q: %w", l.name, err)
		}
	}
	if l.relay != nil {
		return nil // its process starts with that shape
	}
	return l.setShape(l.shape, nil)
}

// passFrames has the switches of the caller's namespace forward frames as they are: netfilter, if
// this kernel calls it for bridges, trims them to their packets (br_validate_ipv4).
func passFrames() error {
	for _, key := range []string{"iptables", "ip6tables"} {
		if err := netns.Sysctl("net.bridge.bridge-nf-call-"+key, "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *space) makeBridge(mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = bridge, mtu
	// Without a querier, MLD snooping would only expire group memberships that neighbor
	// discovery needs.
	snooping := false
	if err := s.handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return err
	}
	return s.up(bridge)
}

// makeWire creates a veth pair with both ends in their namespaces from the start, so that no name
// is used on the host.
func (b *builder) makeWire(l *link, w wire) error {
	near, far := b.spaces[w.a.netns], b.spaces[w.b.netns]
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Index = w.a.iface, l.mtu, wireIndex+int(b.wires.Add(1))
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerMTU = w.b.iface, uint32(l.mtu)
	veth.PeerNamespace = netlink.NsFd(int(far.file.Fd()))
	if err := near.handle.LinkAdd(veth); err != nil {
		return fmt.Errorf("add interfaces %q and %q: %w", w.a.iface, w.b.iface, err)
	}
	if l.netns != "" && l.relay == nil {
		if err := far.join(w.b.iface); err != nil {
			return err
		}
	}
	if err := b.frame(l, w.a, true); err != nil {
		return err
	}
	// The relay prepares the far end. A switch sends what it receives.
	if l.relay == nil {
		if err := b.frame(l, w.b, l.netns == ""); err != nil {
			return err
		}
	}
	for _, p := range []port{w.a, w.b} {
		s := b.spaces[p.netns]
		if err := s.address(p); err != nil {
			return err
		}
		if err := s.up(p.iface); err != nil {
			return err
		}
	}
	return nil
}

func (s *space) join(iface string) error {
	port, err := s.handle.LinkByName(iface)
	if err != nil {
		return fmt.Errorf("find interface %q: %w", iface, err)
	}
	master, err := s.handle.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find switch: %w", err)
	}
	if err := s.handle.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("connect interface %q to switch: %w", iface, err)
	}
	return nil
}

func (s *space) up(iface string) error {
	l, err := s.handle.LinkByName(iface)
	if err != nil {
		return fmt.Errorf("find interface %q: %w", iface, err)
	}
	if err := s.handle.LinkSetUp(l); err != nil {
		return fmt.Errorf("set interface %q up: %w", iface, err)
	}
	return nil
}

func (s *space) address(p port) error {
	if len(p.addresses) == 0 {
		return nil
	}
	l, err := s.handle.LinkByName(p.iface)
	if err != nil {
		return fmt.Errorf("find interface %q: %w", p.iface, err)
	}
	for _, a := range p.addresses {
		addr := &netlink.Addr{IPNet: ipNet(a)}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := s.handle.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("add address %s to interface %q: %w", a, p.iface, err)
		}
	}
	return nil
}

// finishNode sets what depends on the links: routes, sysctls of interfaces, address translation and
// the path manager.
func (b *builder) finishNode(n *node) error {
	return netns.Do(n.netns, func() error {
		if err := n.addRoutes(); err != nil {
			return err
		}
		if err := setSysctls(n.late); err != nil {
			return fmt.Errorf("prepare node %q: %w", n.name, err)
		}
		if n.spec.Masquerade != "" {
			if err := nft.Masquerade(n.spec.Masquerade); err != nil {
				return fmt.Errorf("prepare node %q: %w", n.name, err)
			}
		}
		if n.mptcp == nil {
			return nil
		}
		if err := n.setPaths(); err != nil {
			return fmt.Errorf("set up mptcp of node %q: %w", n.name, err)
		}
		return nil
	})
}

// addRoutes installs or replaces the node's static routes in the caller's namespace.
func (n *node) addRoutes() error {
	for _, r := range n.routes {
		if err := replaceRoute(r); err != nil {
			return fmt.Errorf("prepare node %q: %w", n.name, err)
		}
	}
	return nil
}

// replaceRoute installs a static route in the caller's namespace, or changes its metrics.
func replaceRoute(r scenario.StaticRoute) error {
	return sockdiag.ReplaceRoute(r.Dst, r.Via, sockdiag.RouteMetrics(r.RouteMetrics))
}

// limits returns the path manager's limits, with the defaults that edge.MPTCP documents.
func (n *node) limits() mptcp.Limits {
	const maxAddresses = 8 // the kernel's MPTCP_PM_ADDR_MAX
	return mptcp.Limits{
		Subflows:        cmp.Or(n.mptcp.Subflows, maxAddresses),
		AddAddrAccepted: cmp.Or(n.mptcp.AddAddrAccepted, maxAddresses),
	}
}

// setPaths configures the limits and endpoints of the kernel's path manager in the caller's
// namespace.
func (n *node) setPaths() error {
	c, err := mptcp.Dial()
	if err != nil {
		return err
	}
	errs := []error{c.SetLimits(n.limits())}
	for _, a := range n.mptcp.Announce {
		errs = append(errs, c.Add(mptcp.Endpoint{Address: a, Signal: true}))
	}
	for _, a := range n.mptcp.From {
		errs = append(errs, c.Add(mptcp.Endpoint{Address: a, Subflow: true, Fullmesh: n.mptcp.Fullmesh}))
	}
	return errors.Join(errors.Join(errs...), c.Close())
}

// setShape shapes both directions of the link: both ends of a wire, and of each wire of a switch.
// Interfaces with a black hole are skipped.
func (l *link) setShape(s scenario.Shape, holes map[spot]bool) error {
	if l.relay != nil {
		return l.setRelay(s, holes)
	}
	if !s.Plain() {
		return fmt.Errorf("BUG: shape link %q: it is not emulated", l.name)
	}
	for _, w := range l.wires {
		for _, p := range []port{w.a, w.b} {
			if holes[p.spot()] {
				continue
			}
			err := netns.Do(p.netns, func() error { return shape(p.iface, s) })
			if err != nil {
				return fmt.Errorf("shape link %q: %w", l.name, err)
			}
		}
	}
	return nil
}

// shape sets the rate of an interface in the caller's namespace. The package tc applies the
// defaults that scenario.Shape documents.
func shape(iface string, s scenario.Shape) error {
	if s.Rate == 0 {
		return tc.ClearRate(iface)
	}
	return tc.SetRate(iface, tc.Rate{Rate: s.Rate, Queue: s.Queue})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
