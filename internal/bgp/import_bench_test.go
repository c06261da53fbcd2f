package bgp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/policy"
)

// BenchmarkEvaluate is the part of the import policy that is evaluated for each route, with the
// prefixes that a border router rejects from every peer and six rules.
func BenchmarkEvaluate(b *testing.B) {
	var reject []PrefixFilter
	for i := range 40 {
		reject = append(reject, Within(RejectConnected, prefix(fmt.Sprintf("2001:db8:%x::/48", i)))...)
	}
	rules := []policy.Rule{
		{Name: "leaks", ASPath: policy.ASPath{Contains: []uint32{64999}}, Action: policy.Reject},
		{Name: "backup", Communities: []policy.Community{policy.Standard(7)}, Set: policy.Changes{LocalPref: number(50)}},
		{Name: "customers", PrefixList: "customers", Set: policy.Changes{LocalPref: number(200)}},
	}
	var customers policy.List
	for i := range 10_000 {
		customers = append(customers, list(fmt.Sprintf("accept 2a00:%x::/32 le 48", i))...)
	}
	n := &neighbor{conf: Neighbor{ASN: 65001, Import: ImportPolicy{
		Reject: reject, MaxLength: 48, Rules: policy.New(rules, policy.CompileLists(map[string]policy.List{"customers": customers}), nil),
	}}}
	m := (&Speaker{opt: Options{ASN: 65000}}).newImporter(n)
	var c class
	c.rules = m.Import.Rules.Classify(policy.Attributes{ASPath: []uint32{65001, 65002}, First: 65001, Origin: 65002})
	routes := make([]message.Key, 1<<14)
	for i := range routes {
		routes[i] = message.KeyOf(netip.PrefixFrom(addr(fmt.Sprintf("2a00:%x:%x::", uint32(i)*2654435761&0xffff, i)), 48))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := m.evaluate(c, routes[i&(len(routes)-1)], 0); err != nil {
			b.Fatal(err)
		}
	}
}
