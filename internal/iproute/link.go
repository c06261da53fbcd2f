package iproute

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/mptcp"
)

func showLinks(a *arguments) (string, error) {
	name := a.value("dev")
	if name == "" {
		name = a.next()
	}
	if err := a.end(); err != nil {
		return "", err
	}
	links, err := netlink.LinkList()
	var out strings.Builder
	for _, l := range links {
		x := l.Attrs()
		if name != "" && x.Name != name {
			continue
		}
		fmt.Fprintf(&out, "%d: %s: <%s> mtu %d state %s link/%s %s qlen %d\n", x.Index, x.Name,
			strings.ToUpper(strings.ReplaceAll(x.Flags.String(), "|", ",")), x.MTU, strings.ToUpper(x.OperState.String()), x.EncapType, x.HardwareAddr, x.TxQLen)
	}
	return out.String(), err
}

// addLink makes a pair of virtual Ethernet interfaces.
func addLink(a *arguments) (string, error) {
	mac := func() net.HardwareAddr {
		text := a.value("address")
		if text == "" {
			return nil
		}
		m, err := net.ParseMAC(text)
		if err != nil {
			a.fail("address %q: %w", text, err)
		}
		return m
	}
	pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs()}
	pair.Name = a.next()
	// The first address is of the first end.
	pair.HardwareAddr = mac()
	if kind := a.value("type"); kind != "veth" || !a.flag("peer") {
		a.fail("type %q is unknown", kind)
	}
	pair.PeerName, pair.PeerHardwareAddr = a.value("name"), mac()
	if ns := a.value("netns"); ns != "" {
		there, err := vishnetns.GetFromName(ns)
		if err != nil {
			return "", err
		}
		defer there.Close()
		pair.PeerNamespace = netlink.NsFd(there)
	}
	if err := a.end(); err != nil {
		return "", err
	}
	return "", netlink.LinkAdd(pair)
}

func setLink(a *arguments) (string, error) {
	l, err := netlink.LinkByName(a.next())
	if err != nil {
		return "", err
	}
	queue, mtu := a.number("txqueuelen"), a.number("mtu")
	up, down := a.flag("up"), a.flag("down")
	if err := a.end(); err != nil {
		return "", err
	}
	if queue != 0 {
		err = netlink.LinkSetTxQLen(l, queue)
	}
	if mtu != 0 {
		err = errors.Join(err, netlink.LinkSetMTU(l, mtu))
	}
	if up {
		err = errors.Join(err, netlink.LinkSetUp(l))
	}
	if down {
		err = errors.Join(err, netlink.LinkSetDown(l))
	}
	return "", err
}

func deleteLink(a *arguments) (string, error) {
	l, err := netlink.LinkByName(a.next())
	if err != nil {
		return "", err
	}
	return "", errors.Join(a.end(), netlink.LinkDel(l))
}

var addressFlags = []struct {
	flag int
	name string
}{{unix.IFA_F_DEPRECATED, "deprecated"}, {unix.IFA_F_TENTATIVE, "tentative"}, {unix.IFA_F_DADFAILED, "dadfailed"}, {unix.IFA_F_NODAD, "nodad"},
	{unix.IFA_F_NOPREFIXROUTE, "noprefixroute"}}

func showAddresses(a *arguments) (string, error) {
	var link netlink.Link
	if dev := a.value("dev"); dev != "" {
		var err error
		if link, err = netlink.LinkByName(dev); err != nil {
			return "", err
		}
	}
	scope := a.value("scope")
	if scope != "" && scope != "global" {
		a.fail("scope %q is unknown", scope)
	}
	if err := a.end(); err != nil {
		return "", err
	}
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	var out strings.Builder
	for _, x := range list {
		if scope != "" && x.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		family := "inet6"
		if x.IP.To4() != nil {
			family = "inet"
		}
		fmt.Fprintf(&out, "%s %s dev %s scope %d", family, x.IPNet, linkName(x.LinkIndex), x.Scope)
		for _, f := range addressFlags {
			if x.Flags&f.flag != 0 {
				out.WriteString(" " + f.name)
			}
		}
		fmt.Fprintf(&out, " valid_lft %s preferred_lft %s\n", lifetime(x.ValidLft), lifetime(x.PreferedLft))
	}
	return out.String(), err
}

func lifetime(seconds int) string {
	if uint32(seconds) == math.MaxUint32 {
		return "forever"
	}
	return fmt.Sprintf("%dsec", seconds)
}

