package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp/srv6"
)

// raw returns an attribute, with a length of two octets.
func raw(flags, kind byte, value ...byte) []byte {
	b := []byte{flags | flagExtended, kind}
	return append(binary.BigEndian.AppendUint16(b, uint16(len(value))), value...)
}

// body returns the body of an UPDATE with these withdrawn routes, attributes and NLRI.
func body(withdrawn []byte, nlri []byte, attrs ...[]byte) []byte {
	list := slices.Concat(attrs...)
	b := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	b = append(b, withdrawn...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(list)))
	return slices.Concat(b, list, nlri)
}

var (
	rawOrigin  = raw(0x40, attrOrigin, 0)
	rawPath    = raw(0x40, attrASPath, 2, 1, 0, 0, 0xfd, 0xe9) // 65001
	rawNextHop = raw(0x40, attrNextHop, 192, 0, 2, 1)
	// rawReach announces 2a00::/16 with next hop 2001:db8::1.
	rawReach   = raw(0x80, attrReach, slices.Concat([]byte{0, 2, 1, 16}, addr("2001:db8::1").AsSlice(), []byte{0, 16, 0x2a, 0})...)
	rawUnreach = raw(0x80, attrUnreach, 0, 2, 1, 16, 0x2a, 1)
	rawV4      = []byte{8, 10} // 10.0.0.0/8

	destination = KeyOf(prefix("2a00::/16"))
)

