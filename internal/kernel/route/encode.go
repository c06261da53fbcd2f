package route

import (
	"math"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Encoding functions. Each function appends to b.

func putAttr(b []byte, typ uint16, data []byte) []byte {
	b = native.AppendUint16(b, uint16(4+len(data)))
	b = native.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, (4-len(data)%4)%4)...)
}

func putUint32(b []byte, typ uint16, v uint32) []byte {
	var data [4]byte
	native.PutUint32(data[:], v)
	return putAttr(b, typ, data[:])
}

func putUint16(b []byte, typ uint16, v uint16) []byte {
	var data [2]byte
	native.PutUint16(data[:], v)
	return putAttr(b, typ, data[:])
}

func putAddr(b []byte, typ uint16, a netip.Addr) []byte {
	if a.Is4() {
		data := a.As4()
		return putAttr(b, typ, data[:])
	}
	data := a.As16()
	return putAttr(b, typ, data[:])
}

// putVia appends an address with its family (struct rtvia).
func putVia(b []byte, typ uint16, a netip.Addr) []byte {
	data := native.AppendUint16(make([]byte, 0, 2+16), uint16(family(a)))
	return putAttr(b, typ, append(data, a.AsSlice()...))
}

// putNested appends a nested attribute whose payload is written by fill.
func putNested(b []byte, typ uint16, fill func([]byte) []byte) []byte {
	start := len(b)
	b = native.AppendUint16(b, 0)
	b = native.AppendUint16(b, typ|unix.NLA_F_NESTED)
	b = fill(b)
	native.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

func putAddress(b []byte, a Address, p Protocol, index uint32, del bool) []byte {
	v4, scope := a.Prefix.Addr().Is4(), uint8(unix.RT_SCOPE_UNIVERSE)
	if v4 && a.Deprecated {
		scope = unix.RT_SCOPE_LINK
	}
	b = append(b, family(a.Prefix.Addr()), uint8(a.Prefix.Bits()), 0, scope) // family, length, flags, scope
	b = native.AppendUint32(b, index)
	b = putAddr(b, unix.IFA_LOCAL, a.Prefix.Addr())
	if v4 {
		b = putAddr(b, unix.IFA_ADDRESS, a.Prefix.Addr()) // the prefix, of which deletion reads the length
	}
	if del {
		return b
	}
	if v4 {
		return putAttr(b, ifaProto, []byte{uint8(p)})
	}
	preferred := uint32(forever)
	if a.Deprecated {
		preferred = 0
	}
	var life [unix.SizeofIfaCacheinfo]byte
	native.PutUint32(life[0:], preferred)
	native.PutUint32(life[4:], forever)
	b = putAttr(b, unix.IFA_CACHEINFO, life[:])
	b = putUint32(b, unix.IFA_FLAGS, unix.IFA_F_NODAD)
	return putAttr(b, ifaProto, []byte{uint8(p)})
}

func putRule(b []byte, r Rule, p Protocol) []byte {
	action := uint8(unix.FR_ACT_TO_TBL)
	if r.Unreachable {
		action = unix.FR_ACT_UNREACHABLE
	}
	// family, destination and source length, tos, table, two reserved, action: struct fib_rule_hdr.
	prefix := r.From
	if r.To.IsValid() {
		prefix = r.To
	}
	b = append(b, family(prefix.Addr()), uint8(max(0, r.To.Bits())), uint8(max(0, r.From.Bits())), 0, 0, 0, 0, action)
	mark, flags := r.Mark, uint32(0)
	if r.NotMark != 0 {
		mark, flags = r.NotMark, unix.FIB_RULE_INVERT
	}
	b = native.AppendUint32(b, flags)
	b = putUint32(b, unix.FRA_PRIORITY, r.Priority)
	if !r.Unreachable {
		b = putUint32(b, unix.FRA_TABLE, r.Table)
	}
	b = putAttr(b, unix.FRA_PROTOCOL, []byte{uint8(p)})
	if r.From.Bits() > 0 {
		b = putAddr(b, unix.FRA_SRC, r.From.Addr())
	}
	if r.To.Bits() > 0 {
		b = putAddr(b, unix.FRA_DST, r.To.Addr())
	}
	if r.Iif != "" {
		b = putAttr(b, unix.FRA_IIFNAME, append([]byte(r.Iif), 0))
	}
	if r.Oif != "" {
		b = putAttr(b, unix.FRA_OIFNAME, append([]byte(r.Oif), 0))
	}
	if r.Specific {
		b = putUint32(b, unix.FRA_SUPPRESS_PREFIXLEN, 0)
	}
	if mark != 0 {
		b = putUint32(b, unix.FRA_FWMARK, mark)
		b = putUint32(b, unix.FRA_FWMASK, math.MaxUint32)
	}
	return b
}

// putNexthop appends a nexthop object; program is the file descriptor of its program, if it has a
// mark.
func putNexthop(b []byte, n Nexthop, p Protocol, index, program uint32, del bool) []byte {
	if del {
		b = append(b, make([]byte, sizeofNhmsg)...)
		return putUint32(b, unix.NHA_ID, n.ID)
	}
	b = append(b, unix.AF_INET6, 0, uint8(p), 0) // family, scope, protocol, reserved
	b = native.AppendUint32(b, 0)
	b = putUint32(b, unix.NHA_ID, n.ID)
	b = putUint32(b, unix.NHA_OIF, index)
	if gateway := n.gateway(); gateway.IsValid() {
		b = putAddr(b, unix.NHA_GATEWAY, gateway)
	}
	switch {
	case n.Mark != 0:
		b = putUint16(b, unix.NHA_ENCAP_TYPE, unix.LWTUNNEL_ENCAP_BPF)
		b = putNested(b, unix.NHA_ENCAP, func(b []byte) []byte { return putHook(b, lwtBPFXmit, program, markName(n.Mark)) })
	case n.SID.IsValid():
		b = putUint16(b, unix.NHA_ENCAP_TYPE, unix.LWTUNNEL_ENCAP_SEG6)
		b = putNested(b, unix.NHA_ENCAP, func(b []byte) []byte { return putSegment(b, n.SID, n.Encap) })
	}
	return b
}

func putNexthopGroup(b []byte, g NexthopGroup, p Protocol) []byte {
	b = append(b, unix.AF_UNSPEC, 0, uint8(p), 0)
	b = native.AppendUint32(b, 0)
	b = putUint32(b, unix.NHA_ID, g.ID)
	b = putUint16(b, unix.NHA_GROUP_TYPE, nexthopGroupResilient)
	var data []byte
	for _, m := range g.List() {
		data = native.AppendUint32(data, m.ID)
		data = append(data, uint8(m.Weight-1), 0, 0, 0) // the weight less one, its high byte, reserved
	}
	b = putAttr(b, unix.NHA_GROUP, data)
	return putNested(b, nhaResGroup, func(b []byte) []byte {
		b = putUint16(b, nhaResGroupBuckets, GroupBuckets)
		return putUint32(b, nhaResGroupIdleTimer, IdleTime*userHZ)
	})
}

// putSegment appends a struct seg6_iptunnel_encap with one segment.
func putSegment(b []byte, sid netip.Addr, m EncapMode) []byte {
	var data [4 + sizeofSRH]byte
	mode := uint32(seg6ModeEncapRed)
	if m == EncapFull {
		mode = seg6ModeEncap
	}
	native.PutUint32(data[:], mode)
	srh := data[4:]
	srh[1] = (sizeofSRH - 8) / 8
	srh[2] = srhType
	a := sid.As16()
	copy(srh[8:], a[:])
	return putAttr(b, seg6SRH, data[:])
}

// loopback is the index of lo in each network namespace.
const loopback = 1

// kindTypes has the route type of each kind (rtm_type).
var kindTypes = [...]uint8{
	Unicast:     unix.RTN_UNICAST,
	Unreachable: unix.RTN_UNREACHABLE,
	Blackhole:   unix.RTN_BLACKHOLE,
	Throw:       unix.RTN_THROW,
	Deliver:     unix.RTN_LOCAL,
}

// scope returns the scope with which the kernel has the route (rtm_scope); IPv6 has one only.
func (r Route) scope() uint8 {
	switch v4 := r.Dst.Addr().Is4(); {
	case v4 && r.Kind == Deliver:
		return unix.RT_SCOPE_HOST
	case v4 && r.onLink() && r.Program == 0: // a program routes packets again, to other links
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}

// putRoute appends a route; program is the file descriptor of its program, if it has one or a mark.
func putRoute(b []byte, r Route, p Protocol, index, program uint32, del bool) []byte {
	scope := r.scope()
	if del && r.Dst.Addr().Is4() {
		scope = unix.RT_SCOPE_NOWHERE // any
	}
	// family, destination and source length, tos, table (see RTA_TABLE), protocol, scope, type:
	// struct rtmsg.
	b = append(b, family(r.Dst.Addr()), uint8(r.Dst.Bits()), 0, 0, 0, uint8(p), scope, kindTypes[r.Kind])
	b = native.AppendUint32(b, 0)
	b = putUint32(b, unix.RTA_TABLE, r.Table)
	b = putAddr(b, unix.RTA_DST, r.Dst.Addr())
	b = putUint32(b, unix.RTA_PRIORITY, r.Metric)
	if del {
		return b
	}
	if r.NexthopID != 0 {
		b = putUint32(b, rtaNHID, r.NexthopID)
	}
	switch {
	case !r.Gateway.IsValid():
	case r.Gateway.Is4() == r.Dst.Addr().Is4():
		b = putAddr(b, unix.RTA_GATEWAY, r.Gateway)
	default:
		b = putVia(b, unix.RTA_VIA, r.Gateway)
	}
	switch {
	case r.Kind == Deliver:
		b = putUint32(b, unix.RTA_OIF, loopback)
	case r.Link != "":
		b = putUint32(b, unix.RTA_OIF, index)
	}
	if r.PrefSrc.IsValid() {
		b = putAddr(b, unix.RTA_PREFSRC, r.PrefSrc)
	}
	if r.MTU != 0 {
		b = putNested(b, unix.RTA_METRICS, func(b []byte) []byte { return putUint32(b, unix.RTAX_MTU, r.MTU) })
	}
	if r.Local.Behavior != NoBehavior {
		b = putUint16(b, unix.RTA_ENCAP_TYPE, unix.LWTUNNEL_ENCAP_SEG6_LOCAL)
		b = putNested(b, unix.RTA_ENCAP, func(b []byte) []byte { return putLocal(b, r.Local) })
	}
	switch {
	case r.Mark != 0:
		b = putProgram(b, lwtBPFIn, program, markName(r.Mark))
	case r.Program != 0:
		b = putProgram(b, lwtBPFXmit, program, programName(r.Program))
	}
	return b
}

// putProgram appends the program of a route.
func putProgram(b []byte, hook uint16, fd uint32, name string) []byte {
	b = putUint16(b, unix.RTA_ENCAP_TYPE, unix.LWTUNNEL_ENCAP_BPF)
	return putNested(b, unix.RTA_ENCAP, func(b []byte) []byte { return putHook(b, hook, fd, name) })
}

// putHook appends a program and its hook.
func putHook(b []byte, hook uint16, fd uint32, name string) []byte {
	return putNested(b, hook, func(b []byte) []byte {
		b = putUint32(b, lwtBPFProgFD, fd)
		return putAttr(b, lwtBPFProgName, append([]byte(name), 0))
	})
}

func putLocal(b []byte, l LocalAction) []byte {
	d := behaviors[l.Behavior]
	b = putUint32(b, seg6LocalAction, d.action)
	switch {
	case d.table:
		return putUint32(b, seg6LocalTable, l.Table)
	case l.Nexthop.Is4():
		return putAddr(b, seg6LocalNH4, l.Nexthop)
	}
	return putAddr(b, seg6LocalNH6, l.Nexthop)
}
