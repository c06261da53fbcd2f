package route

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

func oneLink(index uint32) (string, error) {
	if index == 3 {
		return "eth0", nil
	}
	return "", nil
}

var samples = []Object{
	Nexthop{ID: 7, Link: "eth0", SID: netip.MustParseAddr("fd00::1")},
	Nexthop{ID: 8, Link: "eth0", SID: netip.MustParseAddr("fd00::1"), Encap: EncapFull},
	Nexthop{ID: 9, Link: "eth0", Gateway: netip.MustParseAddr("fe80::1")},
	Nexthop{ID: 10, Link: "eth0", Mark: 0xe4000001},
	Route{Dst: netip.MustParsePrefix("2001:db8::/32"), NexthopID: 7, MTU: 1400},
	Route{Dst: netip.MustParsePrefix("::/0"), Table: 1000, Kind: Unreachable, Metric: 9},
	Route{Dst: netip.MustParsePrefix("2001:db8::/32"), Kind: Blackhole},
	Route{Dst: netip.MustParsePrefix("2001:db8::/32"), Link: "eth0", Gateway: netip.MustParseAddr("fe80::1"),
		PrefSrc: netip.MustParseAddr("2001:db8::1")},
	Route{Dst: netip.MustParsePrefix("2001:db8::1/128"), Link: "eth0", Local: LocalAction{Behavior: EndDT6, Table: 101}},
	Route{Dst: netip.MustParsePrefix("2001:db8::1/128"), Link: "eth0",
		Local: LocalAction{Behavior: EndDX6, Nexthop: netip.MustParseAddr("fe80::1")}},
	NexthopGroup{ID: 9, Members: "7,1/8,256"},
	Rule{Priority: 1000, From: netip.MustParsePrefix("2001:db8::/33"), Table: 1000},
	Rule{Priority: 1000, Table: 1000},
	Rule{Priority: 1000, To: netip.MustParsePrefix("2001:db8::/33"), Iif: "wan", Table: 1000},
	Rule{Priority: 1000, Iif: "wan", Unreachable: true},
	Rule{Priority: 1000, To: netip.MustParsePrefix("2001:db8::/33"), Oif: "wan", Table: 1000},
	Rule{Priority: 1000, Table: 1000, Specific: true},
	Rule{Priority: 1000, Table: 1000, NotMark: 7, Specific: true},
	Route{Dst: netip.MustParsePrefix("2001:db8::/32"), Table: 1000, Kind: Throw},
	Address{Link: "eth0", Prefix: netip.MustParsePrefix("2001:db8::1/64")},
	Address{Link: "eth0", Prefix: netip.MustParsePrefix("2001:db8::1/64"), Deprecated: true},
	Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), NexthopID: 7, MTU: 1400},
	Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Table: 1000, Kind: Unreachable, Metric: 9},
	Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: "eth0"},
	Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: "eth0", Gateway: netip.MustParseAddr("198.51.100.1"), PrefSrc: netip.MustParseAddr("192.0.2.1")},
	Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: "eth0", Gateway: netip.MustParseAddr("fe80::1")},
	Route{Dst: netip.MustParsePrefix("2001:db8::1/128"), Link: "eth0", Local: LocalAction{Behavior: EndDX4, Nexthop: netip.MustParseAddr("192.0.2.1")}},
	Route{Dst: netip.MustParsePrefix("240.0.0.1/32"), Link: "eth0", Mark: 0xe4000001},
	Route{Dst: netip.MustParsePrefix("2001:db8:c::/64"), Link: "eth0", Program: testProgram, MTU: 1460},
	Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: "eth0", Program: testProgram, MTU: 1460},
	Rule{Priority: 1000, From: netip.MustParsePrefix("0.0.0.0/0"), Mark: 0xe4000001, Table: 1000},
	Rule{Priority: 1000, From: netip.MustParsePrefix("192.0.2.1/32"), Table: 1000},
	Rule{Priority: 1000, From: netip.MustParsePrefix("0.0.0.0/0"), Iif: "wan", Unreachable: true},
	Rule{Priority: 1000, From: netip.MustParsePrefix("0.0.0.0/0"), Oif: "wan", Table: 1000, Specific: true},
	Rule{Priority: 1000, From: netip.MustParsePrefix("0.0.0.0/0"), NotMark: 7, Table: 1000},
	Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Table: 1000, Kind: Throw},
	Rule{Priority: 1000, To: netip.MustParsePrefix("192.0.2.0/24"), Iif: "wan", Table: 1000},
	Address{Link: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24")},
	Address{Link: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/32"), Deprecated: true},
}

// testProgram is the number of a program that payload encodes.
const testProgram = 77

func payload(t testing.TB, o Object) []byte {
	t.Helper()
	Provide(testProgram, 9)
	steps, err := encode(nil, Op{Protocol: Edge, Object: o}, resolver{
		index: func(string) (uint32, error) { return 3, nil }, program: func(marking) (uint32, error) { return 9, nil },
	})
	if err != nil || len(steps) != 1 {
		t.Fatalf("%v: %v", o, err)
	}
	return steps[0].msg.Data
}

func decode(class Class, b []byte) (found, error) {
	switch class {
	case ClassNexthop:
		return decodeNexthop(b, oneLink)
	case ClassRoute:
		return decodeRoute(b, oneLink)
	case ClassRule:
		return decodeRule(b)
	default:
		return decodeAddress(b, oneLink)
	}
}

// An encoded object decodes to the same object, and an unknown attribute makes it Altered.
func TestRoundTrip(t *testing.T) {
	for _, o := range samples {
		b := payload(t, o)
		f, err := decode(o.Key().Class(), b)
		if err != nil || f.object != o.Normal() || f.protocol != Edge {
			t.Errorf("%v came back as %v, %v", o, f, err)
		}
		if o.Key().Class() == ClassAddress {
			continue // its labels and statistics are ignored
		}
		f, err = decode(o.Key().Class(), putUint32(bytes.Clone(b), 99, 1))
		if err != nil || f.object != (Altered{o.Normal()}) {
			t.Errorf("%v with an unknown attribute came back as %v, %v", o, f, err)
		}
	}
}

func TestRuleEvents(t *testing.T) {
	rule := Rule{Priority: 1000, From: netip.MustParsePrefix("2001:db8::1/128"), Table: 101}
	for typ, deleted := range map[uint16]bool{unix.RTM_NEWRULE: false, unix.RTM_DELRULE: true} {
		e, err := decodeEvent(typ, payload(t, rule), nil, time.Time{})
		if want := (ObjectChange{Object: rule, Protocol: Edge, Deleted: deleted}); err != nil || e != want {
			t.Errorf("event %+v, %v, want %+v", e, err, want)
		}
	}
}

func FuzzDecodeObject(f *testing.F) {
	for _, o := range samples {
		f.Add(uint8(o.Key().Class()), payload(f, o))
	}
	f.Fuzz(func(t *testing.T, class uint8, b []byte) {
		c := Class(class) % classes
		got, err := decode(c, b)
		if err != nil || got.object == nil {
			return
		}
		o := got.object
		accessor.Call(t, o)
		if o.Key().Class() != c || o != o.Normal() || o.String() == "" {
			t.Fatalf("decoded %v of %s", o, o.Key().Class())
		}
		// A decoded object that is valid and not Altered can be encoded again without a
		// change.
		if _, altered := o.(Altered); altered || o.Check() != nil || got.protocol == 0 {
			return
		}
		again, err := decode(c, payload(t, o))
		if err != nil || again.object != o {
			t.Fatalf("%v came back as %v, %v", o, again, err)
		}
	})
}

func FuzzDecodeEvent(f *testing.F) {
	types := []uint16{unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWNEXTHOP,
		unix.RTM_DELNEXTHOP, unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_DELRULE}
	for i := range types {
		for _, o := range samples {
			f.Add(uint8(i), payload(f, o))
		}
	}
	link := putAttr(linkRequest("eth0", 3), unix.IFLA_MTU, []byte{220, 5, 0, 0})
	f.Add(uint8(0), link)
	lan := func(uint32) (string, error) { return "eth0", nil }
	f.Fuzz(func(t *testing.T, typ uint8, b []byte) {
		e, err := decodeEvent(types[int(typ)%len(types)], b, lan, time.Time{})
		if err != nil && e != nil {
			t.Fatalf("both %v and %v", e, err)
		}
		accessor.Call(t, e)
		if l, ok := e.(LinkChange); ok && (l.Link.Index <= 0 || l.Link.Name == "") {
			t.Fatalf("link %+v", l)
		}
	})
}

func FuzzDecodeNeighbor(f *testing.F) {
	for _, a := range []string{"2001:db8::1", "10.0.0.1"} {
		a := netip.MustParseAddr(a)
		b := make([]byte, sizeofNdmsg)
		b[0] = family(a)
		f.Add(putAddr(b, unix.NDA_DST, a))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := decodeNeighbor(b); err == nil && n.address.IsValid() && n.address.Is4() != (b[0] == unix.AF_INET) {
			t.Fatalf("%+v of family %d", n, b[0])
		}
	})
}

