package vpn_test

import (
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"65000:101", "65000:101"},
		{"0:4294967295", "0:4294967295"},
		{"10.0.0.1:7", "10.0.0.1:7"},
		{"4200000000:7", "4200000000:7"},
		{"64086.59904:7", "4200000000:7"},
		{"0.65000:7", "0.65000:7"},
	} {
		id, err := vpn.Parse(tc.in)
		if err != nil {
			t.Errorf("Parse(%q): %v", tc.in, err)
			continue
		}
		if got := id.String(); got != tc.want || !id.IsValid() {
			t.Errorf("Parse(%q) = %q, valid %v; want %q", tc.in, got, id.IsValid(), tc.want)
		}
	}
}

func TestParseRejects(t *testing.T) {
	for _, in := range []string{
		"", ":", "65000", "65000:", ":1", "65000:4294967296", "70000:65536", "4294967296:1", "10.0.0.1:65536",
		"65000:-1", "65000:+1", "065000:1", "65000:1:2", "fc00::1:1", "1.2.3:4", "65536.1:1", " 65000:1", "65000:0x10",
	} {
		if id, err := vpn.Parse(in); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", in, id)
		}
	}
}

func TestSameNumbersOfDifferentKindsDiffer(t *testing.T) {
	two, _ := vpn.Parse("65000:7")
	four, _ := vpn.Parse("0.65000:7")
	if two == four {
		t.Errorf("%v and %v differ on the wire but are equal", two, four)
	}
}

func TestFromAddress(t *testing.T) {
	id, err := vpn.FromAddress(netip.MustParseAddr("10.0.0.1"), 7)
	if err != nil || id.String() != "10.0.0.1:7" {
		t.Errorf("FromAddress = %v, %v", id, err)
	}
	if _, err := vpn.FromAddress(netip.MustParseAddr("fc00::1"), 7); err == nil {
		t.Error("an IPv6 router ID was accepted")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("65000:101")
	f.Add("64086.59904:7")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := vpn.Parse(s)
		if err != nil {
			return
		}
		accessor.Call(t, id)
		if again, err := vpn.Parse(id.String()); err != nil || again != id {
			t.Errorf("Parse(%q) = %v, read back %v, %v", s, id, again, err)
		}
	})
}

// TestWire has the wire formats of RFC 4364 section 4.2 and RFC 4360 section 4.
func TestWire(t *testing.T) {
	for _, tc := range []struct {
		id                    string
		distinguisher, target uint64
	}{
		{"65000:101", 0x0000_fde8_00000065, 0x0002_fde8_00000065},
		{"10.0.0.1:7", 0x0001_0a000001_0007, 0x0102_0a000001_0007},
		{"4200000000:7", 0x0002_fa56ea00_0007, 0x0202_fa56ea00_0007},
		{"0.65000:7", 0x0002_0000fde8_0007, 0x0202_0000fde8_0007},
	} {
		id, err := vpn.Parse(tc.id)
		if err != nil {
			t.Fatal(err)
		}
		if got := id.Distinguisher(); got != tc.distinguisher {
			t.Errorf("%s: distinguisher %016x, want %016x", tc.id, got, tc.distinguisher)
		}
		if got := id.Target(); got != tc.target {
			t.Errorf("%s: target %016x, want %016x", tc.id, got, tc.target)
		}
		if got, ok := vpn.FromDistinguisher(tc.distinguisher); !ok || got != id {
			t.Errorf("%s: distinguisher read back as %s, %t", tc.id, got, ok)
		}
		if got, ok := vpn.FromTarget(tc.target); !ok || got != id {
			t.Errorf("%s: target read back as %s, %t", tc.id, got, ok)
		}
	}
	if id, ok := vpn.FromDistinguisher(3 << 48); ok {
		t.Errorf("distinguisher of type 3 read as %s", id)
	}
	for _, wire := range []uint64{0x0003_fde8_00000065, 0x4002_fde8_00000065, 0x0302_000000000000} {
		if id, ok := vpn.FromTarget(wire); ok {
			t.Errorf("%016x read as target %s", wire, id)
		}
	}
}
