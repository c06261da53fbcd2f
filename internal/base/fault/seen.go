package fault

import (
	"fmt"
	"reflect"
)

// Seen finds duplicates of values that must be unique among siblings. Make one per list of
// siblings. It maps a field and its value to the path of the first use.
type Seen map[string]map[any]string

// Check adds a fault for the field of the sibling at path at if an earlier sibling has the same
// value. Zero values are not compared: they mean that the field was not given.
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
