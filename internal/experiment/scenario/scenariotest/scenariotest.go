// Package scenariotest returns the built-in scenario files merged with their bases, for tests of
// packages below package config. It merges plain mappings, without positions and checks.
package scenariotest

import (
	"errors"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/scenarios"
)

// Text returns the file of a scenario merged with the network of its base.
func Text(t testing.TB, name string) []byte {
	t.Helper()
	text, err := yaml.Marshal(slices.DeleteFunc(read(t, name), func(i yaml.MapItem) bool { return i.Key == "base" }))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Spec is scenario.Spec, which this package does not import, as it is for the tests of that too.
type Spec interface {
	Complete()
	Translate() fault.List
	Check() fault.List
}

// Decode decodes the file of a scenario into its specification, and checks that.
func Decode(t testing.TB, name string, spec Spec) {
	t.Helper()
	if err := yaml.UnmarshalWithOptions(Text(t, name), spec, yaml.Strict(), Modes()); err != nil {
		t.Fatal(err)
	}
	spec.Complete()
	if err := errors.Join(spec.Translate().Err(), spec.Check().Err()); err != nil {
		t.Fatal(err)
	}
}

// Modes has modes of delivery decoded from their short forms too, as package config does.
func Modes() yaml.DecodeOption {
	return yaml.CustomUnmarshaler(func(m *edge.Mode, text []byte) error {
		var short string
		if yaml.Unmarshal(text, &short) == nil {
			return m.ParseShort(short)
		}
		type mapping edge.Mode
		return yaml.UnmarshalWithOptions(text, (*mapping)(m), yaml.Strict())
	})
}

func read(t testing.TB, name string) yaml.MapSlice {
	t.Helper()
	data, err := scenarios.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	var own yaml.MapSlice
	if err := yaml.UnmarshalWithOptions(data, &own, yaml.UseOrderedMap()); err != nil {
		t.Fatal(err)
	}
	own = single(own).(yaml.MapSlice)
	base, ok := own.ToMap()["base"].(string)
	if !ok {
		return own
	}
	network := slices.DeleteFunc(read(t, base), func(i yaml.MapItem) bool {
		return !slices.Contains([]any{"sysctls", "nodes", "links"}, i.Key)
	})
	return merge(network, own)
}

// merge overrides below by over. Keys keep their places, and new ones follow.
func merge(below, over yaml.MapSlice) yaml.MapSlice {
	for _, item := range over {
		i := slices.IndexFunc(below, func(b yaml.MapItem) bool { return b.Key == item.Key })
		switch {
		case i < 0:
			below = append(below, item)
		case item.Value == nil:
			below = slices.Delete(below, i, i+1)
		default:
			inner, isMap := item.Value.(yaml.MapSlice)
			before, wasMap := below[i].Value.(yaml.MapSlice)
			if isMap && wasMap {
				item.Value = merge(before, inner)
			}
			below[i] = item
		}
	}
	return below
}

// single removes keys that a merge key ("<<") gives and a later key of the mapping overrides.
func single(v any) any {
	switch v := v.(type) {
	case yaml.MapSlice:
		var all yaml.MapSlice
		for _, item := range v {
			item.Value = single(item.Value)
			if i := slices.IndexFunc(all, func(a yaml.MapItem) bool { return a.Key == item.Key }); i >= 0 {
				all[i] = item
			} else {
				all = append(all, item)
			}
		}
		return all
	case []any:
		for i := range v {
			v[i] = single(v[i])
		}
	}
	return v
}
