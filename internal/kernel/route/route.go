package route

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

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