// TestMalformedAttributes has a case for each rule of RFC 7606 section 7 and of the RFCs of later
// attributes.
func TestMalformedAttributes(t *testing.T) {
	const (
		accept   = "accept"
		discard  = "discard"
		withdraw = "withdraw"
		reset    = "reset"
	)
	good := slices.Concat(rawOrigin, rawPath)
	for _, tt := range []struct {
		name               string
		attrs              []byte // with rawReach
		internal, external string
	}{
		{"all that is needed", good, accept, accept},
		{"partial flag of a well-known attribute", slices.Concat(raw(0x60, attrOrigin, 0), rawPath), accept, accept},

		{"origin missing", rawPath, withdraw, withdraw},
		{"origin empty", slices.Concat(raw(0x40, attrOrigin), rawPath), withdraw, withdraw},
		{"origin too long", slices.Concat(raw(0x40, attrOrigin, 0, 0), rawPath), withdraw, withdraw},
		{"origin undefined", slices.Concat(raw(0x40, attrOrigin, 3), rawPath), withdraw, withdraw},
		{"origin optional", slices.Concat(raw(0xc0, attrOrigin, 0), rawPath), withdraw, withdraw},
		{"origin not transitive", slices.Concat(raw(0, attrOrigin, 0), rawPath), withdraw, withdraw},
		{"origin twice", slices.Concat(good, raw(0x40, attrOrigin, 9)), discard, discard},

		{"path missing", rawOrigin, withdraw, withdraw},
		{"path empty", slices.Concat(rawOrigin, raw(0x40, attrASPath)), accept, accept},
		{"path with unknown segment", slices.Concat(rawOrigin, raw(0x40, attrASPath, 5, 1, 0, 0, 0, 1)), withdraw, withdraw},
		{"path with set", slices.Concat(rawOrigin, raw(0x40, attrASPath, 2, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 2)), withdraw, withdraw},
		{"path with confederation sequence", slices.Concat(rawOrigin, raw(0x40, attrASPath, 3, 1, 0, 0, 0, 1)), withdraw, withdraw},
		{"path with confederation set", slices.Concat(rawOrigin, raw(0x40, attrASPath, 4, 1, 0, 0, 0, 1)), withdraw, withdraw},
		{"path overrun", slices.Concat(rawOrigin, raw(0x40, attrASPath, 2, 2, 0, 0, 0, 1)), withdraw, withdraw},
		{"path underrun", slices.Concat(rawOrigin, raw(0x40, attrASPath, 2, 1, 0, 0, 0, 1, 2)), withdraw, withdraw},
		{"path with empty segment", slices.Concat(rawOrigin, raw(0x40, attrASPath, 2, 0)), withdraw, withdraw},
		{"path with AS 0", slices.Concat(rawOrigin, raw(0x40, attrASPath, 2, 2, 0, 0, 0, 1, 0, 0, 0, 0)), withdraw, withdraw},

		{"next hop beside MP_REACH_NLRI", slices.Concat(good, raw(0x40, attrNextHop, 1)), accept, accept},

		{"med", slices.Concat(good, raw(0x80, attrMED, 0, 0, 0, 1)), accept, accept},
		{"med too short", slices.Concat(good, raw(0x80, attrMED, 0, 0, 1)), withdraw, withdraw},
		{"med empty", slices.Concat(good, raw(0x80, attrMED)), withdraw, withdraw},
		{"med transitive", slices.Concat(good, raw(0xc0, attrMED, 0, 0, 0, 1)), withdraw, withdraw},

		{"local preference", slices.Concat(good, raw(0x40, attrLocalPref, 0, 0, 0, 1)), accept, discard},
		{"local preference too long", slices.Concat(good, raw(0x40, attrLocalPref, 0, 0, 0, 0, 1)), withdraw, discard},
		{"local preference optional", slices.Concat(good, raw(0xc0, attrLocalPref, 0, 0, 0, 1)), withdraw, discard},

		{"atomic aggregate", slices.Concat(good, raw(0x40, attrAtomicAggregate)), accept, accept},
		{"atomic aggregate with content", slices.Concat(good, raw(0x40, attrAtomicAggregate, 1)), discard, discard},

		{"aggregator", slices.Concat(good, raw(0xc0, attrAggregator, 0, 0, 0, 1, 10, 0, 0, 1)), accept, accept},
		{"aggregator partial", slices.Concat(good, raw(0xe0, attrAggregator, 0, 0, 0, 1, 10, 0, 0, 1)), accept, accept},
		{"aggregator of two octets", slices.Concat(good, raw(0xc0, attrAggregator, 0, 1, 10, 0, 0, 1)), discard, discard},
		{"aggregator with AS 0", slices.Concat(good, raw(0xc0, attrAggregator, 0, 0, 0, 0, 10, 0, 0, 1)), discard, discard},
		{"aggregator well-known", slices.Concat(good, raw(0x40, attrAggregator, 0, 0, 0, 1, 10, 0, 0, 1)), withdraw, withdraw},

		{"communities", slices.Concat(good, raw(0xc0, attrCommunities, 1, 2, 3, 4)), accept, accept},
		{"communities empty", slices.Concat(good, raw(0xc0, attrCommunities)), withdraw, withdraw},
		{"communities of 6 bytes", slices.Concat(good, raw(0xc0, attrCommunities, 1, 2, 3, 4, 5, 6)), withdraw, withdraw},

		{"originator", slices.Concat(good, raw(0x80, attrOriginatorID, 10, 0, 0, 1)), accept, discard},
		{"originator too short", slices.Concat(good, raw(0x80, attrOriginatorID, 10, 0, 1)), withdraw, discard},
		{"cluster list", slices.Concat(good, raw(0x80, attrClusterList, 10, 0, 0, 1)), accept, discard},
		{"cluster list empty", slices.Concat(good, raw(0x80, attrClusterList)), withdraw, discard},
		{"cluster list of 5 bytes", slices.Concat(good, raw(0x80, attrClusterList, 1, 2, 3, 4, 5)), withdraw, discard},

		{"extended communities", slices.Concat(good, raw(0xc0, attrExtended, 1, 2, 3, 4, 5, 6, 7, 8)), accept, accept},
		{"extended communities empty", slices.Concat(good, raw(0xc0, attrExtended)), withdraw, withdraw},
		{"extended communities of 9 bytes", slices.Concat(good, raw(0xc0, attrExtended, 1, 2, 3, 4, 5, 6, 7, 8, 9)), withdraw, withdraw},

		{"AS4_PATH", slices.Concat(good, raw(0xc0, attrAS4Path, 2, 1, 0, 0, 0, 1)), discard, discard},
		{"AS4_AGGREGATOR", slices.Concat(good, raw(0xc0, attrAS4Aggregator, 1)), discard, discard},

		{"large communities", slices.Concat(good, raw(0xc0, attrLarge, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)), accept, accept},
		{"large communities empty", slices.Concat(good, raw(0xc0, attrLarge)), withdraw, withdraw},
		{"large communities of 8 bytes", slices.Concat(good, raw(0xc0, attrLarge, 1, 2, 3, 4, 5, 6, 7, 8)), withdraw, withdraw},

		{"only to customer", slices.Concat(good, raw(0xc0, attrOnlyToCustomer, 0, 0, 0, 1)), accept, accept},
		{"only to customer of 3 bytes", slices.Concat(good, raw(0xc0, attrOnlyToCustomer, 0, 0, 1)), withdraw, withdraw},

		{"prefix SID", slices.Concat(good, prefixSID(goodService)), accept, discard},
		{"IPv6 extended communities", slices.Concat(good, raw(0xc0, attrExtendedIPv6, make([]byte, 40)...)), accept, accept},
		{"IPv6 extended communities malformed", slices.Concat(good, raw(0xc0, attrExtendedIPv6, 0, 1)), withdraw, withdraw},
		{"IPv6 extended communities empty", slices.Concat(good, raw(0xc0, attrExtendedIPv6)), withdraw, withdraw},
		{"tunnel encapsulation malformed", slices.Concat(good, raw(0xc0, attrTunnelEncap, 0, 1, 0, 4, 1)), accept, discard},
		{"PMSI tunnel malformed", slices.Concat(good, raw(0xc0, attrPMSITunnel, 0)), accept, discard},
		{"tunnel encapsulation well-known", slices.Concat(good, raw(0x40, attrTunnelEncap, 0)), reset, reset},
		{"prefix SID malformed", slices.Concat(good, raw(0xc0, attrPrefixSID, 5, 0, 9)), discard, discard},
		{"prefix SID well-known", slices.Concat(good, raw(0x40, attrPrefixSID, goodService...)), withdraw, discard},

		{"AIGP", slices.Concat(good, raw(0x80, attrAIGP, 1, 0, 11, 0, 0, 0, 0, 0, 0, 0, 7)), accept, accept},
		{"AIGP transitive", slices.Concat(good, raw(0xc0, attrAIGP, 1, 0, 11, 0, 0, 0, 0, 0, 0, 0, 7)), discard, discard},
		{"BGP-LS transitive", slices.Concat(good, raw(0xe0, attrLinkState, 1)), discard, discard},
		{"unknown transitive", slices.Concat(good, raw(0xc0, 99, 1)), accept, accept},
		{"unknown transitive twice", slices.Concat(good, raw(0xc0, 99, 1), raw(0xc0, 99, 2)), discard, discard},
		{"unknown optional", slices.Concat(good, raw(0x80, 99, 1)), accept, accept},
		{"unknown well-known", slices.Concat(good, raw(0x40, 99, 1)), reset, reset},

		{"second MP_REACH_NLRI", slices.Concat(good, rawReach), reset, reset},
		{"second MP_UNREACH_NLRI", slices.Concat(good, rawUnreach, rawUnreach), reset, reset},
		{"MP_UNREACH_NLRI of 2 bytes", slices.Concat(good, raw(0x80, attrUnreach, 0, 2)), reset, reset},
		{"MP_UNREACH_NLRI transitive", slices.Concat(good, raw(0xc0, attrUnreach, 0, 2, 1)), reset, reset},
		{"MP_UNREACH_NLRI overrun", slices.Concat(good, raw(0x80, attrUnreach, 0, 2, 1, 128, 1)), reset, reset},
		{"MP_UNREACH_NLRI too long", slices.Concat(good, raw(0x80, attrUnreach, slices.Concat([]byte{0, 2, 1, 129}, make([]byte, 17))...)), reset, reset},

		{"attribute cut off", slices.Concat(good, []byte{0x80, 4}), withdraw, withdraw},
		{"attribute with long length cut off", slices.Concat(good, []byte{0x90, 4, 0}), withdraw, withdraw},
		{"attribute overrun", slices.Concat(good, []byte{0x80, 4, 5, 0, 0, 0, 0}), withdraw, withdraw},
		{"withdraw is stronger than discard", slices.Concat(rawPath, raw(0x40, attrAtomicAggregate, 1)), withdraw, withdraw},
		{"reset is stronger than withdraw", slices.Concat(rawPath, raw(0x40, 99)), reset, reset},
	} {
		for internal, want := range map[bool]string{true: tt.internal, false: tt.external} {
			t.Run(fmt.Sprintf("%s/%t", tt.name, internal), func(t *testing.T) {
				d := NewDecoder(everything, internal, NewInterner())
				var u Update
				err := d.Update(body(nil, nil, rawReach, tt.attrs), &u)
				got := accept
				for _, f := range u.Faults {
					if f.Detail == "" || f.String() == "" {
						t.Errorf("fault without detail: %+v", f)
					}
					switch {
					case f.Action == TreatedAsWithdraw:
						got = withdraw
					case f.Action == Discarded && got != withdraw:
						got = discard
					}
				}
				if err != nil {
					got = reset
					if e := (*Error)(nil); !errors.As(err, &e) || e.Code != CodeUpdate {
						t.Errorf("error %v", err)
					}
				}
				if got != want {
					t.Fatalf("%s, want %s: %v, %v", got, want, err, u.Faults)
				}
				announced, withdrawn := len(u.Announced) == 1, slices.Contains(u.Withdrawn, destination)
				if want != reset && (withdrawn != (want == withdraw) || announced == withdrawn) {
					t.Errorf("announced %v, withdrawn %v", u.Announced, u.Withdrawn)
				}
			})
		}
	}
}

