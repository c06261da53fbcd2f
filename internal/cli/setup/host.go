package setup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/nft"
)

// Choice is what the user has chosen instead of what is found. Empty lists choose nothing.
type Choice struct {
	Lines  []Link
	LAN    []string
	NoLAN  bool
	NoIPv6 bool
	// HideLAN has the LAN's hosts of IPv4 masqueraded by the site's gateway.
	HideLAN bool
	// Routed is a public prefix of IPv6 that is routed to the host, which is looked for if it is
	// not valid.
	Routed netip.Prefix
	// Port is the UDP port of the tunnel at a VPS, 0 for the default.
	Port uint16
}

// Find examines this host, in the network namespace of the calling thread. It changes nothing.
func Find(choice Choice) (*Host, error) {
	h := &Host{Parameters: map[string]string{}, HideLAN: choice.HideLAN, Port: choice.Port}
	h.Name, _ = os.Hostname()
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	if err := h.findLines(links, choice); err != nil {
		return nil, err
	}
	if err := h.findLAN(links, choice); err != nil {
		return nil, err
	}
	if err := h.findIPv6(links, choice); err != nil {
		return nil, err
	}
	keys := []string{forwarding, filterAll}
	for _, l := range h.Lines {
		keys = append(keys, filter(l.Name))
	}
	if err := h.readParameters(keys); err != nil {
		return nil, err
	}
	if h.Sessions, err = sessions(); err != nil {
		return nil, err
	}
	if h.Networks, err = routedNetworks(); err != nil {
		return nil, err
	}
	// Without an answer, no rules are needed, or the daemon reports why.
	blocks, _ := nft.Blocking(h.passages())
	h.Filtered = len(blocks) > 0
	h.Unit, err = hasUnit()
	return h, err
}

// readParameters reads kernel parameters.
func (h *Host) readParameters(keys []string) (err error) {
	for _, key := range keys {
		if h.Parameters[key], err = netns.ReadSysctl(key); err != nil {
			return err
		}
	}
	return nil
}

// named reports whether an interface is among others.
func named(list []Link, name string) bool {
	return slices.ContainsFunc(list, func(l Link) bool { return l.Name == name })
}

// findLines finds the lines, those of the best default route first, and their addresses.
func (h *Host) findLines(links []netlink.Link, choice Choice) error {
	routes, err := defaultRoutes(netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, index := range routes {
		if i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index }); i >= 0 {
			h.Lines = append(h.Lines, Link{Name: links[i].Attrs().Name})
		}
	}
	if err := h.findLines6(links); err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		// The router of a point-to-point link, such as PPP, is the other end.
		if far, ok := otherEnd(l); ok && !named(h.Lines, a.Name) && l.Type() != "tuntap" {
			h.Lines = append(h.Lines, Link{Name: a.Name, Via: far})
		}
	}
	if len(choice.Lines) > 0 {
		h.Lines = choice.Lines
	}
	for i := range h.Lines {
		if h.Lines[i].Addresses, err = addressesOf(links, h.Lines[i].Name, netlink.FAMILY_V4); err != nil {
			return err
		}
	}
	routers, err := defaultRouters()
	for i := range h.Lines {
		l := &h.Lines[i]
		at := slices.IndexFunc(links, func(k netlink.Link) bool { return k.Attrs().Name == l.Name })
		if at < 0 || l.Via.IsValid() {
			continue
		}
		if list := routers[links[at].Attrs().Index]; len(list) > 0 {
			l.Router, l.Unused = list[0], list[1:]
		}
	}
	return err
}

// SharedLines says of which interfaces with several routers one router alone is used.
func (h *Host) SharedLines() []string {
	var list []string
	for _, l := range h.Lines {
		if len(l.Unused) > 0 {
			list = append(list, fmt.Sprintf("(%s is one line, over the router %v; its other routers %v are not used: docs/gateway.md, two routers on one network)", l.Name, l.Router, l.Unused))
		}
	}
	return list
}

// findLAN finds the interfaces of the LAN: those with a private address that are no lines.
func (h *Host) findLAN(links []netlink.Link, choice Choice) error {
	for _, l := range links {
		a := l.Attrs()
		picked := slices.Contains(choice.LAN, a.Name)
		if len(choice.LAN) > 0 && !picked || choice.NoLAN || named(h.Lines, a.Name) || a.Flags&net.FlagLoopback != 0 || a.Flags&net.FlagUp == 0 {
			continue
		}
		list, err := addressesOf(links, a.Name, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(p netip.Prefix) bool { return !p.Addr().IsPrivate() || p.Bits() == 32 })
		if len(list) > 0 && l.Type() != "tuntap" && l.Type() != "wireguard" {
			h.LAN = append(h.LAN, Link{Name: a.Name, Addresses: list})
		}
	}
	for _, name := range choice.LAN {
		if !named(h.LAN, name) {
			return fmt.Errorf("use interface %q as LAN: it is missing, down, a line, or without a private address of IPv4", name)
		}
	}
	return nil
}

