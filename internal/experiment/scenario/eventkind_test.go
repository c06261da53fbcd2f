package scenario

import (
	"reflect"
	"strings"
	"testing"
)

// Each kind is a field of Event, and each such field a kind.
func TestEventKindsHaveOneRow(t *testing.T) {
	var fields []EventKind
	v := reflect.TypeFor[Event]()
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Type.Kind() != reflect.Pointer {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		fields = append(fields, EventKind(name))
		var x Event
		reflect.ValueOf(&x).Elem().Field(i).Set(reflect.New(f.Type.Elem()))
		if x.Kind() != EventKind(name) {
			t.Errorf("an event with %s is of kind %q", name, x.Kind())
		}
	}
	if !reflect.DeepEqual(fields, EventKinds()) || len(fields) < 10 {
		t.Errorf("kinds %v, fields %v", EventKinds(), fields)
	}
	if k := (Event{}).Kind(); k != "" {
		t.Errorf("an empty event is of kind %q", k)
	}
}