// TestMalformedUpdate has the errors of fields other than attributes, and of MP_REACH_NLRI.
func TestMalformedUpdate(t *testing.T) {
	reach := func(b ...byte) []byte { return raw(0x80, attrReach, b...) }
	nh := addr("2001:db8::1").AsSlice()
	good := slices.Concat(rawOrigin, rawPath)
	vpnHead := slices.Concat([]byte{0, 2, 128, 24}, make([]byte, 8), nh, []byte{0})
	for _, tt := range []struct {
		name    string
		body    []byte
		subcode uint8 // 0: the session stays
		left    string
	}{
		{"withdrawn routes longer than the message", []byte{0, 3, 0, 0}, SubcodeAttributeList, ""},
		{"attributes longer than the message", []byte{0, 0, 0, 1}, SubcodeAttributeList, ""},
		{"no attribute length", []byte{0, 1, 0, 0}, SubcodeAttributeList, ""},
		{"withdrawn overrun", body([]byte{32, 10}, nil), SubcodeInvalidNetwork, ""},
		{"withdrawn too long", body([]byte{33, 10, 0, 0, 0, 0}, nil), SubcodeInvalidNetwork, ""},
		{"NLRI overrun", body(nil, []byte{32, 10}, good, rawNextHop), SubcodeInvalidNetwork, ""},
		{"NLRI too long", body(nil, []byte{33, 10, 0, 0, 0, 0}, good, rawNextHop), SubcodeInvalidNetwork, ""},
		{"NLRI after a malformed attribute", body(nil, rawV4, good, rawNextHop, []byte{0x80}), 0, "-10.0.0.0/8"},
		{"no next hop", body(nil, rawV4, good), 0, "-10.0.0.0/8"},
		{"next hop of 5 bytes", body(nil, rawV4, good, raw(0x40, attrNextHop, 1, 2, 3, 4, 5)), 0, "-10.0.0.0/8"},
		{"host bits", body([]byte{9, 10, 255}, []byte{9, 10, 127}, good, rawNextHop), 0, "-10.128.0.0/9 +10.0.0.0/9"},
		{"error without routes", body(nil, nil, raw(0x40, attrOrigin, 9)), SubcodeAttributeList, ""},
		{"error beside withdrawn routes", body(rawV4, nil, raw(0x40, attrOrigin, 9)), SubcodeAttributeList, ""},
		{"next hop error without routes", body(nil, nil, raw(0x40, attrNextHop)), SubcodeAttributeList, ""},
		{"empty MP_UNREACH_NLRI beside attributes", body(nil, nil, raw(0x80, attrUnreach, 0, 2, 1), rawOrigin), 0, ""},
		{"empty MP_UNREACH_NLRI beside withdrawn routes", body(rawV4, nil, raw(0x80, attrUnreach, 0, 2, 1)), 0, "-10.0.0.0/8"},
		{"empty MP_UNREACH_NLRI beside routes", body(nil, nil, raw(0x80, attrUnreach, 0, 2, 1), rawReach, good), 0, "+2a00::/16"},
		{"empty MP_UNREACH_NLRI beside routes without attributes", body(nil, nil, raw(0x80, attrUnreach, 0, 2, 1), rawReach), 0, "-2a00::/16"},
		{"discarded without routes", body(rawV4, nil, raw(0x40, attrAtomicAggregate, 9)), 0, "-10.0.0.0/8"},
		{"attributes without routes", body(nil, nil, good), 0, ""},
		{"cut off before any route", body(nil, nil, []byte{0x80}), SubcodeAttributeList, ""},
		{"cut off after withdrawn routes", body(nil, nil, rawUnreach, []byte{0x80}), SubcodeAttributeList, ""},
		{"everything at once", body([]byte{8, 11}, rawV4, rawReach, rawUnreach, good, rawNextHop), 0,
			"-11.0.0.0/8 -2a01::/16 +2a00::/16 +10.0.0.0/8"},

		{"MP_REACH_NLRI of 4 bytes", body(nil, nil, reach(0, 2, 1, 0), good), SubcodeOptionalAttribute, ""},
		{"MP_REACH_NLRI without room for the next hop", body(nil, nil, reach(0, 2, 1, 16, 0), good), SubcodeOptionalAttribute, ""},
		{"MP_REACH_NLRI well-known", body(nil, nil, raw(0x40, attrReach, rawReach[4:]...), good), SubcodeOptionalAttribute, ""},
		{"next hop of 0 bytes", body(nil, nil, reach(0, 2, 1, 0, 0, 16, 0x2a, 0), good), SubcodeOptionalAttribute, ""},
		{"next hop of 24 bytes", body(nil, nil, reach(slices.Concat([]byte{0, 2, 1, 24}, make([]byte, 25))...), good), SubcodeOptionalAttribute, ""},
		{"IPv4 next hop of IPv6", body(nil, nil, reach(0, 2, 1, 4, 192, 0, 2, 1, 0, 16, 0x2a, 0), good), 0, "-2a00::/16"},
		{"vpn next hop of 16 bytes", body(nil, nil, reach(slices.Concat([]byte{0, 2, 128, 16}, nh, []byte{0})...), good), SubcodeOptionalAttribute, ""},
		{"NLRI of MP_REACH_NLRI overrun", body(nil, nil, reach(slices.Concat([]byte{0, 2, 1, 16}, nh, []byte{0, 17, 0x2a, 0})...), good), SubcodeOptionalAttribute, ""},
		{"NLRI of MP_REACH_NLRI too long", body(nil, nil, reach(slices.Concat([]byte{0, 2, 1, 16}, nh, []byte{0, 129}, make([]byte, 17))...), good), SubcodeOptionalAttribute, ""},
		{"vpn route without distinguisher", body(nil, nil, reach(append(vpnHead, 87, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)...), good), SubcodeOptionalAttribute, ""},
		{"vpn route too long", body(nil, nil, reach(slices.Concat(vpnHead, []byte{88 + 129}, make([]byte, 28))...), good), SubcodeOptionalAttribute, ""},
		{"vpn route", body(nil, nil, reach(append(vpnHead, 88, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2)...), good), 0, "+1:2 ::/0"},
		{"distinguisher of unknown type", body(nil, nil, reach(append(vpnHead, 88, 0, 0, 1, 0, 9, 0, 1, 0, 0, 0, 2)...), good), 0, ""},
		{"unknown family", body(nil, nil, reach(0, 25, 70, 4, 1, 2, 3, 4, 0, 99), good), 0, ""},
		{"unknown family withdrawn", body(nil, nil, raw(0x80, attrUnreach, 0, 25, 70, 99)), 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var u Update
			err := NewDecoder(everything, false, NewInterner()).Update(tt.body, &u)
			if tt.subcode != 0 {
				wantError(t, err, CodeUpdate, tt.subcode)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, k := range u.Withdrawn {
				left = append(left, "-"+k.String())
			}
			for _, a := range u.Announced {
				for _, n := range a.NLRI {
					left = append(left, "+"+n.Key.String())
				}
			}
			if got := strings.Join(left, " "); got != tt.left {
				t.Errorf("%q, want %q; %v", got, tt.left, u.Faults)
			}
			if u.EndOfRIB != 0 {
				t.Errorf("End-of-RIB of %s", u.EndOfRIB)
			}
			if strings.Contains(tt.name, "unknown") && (len(u.Faults) != 1 || u.Faults[0].Action != Ignored) {
				t.Errorf("faults %v", u.Faults)
			}
		})
	}
}

