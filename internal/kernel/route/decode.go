package route

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Decoding. The bytes come from the kernel, or from a fuzz test.

// found is a decoded object with its owner. A nil object is not an error: the message describes an
// object of a type that this package does not manage.
type found struct {
	object   Object
	protocol Protocol
}

func (f *found) set(o Object, altered bool) {
	if altered {
		o = Altered{o}
	}
	f.object = o
}

// sizeofNdmsg is the size of struct ndmsg.
const sizeofNdmsg = 12

// neighbor is an entry of the kernel's neighbor table (struct ndmsg). Those of other families have
// no address.
type neighbor struct {
	address netip.Addr
	link    uint32
	state   uint16
}

func decodeNeighbor(b []byte) (n neighbor, err error) {
	if len(b) < sizeofNdmsg {
		return n, errShort
	}
	if !isIP(b[0]) {
		return n, nil
	}
	n.link, n.state = native.Uint32(b[4:]), native.Uint16(b[8:])
	at := attrs{b: b[sizeofNdmsg:], v4: b[0] == unix.AF_INET}
	for at.next() {
		if at.typ == unix.NDA_DST {
			n.address = at.addr()
		}
	}
	return n, at.err
}

func decodeAddress(b []byte, names links) (f found, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return found{}, errShort
	}
	if !isIP(b[0]) {
		return found{}, nil
	}
	var (
		v4        = b[0] == unix.AF_INET
		bits      = int(b[1])
		flags     = uint32(b[2])
		scope     = b[3]
		index     = native.Uint32(b[4:])
		preferred = uint32(forever)
		valid     = uint32(forever)
		ip, local netip.Addr
	)
	at := attrs{b: b[unix.SizeofIfAddrmsg:], v4: v4}
	for at.next() {
		switch at.typ {
		case unix.IFA_ADDRESS:
			ip = at.addr()
		case unix.IFA_LOCAL:
			local = at.addr()
		case unix.IFA_FLAGS:
			flags = at.uint32()
		case unix.IFA_CACHEINFO:
			if len(at.data) < 8 {
				return found{}, errAttr
			}
			preferred, valid = native.Uint32(at.data), native.Uint32(at.data[4:])
		case ifaProto:
			f.protocol = Protocol(at.uint8())
		}
	}
	if at.err != nil {
		return found{}, at.err
	}
	peer := local.IsValid() && ip.IsValid() && local != ip
	if local.IsValid() {
		ip = local
	}
	if !ip.IsValid() || bits > ip.BitLen() {
		return found{}, errAttr
	}
	name, err := names(index)
	if err != nil || name == "" {
		return found{}, err
	}
	a := Address{Link: name, Prefix: netip.PrefixFrom(ip, bits), Deprecated: preferred == 0}
	altered := peer || valid != forever
	if v4 {
		a.Deprecated = scope == unix.RT_SCOPE_LINK
		altered = altered || preferred != forever || scope != unix.RT_SCOPE_UNIVERSE && !a.Deprecated
	} else {
		a.Deprecated = a.Deprecated || flags&unix.IFA_F_TENTATIVE != 0
		altered = altered || preferred != 0 && preferred != forever || flags&unix.IFA_F_NODAD == 0
	}
	f.set(a, altered)
	return f, nil
}

// linkNameOf decodes the name of a link; it reports whether it is valid.
func linkNameOf(b []byte, name *string) bool {
	text := strings.TrimRight(string(b), "\x00")
	if checkLink(text) != nil {
		return false
	}
	*name = text
	return true
}

// ruleHeader is the length of struct fib_rule_hdr.
const ruleHeader = 12

