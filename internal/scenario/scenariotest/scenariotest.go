// Package scenariotest returns the built-in scenario files merged with their bases, for tests of
// packages below package config. It merges plain mappings, without positions and checks.
package scenariotest

import (
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/scenarios"
)

// Text returns the file of a scenario merged with the network of its base.
func Text(t testing.TB, name string) []byte {
	t.Helper()
	merged := read(t, name)
	delete(merged, "base")
	text, err := yaml.Marshal(merged)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func read(t testing.TB, name string) map[string]any {
	t.Helper()
	data, err := scenarios.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	var own map[string]any
	if err := yaml.Unmarshal(data, &own); err != nil {
		t.Fatal(err)
	}
	base, ok := own["base"].(string)
	if !ok {
		return own
	}
	network := map[string]any{}
	below := read(t, base)
	for _, key := range []string{"sysctls", "nodes", "links"} {
		if v, ok := below[key]; ok {
			network[key] = v
		}
	}
	return merge(network, own)
}

// merge overrides below by over.
func merge(below, over map[string]any) map[string]any {
	for key, v := range over {
		inner, isMap := v.(map[string]any)
		before, wasMap := below[key].(map[string]any)
		switch {
		case v == nil:
			delete(below, key)
		case isMap && wasMap:
			below[key] = merge(before, inner)
		default:
			below[key] = v
		}
	}
	return below
}
