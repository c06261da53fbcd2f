package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Attributes that golang.org/x/sys does not name, from the kernel's uapi headers.
const (
	rtaNHID  = 30 // RTA_NH_ID
	ifaProto = 11 // IFA_PROTO

	seg6SRH = 1 // SEG6_IPTUNNEL_SRH

	seg6ModeEncap    = 1 // SEG6_IPTUN_MODE_ENCAP
	seg6ModeEncapRed = 3 // SEG6_IPTUN_MODE_ENCAP_RED

	seg6LocalAction = 1 // SEG6_LOCAL_ACTION
	seg6LocalTable  = 3 // SEG6_LOCAL_TABLE
	seg6LocalNH4    = 4 // SEG6_LOCAL_NH4
	seg6LocalNH6    = 5 // SEG6_LOCAL_NH6

	lwtBPFIn       = 1 // LWT_BPF_IN
	lwtBPFXmit     = 3 // LWT_BPF_XMIT
	lwtBPFProgFD   = 1 // LWT_BPF_PROG_FD
	lwtBPFProgName = 2 // LWT_BPF_PROG_NAME

	sizeofNhmsg = 8 // struct nhmsg

	nhaResGroup          = 12 // NHA_RES_GROUP
	nhaOpFlags           = 14 // NHA_OP_FLAGS, in answers: what the kernel knows of members
	nhaResGroupBuckets   = 1  // NHA_RES_GROUP_BUCKETS
	nhaResGroupIdleTimer = 2  // NHA_RES_GROUP_IDLE_TIMER
	nhaResGroupPad       = 0  // NHA_RES_GROUP_PAD
	// NHA_RES_GROUP_UNBALANCED_TIMER and _UNBALANCED_TIME: how long, and since when, idle buckets
	// alone move.
	nhaResGroupUnbalancedTimer, nhaResGroupUnbalancedTime = 3, 4

	nexthopGroupResilient = 1 // NEXTHOP_GRP_TYPE_RES
	sizeofNexthopGrp      = 8 // struct nexthop_grp

	// userHZ is the number of clock ticks in a second, in which netlink counts timers.
	userHZ = 100

	// A segment routing header with one segment (RFC 8754 section 2).
	srhType   = 4
	sizeofSRH = 8 + 16

	forever = math.MaxUint32 // an address lifetime
)

var native = binary.NativeEndian

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

// family returns the address family of an address; that of the invalid one is IPv6.
func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
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

// Decoding. The bytes come from the kernel, or from a fuzz test.

var (
	errShort = errors.New("message is too short")
	errAttr  = errors.New("attribute is malformed")
)

// attrs iterates over attributes without copying them.
type attrs struct {
	b    []byte
	typ  uint16
	data []byte
	err  error
	v4   bool // addresses are IPv4
}

func (a *attrs) next() bool {
	if a.err != nil || len(a.b) < 4 {
		// Up to three bytes of padding may follow.
		return false
	}
	n := int(native.Uint16(a.b))
	if n < 4 || n > len(a.b) {
		a.err = errAttr
		return false
	}
	a.typ, a.data = native.Uint16(a.b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), a.b[4:n]
	a.b = a.b[min((n+3)&^3, len(a.b)):]
	return true
}

func (a *attrs) fail() {
	if a.err == nil {
		a.err = fmt.Errorf("attribute %d has %d bytes", a.typ, len(a.data))
	}
}

func (a *attrs) uint8() uint8 {
	if len(a.data) != 1 {
		a.fail()
		return 0
	}
	return a.data[0]
}

func (a *attrs) uint16() uint16 {
	if len(a.data) != 2 {
		a.fail()
		return 0
	}
	return native.Uint16(a.data)
}

func (a *attrs) uint32() uint32 {
	if len(a.data) != 4 {
		a.fail()
		return 0
	}
	return native.Uint32(a.data)
}

func (a *attrs) addr() netip.Addr {
	switch {
	case a.v4 && len(a.data) == 4:
		return netip.AddrFrom4([4]byte(a.data))
	case !a.v4 && len(a.data) == 16:
		return netip.AddrFrom16([16]byte(a.data))
	}
	a.fail()
	return netip.Addr{}
}

// via decodes a struct rtvia; the address of an unknown family is invalid.
func (a *attrs) via() netip.Addr {
	if len(a.data) < 2 {
		a.fail()
		return netip.Addr{}
	}
	switch family := native.Uint16(a.data); {
	case family == unix.AF_INET && len(a.data) == 2+4:
		return netip.AddrFrom4([4]byte(a.data[2:]))
	case family == unix.AF_INET6 && len(a.data) == 2+16:
		return netip.AddrFrom16([16]byte(a.data[2:]))
	}
	return netip.Addr{}
}

// isIP reports whether the first byte of a message is the family of an IP version.
func isIP(family uint8) bool { return family == unix.AF_INET || family == unix.AF_INET6 }

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

// links returns the name of the link with an index; the name is empty if the link no longer exists.
type links func(index uint32) (string, error)

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

// A Link is a network interface and its state in the kernel.
type Link struct {
	Index int
	Name  string
	Admin bool // administratively up (IFF_UP)
	Up    bool // administratively up and with carrier (IFF_UP and IFF_LOWER_UP)
	MTU   int  // bytes
}

func decodeLink(b []byte) (Link, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return Link{}, errShort
	}
	const up = unix.IFF_UP | unix.IFF_LOWER_UP
	flags := native.Uint32(b[8:])
	l := Link{Index: int(int32(native.Uint32(b[4:]))), Admin: flags&unix.IFF_UP != 0, Up: flags&up == up}
	at := attrs{b: b[unix.SizeofIfInfomsg:]}
	for at.next() {
		switch at.typ {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(at.data)
		case unix.IFLA_MTU:
			l.MTU = int(at.uint32())
		}
	}
	if at.err != nil {
		return Link{}, at.err
	}
	if l.Index <= 0 || l.Name == "" {
		return Link{}, errAttr
	}
	return l, nil
}
