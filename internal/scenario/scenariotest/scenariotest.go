// Package scenariotest gives tests the files of the scenarios that come with the program, merged
// with their bases. It is for tests of packages that package config is above of, and merges in a
// way of its own: plain mappings, no places, no checks.
package scenariotest

import (
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/scenarios"
)

// Text returns the file of a scenario with its base's network in it.
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

// merge changes below by over.
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
