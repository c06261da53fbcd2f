// Package route configures IP addresses, policy rules, nexthop objects and routes in the kernel.
// Every object has the protocol number of its owner. A Reconciler compares the desired state with
// the kernel's and applies the difference, a Conn is an rtnetlink connection with batches, and a
// Watcher reports changes.
//
// It does not touch objects of other protocol numbers, and configures no links or VRFs.
package route

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Protocol identifies the owner of an object in the kernel: rtm_protocol, FRA_PROTOCOL, nh_protocol
// and IFA_PROTO.
type Protocol uint8

// The protocol numbers of tabane's daemons. They lie in the range that rtnetlink.h leaves to user
// space, beside those of other routing daemons.
const (
	ASBR    Protocol = 116
	Edge    Protocol = 117
	Router  Protocol = 118
	Gateway Protocol = 115
	Proxy   Protocol = 113
)

// Values that replace a zero field.
const (
	MainTable     = 254  // RT_TABLE_MAIN
	DefaultMetric = 1024 // IP6_RT_PRIO_USER; IPv4 routes have metric 0
)

// Class is the type of an object. The order of the constants is the order in which objects are
// added; they are deleted in the opposite order.
type Class uint8

const (
	ClassNexthop Class = iota
	ClassRoute
	ClassRule
	ClassAddress
	classes
)

func (c Class) String() string {
	switch c {
	case ClassNexthop:
		return "nexthop"
	case ClassRoute:
		return "route"
	case ClassRule:
		return "rule"
	case ClassAddress:
		return "address"
	default:
		return "class " + strconv.Itoa(int(c))
	}
}

// An Object is one piece of kernel state: an Address, Rule, Nexthop, NexthopGroup or Route, or one
// of these as Altered. Objects are values: equivalent objects are equal after Normal. String gives
// the arguments of the iproute2 command that adds the object, without its protocol number.
type Object interface {
	Key() Key
	String() string
	// Normal replaces zero fields with their defaults.
	Normal() Object
	// Check returns why the object is invalid.
	Check() error

	object() // implemented only by the types of this package
}

// A Key identifies an object of the kernel. An object replaces the previous one with its key.
type Key struct {
	class  Class
	prefix netip.Prefix
	link   string
	a, b   uint32
	mark   uint32
	flags  ruleFlags
}

// ruleFlags are the parts of a rule that are yes or no.
type ruleFlags uint8

const (
	ruleSpecific ruleFlags = 1 << iota // Rule.Specific
	ruleNotMark                        // the mark of the key is Rule.NotMark
)

// Class returns the class of the object that the key belongs to.
func (k Key) Class() Class { return k.class }

func (k Key) String() string {
	switch k.class {
	case ClassNexthop:
		return fmt.Sprintf("nexthop id %d", k.a)
	case ClassRoute:
		return fmt.Sprintf("route %s table %s metric %d", prefixText(k.prefix, "default"), tableText(k.a), k.b)
	case ClassRule:
		return "rule " + k.rule().String()
	case ClassAddress:
		return fmt.Sprintf("address %s dev %s", k.prefix.Addr(), k.link)
	default:
		return k.class.String()
	}
}

// compare orders keys by class, table or priority, link, prefix and metric.
func (k Key) compare(l Key) int {
	return cmp.Or(cmp.Compare(k.class, l.class), cmp.Compare(k.a, l.a), cmp.Compare(k.link, l.link),
		k.prefix.Addr().Compare(l.prefix.Addr()), cmp.Compare(k.prefix.Bits(), l.prefix.Bits()), cmp.Compare(k.b, l.b), cmp.Compare(k.mark, l.mark),
		cmp.Compare(k.flags, l.flags))
}

// An Address is an IP address of a link, without duplicate address detection and without lifetime.
// Its key is the link and the address; the length may change. `ip address change` by an operator
// clears the owner in the kernel.
type Address struct {
	Link   string
	Prefix netip.Prefix // the address and its length
	// Deprecated addresses are usable, but source address selection avoids them. In IPv6 they
	// have a preferred lifetime of zero (RFC 4862 section 5.5.4, RFC 6724 section 5 rule 3), in
	// IPv4 the scope link (inet_select_addr in the kernel).
	Deprecated bool
}

// Key returns the key of the address.
func (a Address) Key() Key {
	return Key{class: ClassAddress, prefix: netip.PrefixFrom(a.Prefix.Addr(), a.Prefix.Addr().BitLen()), link: a.Link}
}

