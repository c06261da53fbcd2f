package bgp

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/vpn"
)

func TestDecision(t *testing.T) {
	path := func(change func(*apiutil.Path), attrs ...gobgp.PathAttributeInterface) *apiutil.Path {
		p := &apiutil.Path{PeerAddress: addr("fd00::1"), PeerID: addr("10.0.0.1"), IsFromExternal: true, Attrs: attrs}
		if change != nil {
			change(p)
		}
		return p
	}
	as := func(list ...uint32) gobgp.PathAttributeInterface {
		return gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, list)})
	}
	for want, c := range map[string][2]*apiutil.Path{
		"higher LOCAL_PREF (200 > 100)":        {path(nil, gobgp.NewPathAttributeLocalPref(200)), path(nil)},
		"local origin":                         {path(func(p *apiutil.Path) { p.PeerAddress = netip.Addr{} }), path(nil)},
		"shorter AS_PATH (1 < 2)":              {path(nil, as(1)), path(nil, as(1, 2))},
		"lower ORIGIN (IGP before incomplete)": {path(nil, gobgp.NewPathAttributeOrigin(0)), path(nil, gobgp.NewPathAttributeOrigin(2))},
		"lower MED (5 < 7)":                    {path(nil, as(1), gobgp.NewPathAttributeMultiExitDisc(5)), path(nil, as(1), gobgp.NewPathAttributeMultiExitDisc(7))},
		"eBGP before iBGP":                     {path(nil), path(func(p *apiutil.Path) { p.IsFromExternal = false })},
		// MEDs of two neighbor ASes are not compared.
		"lower router id (10.0.0.1 < 10.0.0.2)":      {path(nil, as(1), gobgp.NewPathAttributeMultiExitDisc(9)), path(func(p *apiutil.Path) { p.PeerID = addr("10.0.0.2") }, as(2))},
		"lower neighbor address (fd00::1 < fd00::2)": {path(nil), path(func(p *apiutil.Path) { p.PeerAddress = addr("fd00::2") })},
	} {
		if got := decision(c[0], c[1]); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestLookup: the longest match of each table, the same best path as GoBGP's, and its reason.
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
		got, err = r.Lookup(t.Context(), prefix("2a00:1::99/128"), rd)
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
	if got, err := r.Lookup(t.Context(), prefix("2a00:2::/32")); err != nil || len(got) != 1 || got[0].Prefix != wide {
		t.Errorf("a prefix: %+v, %v", got, err)
	}
	if got, err := r.Lookup(t.Context(), prefix("3000::/32")); err != nil || len(got) != 0 {
		t.Errorf("nothing: %+v, %v", got, err)
	}
}
