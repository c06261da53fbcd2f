package message

import (
	_ "embed"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

//go:embed testdata/frr.txt
var capturedPE string

//go:embed testdata/reflected.txt
var capturedReflected string

// vpnUpdate is what an UPDATE with VPN routes says.
type vpnUpdate struct {
	nextHop    string
	path       string
	pref       uint32
	originator string
	structure  srv6.Structure
	behavior   uint16
	target     string
	routes     string // with label and SID
}

// TestCapturedFromFRR: VPN routes with and without transposition, as FRR sends them.
func TestCapturedFromFRR(t *testing.T) {
	moved := srv6.Structure{Block: 40, Node: 24, Function: 16, TransposeLen: 16, TransposeOffset: 64}
	checkCaptured(t, capturedPE, map[string]vpnUpdate{
		"transposed-vpnv6": {"fd00:ff::1", "", 100, "", moved, 0xffff, "65000:101",
			"65000:6 2001:db8:c::/64 0x02000 fcbb:0:1:1:200::, 65000:6 2001:db8:d::/48 0x02000 fcbb:0:1:1:200::"},
		"transposed-vpnv4": {"10.0.0.1", "", 100, "", moved, 0xffff, "65000:101", "65000:4 198.51.100.0/24 0x01000 fcbb:0:1:1:100::"},
		"reflected-vpnv6": {"fd00:2::3", "65001 65003", 100, "10.0.0.3", srv6.Structure{Block: 32, Node: 16, Function: 16}, 0xffff, "65000:101",
			"10.0.0.1:7 2001:db8:e::/48 0x00003 fcbb:0:1:e001::"},
	})
}

// TestCapturedFromReflectors: our own VPN routes, with and without transposition, as reflectors of
// others pass them on.
func TestCapturedFromReflectors(t *testing.T) {
	full := srv6.Structure{Block: 16, Node: 16, Function: 16}
	moved := full
	moved.TransposeLen, moved.TransposeOffset = 16, 32
	want := map[string]vpnUpdate{}
	for _, reflector := range []string{"bird", "gobgp", "frr"} {
		dt6, dt4 := uint16(18), uint16(19) // End.DT6 and End.DT4
		if reflector == "frr" {
			dt6, dt4 = 0xffff, 0xffff
		}
		want[reflector+"-full-vpnv6"] = vpnUpdate{"2001:db8:1::1", "65001 65003", 200, "10.0.0.1", full, dt6, "65000:101", "10.0.0.1:1 2001:db8:c::/64 0x00003 fc00:1:1::"}
		want[reflector+"-full-vpnv4"] = vpnUpdate{"2001:db8:1::1", "65001 65003", 200, "10.0.0.1", full, dt4, "65000:101", "10.0.0.1:257 10.12.0.0/24 0x00003 fc00:1:101::"}
		want[reflector+"-transposed-vpnv6"] = vpnUpdate{"2001:db8:1::2", "65002 65003", 100, "10.0.0.2", moved, dt6, "65000:102", "10.0.0.2:1 2001:db8:c::/64 0x00010 fc00:2:1::"}
		want[reflector+"-transposed-vpnv4"] = vpnUpdate{"2001:db8:1::2", "65002 65003", 100, "10.0.0.2", moved, dt4, "65000:102", "10.0.0.2:257 10.12.0.0/24 0x01010 fc00:2:101::"}
	}
	checkCaptured(t, capturedReflected, want)
}

// checkCaptured decodes the UPDATEs of a file, each of which is wanted.
func checkCaptured(t *testing.T, captured string, want map[string]vpnUpdate) {
	t.Helper()
	for line := range strings.Lines(captured) {
		name, text, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			if _, length, err := ParseHeader(b, MaxLen); err != nil || length != len(b) {
				t.Fatalf("%d bytes, length %d, %v", len(b), length, err)
			}
			var u Update
			if err := NewDecoder(everything, true, NewInterner()).Update(b[HeaderLen:], &u); err != nil || len(u.Announced) != 1 || len(u.Faults) > 0 {
				t.Fatalf("%+v, %v", u, err)
			}
			w, a := want[name], u.Announced[0].Attributes
			delete(want, name)
			var routes []string
			for _, n := range u.Announced[0].NLRI {
				sid, err := a.Service().SID(n.Label)
				if err != nil {
					t.Error(err)
				}
				routes = append(routes, fmt.Sprintf("%s %#05x %s", n.Key, n.Label, sid))
			}
			if got := strings.Join(routes, ", "); got != w.routes {
				t.Errorf("routes %s\nwant %s", got, w.routes)
			}
			pref, _ := a.LocalPref()
			originator, _ := netip.ParseAddr(w.originator)
			if a.NextHop() != addr(w.nextHop) || a.ASPath().String() != w.path || pref != w.pref || a.OriginatorID() != originator ||
				a.Service().Structure != w.structure || a.Service().Behavior != w.behavior || !slices.Equal(a.Targets(), []vpn.ID{rd(t, w.target)}) {
				t.Errorf("attributes %+v, %s", a.Fields(), a.Service().Structure)
			}
			if !compare(t, true, b[HeaderLen:]) {
				t.Error("GoBGP does not accept it")
			}
		})
	}
	if len(want) > 0 {
		t.Errorf("not in the file: %v", want)
	}
}