func (a Address) String() string {
	s := a.Prefix.String() + " dev " + a.Link
	if a.Prefix.Addr().Is4() {
		if a.Deprecated {
			s += " scope link"
		}
		return s
	}
	s += " nodad"
	if a.Deprecated {
		s += " preferred_lft 0"
	}
	return s
}

// Normal implements Object.
func (a Address) Normal() Object { return a }

// Check implements Object.
func (a Address) Check() error {
	if !a.Prefix.IsValid() {
		return errors.New("address is missing")
	}
	if err := checkAddr("address", a.Prefix.Addr()); err != nil {
		return err
	}
	if a.Prefix.Addr().IsMulticast() || a.Prefix.Addr().IsUnspecified() {
		return errors.New("address is not unicast")
	}
	return checkLink(a.Link)
}

// A Rule is a policy rule: it looks matching packets up in a table, or drops them and sends an ICMP
// error. It matches packets by source prefix (From) or destination prefix (To), not both, by
// incoming or outgoing interface, not both, and by mark, or alone by having another mark; a zero
// field matches all packets. The family is that of the prefix: 0.0.0.0/0 matches all IPv4 packets,
// and without a prefix the rule is for IPv6. All fields are its key.
type Rule struct {
	Priority    uint32 // lower is tried first
	From, To    netip.Prefix
	Iif         string // incoming interface
	Oif         string // interface that the sending socket is bound to
	Mark        uint32 // of the packet in the kernel, as Route.Mark sets it
	NotMark     uint32 // matches packets that do not have this mark
	Table       uint32
	Unreachable bool // send an ICMP error instead of looking up Table
	// Specific ignores default routes of Table (suppress_prefixlength 0).
	Specific bool
}

// ruleTo distinguishes the key of a rule with a destination from one with a source, ruleOif an
// outgoing interface from an incoming one; they cannot be in a link's name.
const ruleTo, ruleOif = "to/", "oif/"

// Key returns the key of the rule.
func (r Rule) Key() Key {
	k := Key{class: ClassRule, link: r.Iif, a: r.Priority, b: r.Table, mark: r.Mark}
	if r.Specific {
		k.flags |= ruleSpecific
	}
	if r.NotMark != 0 {
		k.mark, k.flags = r.NotMark, k.flags|ruleNotMark
	}
	if r.Oif != "" {
		k.link = ruleOif + r.Oif
	}
	switch {
	case r.From.IsValid() && r.From.Bits() > 0:
		k.prefix = r.From
	case r.To.IsValid() && r.To.Bits() > 0:
		k.prefix, k.link = r.To, ruleTo+k.link
	case r.From.Addr().Is4() || r.To.Addr().Is4():
		k.prefix = anyIPv4
	}
	return k
}

// anyIPv4 is the source prefix of a rule for all IPv4 packets.
var anyIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// rule returns the rule with this key; Table is 0 for an unreachable rule.
func (k Key) rule() Rule {
	r := Rule{Priority: k.a, Table: k.b, Unreachable: k.b == 0, Mark: k.mark, Specific: k.flags&ruleSpecific != 0}
	if k.flags&ruleNotMark != 0 {
		r.Mark, r.NotMark = 0, k.mark
	}
	link, to := strings.CutPrefix(k.link, ruleTo)
	if to {
		r.To = k.prefix
	} else {
		r.From = k.prefix
	}
	if name, out := strings.CutPrefix(link, ruleOif); out {
		r.Oif = name
	} else {
		r.Iif = link
	}
	return r
}

func (r Rule) String() string {
	var b strings.Builder
	from := r.From
	if !from.IsValid() && r.To.Addr().Is4() {
		from = anyIPv4
	}
	not := ""
	if r.NotMark != 0 {
		not = "not "
	}
	fmt.Fprintf(&b, "priority %d %sfrom %s", r.Priority, not, prefixText(from, "all"))
	if r.To.IsValid() {
		fmt.Fprintf(&b, " to %s", r.To)
	}
	if r.Iif != "" {
		fmt.Fprintf(&b, " iif %s", r.Iif)
	}
	if r.Oif != "" {
		fmt.Fprintf(&b, " oif %s", r.Oif)
	}
	if mark := r.Mark | r.NotMark; mark != 0 {
		fmt.Fprintf(&b, " fwmark %#x", mark)
	}
	if r.Unreachable {
		b.WriteString(" unreachable")
	} else {
		fmt.Fprintf(&b, " table %s", tableText(r.Table))
	}
	if r.Specific {
		b.WriteString(" suppress_prefixlength 0")
	}
	return b.String()
}