func TestOwnedFilter(t *testing.T) {
	const port, other = 4711, 815
	program := ownedFilter(port, Edge)
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	route := payload(t, Route{Table: 7, Dst: netip.MustParsePrefix("2001:db8::/64"), Link: "lo"})
	nexthop := payload(t, Nexthop{ID: 7, Link: "lo"})
	foreignRoute, foreignNexthop := bytes.Clone(route), bytes.Clone(nexthop)
	foreignRoute[5], foreignNexthop[2] = 99, 99
	for _, c := range []struct {
		typ   uint16
		flags netlink.HeaderFlags
		port  uint32
		data  []byte
		want  bool
	}{
		{unix.RTM_NEWLINK, 0, 0, linkRequest("eth0", 3), true},
		{unix.RTM_DELLINK, 0, port, linkRequest("eth0", 3), true},
		{unix.RTM_NEWROUTE, netlink.Create, port, route, false},
		{unix.RTM_NEWROUTE, netlink.Create, other, route, true},
		{unix.RTM_DELROUTE, 0, other, route, true},
		{unix.RTM_DELROUTE, 0, 0, route, false},
		{unix.RTM_NEWROUTE, netlink.Create, other, foreignRoute, false},
		{unix.RTM_NEWROUTE, netlink.Create | netlink.Replace, other, foreignRoute, true},
		{unix.RTM_DELROUTE, 0, other, foreignRoute, false},
		{unix.RTM_DELNEXTHOP, 0, other, nexthop, true},
		{unix.RTM_DELNEXTHOP, 0, port, nexthop, false},
		{unix.RTM_NEWNEXTHOP, 0, other, foreignNexthop, false},
		{unix.RTM_NEWNEXTHOP, netlink.Replace, other, foreignNexthop, true},
		{unix.RTM_DELRULE, 0, other, make([]byte, 12), true},
		{unix.RTM_DELRULE, 0, port, make([]byte, 12), false},
		{unix.RTM_DELADDR, 0, 0, make([]byte, 8), true},
	} {
		m := message(c.typ, c.flags, c.data)
		m.Header.Flags, m.Header.PID, m.Header.Length = c.flags, c.port, uint32(unix.NLMSG_HDRLEN+len(c.data)+3)/4*4
		b, err := m.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if n, err := vm.Run(b); err != nil || n > 0 != c.want {
			t.Errorf("type %d, flags %#x, port %d: passed %t, %v", c.typ, c.flags, c.port, n > 0, err)
		}
	}
}
