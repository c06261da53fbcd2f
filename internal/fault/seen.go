package fault

import (
	"fmt"
	"reflect"
)

// Seen finds values that must be unique among siblings. Make one per list of siblings; it maps a
// field and its value to the path that gave it first.
type Seen map[string]map[any]string

// Check adds a fault at the field of the sibling at path at when another sibling gave the same
// value before. The zero value of a type means that the field was not given, which two siblings may
// well have in common.
func (s Seen) Check(faults *List, at, field string, value any) {
	if reflect.ValueOf(value).IsZero() {
		return
	}
	if s[field] == nil {
		s[field] = map[any]string{}
	}
	path := Join(at, field)
	if first, ok := s[field][value]; ok {
		faults.Add(path, "%s is already %s", fmt.Sprint(value), first)
		return
	}
	s[field][value] = path
}
