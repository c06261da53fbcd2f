package message

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// TestPacking: messages are as long as allowed, and not longer.
func TestPacking(t *testing.T) {
	extended := everything
	extended.ExtendedMessage = true
	r := rand.New(rand.NewPCG(13, 14))
	for _, n := range []Negotiated{everything, extended} {
		for f := range n.Families.All() {
			fields := fullFields(t)
			if f == IPv4Unicast {
				fields.NextHop = addr("192.0.2.1")
			}
			a, e := NewInterner().Intern(fields), NewEncoder(n)
			keys := make([]Key, 20000)
			check := func(what string, b []byte, sent int) {
				if len(b) > n.MaxLen() || len(b)+keys[sent].wireLen() <= n.MaxLen() {
					t.Errorf("%s: %s of %d bytes with %d routes", f, what, len(b), sent)
				}
				if _, length, err := ParseHeader(b, n.MaxLen()); err != nil || length != len(b) {
					t.Errorf("%s: %s: %v", f, what, err)
				}
			}
			// Messages end at different distances from their limit.
			for range 4 {
				nlri := make([]NLRI, len(keys))
				for i := range keys {
					keys[i] = randomKey(r, f)
					nlri[i].Key = keys[i]
				}
				b, sent, err := e.Announce(nil, a, nlri)
				if err != nil {
					t.Fatal(err)
				}
				check("UPDATE", b, sent)
				if again, _, err := e.AnnounceFields(nil, &fields, nlri); err != nil || !bytes.Equal(again, b) {
					t.Errorf("%s: of fields %d bytes, of attributes %d; %v", f, len(again), len(b), err)
				}
				b, sent = e.Withdraw(nil, keys)
				check("withdrawal", b, sent)
			}
		}
	}
}

// TestLabels: RFC 8277 sections 2.2 and 2.4.
func TestLabels(t *testing.T) {
	k := KeyOfVPN(rd(t, "1:2"), prefix("2a00::/16"))
	e := NewEncoder(everything)
	announced, _, err := e.Announce(nil, NewInterner().Intern(fullFields(t)), []NLRI{{k, 0xabcde}})
	if err != nil {
		t.Fatal(err)
	}
	withdrawn, _ := e.Withdraw(nil, []Key{k})
	const rest = "\x00\x00\x00\x01\x00\x00\x00\x02\x2a\x00"
	if !strings.Contains(string(announced), "\x68\xab\xcd\xe1"+rest) || !strings.HasSuffix(string(withdrawn), "\x68\x80\x00\x00"+rest) {
		t.Errorf("announced in\n%x\nwithdrawn in\n%x", announced, withdrawn)
	}
}

// TestAnnounceFails: attributes that leave no room, or a next hop of the wrong family, are refused,
// and nothing is appended.
func TestAnnounceFails(t *testing.T) {
	in := NewInterner()
	v6, v4 := []NLRI{{Key: KeyOf(prefix("2a00::/16"))}}, []NLRI{{Key: KeyOf(prefix("10.0.0.0/8"))}}
	long := Fields{NextHop: addr("2001:db8::1"), UnknownTransitive: "\xf0\xf0\x0f\xe0" + strings.Repeat("x", 0xfe0)}
	classic := long
	classic.NextHop = addr("192.0.2.1")
	for name, tt := range map[string]struct {
		fields Fields
		nlri   []NLRI
	}{
		"too long":                  {long, v6},
		"too long in the NLRI form": {classic, v4},
		"no next hop":               {Fields{}, v6},
		"IPv4 next hop of IPv6":     {Fields{NextHop: addr("192.0.2.1")}, v6},
	} {
		head := []byte("head")
		if b, n, err := NewEncoder(everything).Announce(head, in.Intern(tt.fields), tt.nlri); err == nil || n != 0 || string(b) != "head" {
			t.Errorf("%s: %d routes, %d bytes, %v", name, n, len(b), err)
		}
	}
	extended := everything
	extended.ExtendedMessage = true
	if _, n, err := NewEncoder(extended).Announce(nil, in.Intern(long), v6); err != nil || n != 1 {
		t.Errorf("extended message: %v", err)
	}
}

