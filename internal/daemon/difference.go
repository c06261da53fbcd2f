package daemon

import (
	"fmt"
	"slices"
)

// Difference is the change of a list of named items from one configuration to the next, by name.
type Difference struct {
	// Remove are the items that are removed or replaced, Add new ones and replacements, Replaced
	// those in both.
	Remove, Add, Replaced []string
}

// Compare returns the difference between two lists. Items with the same name are replaced unless
// same returns true.
func Compare[T any](before, after []T, name func(T) string, same func(a, b T) bool) Difference {
	var d Difference
	old := map[string]T{}
	for _, item := range before {
		old[name(item)] = item
	}
	for _, item := range after {
		was, known := old[name(item)]
		switch {
		case !known:
			d.Add = append(d.Add, name(item))
		case !same(was, item):
			d.Replaced = append(d.Replaced, name(item))
		}
		delete(old, name(item))
	}
	d.Add = append(d.Add, d.Replaced...)
	d.Remove = slices.Clone(d.Replaced)
	for _, item := range before {
		if _, gone := old[name(item)]; gone {
			d.Remove = append(d.Remove, name(item))
		}
	}
	return d
}

// Lines describes the difference, one item in each line, as "KIND "NAME" replaced".
func (d Difference) Lines(kind string) []string {
	var lines []string
	add := func(what string, names []string) {
		for _, name := range names {
			lines = append(lines, fmt.Sprintf("%s %q %s", kind, name, what))
		}
	}
	others := func(names []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(d.Replaced, n) })
	}
	add("replaced", d.Replaced)
	add("removed", others(d.Remove))
	add("added", others(d.Add))
	return lines
}
