package srv6

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func locator(prefix string, block, function uint8) Locator {
	var p netip.Prefix
	if prefix != "" {
		p = netip.MustParsePrefix(prefix)
	}
	return Locator{Prefix: p, Block: block, Function: function}
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("got error %v", err)
	case want != "" && err == nil:
		t.Fatalf("got no error, want one with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Fatalf("got error %q, want one with %q", err, want)
	}
}

func TestLocatorCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		l    Locator
		want string
	}{
		{"usual", locator("2001:db8:1::/48", 32, 16), ""},
		{"block is the whole prefix", locator("fcbb:bb00::/32", 32, 16), ""},
		{"full", locator("2001:db8:1:2:3:4::/96", 32, 32), ""},
		{"none", locator("", 32, 16), "no prefix"},
		{"ipv4", locator("192.0.2.0/24", 16, 8), "not an IPv6"},
		{"mapped", locator("::ffff:192.0.2.0/120", 16, 8), "not an IPv6"},
		{"host bits", locator("2001:db8::1/48", 32, 16), "host bits set"},
		{"everything", locator("::/0", 1, 16), "whole address space"},
		{"multicast", locator("ff00::/16", 8, 16), "not unicast"},
		{"link-local", locator("fe80::/64", 8, 16), "not unicast"},
		{"no block", locator("2001:db8:1::/48", 0, 16), "block length must be"},
		{"long block", locator("2001:db8:1::/48", 49, 16), "longer than the prefix"},
		{"no function", locator("2001:db8:1::/48", 32, 0), "function length must be > 0"},
		{"long function", locator("2001:db8:1::/48", 32, 33), "function length must be <= 32"},
		{"no room", locator("2001:db8::/112", 32, 17), "no room"},
	} {
		t.Run(c.name, func(t *testing.T) { wantError(t, c.l.Check(), c.want) })
	}
}

func TestSID(t *testing.T) {
	for _, c := range []struct {
		l        Locator
		function uint32
		sid      string
		want     string
	}{
		// RFC 8986 section 3.2: LOC:FUNCT:ARG with the function right after the locator.
		{locator("2001:db8:b:1::/64", 48, 16), 0x100, "2001:db8:b:1:100::", ""},
		{locator("2001:db8:1::/48", 32, 16), 1, "2001:db8:1:1::", ""},
		{locator("2001:db8:1::/48", 32, 16), 0xffff, "2001:db8:1:ffff::", ""},
		{locator("2001:db8:1::/52", 32, 12), 0xabc, "2001:db8:1:abc::", ""},
		{locator("2001:db8:1:2:3:4::/96", 32, 32), 0xffffffff, "2001:db8:1:2:3:4:ffff:ffff", ""},
		{locator("2001:db8:1::/48", 32, 16), 0, "", "must be > 0"},
		{locator("2001:db8:1::/48", 32, 16), 0x10000, "", "does not fit into 16 bits"},
		{locator("2001:db8:1::/48", 0, 16), 1, "", "block length"},
	} {
		got, err := c.l.SID(c.function)
		wantError(t, err, c.want)
		if c.want != "" {
			continue
		}
		if got != netip.MustParseAddr(c.sid) {
			t.Errorf("%v function %#x: got %s, want %s", c.l, c.function, got, c.sid)
		}
		if back := functionOf(c.l, got); back != c.function {
			t.Errorf("function of %s: got %#x, want %#x", got, back, c.function)
		}
	}
}

// functionOf is the inverse of Locator.SID.
func functionOf(l Locator, sid netip.Addr) (function uint32) {
	a := sid.As16()
	for i := range int(l.Function) {
		function <<= 1
		if bit(a, l.Prefix.Bits()+i) {
			function |= 1
		}
	}
	return function
}

