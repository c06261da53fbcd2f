package edge

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
)

// A path has the RD "10.0.0.N:1" and the SID fc00:N:1:: of ASBR N.
func asbrPath(n string, a bgp.Attributes) egressPath {
	return egressPath{rd: id("10.0.0." + n + ":1"), sid: netip.MustParseAddr("fc00:" + n + ":1::"), preference: preferenceOf(a)}
}

func TestSelectionBetweenASBRs(t *testing.T) {
	path := func(asns ...uint32) bgp.Attributes { return bgp.Attributes{ASPath: message.MakeASPath(asns...)} }
	med := func(med uint32, asns ...uint32) bgp.Attributes {
		return bgp.Attributes{ASPath: message.MakeASPath(asns...), MED: med, HasMED: true}
	}
	preferred := path(1, 2, 3)
	preferred.LocalPref = 200
	usual := path(1)
	usual.LocalPref = 100
	egp, incomplete := path(1), path(1)
	egp.Origin, incomplete.Origin = message.OriginEGP, message.OriginIncomplete
	draining := path(1)
	draining.LocalPref, draining.Communities = 300, []uint32{7, bgp.GracefulShutdown}
	for _, tt := range []struct {
		name    string
		paths   []egressPath // best first
		reasons []string
	}{
		{"alone", []egressPath{asbrPath("1", path())}, []string{"only path"}},
		{"LOCAL_PREF before the AS path", []egressPath{asbrPath("9", preferred), asbrPath("1", path(1))},
			[]string{"higher LOCAL_PREF (200 > 100)", "best path has higher LOCAL_PREF (200 > 100)"}},
		{"an absent LOCAL_PREF is 100", []egressPath{asbrPath("1", path(1)), asbrPath("2", usual)},
			[]string{"lower SID (fc00:1:1:: < fc00:2:1::)", "best path has lower SID (fc00:1:1:: < fc00:2:1::)"}},
		{"draining before LOCAL_PREF", []egressPath{asbrPath("9", path(1)), asbrPath("1", draining)},
			[]string{"an ASBR that is not draining", "best path has an ASBR that is not draining"}},
		{"AS path before MED", []egressPath{asbrPath("9", med(50, 1)), asbrPath("1", med(10, 1, 1))},
			[]string{"shorter AS_PATH (1 < 2)", "best path has shorter AS_PATH (1 < 2)"}},
		{"ORIGIN", []egressPath{asbrPath("9", path(1)), asbrPath("5", egp), asbrPath("1", incomplete)},
			[]string{"lower ORIGIN (IGP before EGP)", "best path has lower ORIGIN (IGP before EGP)", "best path has lower ORIGIN (IGP before incomplete)"}},
		{"AS path before ORIGIN", []egressPath{asbrPath("9", incomplete), asbrPath("1", path(1, 1))},
			[]string{"shorter AS_PATH (1 < 2)", "best path has shorter AS_PATH (1 < 2)"}},
		{"ORIGIN before MED", []egressPath{asbrPath("9", med(50, 1)), asbrPath("1", egp)},
			[]string{"lower ORIGIN (IGP before EGP)", "best path has lower ORIGIN (IGP before EGP)"}},
		{"MED of one neighbor AS", []egressPath{asbrPath("9", path(1, 5)), asbrPath("1", med(10, 1, 6))},
			[]string{"lower MED (0 < 10)", "best path has lower MED (0 < 10)"}},
		{"MEDs of two neighbor ASes", []egressPath{asbrPath("1", med(50, 2, 5)), asbrPath("9", med(10, 1, 5))},
			[]string{"lower SID (fc00:1:1:: < fc00:9:1::)", "best path has lower SID (fc00:1:1:: < fc00:9:1::)"}},
		// Pairwise, 1 is preferred to 2, 2 to 3, and 3 to 1.
		{"MEDs that make a circle", []egressPath{asbrPath("2", med(5, 8, 5)), asbrPath("3", med(10, 7, 5)), asbrPath("1", med(20, 7, 5))},
			[]string{"lower SID (fc00:2:1:: < fc00:3:1::)", "best path has lower SID (fc00:2:1:: < fc00:3:1::)",
				"path through SID fc00:3:1:: has lower MED (10 < 20)"}},
		// As text, 10.0.0.10:1 and fc00:10:1:: are lower.
		{"the SID as a number", []egressPath{asbrPath("9", path(1)), asbrPath("10", path(1))},
			[]string{"lower SID (fc00:9:1:: < fc00:10:1::)", "best path has lower SID (fc00:9:1:: < fc00:10:1::)"}},
		{"one step for several", []egressPath{asbrPath("7", usual), asbrPath("8", usual), asbrPath("1", path(1, 2))},
			[]string{"lower SID (fc00:7:1:: < fc00:8:1::)", "best path has lower SID (fc00:7:1:: < fc00:8:1::)", "best path has shorter AS_PATH (1 < 2)"}},
	} {
		for range 10 {
			got := slices.Clone(tt.paths)
			rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
			rank(got)
			if !slices.Equal(got, tt.paths) {
				t.Errorf("%s: order %v, want %v", tt.name, got, tt.paths)
			}
		}
		check(t, explain(tt.paths), tt.reasons...)
	}
}

// The order of the paths does not depend on the order in which they were received, and the best
// path without the first one is the second one.
func TestPropertyRankIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var paths []egressPath
		for i := range rapid.IntRange(2, 6).Draw(t, "paths") {
			small := rapid.Uint32Range(0, 2)
			a := bgp.Attributes{LocalPref: small.Draw(t, "pref"), MED: small.Draw(t, "med"), Origin: message.Origin(small.Draw(t, "origin")), ASPath: message.MakeASPath(small.Draw(t, "as"))}
			h := asbrPath(string(rune('1'+i)), a)
			h.sid = netip.AddrFrom16([16]byte{0xfc, 15: byte(small.Draw(t, "sid"))})
			paths = append(paths, h)
		}
		shuffled := rapid.Permutation(paths).Draw(t, "order")
		rank(paths)
		rank(shuffled)
		if !slices.Equal(paths, shuffled) {
			t.Fatalf("%v and %v", paths, shuffled)
		}
		if next := eliminate(paths[1:], nil); next != paths[1] {
			t.Errorf("without %v, %v is the best of %v", paths[0], next, paths)
		}
		for i, reason := range explain(paths) {
			if reason == "" {
				t.Errorf("no reason for %v", paths[i])
			}
		}
	})
}