func decodeRule(b []byte) (f found, err error) {
	if len(b) < ruleHeader {
		return found{}, errShort
	}
	if !isIP(b[0]) {
		return found{}, nil
	}
	var (
		r        = Rule{Table: uint32(b[4]), Unreachable: b[7] == unix.FR_ACT_UNREACHABLE}
		src, dst netip.Addr
		mask     uint32
		invert   = native.Uint32(b[8:])&unix.FIB_RULE_INVERT != 0
		// Both source and destination, a traffic class, or another action.
		altered = b[1] != 0 && b[2] != 0 || b[3] != 0 || b[7] != unix.FR_ACT_TO_TBL && !r.Unreachable
	)
	at := attrs{b: b[ruleHeader:], v4: b[0] == unix.AF_INET}
	for at.next() {
		switch at.typ {
		case unix.FRA_PRIORITY:
			r.Priority = at.uint32()
		case unix.FRA_TABLE:
			r.Table = at.uint32()
		case unix.FRA_PROTOCOL:
			f.protocol = Protocol(at.uint8())
		case unix.FRA_SRC:
			src = at.addr()
		case unix.FRA_DST:
			dst = at.addr()
		case unix.FRA_IIFNAME:
			altered = !linkNameOf(at.data, &r.Iif) || altered
		case unix.FRA_OIFNAME:
			altered = !linkNameOf(at.data, &r.Oif) || altered
		case unix.FRA_FWMARK:
			r.Mark = at.uint32()
		case unix.FRA_FWMASK:
			mask = at.uint32()
		case unix.FRA_SUPPRESS_PREFIXLEN:
			length := at.uint32()
			r.Specific = length == 0
			altered = altered || length != 0 && length != math.MaxUint32
		case unix.FRA_PAD:
		default:
			altered = true
		}
	}
	if at.err != nil {
		return found{}, at.err
	}
	for _, side := range []struct {
		prefix *netip.Prefix
		addr   netip.Addr
		bits   uint8
	}{{&r.From, src, b[2]}, {&r.To, dst, b[1]}} {
		if side.bits == 0 {
			continue
		}
		p := netip.PrefixFrom(side.addr, int(side.bits))
		if !p.IsValid() {
			return found{}, errAttr
		}
		*side.prefix = p.Masked()
	}
	altered = r.reduce(mask, invert) || altered
	if at.v4 && !r.From.IsValid() && !r.To.IsValid() {
		r.From = anyIPv4
	}
	f.set(r, altered)
	return f, nil
}

// reduce leaves of a decoded rule what a Rule can say, and reports whether something is left out.
func (r *Rule) reduce(mask uint32, invert bool) (altered bool) {
	if r.Unreachable {
		r.Table = 0
	}
	// A foreign rule can have an action without a table: its key is an unreachable rule's.
	altered = r.Table == 0 && !r.Unreachable
	r.Unreachable = r.Table == 0
	// A Rule has one interface, and suppresses nothing without a table.
	altered = altered || r.Iif != "" && r.Oif != "" || r.Specific && r.Unreachable
	r.Specific = r.Specific && !r.Unreachable
	if r.Iif != "" {
		r.Oif = ""
	}
	altered = altered || r.Mark == 0 && mask != 0 || r.Mark != 0 && mask != math.MaxUint32
	if !invert {
		return altered
	}
	if r.Mark == 0 || r.Iif != "" || r.Oif != "" || r.From.IsValid() || r.To.IsValid() {
		return true
	}
	r.Mark, r.NotMark = 0, r.Mark
	return altered
}

func decodeNexthop(b []byte, names links) (f found, err error) {
	if len(b) < sizeofNhmsg {
		return found{}, errShort
	}
	var (
		n       Nexthop
		index   uint32
		typ     uint16
		encap   []byte
		altered bool
		group   []byte
		kind    uint16
		res     []byte
	)
	f.protocol = Protocol(b[2])
	at := attrs{b: b[sizeofNhmsg:]}
	for at.next() {
		switch at.typ {
		case unix.NHA_ID:
			n.ID = at.uint32()
		case unix.NHA_OIF:
			index = at.uint32()
		case unix.NHA_GATEWAY:
			if b[0] == unix.AF_INET6 {
				n.Gateway = at.addr()
			}
		case unix.NHA_ENCAP_TYPE:
			typ = at.uint16()
		case unix.NHA_ENCAP:
			encap = at.data
		case unix.NHA_GROUP:
			group = at.data
		case unix.NHA_GROUP_TYPE:
			kind = at.uint16()
		case nhaResGroup:
			res = at.data
		case nhaOpFlags:
		default:
			altered = true
		}
	}
	if at.err != nil {
		return found{}, at.err
	}
	if n.ID == 0 {
		return found{}, errAttr
	}
	if group != nil {
		g, ok := decodeNexthopGroup(n.ID, kind, group, res)
		f.set(g, altered || !ok)
		return f, nil
	}
	altered = altered || b[0] != unix.AF_INET6
	switch typ {
	case 0:
	case unix.LWTUNNEL_ENCAP_SEG6:
		var ok bool
		if n.SID, n.Encap, ok = decodeSegment(encap); !ok {
			altered = true
		}
	case unix.LWTUNNEL_ENCAP_BPF:
		var ok bool
		if n.Mark, ok = decodeSentMark(encap); !ok {
			altered = true
		}
	default:
		altered = true
	}
	if index != 0 {
		if n.Link, err = names(index); err != nil {
			return found{}, err
		}
	}
	if n.Link == "" {
		altered = true
	}
	altered = altered || native.Uint32(b[4:])&unix.RTNH_F_ONLINK != 0
	switch leads := n.SID.IsValid() || n.Mark != 0; {
	case leads && n.Gateway == noGateway(n.ID):
		n.Gateway = netip.Addr{}
	case leads && !n.Gateway.IsValid():
		altered = true
	}
	f.set(n, altered)
	return f, nil
}

