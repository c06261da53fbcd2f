package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// EncapMode is the encapsulation mode of SRv6 (mode of `ip route encap seg6`).
type EncapMode uint8

const (
	// EncapRed adds an outer IPv6 header whose destination is the SID, without a segment
	// routing header: H.Encaps.Red with one segment (RFC 8986 section 5.2). The overhead is 40
	// bytes.
	EncapRed EncapMode = iota
	// EncapFull adds the segment routing header too: H.Encaps (RFC 8986 section 5.1), 64 bytes.
	EncapFull
)

// Overhead is how much longer a packet becomes, in bytes.
func (m EncapMode) Overhead() int {
	if m == EncapFull {
		return 64
	}
	return 40
}

func (m EncapMode) String() string {
	if m == EncapFull {
		return "encap"
	}
	return "encap.red"
}

// A Nexthop is a nexthop object of family IPv6, which any number of routes of both families can
// use. With a SID, packets are encapsulated and routed to the SID; Link is then the device of the
// object and does not select the outgoing interface. Without a Gateway the kernel has an address as one,
// to which it sends nothing: of a nexthop object without gateway, it ignores ICMPv6 Packet Too Big.
//
// Packets are encapsulated before they are fragmented, and forwarded ones before they are compared
// with the MTU, filtered and translated. With a Mark instead, they get the mark, after all of that,
// and are routed again, so that a Rule can select a table with the encapsulation by the mark.
//
// Its key is the ID.
type Nexthop struct {
	ID      uint32
	Link    string
	Gateway netip.Addr // IPv6
	SID     netip.Addr
	Encap   EncapMode
	Mark    uint32
}

// Key returns the key of the nexthop.
func (n Nexthop) Key() Key { return Key{class: ClassNexthop, a: n.ID} }

func (n Nexthop) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "id %d", n.ID)
	switch {
	case n.Mark != 0:
		fmt.Fprintf(&b, " encap bpf xmit %s", markName(n.Mark))
	case n.SID.IsValid():
		fmt.Fprintf(&b, " encap seg6 mode %s segs %s", n.Encap, n.SID)
	}
	if gateway := n.gateway(); gateway.IsValid() {
		fmt.Fprintf(&b, " via %s", gateway)
	}
	fmt.Fprintf(&b, " dev %s", n.Link)
	return b.String()
}

// noGateway is the gateway of an object that leads elsewhere. It is a link-local address: the kernel
// refuses a global one, such as the SID, where the route to it leads over another interface than that
// of the object. Nor would a host that does not forward use a SID as gateway that did not answer
// neighbor solicitations once. Each object has another one: by it, the kernel finds that of a Packet
// Too Big.
func noGateway(id uint32) netip.Addr {
	a := [16]byte{0: 0xfe, 1: 0x80, 10: 0x7a, 11: 0xb5}
	binary.BigEndian.PutUint32(a[12:], id)
	return netip.AddrFrom16(a)
}

// gateway is that of the kernel's object.
func (n Nexthop) gateway() netip.Addr {
	if (n.SID.IsValid() || n.Mark != 0) && !n.Gateway.IsValid() {
		return noGateway(n.ID)
	}
	return n.Gateway
}

// Normal implements Object.
func (n Nexthop) Normal() Object {
	if !n.SID.IsValid() {
		n.Encap = EncapRed
	}
	return n
}

// Check implements Object.
func (n Nexthop) Check() error {
	if n.ID == 0 {
		return errors.New("id is missing")
	}
	if n.Encap > EncapFull {
		return fmt.Errorf("encapsulation mode %d is unknown", n.Encap)
	}
	if n.Mark != 0 && (n.SID.IsValid() || n.Gateway.IsValid()) {
		return errors.New("a nexthop object with a mark has no SID and no gateway")
	}
	for _, a := range []struct {
		what string
		addr netip.Addr
	}{{"gateway", n.Gateway}, {"SID", n.SID}} {
		if err := checkOptional(a.what, a.addr); err != nil {
			return err
		}
		if a.addr.Is4() {
			return fmt.Errorf("%s %s is not IPv6", a.what, a.addr)
		}
	}
	return checkLink(n.Link)
}

