package field

import "reflect"

// Copy copies the fields of a struct to those of the same name in the struct that to points to,
// where the types are equal or one is a pointer to the other. A nil pointer is not copied to a
// value, and a zero value becomes a nil pointer. Other fields stay as they are.
func Copy(to, from any) {
	target, source := reflect.ValueOf(to).Elem(), reflect.ValueOf(from)
	for _, f := range reflect.VisibleFields(source.Type()) {
		v, at := source.FieldByIndex(f.Index), target.FieldByName(f.Name)
		switch {
		case !at.IsValid():
		case at.Type() == v.Type():
			at.Set(v)
		case v.Kind() == reflect.Pointer && v.Type().Elem() == at.Type():
			if !v.IsNil() {
				at.Set(v.Elem())
			}
		case at.Kind() == reflect.Pointer && at.Type().Elem() == v.Type():
			if at.SetZero(); !v.IsZero() {
				fresh := reflect.New(v.Type())
				fresh.Elem().Set(v)
				at.Set(fresh)
			}
		}
	}
}
