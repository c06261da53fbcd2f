package mptcp

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

var compareAddrs = cmpopts.EquateComparable(netip.Addr{})

var samples = []Endpoint{
	{Address: netip.MustParseAddr("2001:db8::1"), Signal: true},
	{ID: 7, Address: netip.MustParseAddr("2001:db8::2"), Port: 8080, Signal: true, Backup: true},
	{ID: 255, Address: netip.MustParseAddr("192.0.2.1"), Subflow: true, Fullmesh: true},
	{ID: 1, Address: netip.MustParseAddr("2001:db8::3"), Implicit: true},
}

func TestEndpointRoundTrip(t *testing.T) {
	for _, want := range samples {
		b, err := encodeEndpoint(want, 42)
		if err != nil {
			t.Fatal(err)
		}
		got, index, err := decodeEndpoint(b)
		if err != nil || index != 42 {
			t.Errorf("decode: index %d, %v", index, err)
		}
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Errorf("endpoint (-want +got):\n%s", diff)
		}
	}
}

func TestDecodeEndpointRefuses(t *testing.T) {
	nested := func(fill func(ae *netlink.AttributeEncoder)) []byte {
		b, err := encodeAddr(fill)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		name, says string
		b          []byte
	}{
		{"nothing", "no address attribute", nil},
		{"empty address", "does not belong", nested(func(*netlink.AttributeEncoder) {})},
		{"no family", "does not belong", nested(func(ae *netlink.AttributeEncoder) { ae.Bytes(addrAddr6, make([]byte, 16)) })},
		{"family without address", "does not belong", nested(func(ae *netlink.AttributeEncoder) { ae.Uint16(addrFamily, 10) })},
		{"family of the other", "does not belong", nested(func(ae *netlink.AttributeEncoder) {
			ae.Uint16(addrFamily, 2)
			ae.Bytes(addrAddr6, make([]byte, 16))
		})},
		{"short address", "15 bytes, want 16", nested(func(ae *netlink.AttributeEncoder) { ae.Bytes(addrAddr6, make([]byte, 15)) })},
		{"wide id", "", nested(func(ae *netlink.AttributeEncoder) { ae.Uint16(addrID, 1) })},
		{"cut short", "", []byte{0xff, 0, 1, 0}},
	} {
		if e, _, err := decodeEndpoint(tt.b); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %+v, %v, want an error that says %q", tt.name, e, err, tt.says)
		}
	}
}

func TestLimitsRoundTrip(t *testing.T) {
	want := Limits{Subflows: 8, AddAddrAccepted: 3}
	b, err := encodeLimits(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeLimits(b); err != nil || got != want {
		t.Errorf("limits = %+v, %v, want %+v", got, err, want)
	}
	if _, err := decodeLimits(b[:8]); err == nil {
		t.Error("a missing limit is accepted")
	}
	if _, err := decodeLimits(b[:7]); err == nil {
		t.Error("a cut attribute is accepted")
	}
}

func TestEndpointCheck(t *testing.T) {
	for _, e := range []Endpoint{
		{},
		{Address: netip.MustParseAddr("fe80::1%eth0")},
		{Address: netip.MustParseAddr("::ffff:192.0.2.1")},
		{Address: netip.IPv6Unspecified()},
		{Address: netip.MustParseAddr("ff02::1")},
		{Address: netip.MustParseAddr("2001:db8::1"), Implicit: true},
	} {
		if e.check() == nil {
			t.Errorf("%+v is accepted", e)
		}
	}
	if err := samples[0].check(); err != nil {
		t.Errorf("%+v: %v", samples[0], err)
	}
}

func FuzzDecodeEndpoint(f *testing.F) {
	for _, e := range samples {
		b, err := encodeEndpoint(e, 3)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, index, err := decodeEndpoint(b)
		if err != nil {
			return
		}
		accessor.Call(t, e)
		if !e.Address.IsValid() || e.Address.Zone() != "" {
			t.Fatalf("decoded the address %q", e.Address)
		}
		again, err := encodeEndpoint(e, index)
		if err != nil {
			t.Fatal(err)
		}
		if got, i, err := decodeEndpoint(again); err != nil || got != e || i != index {
			t.Fatalf("decoded %+v on %d, then %+v on %d, %v", e, index, got, i, err)
		}
	})
}

func FuzzDecodeLimits(f *testing.F) {
	b, err := encodeLimits(Limits{Subflows: 8, AddAddrAccepted: 8})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeLimits(b)
		accessor.Call(t, l)
		if err != nil {
			return
		}
		again, err := encodeLimits(l)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeLimits(again); err != nil || got != l {
			t.Fatalf("decoded %+v, then %+v, %v", l, got, err)
		}
	})
}
