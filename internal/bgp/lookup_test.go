package bgp

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// TestDecision: the step that decides between two paths is named with both values.
func TestDecision(t *testing.T) {
	s, err := New(Options{ASN: 65000, RouterID: addr("10.0.0.9"), NoListen: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	source := func(p rib.Peer) rib.Source { return s.rib.AddSource(p) }
	first := source(rib.Peer{External: true, RouterID: addr("10.0.0.1"), Address: addr("fd00::1")})
	second := source(rib.Peer{External: true, RouterID: addr("10.0.0.1"), Address: addr("fd00::2")})
	third := source(rib.Peer{External: true, RouterID: addr("10.0.0.2"), Address: addr("fd00::3")})
	internal := source(rib.Peer{RouterID: addr("10.0.0.1"), Address: addr("fd00::4")})
	path := func(from rib.Source, change func(*message.Fields)) rib.Path {
		var f message.Fields
		if change != nil {
			change(&f)
		}
		id := s.rib.Hold(s.interner.Intern(f))
		return rib.Path{Received: id, Accepted: id, Source: from}
	}
	as := func(med uint32, list ...uint32) func(*message.Fields) {
		return func(f *message.Fields) { f.ASPath, f.MED, f.HasMED = message.MakeASPath(list...), med, med > 0 }
	}
	for want, c := range map[string][2]rib.Path{
		"higher LOCAL_PREF (200 > 100)":        {path(first, func(f *message.Fields) { f.LocalPref, f.HasLocalPref = 200, true }), path(second, nil)},
		"local origin":                         {path(rib.Local, nil), path(first, nil)},
		"shorter AS_PATH (1 < 2)":              {path(first, as(0, 1)), path(second, as(0, 1, 2))},
		"lower ORIGIN (IGP before incomplete)": {path(first, nil), path(second, func(f *message.Fields) { f.Origin = message.OriginIncomplete })},
		"lower MED (5 < 7)":                    {path(first, as(5, 1)), path(second, as(7, 1))},
		"eBGP before iBGP":                     {path(first, nil), path(internal, nil)},
		// MEDs of two neighbor ASes are not compared.
		"lower router id (10.0.0.1 < 10.0.0.2)":      {path(first, as(9, 1)), path(third, as(0, 2))},
		"lower router id (10.0.0.0 < 10.0.0.1)":      {path(internal, func(f *message.Fields) { f.OriginatorID = addr("10.0.0.0") }), path(internal, nil)},
		"shorter CLUSTER_LIST (0 < 1)":               {path(internal, nil), path(internal, func(f *message.Fields) { f.ClusterList = []uint32{1} })},
		"lower neighbor address (fd00::1 < fd00::2)": {path(first, nil), path(second, nil)},
	} {
		if got := s.decision(c[0], c[1]); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestLookup: the longest match of each table, the best path, and its reason.
func TestLookup(t *testing.T) {
	r, a, b := newRouter(t, 11, 65000), newRouter(t, 12, 65001), newRouter(t, 13, 65002)
	a.peer(r, passive)
	b.peer(r, passive)
	r.peer(a, func(n *Neighbor) { n.LocalPref = 50 })
	r.peer(b)
	wide, narrow := prefix("2a00::/16"), prefix("2a00:1::/32")
	a.must(a.Originate(UnicastRoute{Prefix: wide}, UnicastRoute{Prefix: narrow}))
	b.must(b.Originate(UnicastRoute{Prefix: narrow}))
	r.wait("routes", func() bool { return len(r.adjIn["r12"]) == 2 && len(r.adjIn["r13"]) == 1 })
	rd := id(t, "65000:1")
	r.must(r.OriginateVPN([]VPNRoute{{RD: rd, Prefix: wide, NextHop: address(11), RTs: []vpn.ID{rd}, SID: sidA, Structure: structure, Behavior: 18}}))
	var got []Candidate
	r.wait("the best path", func() bool {
		var err error
		got, err = r.Lookup(prefix("2a00:1::99/128"), vpn.ID{}, rd, rd)
		return err == nil && len(got) == 3
	})
	if got[0].Neighbor != "r13" || !got[0].Best || got[0].Prefix != narrow || got[0].Reason != "higher LOCAL_PREF (100 > 50)" {
		t.Errorf("best path %+v", got[0])
	}
	if got[1].Neighbor != "r12" || got[1].Best || !strings.HasPrefix(got[1].Reason, "best path has higher LOCAL_PREF") || got[1].ASPath != "65001" {
		t.Errorf("other path %+v", got[1])
	}
	if got[2].RD != rd.String() || got[2].Prefix != wide || got[2].Reason != "only path" {
		t.Errorf("vpn path %+v", got[2])
	}
	if got, err := r.Lookup(prefix("2a00:2::/32")); err != nil || len(got) != 1 || got[0].Prefix != wide {
		t.Errorf("a prefix: %+v, %v", got, err)
	}
	if got, err := r.Lookup(prefix("3000::/32")); err != nil || len(got) != 0 {
		t.Errorf("nothing: %+v, %v", got, err)
	}
}
