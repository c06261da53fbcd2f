package message

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// FuzzUpdate decodes arbitrary UPDATEs. What is accepted must be encoded again to the same, and
// must be what GoBGP decodes.
func FuzzUpdate(f *testing.F) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 50 {
		f.Add(randomUpdate(f, r, everything), true, true)
	}
	for _, c := range prefixSIDCases {
		f.Add(body(nil, nil, rawReach, rawOrigin, rawPath, c.attr), true, true)
	}
	f.Add(body(rawV4, rawV4, rawReach, rawUnreach, rawOrigin, rawPath, rawNextHop), false, true)
	f.Add(body(nil, rawV4, rawOrigin, raw(0x40, attrASPath, 2, 1, 0xfd, 0xe9), rawNextHop, raw(0xc0, attrAS4Path, 2, 1, 0, 1, 0, 0)), true, false)
	f.Fuzz(func(t *testing.T, b []byte, internal, fourOctet bool) {
		if len(b) < 4 || len(b) > MaxLen-HeaderLen {
			return
		}
		n := everything
		n.FourOctetAS = fourOctet
		in := NewInterner()
		d := NewDecoder(n, internal, in)
		var u Update
		original := bytes.Clone(b)
		if err := d.Update(b, &u); err != nil {
			if e := (*Error)(nil); !errors.As(err, &e) || e.Code != CodeUpdate || e.Detail == "" {
				t.Fatalf("error %v", err)
			}
			return
		}
		accessor.Call(t, &u)
		if !bytes.Equal(original, b) {
			t.Fatal("the message was changed")
		}
		if fourOctet && internal {
			compare(t, fourOctet, b)
		}
		for _, k := range u.Withdrawn {
			checkKey(t, k)
		}
		announced, encoder := slices.Clone(u.Announced), NewEncoder(everything)
		for i := range announced {
			announced[i].NLRI = slices.Clone(announced[i].NLRI)
		}
		d = NewDecoder(everything, true, in)
		for _, a := range announced {
			if len(a.NLRI) == 0 {
				t.Fatal("attributes without destinations")
			}
			if again := in.Intern(a.Attributes.Fields()); again != a.Attributes {
				t.Fatalf("%+v\nbecame %+v", a.Attributes.Fields(), again.Fields())
			}
			checkAccessors(t, a.Attributes)
			for _, r := range a.NLRI {
				checkKey(t, r.Key)
				if sid, err := a.Attributes.Service().SID(r.Label); err == nil && (!sid.Is6() || sid.Is4In6() || !sid.IsGlobalUnicast() ||
					a.Attributes.Service().Structure.CheckSID(sid) != nil) {
					t.Fatalf("SID %s of %+v", sid, a.Attributes.Service())
				}
			}
			for left := a.NLRI; len(left) > 0; {
				message, sent, err := encoder.Announce(nil, a.Attributes, left)
				if err != nil {
					// AS numbers of two octets become four, and lengths too.
					if a.Attributes.Size() < MaxLen/2 {
						t.Fatal(err)
					}
					return
				}
				if err := d.Update(message[HeaderLen:], &u); err != nil || len(u.Announced) != 1 || len(u.Faults) > 0 {
					t.Fatalf("%x: %v, %+v", message, err, u)
				}
				if again := u.Announced[0]; again.Attributes != a.Attributes || !slices.Equal(again.NLRI, left[:sent]) {
					t.Fatalf("%+v\nbecame %+v", a.Attributes.Fields(), again.Attributes.Fields())
				}
				left = left[sent:]
			}
		}
	})
}

// checkKey checks that the key is in the form of KeyOf or KeyOfVPN.
func checkKey(t *testing.T, k Key) {
	t.Helper()
	again := KeyOf(k.Prefix())
	if k.Family().VPN() {
		again = KeyOfVPN(k.RD(), k.Prefix())
	}
	if again != k || !k.IsValid() || k.Compare(again) != 0 {
		t.Fatalf("key %v is not %v", k, again)
	}
}

// FuzzOpen decodes arbitrary OPENs. What is accepted must be encoded again to the same.
func FuzzOpen(f *testing.F) {
	f.Add(openBody(0))
	f.Add(openBody(255, 255, 0, 9, 2, 0, 6, 1, 4, 0, 2, 0, 1))
	full := Open{ASN: 4200000000, HoldTime: 9, RouterID: addr("10.0.0.1"), Capabilities: Capabilities{
		Families: Families(IPv4Unicast, VPNv6), ExtendedNextHop: Families(VPNv4), FourOctetAS: true, RouteRefresh: true,
		Restart: Restart{Advertised: true, Families: Families(IPv6Unicast)},
	}}
	f.Add(full.Append(nil)[HeaderLen:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 10 {
			return
		}
		o, err := ParseOpen(b)
		if err != nil {
			if e := (*Error)(nil); !errors.As(err, &e) || e.Code != CodeOpen {
				t.Fatalf("error %v", err)
			}
			accessor.Call(t, err)
			return
		}
		accessor.Call(t, o, Negotiate(o, o))
		if again, err := ParseOpen(o.Append(nil)[HeaderLen:]); err != nil || again != o {
			t.Fatalf("%+v became %+v, %v", o, again, err)
		}
	})
}

// FuzzNotification prints arbitrary NOTIFICATIONs and decodes arbitrary ROUTE-REFRESHs.
func FuzzNotification(f *testing.F) {
	f.Add(Shutdown(SubcodeShutdown, "maintenance").Append(nil)[HeaderLen:])
	f.Add(Refresh{VPNv6, RefreshEnd}.Append(nil)[HeaderLen:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 2 {
			return
		}
		n := ParseNotification(b)
		accessor.Call(t, n)
		if !utf8.ValidString(n.Communication()) || n.String() == "" {
			t.Fatalf("%+v printed as %q", n, n)
		}
		if len(b) < refreshLen {
			return
		}
		r, known, err := ParseRefresh(b)
		accessor.Call(t, r, err)
		if known && err == nil && len(b) == refreshLen && !bytes.Equal(r.Append(nil)[HeaderLen:], b) {
			t.Fatalf("%x became %+v", b, r)
		}
	})
}