// A NexthopGroup is a nexthop object that spreads flows over others by weight, for routes of both
// families. It is resilient (RFC 2992 has the problem): a flow keeps its member until that is
// removed, or has sent nothing for IdleTime; other weights apply to new flows alone. Its key is the
// ID, which no Nexthop may have.
type NexthopGroup struct {
	ID uint32
	// Members is made by JoinMembers: objects are comparable.
	Members string
}

// A GroupMember is a Nexthop of a NexthopGroup, with its share of the flows relative to the
// others'.
type GroupMember struct {
	ID     uint32
	Weight uint16 // 1 to MaxWeight
}

const (
	// MaxWeight is the largest weight that all kernels with resilient groups take.
	MaxWeight = 256
	// MaxMembers is the largest number of members of a group.
	MaxMembers = 64
	// GroupBuckets is the number of buckets that flows are hashed to: four for each of the members.
	GroupBuckets = 256
	// IdleTime is how long a bucket without packets waits until it may move to another member, in
	// seconds. Shorter pauses of a connection do not move it.
	IdleTime = 30
)

// JoinMembers returns the members in the form of NexthopGroup.
func JoinMembers(members []GroupMember) string {
	var b strings.Builder
	for i, m := range members {
		if i > 0 {
			b.WriteByte('/')
		}
		fmt.Fprintf(&b, "%d,%d", m.ID, m.Weight)
	}
	return b.String()
}

// members is the inverse of JoinMembers; ok is false for any other text.
func (g NexthopGroup) members() (list []GroupMember, ok bool) {
	for text := range strings.SplitSeq(g.Members, "/") {
		id, weight, _ := strings.Cut(text, ",")
		n, err := strconv.ParseUint(id, 10, 32)
		w, e := strconv.ParseUint(weight, 10, 16)
		if err != nil || e != nil {
			return nil, false
		}
		list = append(list, GroupMember{uint32(n), uint16(w)})
	}
	return list, JoinMembers(list) == g.Members
}

// List returns the members; none if they are not as JoinMembers makes them.
func (g NexthopGroup) List() []GroupMember {
	list, ok := g.members()
	if !ok {
		return nil
	}
	return list
}

// has reports whether a Nexthop with one of the IDs is a member.
func (g NexthopGroup) has(ids map[uint32]bool) bool {
	return slices.ContainsFunc(g.List(), func(m GroupMember) bool { return ids[m.ID] })
}

// Key returns the key of the group.
func (g NexthopGroup) Key() Key { return Key{class: ClassNexthop, a: g.ID} }

func (g NexthopGroup) String() string {
	return fmt.Sprintf("id %d group %s type resilient buckets %d idle_timer %d", g.ID, g.Members, GroupBuckets, IdleTime)
}

// Normal implements Object.
func (g NexthopGroup) Normal() Object { return g }

// Check implements Object.
func (g NexthopGroup) Check() error {
	list, ok := g.members()
	switch {
	case g.ID == 0:
		return errors.New("id is missing")
	case !ok:
		return fmt.Errorf("members %q are not as JoinMembers makes them", g.Members)
	case len(list) > MaxMembers:
		return fmt.Errorf("%d members are more than %d", len(list), MaxMembers)
	}
	seen := map[uint32]bool{}
	for _, m := range list {
		switch {
		case m.ID == 0 || m.ID == g.ID:
			return fmt.Errorf("member %d is not another nexthop object", m.ID)
		case seen[m.ID]:
			return fmt.Errorf("member %d is given twice", m.ID)
		case m.Weight == 0 || m.Weight > MaxWeight:
			return fmt.Errorf("weight %d of member %d is not from 1 to %d", m.Weight, m.ID, MaxWeight)
		}
		seen[m.ID] = true
	}
	return nil
}