// findLines6 adds the interfaces that have a default route and a public address of IPv6, and no
// address of IPv4: one that has both, and no default route of IPv4, may be in a LAN with another
// router.
func (h *Host) findLines6(links []netlink.Link) error {
	routes, err := defaultRoutes(netlink.FAMILY_V6)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	for _, l := range links {
		a := l.Attrs()
		if err != nil || !slices.Contains(routes, a.Index) || named(h.Lines, a.Name) {
			continue
		}
		var four, six []netip.Prefix
		if four, err = addressesOf(links, a.Name, netlink.FAMILY_V4); err == nil {
			six, err = addressesOf(links, a.Name, netlink.FAMILY_V6)
		}
		if len(four) == 0 && len(public(six)) > 0 {
			h.Lines = append(h.Lines, Link{Name: a.Name})
		}
	}
	return err
}

// findIPv6 examines what concerns IPv6, of the lines and interfaces of the LAN that were found.
func (h *Host) findIPv6(links []netlink.Link, choice Choice) error {
	off, err := netns.ReadSysctl(switchedOff)
	switch {
	case choice.NoIPv6:
		h.NoIPv6 = "--no-ipv6 was given"
	case errors.Is(err, fs.ErrNotExist):
		h.NoIPv6 = "the kernel of this host has none"
	case err != nil:
		return err
	case off == "1":
		h.NoIPv6 = "it is switched off on this host (" + switchedOff + "=1)"
	}
	if h.NoIPv6 != "" {
		return nil
	}
	routes, err := defaultRoutes(netlink.FAMILY_V6)
	if err != nil {
		return err
	}
	var hardware []byte
	for _, list := range [][]Link{h.LAN, h.Lines} {
		for i := range list {
			l := &list[i]
			index := slices.IndexFunc(links, func(k netlink.Link) bool { return k.Attrs().Name == l.Name })
			a := links[index].Attrs() // it was found there
			if len(hardware) == 0 {
				hardware = a.HardwareAddr
			}
			l.Internet6 = slices.Contains(routes, a.Index)
			off, err := netns.ReadSysctl("net/ipv6/conf/" + l.Name + "/disable_ipv6")
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // it is missing below the least MTU of IPv6
				return err
			}
			l.IPv6 = off == "0"
			if l.Addresses6, err = addressesOf(links, l.Name, netlink.FAMILY_V6); err != nil {
				return err
			}
		}
	}
	h.Unique = unique(hardware)
	if h.Routed = choice.Routed; !h.Routed.IsValid() {
		if h.Routed, err = delegated(); err != nil {
			return err
		}
	}
	keys := []string{forwarding6}
	for _, l := range h.Lines {
		if l.IPv6 {
			keys = append(keys, acceptRA(l.Name))
		}
	}
	return h.readParameters(keys)
}

// defaultRoutes returns the interfaces of the main table's default routes of a family, the best
// first.
func defaultRoutes(family int) ([]int, error) {
	hops, err := defaultHops(family)
	var list []int
	for _, h := range hops {
		if !slices.Contains(list, h.LinkIndex) {
			list = append(list, h.LinkIndex)
		}
	}
	return list, err
}

// defaultRouters returns the routers of the main table's default routes of IPv4 by their
// interfaces, the best first.
func defaultRouters() (map[int][]netip.Addr, error) {
	hops, err := defaultHops(netlink.FAMILY_V4)
	routers := map[int][]netip.Addr{}
	for _, h := range hops {
		if a, ok := netip.AddrFromSlice(h.Gw.To4()); ok && !slices.Contains(routers[h.LinkIndex], a) {
			routers[h.LinkIndex] = append(routers[h.LinkIndex], a)
		}
	}
	return routers, err
}