func TestOverlaps(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"2001:db8:1::/48", "2001:db8:1::/48", true},
		{"2001:db8:1::/48", "2001:db8:1:8000::/49", true},
		{"2001:db8:1::/48", "2001:db8:2::/48", false},
	} {
		a, b := locator(c.a, 32, 16), locator(c.b, 32, 16)
		if got := a.Overlaps(b); got != c.want {
			t.Errorf("%s overlaps %s: got %t", c.a, c.b, got)
		}
		if got := b.Overlaps(a); got != c.want {
			t.Errorf("%s overlaps %s: got %t", c.b, c.a, got)
		}
	}
}

func TestStructureCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Structure
		want string
	}{
		{"usual", Structure{32, 16, 16, 0, 0, 0}, ""},
		{"usual, transposed", Structure{32, 16, 16, 0, 16, 48}, ""},
		{"whole sid", Structure{40, 24, 16, 48, 20, 64}, ""},
		{"argument transposed", Structure{32, 16, 16, 16, 16, 64}, ""},
		{"unknown", Structure{}, ""},
		{"offset without length", Structure{32, 16, 16, 0, 0, 200}, ""},
		{"too long", Structure{64, 32, 16, 17, 0, 0}, "add up to 129"},
		{"overflowing lengths", Structure{255, 255, 255, 255, 0, 0}, "add up to 1020"},
		{"longer than a label", Structure{32, 16, 32, 0, 21, 48}, "a label has 20"},
		{"past the sid", Structure{64, 32, 16, 16, 20, 120}, "ends at bit 140"},
		{"longer than the function", Structure{32, 16, 8, 4, 16, 48}, "function and argument have 12"},
		{"in the locator", Structure{32, 16, 16, 0, 16, 32}, "outside function and argument"},
		{"past the argument", Structure{32, 16, 16, 0, 16, 56}, "outside function and argument"},
	} {
		t.Run(c.name, func(t *testing.T) { wantError(t, c.s.Check(), c.want) })
	}
}

func TestTranspose(t *testing.T) {
	for _, c := range []struct {
		name          string
		sid, stripped string
		s             Structure
		label         uint32
	}{
		// RFC 9252 section 4: the transposed bits fill the label from its highest bit.
		{"16 bit function", "2001:db8:1:2::", "2001:db8:1::", Structure{32, 16, 16, 0, 16, 48}, 0x00020},
		{"16 bit function, high bit", "2001:db8:1:8000::", "2001:db8:1::", Structure{32, 16, 16, 0, 16, 48}, 0x80000},
		{"20 bit function", "2001:db8:1:abcd:e000::", "2001:db8:1::", Structure{32, 16, 20, 0, 20, 48}, 0xabcde},
		{"not on a byte", "2001:db8:1:abc::", "2001:db8:1::", Structure{32, 20, 12, 0, 12, 52}, 0xabc00},
		{"not transposed", "2001:db8:1:2::", "2001:db8:1:2::", Structure{32, 16, 16, 0, 0, 0}, 0},
		{"part of the function", "2001:db8:1:1234::", "2001:db8:1:1200::", Structure{32, 16, 16, 0, 8, 56}, 0x34000},
	} {
		t.Run(c.name, func(t *testing.T) {
			stripped, label, err := Transpose(netip.MustParseAddr(c.sid), c.s)
			if err != nil {
				t.Fatal(err)
			}
			if stripped != netip.MustParseAddr(c.stripped) || label != c.label {
				t.Errorf("got %s, label %#x, want %s, %#x", stripped, label, c.stripped, c.label)
			}
			back, err := Restore(stripped, label, c.s)
			if err != nil || back != netip.MustParseAddr(c.sid) {
				t.Errorf("restored to %s, %v, want %s", back, err, c.sid)
			}
		})
	}
}