// TestCanonicalAttributes: the order of attributes and meaningless flags have no effect, the
// Partial flag of optional transitive attributes does.
func TestCanonicalAttributes(t *testing.T) {
	in := NewInterner()
	decode := func(attrs ...[]byte) *Attributes {
		t.Helper()
		var u Update
		if err := NewDecoder(everything, true, in).Update(body(nil, nil, attrs...), &u); err != nil || len(u.Announced) != 1 {
			t.Fatalf("%+v, %v", u, err)
		}
		return u.Announced[0].Attributes
	}
	communities, partial := raw(0xc0, attrCommunities, 1, 2, 3, 4), raw(0xe0, attrCommunities, 1, 2, 3, 4)
	a := decode(rawReach, rawOrigin, rawPath, communities, raw(0xc0, 99, 1))
	if decode(raw(0xe0, 99, 1), communities, rawPath, raw(0x60, attrOrigin, 0), rawReach) != a {
		t.Error("attributes in another order are not equal")
	}
	if f := a.Fields(); f.UnknownTransitive != "\xe0\x63\x01\x01" {
		t.Errorf("unknown attributes %x, want with the Partial flag", f.UnknownTransitive)
	}
	p := decode(rawReach, rawOrigin, rawPath, partial, raw(0xc0, 99, 1))
	if p == a || in.Intern(p.Fields()) != p || in.Intern(a.Fields()) != a {
		t.Error("the Partial flag is lost")
	}
}

