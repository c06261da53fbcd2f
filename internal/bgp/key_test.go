package bgp

import (
	"reflect"
	"testing"
)

// The key of attributes, and whether they are equal, depends on each field.
func TestAttributesKey(t *testing.T) {
	keys := map[string]string{}
	add := func(what string, a Attributes) {
		t.Helper()
		if !a.equal(a) || what != "none" && a.equal(Attributes{}) {
			t.Errorf("%s: equal is wrong", what)
		}
		key := string(a.AppendKey(nil))
		if other, taken := keys[key]; taken {
			t.Errorf("%s has the key of %s", what, other)
		}
		keys[key] = what
	}
	add("none", Attributes{})
	typ := reflect.TypeFor[Attributes]()
	for i := range typ.NumField() {
		var a Attributes
		switch v := reflect.ValueOf(&a).Elem().Field(i); v.Kind() {
		case reflect.Uint8, reflect.Uint32:
			v.SetUint(2)
		case reflect.String:
			v.SetString("\x00")
			add(typ.Field(i).Name+" with a zero", a)
			v.SetString("\x00\x00")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			add(typ.Field(i).Name+" with a zero", a)
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		default:
			t.Fatalf("field %s is not compared", typ.Field(i).Name)
		}
		add(typ.Field(i).Name, a)
	}
}