// Normal implements Object.
func (r Rule) Normal() Object { return r.Key().rule() }

// Check implements Object.
func (r Rule) Check() error {
	switch {
	case r.Table == 0 && !r.Unreachable:
		return errors.New("table is missing")
	case r.Table != 0 && r.Unreachable:
		return errors.New("unreachable rule has a table")
	case r.Specific && r.Unreachable:
		return errors.New("unreachable rule suppresses routes")
	case r.NotMark != 0 && (r.Mark != 0 || r.Iif != "" || r.Oif != "" || r.From.Bits() > 0 || r.To.Bits() > 0):
		return errors.New("rule has a mark to exclude and another condition")
	case r.Iif != "" && r.Oif != "":
		return errors.New("rule has an incoming and an outgoing interface")
	case r.From.IsValid() && r.To.IsValid():
		return errors.New("rule has a source and a destination")
	case r.From.IsValid():
		if err := checkPrefix("source", r.From); err != nil {
			return err
		}
	case r.To.IsValid():
		if err := checkPrefix("destination", r.To); err != nil {
			return err
		}
	}
	if link := cmp.Or(r.Iif, r.Oif); link != "" {
		return checkLink(link)
	}
	return nil
}

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

// Kind is what a route does with a packet.
type Kind uint8

const (
	Unicast     Kind = iota // forward it to a next hop
	Unreachable             // drop it and send an ICMPv6 error
	Blackhole               // drop it silently
	Throw                   // continue with the next policy rule
	Deliver                 // deliver it to this host, whose address it need not be ("local")
)

func (k Kind) String() string {
	switch k {
	case Unreachable:
		return "unreachable"
	case Blackhole:
		return "blackhole"
	case Throw:
		return "throw"
	case Deliver:
		return "local"
	default:
		return "unicast"
	}
}

// Behavior is what an SRv6 endpoint does with a packet for its SID (RFC 8986 section 4).
type Behavior uint8

const (
	NoBehavior Behavior = iota
	EndDX6              // End.DX6: decapsulate, send to an IPv6 neighbor (section 4.4)
	EndDT6              // End.DT6: decapsulate, look up the inner IPv6 destination in a table (section 4.6)
	EndDX4              // End.DX4: decapsulate, send to an IPv4 neighbor (section 4.5)
)

// behaviors describes each Behavior: its number in the kernel (SEG6_LOCAL_ACTION in
// include/uapi/linux/seg6_local.h), and whether it has a table. The kernel's End.DT4 and End.DT46
// need a VRF device; End.DX4 to a route with a mark does the work of End.DT4 without one.
var behaviors = map[Behavior]struct {
	name   string
	action uint32
	table  bool
}{
	EndDX6: {name: "End.DX6", action: 5},
	EndDX4: {name: "End.DX4", action: 6},
	EndDT6: {name: "End.DT6", action: 7, table: true},
}

func (b Behavior) String() string {
	if d, ok := behaviors[b]; ok {
		return d.name
	}
	return "none"
}

// LocalAction is the seg6local action of a route whose destination is a SID of this node. The zero
// value is no action.
type LocalAction struct {
	Behavior Behavior
	Table    uint32 // lookup table of EndDT6; needs no VRF
	// Nexthop is the neighbor of EndDX6 and EndDX4. The kernel looks it up in the main table.
	Nexthop netip.Addr
}

// A Route is a route in a table. A unicast route has a nexthop object, or a link, or a gateway and
// its link, or a local action, a mark or a program and a link. An IPv4 route may have an IPv6
// gateway (RFC 8950). Its key is the table, the destination and the metric.
type Route struct {
	Table     uint32 // zero: MainTable
	Dst       netip.Prefix
	Metric    uint32 // lower is better; zero in IPv6: DefaultMetric
	MTU       uint32 // bytes; zero: that of the link
	Kind      Kind
	Gateway   netip.Addr
	Link      string
	NexthopID uint32
	PrefSrc   netip.Addr // preferred source; must be an address of this node
	Local     LocalAction
	// Mark, if not 0, is set on IPv4 packets that are forwarded along this route; then they are
	// routed again, by their own destination and as if they had arrived on Link, so that a Rule
	// can select their table by the mark (BPF_LWT_REROUTE).
	Mark uint32
	// Program, if not 0, is the number of a program that packets which are sent along this route
	// pass (see Provide).
	Program uint32
}

