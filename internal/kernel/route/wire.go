package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

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

// family returns the address family of an address; that of the invalid one is IPv6.
func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

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