// defaultHops returns the next hops of the main table's default routes of a family, the best first.
func defaultHops(family int) ([]*netlink.NexthopInfo, error) {
	all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	slices.SortStableFunc(all, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
	var list []*netlink.NexthopInfo
	for _, r := range all {
		switch {
		case r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.Type != unix.RTN_UNICAST:
		case len(r.MultiPath) > 0:
			list = append(list, r.MultiPath...)
		case r.LinkIndex != 0:
			list = append(list, &netlink.NexthopInfo{LinkIndex: r.LinkIndex, Gw: r.Gw})
		}
	}
	return list, nil
}

// delegated returns the public prefix of IPv6 that a DHCP client has got for this host, not valid
// without one: such a client makes the prefix unreachable, until parts of it are used.
func delegated() (netip.Prefix, error) {
	all, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range all {
		if r.Dst == nil || r.Type != unix.RTN_UNREACHABLE && r.Type != unix.RTN_BLACKHOLE {
			continue
		}
		if p, ok := netipx.FromStdIPNet(r.Dst); ok && join.ValidPrefix(p) {
			return p, nil
		}
	}
	return netip.Prefix{}, nil
}

// routedNetworks returns the destinations of the main table's routes but default routes.
func routedNetworks() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range all {
			if r.Dst == nil {
				continue
			}
			if p, ok := netipx.FromStdIPNet(r.Dst); ok && p.Bits() > 0 {
				list = append(list, p)
			}
		}
	}
	return list, nil
}

// otherEnd returns the address of the other end of a point-to-point link that is up.
func otherEnd(l netlink.Link) (netip.Addr, bool) {
	a := l.Attrs()
	if a.Flags&net.FlagPointToPoint == 0 || a.Flags&net.FlagUp == 0 {
		return netip.Addr{}, false
	}
	list, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, e := range list {
		if e.Peer != nil && !e.Peer.IP.Equal(e.IP) {
			far, ok := netip.AddrFromSlice(e.Peer.IP.To4())
			return far, ok
		}
	}
	return netip.Addr{}, false
}

// addressesOf returns the global addresses of an interface in a family, with their prefix lengths.
func addressesOf(links []netlink.Link, name string, family int) ([]netip.Prefix, error) {
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
	if i < 0 {
		return nil, fmt.Errorf("find interface %q: there is none; see ip link", name)
	}
	all, err := netlink.AddrList(links[i], family)
	if err != nil {
		return nil, fmt.Errorf("list addresses of interface %q: %w", name, err)
	}
	var list []netip.Prefix
	for _, a := range all {
		p, ok := netipx.FromStdIPNet(&net.IPNet{IP: a.IP, Mask: a.Mask})
		temporary := family == netlink.FAMILY_V6 && a.Flags&unix.IFA_F_TEMPORARY != 0 // RFC 8981
		if ok && a.Scope == unix.RT_SCOPE_UNIVERSE && !temporary {
			list = append(list, p)
		}
	}
	return list, nil
}

// maxSessions bounds the connections that get a rule.
const maxSessions = 64

// sessions returns the ends of TCP connections to this host whose other end it reaches by a default
// route: those of ports that it listens on. One of them may be the login of the caller.
func sessions() ([]Rule, error) {
	var listening []uint16
	var ends []Rule
	all := []*netlink.Socket{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.SocketDiagTCP(family)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list connections: %w", err)
		}
		all = append(all, list...)
	}
	for _, s := range all {
		if s.State == netlink.TCP_LISTEN {
			listening = append(listening, s.ID.SourcePort)
		}
	}
	for _, s := range all {
		from, _ := netip.AddrFromSlice(s.ID.Source)
		to, _ := netip.AddrFromSlice(s.ID.Destination)
		r := Rule{from.Unmap(), to.Unmap()}
		if s.State == netlink.TCP_ESTABLISHED && r.From.IsGlobalUnicast() && r.To.IsGlobalUnicast() && slices.Contains(listening, s.ID.SourcePort) && !slices.Contains(ends, r) {
			ends = append(ends, r)
		}
	}
	var list []Rule
	for _, r := range ends[:min(len(ends), maxSessions)] {
		found, err := netlink.RouteGetWithOptions(r.To.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		if err != nil || len(found) == 0 || found[0].Dst != nil && !found[0].Dst.IP.IsUnspecified() {
			continue // unreachable, or by a route that precedes that into the tunnel
		}
		list = append(list, r)
	}
	return list, nil
}

// hasUnit reports whether systemd runs, has the unit of the package, and would start it in this
// network namespace.
func hasUnit() (bool, error) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false, fmt.Errorf("read own namespace: %w", err)
	}
	first, err := os.Readlink("/proc/1/ns/net")
	if err != nil || own != first {
		return false, nil // without access to it no unit can be started
	}
	for _, file := range []string{"/run/systemd/system", "/usr/lib/systemd/system/" + unitName} {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}