func TestRestoreTolerance(t *testing.T) {
	s := Structure{32, 16, 16, 0, 16, 48}
	want := netip.MustParseAddr("2001:db8:1:2::")
	// Other speakers change the bits of the label that carry nothing, or leave the function in
	// the SID.
	for _, c := range []struct {
		sid   string
		label uint32
	}{{"2001:db8:1::", 0x0002f}, {"2001:db8:1:2::", 0x00020}, {"2001:db8:1:ffff::", 0x00020}} {
		if got, err := Restore(netip.MustParseAddr(c.sid), c.label, s); err != nil || got != want {
			t.Errorf("restore %s, %#x: got %s, %v", c.sid, c.label, got, err)
		}
	}
}

func TestTransposeRefuses(t *testing.T) {
	ok := Structure{32, 16, 16, 0, 16, 48}
	bad := Structure{32, 16, 16, 0, 21, 48}
	sid := netip.MustParseAddr("2001:db8:1:2::")
	for _, c := range []struct {
		name string
		sid  netip.Addr
		s    Structure
		want string
	}{
		{"structure", sid, bad, "a label has 20"},
		{"no address", netip.Addr{}, ok, "not an IPv6"},
		{"ipv4", netip.MustParseAddr("192.0.2.1"), ok, "not an IPv6"},
		{"mapped", netip.MustParseAddr("::ffff:192.0.2.1"), ok, "not an IPv6"},
		{"bits outside", netip.MustParseAddr("2001:db8:1:2::1"), ok, "bits set after the 64 bits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Transpose(c.sid, c.s)
			wantError(t, err, c.want)
			_, err = Restore(c.sid, 0, c.s)
			wantError(t, err, c.want)
		})
	}
	_, err := Restore(sid, 1<<20, ok)
	wantError(t, err, "longer than 20 bits")
	_, err = ok.Transposed()
	wantError(t, err, "already transposed")
	_, err = Structure{Block: 32, Node: 16, Function: 32}.Transposed()
	wantError(t, err, "a label has 20")
}

func TestRestoreInvertsTranspose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.IntRange(1, 64).Draw(t, "block")
		node := rapid.IntRange(0, 128-block).Draw(t, "node")
		function := rapid.IntRange(0, 128-block-node).Draw(t, "function")
		argument := rapid.IntRange(0, 128-block-node-function).Draw(t, "argument")
		length := rapid.IntRange(0, min(20, function+argument)).Draw(t, "transposed")
		offset := rapid.IntRange(block+node, block+node+function+argument-length).Draw(t, "offset")
		s := Structure{uint8(block), uint8(node), uint8(function), uint8(argument), uint8(length), uint8(offset)}

		a := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "sid"))
		for i := s.bits(); i < addressBits; i++ {
			setBit(&a, i, false)
		}
		sid := netip.AddrFrom16(a)
		if sid.Is4In6() {
			t.Skip("not a sid")
		}
		stripped, label, err := Transpose(sid, s)
		if err != nil {
			t.Fatal(err)
		}
		if stripped.Is4In6() {
			t.Skip("not a sid")
		}
		noise := rapid.Uint32Range(0, 1<<(20-length)-1).Draw(t, "noise")
		back, err := Restore(stripped, label|noise, s)
		if err != nil {
			t.Fatal(err)
		}
		if back != sid {
			t.Fatalf("%s, structure %s: label %#x, stripped %s, restored %s", sid, s, label, stripped, back)
		}
	})
}

func TestLocatorRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(8, 120).Draw(t, "bits")
		function := rapid.IntRange(1, min(32, 128-bits)).Draw(t, "function bits")
		a := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "prefix"))
		a[0] = 0x20
		l := Locator{Prefix: netip.PrefixFrom(netip.AddrFrom16(a), bits).Masked(), Block: 8, Function: uint8(function)}
		f := rapid.Uint32Range(1, uint32(uint64(1)<<function-1)).Draw(t, "function")
		sid, err := l.SID(f)
		if err != nil {
			t.Fatal(err)
		}
		if !l.Prefix.Contains(sid) {
			t.Fatalf("%s is outside %s", sid, l.Prefix)
		}
		if back := functionOf(l, sid); back != f {
			t.Fatalf("%s: got function %#x, want %#x", sid, back, f)
		}
	})
}