// TestSecondNextHop: only a link-local address can be beside the global next hop (RFC 2545 section
// 3).
func TestSecondNextHop(t *testing.T) {
	global := addr("2001:db8::1")
	for second, want := range map[string]netip.Addr{"fe80::1": addr("fe80::1"), "2001:db8::2": {}, "ff02::1": {}, "::": {}} {
		for name, vpn := range map[string]bool{"unicast": false, "vpn": true} {
			var rd []byte
			head, route := []byte{0, 2, 1, 32}, []byte{0, 16, 0x2a, 0}
			if vpn {
				rd = make([]byte, 8)
				head, route = []byte{0, 2, 128, 48}, []byte{0, 88, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2}
			}
			r := raw(0x80, attrReach, slices.Concat(head, rd, global.AsSlice(), rd, addr(second).AsSlice(), route)...)
			var u Update
			if err := NewDecoder(everything, true, NewInterner()).Update(body(nil, nil, r, rawOrigin, rawPath), &u); err != nil || len(u.Announced) != 1 {
				t.Fatalf("%s, %s: %+v, %v", name, second, u, err)
			}
			if a := u.Announced[0].Attributes; a.NextHop() != global || a.LinkLocal() != want {
				t.Errorf("%s, %s: next hops %s and %s", name, second, a.NextHop(), a.LinkLocal())
			}
		}
	}
}

