package router

import (
	"math"
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
)

// TestGenerate: the routes are distinct, valid, distributed as documented, the same each time, and
// different with another seed.
func TestGenerate(t *testing.T) {
	const n = 200_000
	g := Generate{IPv6: n, IPv4: n, Seed: 1}
	var list []bgp.UnicastRoute
	seen := map[netip.Prefix]bool{}
	byLength := map[bgp.IP]map[int]int{bgp.IPv4: {}, bgp.IPv6: {}}
	type origin struct {
		ip   bgp.IP
		path message.ASPath
	}
	paths := map[origin]bool{}
	for r := range g.routes() {
		if r.Prefix != r.Prefix.Masked() || seen[r.Prefix] {
			t.Fatalf("prefix %v is not valid or was returned before", r.Prefix)
		}
		seen[r.Prefix] = true
		byLength[bgp.IPOf(r.Prefix.Addr())][r.Prefix.Bits()]++
		paths[origin{bgp.IPOf(r.Prefix.Addr()), r.ASPath}] = true
		list = append(list, r)
	}
	if len(list) != 2*n {
		t.Errorf("%d routes, want %d", len(list), 2*n)
	}
	if per := float64(len(list)) / float64(len(paths)); math.Abs(per-perOrigin) > 0.1 {
		t.Errorf("%.1f prefixes a path", per)
	}
	for version, lengths := range map[bgp.IP][]share{bgp.IPv4: lengths4, bgp.IPv6: lengths6} {
		total := 0
		for _, l := range lengths {
			total += l.perMille
			if got := byLength[version][l.length] * 1000 / n; math.Abs(float64(got-l.perMille)) > 12 {
				t.Errorf("%s /%d: %d per mille, want %d", version, l.length, got, l.perMille)
			}
		}
		if total != 1000 {
			t.Errorf("%s: the parts add up to %d per mille", version, total)
		}
	}
	i := 0
	for r := range g.routes() {
		if r.Prefix != list[i].Prefix || string(r.AppendKey(nil)) != string(list[i].AppendKey(nil)) {
			t.Fatalf("route %d is %v, was %v", i, r, list[i])
		}
		i++
	}
	for r := range (Generate{IPv6: 1000}).routes() {
		if seen[r.Prefix] {
			i++
		}
	}
	if same := i - len(list); same > 100 {
		t.Errorf("%d of 1000 prefixes are the same with another seed", same)
	}
	for n := range blocks4 {
		b := block4(n)
		if !b.IsValid() || b != b.Masked() || !b.Addr().IsGlobalUnicast() || b.Addr().IsPrivate() || b.Addr().As4()[0] >= 224 {
			t.Fatalf("block %d is %v", n, b)
		}
	}
}

func BenchmarkGenerate(b *testing.B) {
	n := 0
	for b.Loop() {
		for range (Generate{IPv6: 100_000}).routes() {
			n++
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "routes/s")
}
