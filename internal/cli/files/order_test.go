package files

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/experiment/scenario"
)

// TestFirstLinkIsThatOfTheFile: a node's name resolves to its address on the first link of the
// file, also after the scenario was written and read again.
func TestFirstLinkIsThatOfTheFile(t *testing.T) {
	const text = `name: order
title: "Order"
nodes: {a: {}, b: {}}
links:
  zulu: {ends: [{node: a, interface: z, addresses: [192.0.2.1/25]}, {node: b, interface: z, addresses: [192.0.2.2/25]}]}
  alpha: {ends: [{node: a, interface: x, addresses: [192.0.2.129/25]}, {node: b, interface: x, addresses: [192.0.2.130/25]}]}
  mike: {ends: [{node: a, interface: m, addresses: [198.51.100.1/25]}, {node: b, interface: m, addresses: [198.51.100.2/25]}]}
`
	data := []byte(text)
	for range 2 {
		f, err := Parse("order.yaml", data)
		if err != nil {
			t.Fatal(err)
		}
		check(t, f.Scenario)
		if data, err = Encode(f.Scenario); err != nil {
			t.Fatal(err)
		}
	}
}

func check(t *testing.T, spec *scenario.Spec) {
	t.Helper()
	if got := strings.Join(spec.LinkNames(), " "); got != "zulu alpha mike" {
		t.Errorf("links %s, want zulu alpha mike", got)
	}
	if got := spec.AddressOf("b").String(); got != "192.0.2.2" {
		t.Errorf("b is %s, want 192.0.2.2", got)
	}
}
