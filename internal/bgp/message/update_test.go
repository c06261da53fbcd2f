package message

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// everything is a session with all families and capabilities.
var everything = Negotiated{
	Families:        Families(IPv4Unicast, IPv6Unicast, VPNv4, VPNv6),
	ExtendedNextHop: Families(IPv4Unicast, VPNv4), ExtendedNextHopIn: Families(IPv4Unicast, VPNv4),
	FourOctetAS: true, EndOfRIB: true,
}

func rd(t testing.TB, s string) vpn.ID {
	t.Helper()
	id, err := vpn.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// fullFields has every attribute.
func fullFields(t testing.TB) Fields {
	t.Helper()
	service, _, err := NewService(addr("fcbb:1:1:a::"), srv6.Structure{Block: 32, Node: 16, Function: 16}, 18)
	if err != nil {
		t.Fatal(err)
	}
	return Fields{
		NextHop: addr("2001:db8::1"), LinkLocal: addr("fe80::1"), Origin: OriginIncomplete,
		ASPath: MakeASPath(65001, 4200000000, 65003) + MakeASPath(65004),
		MED:    7, HasMED: true, LocalPref: 0, HasLocalPref: true, AtomicAggregate: true,
		Aggregator:  Aggregator{4200000000, addr("192.0.2.1")},
		Communities: []uint32{NoExport, 65000<<16 | 1}, OriginatorID: addr("10.0.0.9"), ClusterList: []uint32{1, 2},
		Extended: []uint64{rd(t, "65000:101").Target(), 0x0003_fde8_00000001, rd(t, "10.0.0.1:7").Target()},
		Large:    []LargeCommunity{{65000, 1, 2}}, PrefixSID: service.PrefixSID(),
		UnknownTransitive: "\xe0\x63\x01x" + "\xe0\xf0\x02yz",
	}
}

// decodeAll decodes all messages of a stream.
func decodeAll(t testing.TB, d *Decoder, stream []byte) (announced []Announcement, withdrawn []Key, ends []Family) {
	t.Helper()
	var u Update
	for len(stream) > 0 {
		kind, length, err := ParseHeader(stream, d.negotiated.MaxLen())
		if err != nil || kind != TypeUpdate {
			t.Fatal(kind, err)
		}
		if err := d.Update(stream[HeaderLen:length], &u); err != nil {
			t.Fatal(err)
		}
		if len(u.Faults) > 0 {
			t.Fatal(u.Faults)
		}
		for _, a := range u.Announced {
			announced = append(announced, Announcement{a.Attributes, slices.Clone(a.NLRI)})
		}
		withdrawn = append(withdrawn, u.Withdrawn...)
		if u.EndOfRIB != 0 {
			ends = append(ends, u.EndOfRIB)
		}
		stream = stream[length:]
	}
	return announced, withdrawn, ends
}

func randomKey(r *rand.Rand, f Family) Key {
	addressBits := 128
	if f.Is4() {
		addressBits = 32
	}
	var a [16]byte
	for i := range a {
		a[i] = byte(r.Uint32())
	}
	address := netip.AddrFrom16(a)
	if f.Is4() {
		address = netip.AddrFrom4([4]byte(a[:4]))
	}
	p := netip.PrefixFrom(address, r.IntN(addressBits+1))
	if !f.VPN() {
		return KeyOf(p)
	}
	id, _ := vpn.FromDistinguisher(uint64(r.IntN(3))<<48 | r.Uint64()>>16)
	return KeyOfVPN(id, p)
}

func TestUpdateRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	two := everything
	two.FourOctetAS = false
	extended := everything
	extended.ExtendedMessage = true
	for name, n := range map[string]Negotiated{"four-octet": everything, "two-octet": two, "extended": extended} {
		for f := range n.Families.All() {
			for _, nextHop := range []string{"2001:db8::1", "192.0.2.1", "2001:db8::1 fe80::1"} {
				fields := fullFields(t)
				fields.LinkLocal = netip.Addr{}
				if a, b, both := cutSpace(nextHop); both {
					fields.NextHop, fields.LinkLocal = addr(a), addr(b)
				} else {
					fields.NextHop = addr(a)
				}
				if fields.NextHop.Is4() && !f.Is4() {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, f, nextHop), func(t *testing.T) {
					in := NewInterner()
					sent := in.Intern(fields)
					var nlri []NLRI
					var keys []Key
					for range 1000 {
						route := NLRI{Key: randomKey(r, f)}
						if f.VPN() {
							route.Label = r.Uint32N(1 << 20)
						}
						nlri, keys = append(nlri, route), append(keys, route.Key)
					}
					e := NewEncoder(n)
					var stream []byte
					for left := nlri; len(left) > 0; {
						var sentRoutes int
						var err error
						if stream, sentRoutes, err = e.Announce(stream, sent, left); err != nil {
							t.Fatal(err)
						}
						left = left[sentRoutes:]
					}
					for left := keys; len(left) > 0; {
						var sentRoutes int
						stream, sentRoutes = e.Withdraw(stream, left)
						left = left[sentRoutes:]
					}
					stream = AppendEndOfRIB(stream, f)

					announced, withdrawn, ends := decodeAll(t, NewDecoder(n, true, in), stream)
					var got []NLRI
					for _, a := range announced {
						if a.Attributes != sent {
							t.Fatalf("attributes %+v, want %+v", a.Attributes.Fields(), fields)
						}
						got = append(got, a.NLRI...)
					}
					if !slices.Equal(got, nlri) {
						t.Error("other routes were announced")
					}
					if !slices.Equal(withdrawn, keys) {
						t.Error("other routes were withdrawn")
					}
					if !slices.Equal(ends, []Family{f}) {
						t.Errorf("End-of-RIB %v", ends)
					}
				})
			}
		}
	}
}

func cutSpace(s string) (a, b string, both bool) {
	for i := range s {
		if s[i] == ' ' {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

func TestFieldsRoundTrip(t *testing.T) {
	in := NewInterner()
	want := fullFields(t)
	a := in.Intern(want)
	if got := a.Fields(); !reflect.DeepEqual(got, want) {
		t.Errorf("read as %+v\nwant %+v", got, want)
	}
	if in.Intern(want) != a {
		t.Error("equal attributes are not shared")
	}
	med, hasMED := a.MED()
	pref, hasPref := a.LocalPref()
	if a.NextHop() != want.NextHop || a.LinkLocal() != want.LinkLocal || a.Origin() != want.Origin || a.ASPath() != want.ASPath ||
		a.PathLen() != 4 || a.FirstAS() != 65001 || med != 7 || !hasMED || pref != 0 || !hasPref ||
		!slices.Equal(a.Communities().Slice(), want.Communities) || a.OriginatorID() != want.OriginatorID ||
		!slices.Equal(a.ClusterList().Slice(), want.ClusterList) ||
		!slices.Equal(a.Targets(), []vpn.ID{rd(t, "65000:101"), rd(t, "10.0.0.1:7")}) {
		t.Errorf("accessors differ from %+v", want)
	}
	if sid, err := a.Service().SID(ImplicitNull); err != nil || sid != addr("fcbb:1:1:a::") || a.Service().Behavior != 18 {
		t.Errorf("SID %s, %v", sid, err)
	}
	var none Fields
	a = in.Intern(none)
	if _, has := a.MED(); has || a.NextHop().IsValid() || a.OriginatorID().IsValid() || a.ASPath() != "" || a.Targets() != nil {
		t.Errorf("attributes without fields: %+v", a.Fields())
	}
	if _, err := a.Service().SID(3); err == nil {
		t.Error("a service without Prefix-SID")
	}
}