// Key returns the key of the route.
func (r Route) Key() Key {
	return Key{class: ClassRoute, prefix: r.Dst, a: cmp.Or(r.Table, MainTable), b: r.metric()}
}

// metric returns the metric in the kernel.
func (r Route) metric() uint32 {
	if r.Dst.Addr().Is4() {
		return r.Metric
	}
	return cmp.Or(r.Metric, DefaultMetric)
}

func (r Route) String() string {
	var b strings.Builder
	if r.Kind != Unicast {
		b.WriteString(r.Kind.String() + " ")
	}
	fmt.Fprintf(&b, "%s table %s", prefixText(r.Dst, "default"), tableText(cmp.Or(r.Table, MainTable)))
	if l := r.Local; l.Behavior != NoBehavior {
		fmt.Fprintf(&b, " encap seg6local action %s ", l.Behavior)
		switch {
		case behaviors[l.Behavior].table:
			fmt.Fprintf(&b, "table %s", tableText(l.Table))
		case l.Behavior == EndDX4:
			fmt.Fprintf(&b, "nh4 %s", l.Nexthop)
		default:
			fmt.Fprintf(&b, "nh6 %s", l.Nexthop)
		}
	}
	if r.Mark != 0 {
		fmt.Fprintf(&b, " encap bpf in %s", markName(r.Mark))
	}
	if r.Program != 0 {
		fmt.Fprintf(&b, " encap bpf xmit %s", programName(r.Program))
	}
	if r.NexthopID != 0 {
		fmt.Fprintf(&b, " nhid %d", r.NexthopID)
	}
	if r.Gateway.IsValid() {
		b.WriteString(" via ")
		if r.Dst.Addr().Is4() && r.Gateway.Is6() {
			b.WriteString("inet6 ")
		}
		b.WriteString(r.Gateway.String())
	}
	if r.Link != "" {
		fmt.Fprintf(&b, " dev %s", r.Link)
	}
	if r.Kind == Deliver {
		b.WriteString(" dev lo")
	}
	if r.PrefSrc.IsValid() {
		fmt.Fprintf(&b, " src %s", r.PrefSrc)
	}
	if r.metric() != (Route{Dst: r.Dst}).metric() {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	if r.MTU != 0 {
		fmt.Fprintf(&b, " mtu %d", r.MTU)
	}
	return b.String()
}

// Normal implements Object.
func (r Route) Normal() Object { return r.normal() }

func (r Route) normal() Route {
	r.Table, r.Metric = cmp.Or(r.Table, MainTable), r.metric()
	return r
}

// normal is o.Normal without an allocation for a route that is normal.
func normal(o Object) Object {
	if r, ok := o.(Route); ok && r.Table != 0 && r.Metric == r.metric() {
		return o
	}
	return o.Normal()
}

// onLink reports whether the destination is reached on the link without a gateway.
func (r Route) onLink() bool { return r.Link != "" && !r.Gateway.IsValid() && r.Local == LocalAction{} }

// Check implements Object.
func (r Route) Check() error {
	if err := checkPrefix("destination", r.Dst); err != nil {
		return err
	}
	if err := checkOptional("gateway", r.Gateway); err != nil {
		return err
	}
	if err := checkOptional("preferred source", r.PrefSrc); err != nil {
		return err
	}
	if r.Link != "" {
		if err := checkLink(r.Link); err != nil {
			return err
		}
	}
	direct := r.Gateway.IsValid() || r.Link != ""
	switch v4 := r.Dst.Addr().Is4(); {
	case r.Gateway.Is4() && !v4:
		return fmt.Errorf("gateway %s is not IPv6", r.Gateway)
	case r.PrefSrc.IsValid() && r.PrefSrc.Is4() != v4:
		return fmt.Errorf("preferred source %s is not of the destination's family", r.PrefSrc)
	case r.Kind > Deliver:
		return fmt.Errorf("kind %d is unknown", r.Kind)
	case r.Kind != Unicast && (direct || r.NexthopID != 0 || r.Local != LocalAction{}):
		return fmt.Errorf("%s route has a next hop", r.Kind)
	case r.Kind == Unicast && !direct && r.NexthopID == 0:
		return errors.New("route has no next hop")
	case r.Gateway.IsValid() && r.Link == "":
		// The kernel would choose a link and report it in dumps, so the route would differ
		// from the desired one.
		return errors.New("gateway has no link")
	case direct && r.NexthopID != 0:
		return errors.New("route has a nexthop object and a gateway or link")
	case r.Mark != 0 && (!v4 || !r.onLink()):
		return errors.New("a route with a mark is IPv4 and has a link alone")
	case r.Program != 0 && (!r.onLink() || r.Mark != 0):
		return errors.New("a route with a program has a link alone")
	}
	return r.Local.check(r)
}

func (l LocalAction) check(r Route) error {
	if l == (LocalAction{}) {
		return nil
	}
	d, known := behaviors[l.Behavior]
	switch {
	case !known:
		return fmt.Errorf("behavior %d is unknown", l.Behavior)
	case r.Dst.Addr().Is4():
		return errors.New("local action of a destination that is not IPv6")
	case r.Link == "" || r.Link == "lo":
		// The kernel accepts the route on lo but never executes the action.
		return errors.New("local action needs a link other than lo")
	case r.Gateway.IsValid():
		return errors.New("local action has a gateway")
	case d.table && l.Table == 0:
		return fmt.Errorf("%s has no table", d.name)
	case d.table && l.Nexthop.IsValid():
		return fmt.Errorf("%s has a next hop", d.name)
	case !d.table && l.Table != 0:
		return fmt.Errorf("%s has a table", d.name)
	case !d.table && !l.Nexthop.IsValid():
		return fmt.Errorf("%s has no next hop", d.name)
	case !d.table && l.Nexthop.Is4() != (l.Behavior == EndDX4):
		return fmt.Errorf("next hop %s of %s is of the wrong family", l.Nexthop, d.name)
	}
	return checkOptional("next hop", l.Nexthop)
}

// Altered is an owned object found in the kernel with attributes that this package never sets, so
// it differs from every possible desired object with its key. It can be deleted and replaced, but
// not added.
type Altered struct{ Object }

func (a Altered) String() string { return a.Object.String() + " (altered)" }

// Normal implements Object.
func (a Altered) Normal() Object { return Altered{a.Object.Normal()} }

// Check implements Object: an altered object cannot be added.
func (a Altered) Check() error { return errors.New("an altered object cannot be added") }

func (Address) object()      {}
func (Rule) object()         {}
func (Nexthop) object()      {}
func (NexthopGroup) object() {}
func (Route) object()        {}

func checkAddr(what string, a netip.Addr) error {
	switch {
	case !a.IsValid() || a.Is4In6():
		return fmt.Errorf("%s %s is not an IP address", what, a)
	case a.Zone() != "":
		return fmt.Errorf("%s %s has a zone", what, a)
	}
	return nil
}

func checkOptional(what string, a netip.Addr) error {
	if !a.IsValid() {
		return nil
	}
	if a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("%s %s is not unicast", what, a)
	}
	return checkAddr(what, a)
}