// TestForeignFamily: routes of families that the session does not have are ignored.
func TestForeignFamily(t *testing.T) {
	n := Negotiated{Families: Families(VPNv6), FourOctetAS: true}
	for name, b := range map[string][]byte{
		"announced":         body(nil, nil, rawReach, rawOrigin, rawPath),
		"announced IPv4":    body(nil, rawV4, rawOrigin, rawPath, rawNextHop),
		"withdrawn":         body(nil, nil, rawUnreach),
		"withdrawn IPv4":    body(rawV4, nil),
		"End-of-RIB":        body(nil, nil, raw(0x80, attrUnreach, 0, 2, 1)),
		"End-of-RIB (IPv4)": body(nil, nil),
	} {
		var u Update
		if err := NewDecoder(n, true, NewInterner()).Update(b, &u); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(u.Announced)+len(u.Withdrawn) > 0 || u.EndOfRIB != 0 || len(u.Faults) != 1 && len(b) > 4 {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

// TestIPv6NextHopOfIPv4: RFC 8950, in both directions.
func TestIPv6NextHopOfIPv4(t *testing.T) {
	in := NewInterner()
	a := in.Intern(Fields{NextHop: addr("2001:db8::1")})
	nlri := []NLRI{{Key: KeyOf(prefix("10.0.0.0/8"))}}
	plain := everything
	plain.ExtendedNextHop, plain.ExtendedNextHopIn = 0, 0
	if _, _, err := NewEncoder(plain).Announce(nil, a, nlri); err == nil {
		t.Error("announced to a neighbor without the capability")
	}
	b, _, err := NewEncoder(everything).Announce(nil, a, nlri)
	if err != nil {
		t.Fatal(err)
	}
	var u Update
	if err := NewDecoder(plain, true, in).Update(b[HeaderLen:], &u); err != nil || !slices.Equal(u.Withdrawn, []Key{nlri[0].Key}) {
		t.Errorf("without the capability: %+v, %v", u, err)
	}
	if err := NewDecoder(everything, true, in).Update(b[HeaderLen:], &u); err != nil || len(u.Announced) != 1 || u.Announced[0].Attributes != a {
		t.Errorf("with the capability: %+v, %v", u, err)
	}
}

// TestTwoOctetNeighbor has the merging of AS4_PATH and AS4_AGGREGATOR (RFC 6793 section 4.2.3).
func TestTwoOctetNeighbor(t *testing.T) {
	n := everything
	n.FourOctetAS = false
	path := func(b ...byte) []byte { return raw(0x40, attrASPath, b...) }
	path4 := func(b ...byte) []byte { return raw(0xc0, attrAS4Path, b...) }
	trans := []byte{ASTrans >> 8, ASTrans & 0xff}
	for _, tt := range []struct {
		name   string
		attrs  []byte
		path   string
		aggr   uint32
		faulty bool
	}{
		{"without AS4_PATH", path(2, 2, 0xfd, 0xe9, 0xfd, 0xea), "65001 65002", 0, false},
		{"AS_TRANS replaced", slices.Concat(path(slices.Concat([]byte{2, 2, 0xfd, 0xe9}, trans)...), path4(2, 1, 0xfa, 0x56, 0xea, 0)), "65001 4200000000", 0, false},
		{"AS4_PATH longer", slices.Concat(path(slices.Concat([]byte{2, 1}, trans)...), path4(2, 2, 0, 0, 0, 1, 0, 0, 0, 2)), "23456", 0, false},
		{"head kept", slices.Concat(path(2, 2, 0, 1, 0, 2, 2, 2, 0, 3, 0, 4), path4(2, 1, 0, 1, 0, 3)), "1 2 3 65539", 0, false},
		{"AS4_PATH with a set", slices.Concat(path(2, 1, 0, 1), path4(1, 1, 0, 0, 0, 1)), "1", 0, true},
		{"AS4_PATH malformed", slices.Concat(path(2, 1, 0, 1), path4(2, 2, 0, 0, 0, 1)), "1", 0, true},
		{"aggregator replaced", slices.Concat(path(2, 1, 0, 1), raw(0xc0, attrAggregator, append(trans, 10, 0, 0, 1)...),
			raw(0xc0, attrAS4Aggregator, 0xfa, 0x56, 0xea, 0, 10, 0, 0, 1)), "1", 4200000000, false},
		{"aggregator kept, AS4_PATH ignored", slices.Concat(path(2, 1, 0, 1), raw(0xc0, attrAggregator, 0, 7, 10, 0, 0, 1),
			path4(2, 1, 0, 1, 0, 3), raw(0xc0, attrAS4Aggregator, 0xfa, 0x56, 0xea, 0, 10, 0, 0, 1)), "1", 7, false},
		{"AS4_AGGREGATOR malformed", slices.Concat(path(2, 1, 0, 1), raw(0xc0, attrAggregator, append(trans, 10, 0, 0, 1)...),
			raw(0xc0, attrAS4Aggregator, 1)), "1", ASTrans, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var u Update
			if err := NewDecoder(n, true, NewInterner()).Update(body(nil, nil, rawReach, rawOrigin, tt.attrs), &u); err != nil {
				t.Fatal(err)
			}
			if len(u.Announced) != 1 || len(u.Faults) > 0 != tt.faulty {
				t.Fatalf("%+v", u)
			}
			f := u.Announced[0].Attributes.Fields()
			if f.ASPath.String() != tt.path || f.Aggregator.ASN != tt.aggr || f.UnknownTransitive != "" {
				t.Errorf("path %s, aggregator %d", f.ASPath, f.Aggregator.ASN)
			}
		})
	}
}

// Prefix-SID attributes in wire format (RFC 9252).

// TestLongPath: with AS numbers of four octets, a path from a neighbor with two can be longer than
// the length field of the attribute.
func TestLongPath(t *testing.T) {
	segment := slices.Concat([]byte{segmentSequence, 255}, slices.Repeat([]byte{0xfd, 0xe9}, 255))
	update := body(nil, rawV4, rawOrigin, raw(0x40, attrASPath, slices.Repeat(segment, 127)...), rawNextHop)
	d := NewDecoder(Negotiated{Families: Families(IPv4Unicast), ExtendedMessage: true}, false, NewInterner())
	var u Update
	if err := d.Update(update, &u); err != nil {
		t.Fatal(err)
	}
	if len(u.Announced) > 0 || len(u.Withdrawn) != 1 {
		t.Errorf("announced %v, withdrawn %v", u.Announced, u.Withdrawn)
	}
}

func tlv(kind byte, value ...[]byte) []byte {
	v := slices.Concat(value...)
	return slices.Concat([]byte{kind, byte(len(v) >> 8), byte(len(v))}, v)
}

func prefixSID(tlvs ...[]byte) []byte { return raw(0xc0, attrPrefixSID, slices.Concat(tlvs...)...) }

func l3(subTLVs ...[]byte) []byte { return tlv(5, []byte{0}, slices.Concat(subTLVs...)) }

func sidInfo(sid string, behavior int, subSubTLVs ...[]byte) []byte {
	return tlv(1, []byte{0}, addr(sid).AsSlice(), []byte{0, byte(behavior >> 8), byte(behavior), 0}, slices.Concat(subSubTLVs...))
}

func sidStructure(b ...byte) []byte { return tlv(1, b) }

var (
	plain       = sidStructure(32, 16, 16, 0, 0, 0)
	transposed  = sidStructure(32, 16, 16, 0, 16, 48)
	goodService = l3(sidInfo("fcbb:1:1:a::", 18, plain))
)

var prefixSIDCases = []struct {
	name   string
	label  uint32
	attr   []byte
	reason RejectReason
	sid    string
}{
	{"full sid", 3, prefixSID(goodService), "", "fcbb:1:1:a::"},
	{"transposed", 0xa0, prefixSID(l3(sidInfo("fcbb:1:1::", 18, transposed))), "", "fcbb:1:1:a::"},
	{"opaque behavior", 0xa0, prefixSID(l3(sidInfo("fcbb:1:1::", 0xffff, transposed))), "", "fcbb:1:1:a::"},
	{"low bits of the label", 0xaf, prefixSID(l3(sidInfo("fcbb:1:1::", 18, transposed))), "", "fcbb:1:1:a::"},
	{"no structure", 3, prefixSID(l3(sidInfo("fcbb:1:1:a::1", 18))), "", "fcbb:1:1:a::1"},
	{"unknown tlv, sub-tlv and sub-sub-tlv", 3, prefixSID(tlv(99, make([]byte, 5)),
		l3(tlv(77, make([]byte, 4)), sidInfo("fcbb:1:1:a::", 18, tlv(55, make([]byte, 9)), plain))), "", "fcbb:1:1:a::"},
	{"second sid", 3, prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, plain), sidInfo("fcbb:1:1:b::", 18, plain))), "", "fcbb:1:1:a::"},
	{"second service", 3, prefixSID(goodService, l3(sidInfo("fcbb:1:1:b::", 18, plain))), "", "fcbb:1:1:a::"},
	{"no attribute", 3, nil, RejectNoPrefixSID, ""},
	{"empty attribute", 3, prefixSID(), RejectNoPrefixSID, ""}, // RFC 7606 section 4
	{"label index", 3, prefixSID(tlv(1, make([]byte, 7))), RejectNoL3Service, ""},
	{"l2 service", 3, prefixSID(tlv(6, []byte{0}, sidInfo("fcbb:1:1:a::", 18, plain))), RejectNoL3Service, ""},
	{"service without sid", 3, prefixSID(l3()), RejectNoL3Service, ""},
	{"service without reserved octet", 3, prefixSID(tlv(5)), RejectNoPrefixSID, ""},
	{"tlv cut off", 3, prefixSID(goodService, []byte{5, 0}), RejectNoPrefixSID, ""},
	{"tlv longer than the attribute", 3, prefixSID([]byte{5, 0, 200, 0, 0}), RejectNoPrefixSID, ""},
	{"sub-tlv longer than the tlv", 3, prefixSID(l3([]byte{1, 0, 99, 0})), RejectNoPrefixSID, ""},
	{"sub-tlv too short", 3, prefixSID(l3(tlv(1, make([]byte, 20)))), RejectNoPrefixSID, ""},
	{"second sub-tlv too short", 3, prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, plain), tlv(1, make([]byte, 20)))), RejectNoPrefixSID, ""},
	{"structure too short", 3, prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, sidStructure(32, 16, 16, 0, 0)))), RejectNoPrefixSID, ""},
	{"structure longer than a sid", 3, prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, sidStructure(64, 32, 32, 1, 0, 0)))), RejectStructure, ""},
	{"transposed beyond a label", 3, prefixSID(l3(sidInfo("fcbb:1:1::", 18, sidStructure(32, 16, 32, 0, 21, 48)))), RejectStructure, ""},
	{"transposed beyond the sid", 3, prefixSID(l3(sidInfo("fcbb:1:1::", 18, sidStructure(32, 16, 16, 0, 16, 120)))), RejectStructure, ""},
	{"bits outside of the structure", 3, prefixSID(l3(sidInfo("fcbb:1:1:a::1", 18, plain))), RejectSID, ""},
	{"multicast", 3, prefixSID(l3(sidInfo("ff02:1:1:a::", 18, plain))), RejectSID, ""},
	{"mapped", 3, prefixSID(l3(sidInfo("::ffff:192.0.2.1", 18))), RejectSID, ""},
	{"unspecified", 3, prefixSID(l3(sidInfo("::", 18))), RejectSID, ""},
	{"link-local", 3, prefixSID(l3(sidInfo("fe80:1:1:a::", 18, plain))), RejectSID, ""},
}

