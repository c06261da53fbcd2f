// Package route configures IP addresses, policy rules, nexthop objects and routes in the kernel.
// Every object has the protocol number of its owner. A Reconciler compares the desired state with
// the kernel's and applies the difference, a Conn is an rtnetlink connection with batches, and a
// Watcher reports changes.
//
// It does not touch objects of other protocol numbers, and configures no links or VRFs.
package route

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
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
	// IPv4 the scope link (inet_select_addr in the kernel). Tentative addresses of others, which
	// the kernel refuses as a source until duplicate address detection has ended, count as such.
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

// normal is o.Normal without an allocation for a route that is normal.
func normal(o Object) Object {
	if r, ok := o.(Route); ok && r.Table != 0 && r.Metric == r.metric() {
		return o
	}
	return o.Normal()
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