func checkPrefix(what string, p netip.Prefix) error {
	if !p.IsValid() {
		return fmt.Errorf("%s is missing", what)
	}
	if err := checkAddr(what, p.Addr()); err != nil {
		return err
	}
	if p != p.Masked() {
		return fmt.Errorf("%s %s has host bits set", what, p)
	}
	return nil
}

// checkLink applies the kernel's rule for names (dev_valid_name): 1 to 15 bytes.
func checkLink(name string) error {
	if name == "" {
		return errors.New("link is missing")
	}
	if len(name) > 15 || strings.ContainsAny(name, "/: \t\n\x00") {
		return fmt.Errorf("link %q is not a valid name", name)
	}
	return nil
}

func prefixText(p netip.Prefix, zero string) string {
	if !p.IsValid() || p.Bits() == 0 && p.Addr().Is6() {
		return zero
	}
	return p.String()
}

func tableText(t uint32) string {
	if t == MainTable {
		return "main"
	}
	return strconv.FormatUint(uint64(t), 10)
}

// An Op is one change of the kernel.
type Op struct {
	Protocol Protocol // the owner
	Delete   bool
	Object   Object
	// Old is the object that the kernel is known to have with the same key and owner; nil if
	// unknown. If set, the object is replaced directly; otherwise an existing object is read
	// first, and it is not replaced if it has another owner.
	Old Object
}

// String prints the op as the matching iproute2 command, without `ip` and the family.
func (o Op) String() string {
	verb := "add"
	switch {
	case o.Delete:
		verb = "delete"
	case o.Old != nil:
		verb = "replace"
	}
	return fmt.Sprintf("%s %s %s proto %d", o.Object.Key().class, verb, o.Object, o.Protocol)
}