func changeAddress(a *arguments) (string, error) {
	p := prefix(a)
	l, err := netlink.LinkByName(a.value("dev"))
	if err != nil {
		return "", err
	}
	x := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if a.flag("nodad") {
		x.Flags |= unix.IFA_F_NODAD
	}
	x.ValidLft, x.PreferedLft = a.number("valid_lft"), a.number("preferred_lft")
	if err := a.end(); err != nil {
		return "", err
	}
	switch a.verb {
	case "add":
		return "", netlink.AddrAdd(l, x)
	case "change":
		return "", netlink.AddrReplace(l, x)
	default:
		return "", netlink.AddrDel(l, x)
	}
}

func changeNeighbor(a *arguments) (string, error) {
	ip := address(a, a.next())
	l, err := netlink.LinkByName(a.value("dev"))
	if err != nil {
		return "", err
	}
	n := &netlink.Neigh{LinkIndex: l.Attrs().Index, IP: ip.AsSlice(), State: unix.NUD_PERMANENT}
	if text := a.value("lladdr"); text != "" {
		if n.HardwareAddr, err = net.ParseMAC(text); err != nil {
			return "", err
		}
	}
	if state := a.value("nud"); state != "" && state != "permanent" {
		a.fail("nud %q is unknown", state)
	}
	if err := a.end(); err != nil {
		return "", err
	}
	switch a.verb {
	case "add":
		return "", netlink.NeighAdd(n)
	case "replace":
		return "", netlink.NeighSet(n)
	default:
		return "", netlink.NeighDel(n)
	}
}

// ruleText is a rule as `ip rule` prints it.
func ruleText(r netlink.Rule) string {
	from := "all"
	if r.Src != nil {
		a, _ := netip.AddrFromSlice(r.Src.IP)
		bits, _ := r.Src.Mask.Size()
		p := netip.PrefixFrom(a, bits)
		if from = p.String(); p.IsSingleIP() {
			from = a.String()
		}
	}
	not := ""
	if r.Invert {
		not = "not "
	}
	text := fmt.Sprintf("%d:\t%sfrom %s", max(r.Priority, 0), not, from)
	if r.Mark != 0 {
		text += fmt.Sprintf(" fwmark %#x", r.Mark)
	}
	if r.IifName != "" {
		text += " iif " + r.IifName
	}
	if r.OifName != "" {
		text += " oif " + r.OifName
	}
	text += " lookup " + nameOf(tables, r.Table)
	if r.SuppressPrefixlen >= 0 {
		text += fmt.Sprintf(" suppress_prefixlength %d", r.SuppressPrefixlen)
	}
	if r.Protocol > unix.RTPROT_KERNEL {
		text += " proto " + nameOf(protocols, int(r.Protocol))
	}
	return text
}

func showRules(a *arguments) (string, error) {
	if err := a.end(); err != nil {
		return "", err
	}
	rules, err := netlink.RuleList(int(a.family))
	var out strings.Builder
	for _, r := range rules {
		out.WriteString(ruleText(r) + "\n")
	}
	return out.String(), err
}

func changeRule(a *arguments) (string, error) {
	r := netlink.NewRule()
	r.Family = int(a.family)
	if from := a.value("from"); from != "" && from != "all" {
		a.words = append([]string{from}, a.words...)
		p := prefix(a)
		r.Src = &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	}
	if n := a.number("priority", "preference", "pref"); n != 0 {
		r.Priority = n
	}
	r.Mark, r.Table, r.Protocol = uint32(a.number("fwmark")), a.table("lookup", "table"), uint8(protocolOf(a, "protocol", "proto"))
	if err := a.end(); err != nil {
		return "", err
	}
	if a.verb == "del" {
		return "", netlink.RuleDel(r)
	}
	return "", netlink.RuleAdd(r)
}

func showEndpoints(a *arguments) (string, error) {
	c, err := mptcp.Dial()
	if err != nil {
		return "", err
	}
	defer c.Close()
	list, err := c.Endpoints()
	var out strings.Builder
	for _, e := range list {
		fmt.Fprintf(&out, "%s id %d", e.Address, e.ID)
		for _, f := range []struct {
			set  bool
			name string
		}{{e.Signal, "signal"}, {e.Subflow, "subflow"}, {e.Backup, "backup"}, {e.Fullmesh, "fullmesh"}} {
			if f.set {
				out.WriteString(" " + f.name)
			}
		}
		if e.Link != "" {
			out.WriteString(" dev " + e.Link)
		}
		out.WriteString("\n")
	}
	return out.String(), errors.Join(err, a.end())
}