// decodeNexthopGroup decodes a group; ok is false if a NexthopGroup cannot express it.
func decodeNexthopGroup(id uint32, kind uint16, members, res []byte) (g NexthopGroup, ok bool) {
	ok = kind == nexthopGroupResilient && len(members)%sizeofNexthopGrp == 0
	var list []GroupMember
	for ; len(members) >= sizeofNexthopGrp; members = members[sizeofNexthopGrp:] {
		weight := uint16(members[4]) + 1
		ok = ok && members[5] == 0
		list = append(list, GroupMember{native.Uint32(members), weight})
	}
	var buckets, idle uint32
	at := attrs{b: res}
	for at.next() {
		switch at.typ {
		case nhaResGroupBuckets:
			buckets = uint32(at.uint16())
		case nhaResGroupIdleTimer:
			idle = at.uint32()
		case nhaResGroupUnbalancedTimer:
			ok = at.uint32() == 0 && ok
		case nhaResGroupPad, nhaResGroupUnbalancedTime:
		default:
			ok = false
		}
	}
	g = NexthopGroup{ID: id, Members: JoinMembers(list)}
	return g, ok && at.err == nil && buckets == GroupBuckets && idle == IdleTime*userHZ && g.Check() == nil
}

// decodeSegment decodes a seg6 encapsulation; ok is false if a Nexthop cannot express it.
func decodeSegment(b []byte) (sid netip.Addr, m EncapMode, ok bool) {
	at := attrs{b: b}
	for at.next() {
		if at.typ != seg6SRH || len(at.data) != 4+sizeofSRH || sid.IsValid() {
			return netip.Addr{}, 0, false
		}
		switch native.Uint32(at.data) {
		case seg6ModeEncapRed:
			m = EncapRed
		case seg6ModeEncap:
			m = EncapFull
		default:
			return netip.Addr{}, 0, false
		}
		sid = netip.AddrFrom16([16]byte(at.data[4+8:]))
	}
	return sid, m, at.err == nil && sid.IsValid()
}

// A routeMessage is a route as the kernel reports it, while it is decoded.
type routeMessage struct {
	route     Route
	dst       netip.Addr
	index     uint32 // of the link
	encapType uint16
	encap     []byte
	altered   bool // has what a Route cannot say
}

func decodeRoute(b []byte, names links) (f found, err error) {
	if len(b) < unix.SizeofRtMsg {
		return found{}, errShort
	}
	// Routes with a source prefix are not supported; cloned routes belong to the kernel's
	// cache.
	if !isIP(b[0]) || b[2] != 0 || native.Uint32(b[8:])&unix.RTM_F_CLONED != 0 {
		return found{}, nil
	}
	bits, class, protocol, scope, typ := int(b[1]), b[3], Protocol(b[5]), b[6], b[7]
	m := routeMessage{route: Route{Table: uint32(b[4])}, dst: netip.IPv6Unspecified(), altered: class != 0}
	at := attrs{b: b[unix.SizeofRtMsg:], v4: b[0] == unix.AF_INET}
	if at.v4 {
		m.dst = netip.IPv4Unspecified()
	}
	if err := m.decodeAttrs(&at); err != nil {
		return found{}, err
	}
	if bits > m.dst.BitLen() {
		return found{}, errAttr
	}
	r := &m.route
	r.Dst = netip.PrefixFrom(m.dst, bits).Masked()
	if k := slices.Index(kindTypes[:], typ); k >= 0 {
		r.Kind = Kind(k)
	} else {
		m.altered = true
	}
	switch {
	case r.NexthopID != 0:
		// The kernel also reports the gateway and link of the nexthop object, or those of the
		// members of a group, for old user space.
		r.Gateway = netip.Addr{}
	case r.Kind != Unicast:
		// The kernel reports lo as the device of these routes.
	default:
		m.setEncap()
		if m.index != 0 {
			if r.Link, err = names(m.index); err != nil {
				return found{}, err
			}
		}
		m.altered = m.altered || r.Link == ""
	}
	m.altered = m.altered || at.v4 && scope != r.scope()
	f.protocol = protocol
	f.set(r.Normal(), m.altered)
	return f, nil
}