func TestPrefixSID(t *testing.T) {
	head := slices.Concat([]byte{0, 2, 128, 24}, make([]byte, 8), addr("2001:db8::1").AsSlice(), []byte{0})
	for _, tt := range prefixSIDCases {
		t.Run(tt.name, func(t *testing.T) {
			nlri := []byte{88 + 16, byte(tt.label >> 12), byte(tt.label >> 4), byte(tt.label<<4) | 0xe, 0, 0, 0, 1, 0, 0, 0, 2, 0x2a, 0}
			var u Update
			d := NewDecoder(everything, true, NewInterner())
			if err := d.Update(body(nil, nil, raw(0x80, attrReach, append(head, nlri...)...), rawOrigin, rawPath, tt.attr), &u); err != nil {
				t.Fatal(err)
			}
			if len(u.Announced) != 1 {
				t.Fatalf("%+v", u)
			}
			a, n := u.Announced[0].Attributes, u.Announced[0].NLRI[0]
			if n.Label != tt.label || n.Key != KeyOfVPN(rd(t, "1:2"), prefix("2a00::/16")) {
				t.Errorf("route %s, label %#x", n.Key, n.Label)
			}
			sid, err := a.Service().SID(n.Label)
			if tt.reason == "" {
				if err != nil || sid != addr(tt.sid) {
					t.Errorf("SID %s, %v; want %s", sid, err, tt.sid)
				}
				return
			}
			if e := (*RejectedError)(nil); !errors.As(err, &e) || e.Reason != tt.reason || e.Detail == "" || sid.IsValid() {
				t.Errorf("SID %s, %v; want %s", sid, err, tt.reason)
			}
		})
	}
}