// TestTwoOctetEncoding decodes what is sent to a neighbor with AS numbers of two octets with GoBGP
// (RFC 6793 section 4.2.2).
func TestTwoOctetEncoding(t *testing.T) {
	n := everything
	n.FourOctetAS = false
	b, _, err := NewEncoder(n).Announce(nil, NewInterner().Intern(fullFields(t)), []NLRI{{Key: KeyOf(prefix("2a00::/16"))}})
	if err != nil {
		t.Fatal(err)
	}
	msg, err := gobgp.ParseBGPMessage(b, &gobgp.MarshallingOption{Use2ByteAS: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, attr := range msg.Body.(*gobgp.BGPUpdate).PathAttributes {
		switch a := attr.(type) {
		case *gobgp.PathAttributeAsPath:
			for _, s := range a.Value {
				got = append(got, fmt.Sprint("path", s.GetAS()))
			}
		case *gobgp.PathAttributeAs4Path:
			for _, s := range a.Value {
				got = append(got, fmt.Sprint("path4", s.GetAS()))
			}
		case *gobgp.PathAttributeAggregator:
			got = append(got, fmt.Sprint("aggregator ", a.Value.AS, a.Value.Address))
		case *gobgp.PathAttributeAs4Aggregator:
			got = append(got, fmt.Sprint("aggregator4 ", a.Value.AS, a.Value.Address))
		}
	}
	want := []string{"path[65001 23456 65003]", "path[65004]", "aggregator 23456 192.0.2.1",
		"path4[65001 4200000000 65003]", "path4[65004]", "aggregator4 4200000000 192.0.2.1"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var kinds []int
	for _, attr := range msg.Body.(*gobgp.BGPUpdate).PathAttributes[1:] {
		kinds = append(kinds, int(attr.GetType()))
	}
	if !slices.IsSorted(kinds) {
		t.Errorf("order of attributes %v", kinds)
	}
}

func TestASPath(t *testing.T) {
	many := make([]uint32, 300)
	for i := range many {
		many[i] = 7
	}
	for _, tt := range []struct {
		path          ASPath
		length        int
		first, origin uint32
		text          string
	}{
		{"", 0, 0, 0, ""},
		{MakeASPath(1, 2), 2, 1, 2, "1 2"},
		{MakeASPath(1) + MakeASPath(8, 9), 3, 1, 9, "1 8 9"},
		{MakeASPath(2).Prepend(1, 2), 3, 1, 2, "1 1 2"},
		{ASPath("").Prepend(1, 1), 1, 1, 1, "1"},
		{MakeASPath(many...), 300, 7, 7, strings.TrimSuffix(strings.Repeat("7 ", 300), " ")},
		{MakeASPath(many[:255]...).Prepend(1, 2), 257, 1, 7, "1 1 " + strings.TrimSuffix(strings.Repeat("7 ", 255), " ")},
		{MakeASPath(many[:250]...).Prepend(1, 5), 255, 1, 7, "1 1 1 1 1 " + strings.TrimSuffix(strings.Repeat("7 ", 250), " ")},
	} {
		p := tt.path
		if p.Len() != tt.length || p.First() != tt.first || p.Origin() != tt.origin || p.String() != tt.text {
			t.Errorf("%.40s: length %d, first %d, origin %d", p, p.Len(), p.First(), p.Origin())
		}
		if malformed := malformedPath([]byte(p), 4); malformed != "" {
			t.Errorf("%.40s: %s", p, malformed)
		}
	}
	if p := MakeASPath(many[:255]...).Prepend(1, 2); p[1] != 2 {
		t.Errorf("prepended to a full segment, which became one of %d", p[1])
	}
	p := MakeASPath(1) + MakeASPath(8, 9)
	if !p.Contains(1) || !p.Contains(9) || p.Contains(2) || !slices.Equal(p.Flat(), []uint32{1, 8, 9}) {
		t.Errorf("%s: contains other AS numbers", p)
	}
}

func TestKey(t *testing.T) {
	keys := []Key{
		KeyOf(prefix("0.0.0.0/0")), KeyOf(prefix("10.0.0.0/8")), KeyOf(prefix("10.0.0.0/9")), KeyOf(prefix("192.0.2.1/32")),
		KeyOf(prefix("::/0")), KeyOf(prefix("::/64")), KeyOf(prefix("2001:db8::/32")), KeyOf(prefix("2001:db8::1/128")),
		KeyOfVPN(rd(t, "1:2"), prefix("10.0.0.0/8")), KeyOfVPN(rd(t, "1:3"), prefix("10.0.0.0/8")),
		KeyOfVPN(rd(t, "1:2"), prefix("2001:db8::/32")), KeyOfVPN(rd(t, "10.0.0.1:2"), prefix("::/0")), KeyOfVPN(rd(t, "0.1:2"), prefix("::/0")),
	}
	for i, k := range keys {
		checkKey(t, k)
		for j, other := range keys {
			if got := k.Compare(other); (got < 0) != (i < j) || (got == 0) != (i == j) || (k == other) != (i == j) {
				t.Errorf("Compare(%s, %s) = %d", k, other, got)
			}
		}
	}
	if KeyOf(prefix("2001:db8::1/32")) != KeyOf(prefix("2001:db8::/32")) {
		t.Error("host bits count")
	}
	if (Key{}).IsValid() {
		t.Error("the zero key is valid")
	}
	if got := keys[12].String(); got != "0.1:2 ::/0" {
		t.Errorf("printed as %s", got)
	}
}