func (m *routeMessage) decodeAttrs(at *attrs) error {
	several := false // next hops
	for r := &m.route; at.next(); {
		switch at.typ {
		case unix.RTA_DST:
			m.dst = at.addr()
		case unix.RTA_TABLE:
			r.Table = at.uint32()
		case unix.RTA_PRIORITY:
			r.Metric = at.uint32()
		case unix.RTA_OIF:
			m.index = at.uint32()
		case unix.RTA_GATEWAY:
			r.Gateway = at.addr()
		case unix.RTA_VIA:
			r.Gateway = at.via()
			m.altered = m.altered || !r.Gateway.IsValid()
		case unix.RTA_PREFSRC:
			r.PrefSrc = at.addr()
		case rtaNHID:
			r.NexthopID = at.uint32()
		case unix.RTA_MULTIPATH:
			several = true
		case unix.RTA_METRICS:
			mtu, ok := decodeMetrics(at.data)
			r.MTU, m.altered = mtu, m.altered || !ok
		case unix.RTA_ENCAP_TYPE:
			m.encapType = at.uint16()
		case unix.RTA_ENCAP:
			m.encap = at.data
		case unix.RTA_CACHEINFO:
			// rta_expires: a lifetime, as a router advertisement or `ip route expires` gives.
			if len(at.data) < 12 {
				return errAttr
			}
			m.altered = m.altered || native.Uint32(at.data[8:]) != 0
		case unix.RTA_PREF:
			m.altered = m.altered || at.uint8() != 0
		default:
			m.altered = true
		}
	}
	m.altered = m.altered || several && m.route.NexthopID == 0
	return at.err
}

func (m *routeMessage) setEncap() {
	ok := m.encapType == 0
	switch m.encapType {
	case unix.LWTUNNEL_ENCAP_SEG6_LOCAL:
		m.route.Local, ok = decodeLocal(m.encap)
	case unix.LWTUNNEL_ENCAP_BPF:
		ok = decodeProgram(m.encap, &m.route)
	}
	m.altered = m.altered || !ok
}

// decodeMetrics returns the MTU; ok is false if there are other metrics.
func decodeMetrics(b []byte) (mtu uint32, ok bool) {
	at := attrs{b: b}
	for at.next() {
		if at.typ != unix.RTAX_MTU {
			return 0, false
		}
		mtu = at.uint32()
	}
	return mtu, at.err == nil
}

// decodeLocal decodes a seg6local action; ok is false if a LocalAction cannot express it.
func decodeLocal(b []byte) (l LocalAction, ok bool) {
	at := attrs{b: b}
	for at.next() {
		switch at.typ {
		case seg6LocalAction:
			action := at.uint32()
			for behavior, d := range behaviors {
				if d.action == action {
					l.Behavior = behavior
				}
			}
		case seg6LocalTable:
			l.Table = at.uint32()
		case seg6LocalNH4:
			at.v4 = true
			l.Nexthop = at.addr()
			at.v4 = false
		case seg6LocalNH6:
			l.Nexthop = at.addr()
		default:
			return LocalAction{}, false
		}
	}
	return l, at.err == nil && l.Behavior != NoBehavior
}

// decodeProgram decodes the program of a mark or a number; ok is false if it is another one.
func decodeProgram(b []byte, r *Route) (ok bool) {
	switch hook, name := decodeHook(b); hook {
	case lwtBPFIn:
		r.Mark, ok = markOf(name)
	case lwtBPFXmit:
		r.Program, ok = programOf(name)
	}
	return ok
}

// decodeSentMark decodes the program of a nexthop object with a mark; ok is false if it is another
// one.
func decodeSentMark(b []byte) (mark uint32, ok bool) {
	hook, name := decodeHook(b)
	if hook != lwtBPFXmit {
		return 0, false
	}
	return markOf(name)
}

// decodeHook decodes the hook and the name of the only program; the hook is 0 if it is not the only
// one.
func decodeHook(b []byte) (hook uint16, name string) {
	at := attrs{b: b}
	for at.next() {
		if hook != 0 {
			return 0, ""
		}
		hook = at.typ
		in := attrs{b: at.data}
		for in.next() {
			if in.typ == lwtBPFProgName {
				name = unix.ByteSliceToString(in.data)
			}
		}
		if in.err != nil {
			return 0, ""
		}
	}
	if at.err != nil {
		return 0, ""
	}
	return hook, name
}