func TestNewService(t *testing.T) {
	st := srv6.Structure{Block: 32, Node: 16, Function: 16}
	moved, err := st.Transposed()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		sid   string
		st    srv6.Structure
		label uint32
		attr  []byte
	}{
		{"fcbb:1:1:a::", st, ImplicitNull, prefixSID(goodService)},
		{"fcbb:1:1:a::", moved, 0xa0, prefixSID(l3(sidInfo("fcbb:1:1::", 18, transposed)))},
		{"fcbb:1:1:a::", srv6.Structure{}, ImplicitNull, prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, sidStructure(0, 0, 0, 0, 0, 0))))},
		{"fcbb:1:1:a::", srv6.Structure{Block: 32, Node: 16, Function: 16, TransposeOffset: 48}, ImplicitNull, prefixSID(goodService)},
	} {
		s, label, err := NewService(addr(tt.sid), tt.st, 18)
		if err != nil || label != tt.label || s.PrefixSID() != string(tt.attr[4:]) {
			t.Errorf("%s: label %#x, %x, %v", tt.st, label, s.PrefixSID(), err)
		}
		if sid, err := s.SID(label); err != nil || sid != addr(tt.sid) {
			t.Errorf("%s: read as %s, %v", tt.st, sid, err)
		}
	}
	for _, sid := range []netip.Addr{{}, addr("192.0.2.1"), addr("::ffff:192.0.2.1"), addr("fe80::1%eth0"), addr("ff02::1"), addr("::"), addr("fcbb:1:1:a::1")} {
		if s, _, err := NewService(sid, st, 18); err == nil {
			t.Errorf("service %+v of %s", s, sid)
		}
	}
}
