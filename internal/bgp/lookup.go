package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/vpn"
)

// Candidate is a path to a destination, with the decisive step of the route selection.
type Candidate struct {
	Prefix    netip.Prefix `json:"prefix"`
	RD        string       `json:"rd,omitempty"` // of a VPN route
	Best      bool         `json:"best"`
	Reason    string       `json:"reason"` // why it is the best path or not
	Neighbor  string       `json:"neighbor"`
	NextHop   netip.Addr   `json:"next_hop"`
	SID       netip.Addr   `json:"sid,omitzero"`
	LocalPref uint32       `json:"local_pref"`
	MED       uint32       `json:"med"`
	ASPath    string       `json:"as_path"`
}

// Lookup returns the paths to the longest prefix that covers dst, best first: IPv6 unicast routes,
// and VPN routes of each route distinguisher in rds. Its cost does not depend on the size of the
// tables.
func (s *sessions) Lookup(_ context.Context, dst netip.Prefix, rds ...vpn.ID) ([]Candidate, error) {
	found, err := s.lookup(gobgp.RF_IPv6_UC, dst, "")
	for _, rd := range rds {
		if err != nil {
			break
		}
		var more []Candidate
		more, err = s.lookup(gobgp.RF_IPv6_VPN, dst, rd.String())
		found = append(found, more...)
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", dst, err)
	}
	return found, nil
}

func (s *sessions) lookup(family gobgp.Family, dst netip.Prefix, rd string) ([]Candidate, error) {
	var covering []*apiutil.Path
	longest := -1
	err := s.server.ListPath(apiutil.ListPathRequest{
		TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family,
		Prefixes: []*apiutil.LookupPrefix{{Prefix: dst.String(), RD: rd, LookupOption: apiutil.LOOKUP_SHORTER}},
	}, func(n gobgp.NLRI, paths []*apiutil.Path) {
		bits := -1
		switch n := n.(type) {
		case *gobgp.IPAddrPrefix:
			bits = n.Prefix.Bits()
		case *gobgp.LabeledVPNIPAddrPrefix:
			bits = n.Prefix.Bits()
		}
		if bits > longest && len(paths) > 0 {
			longest, covering = bits, paths
		}
	})
	if err != nil {
		return nil, err
	}
	candidates := make([]Candidate, 0, len(covering))
	for i, p := range covering {
		c := s.candidate(p)
		c.Best = i == 0
		switch {
		case len(covering) == 1:
			c.Reason = "only path"
		case i == 0:
			c.Reason = decision(p, covering[1])
		default:
			c.Reason = "best path has " + decision(covering[0], p)
		}
		candidates = append(candidates, c)
	}
	return candidates, nil
}

func (s *sessions) candidate(p *apiutil.Path) Candidate {
	a := readAttributes(p.Attrs)
	c := Candidate{LocalPref: localPref(p), MED: a.MED, ASPath: asPath(a.ASPath), Neighbor: "local"}
	s.mu.Lock()
	if n := s.byAddr[p.PeerAddress]; n != nil {
		c.Neighbor = n.Name
	}
	s.mu.Unlock()
	if u, ok := readUnicast(p, ""); ok {
		c.Prefix, c.NextHop = u.Prefix, u.NextHop
	} else if v, ok := readVPN(p); ok {
		c.Prefix, c.NextHop, c.RD, c.SID = v.Prefix, v.NextHop, v.RD.String(), v.SID
	}
	return c
}

func asPath(path []uint32) string {
	var text []string
	for _, as := range path {
		text = append(text, strconv.FormatUint(uint64(as), 10))
	}
	return strings.Join(text, " ")
}

// defaultLocalPref is the LOCAL_PREF of a route without one.
const defaultLocalPref = 100

func localPref(p *apiutil.Path) uint32 {
	if a := attribute[*gobgp.PathAttributeLocalPref](p.Attrs); a != nil {
		return a.Value
	}
	return defaultLocalPref
}

// originNames are the values of ORIGIN (RFC 4271 section 5.1.1).
var originNames = [...]string{"IGP", "EGP", "incomplete"}

// decision returns the step of RFC 4271 section 9.1.2.2, in GoBGP's order, in which best is
// preferred to other. Each step is reached only if all previous steps are ties.
func decision(best, other *apiutil.Path) string {
	compare := func(name string, a, b uint32, relation string) string {
		return fmt.Sprintf("%s (%d %s %d)", name, a, relation, b)
	}
	if a, b := localPref(best), localPref(other); a != b {
		return compare("higher LOCAL_PREF", a, b, ">")
	}
	if !best.PeerAddress.IsValid() && other.PeerAddress.IsValid() {
		return "local origin"
	}
	if a, b := pathLength(best), pathLength(other); a != b {
		return compare("shorter AS_PATH", a, b, "<")
	}
	a, b := attribute[*gobgp.PathAttributeOrigin](best.Attrs), attribute[*gobgp.PathAttributeOrigin](other.Attrs)
	if a != nil && b != nil && a.Value != b.Value && int(max(a.Value, b.Value)) < len(originNames) {
		return fmt.Sprintf("lower ORIGIN (%s before %s)", originNames[a.Value], originNames[b.Value])
	}
	first, second := readAttributes(best.Attrs), readAttributes(other.Attrs)
	if sameNeighborAS(first.ASPath, second.ASPath) && first.MED != second.MED {
		return compare("lower MED", first.MED, second.MED, "<")
	}
	if best.IsFromExternal != other.IsFromExternal {
		return "eBGP before iBGP"
	}
	if x, y := best.PeerID, other.PeerID; x.IsValid() && y.IsValid() && x != y {
		return fmt.Sprintf("lower router id (%s < %s)", x, y)
	}
	return fmt.Sprintf("lower neighbor address (%s < %s)", best.PeerAddress, other.PeerAddress)
}

// sameNeighborAS reports whether MEDs are comparable (RFC 4271 section 9.1.2.2 c).
func sameNeighborAS(a, b []uint32) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	return a[0] == b[0]
}

// pathLength returns the AS path length, with an AS_SET counted as one (RFC 4271 section 9.1.2.2
// a).
func pathLength(p *apiutil.Path) (n uint32) {
	if a := attribute[*gobgp.PathAttributeAsPath](p.Attrs); a != nil {
		for _, s := range a.Value {
			n += uint32(s.ASLen())
		}
	}
	return n
}

// Longest returns the longest prefix of a map that covers dst.
func Longest[V any](routes map[netip.Prefix]V, dst netip.Prefix) (prefix netip.Prefix, value V, ok bool) {
	for bits := dst.Bits(); bits >= 0; bits-- {
		prefix = netip.PrefixFrom(dst.Addr(), bits).Masked()
		if value, ok = routes[prefix]; ok {
			return prefix, value, true
		}
	}
	return netip.Prefix{}, value, false
}
