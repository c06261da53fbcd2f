package lab

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/field"
)

// encode writes configuration sections in the form that the daemons read. It is JSON, which is
// valid YAML, so that the encoding does not depend on a YAML library.
func encode(sections map[string]any) ([]byte, error) {
	tree := map[string]any{}
	for name, s := range sections {
		v, err := plainValue(reflect.ValueOf(s))
		if err != nil {
			return nil, fmt.Errorf("encode section %q: %w", name, err)
		}
		tree[name] = v
	}
	b, err := json.MarshalIndent(tree, "", "  ")
	return append(b, '\n'), err
}

// plainValue converts a value with yaml tags to maps, lists, numbers and strings. Zero fields are
// omitted: the reader leaves absent fields zero.
func plainValue(v reflect.Value) (any, error) {
	if v.Kind() == reflect.Pointer {
		return plainValue(v.Elem())
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String(), nil
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		return string(b), err
	}
	switch v.Kind() {
	case reflect.Struct:
		m, err := plainStruct(v)
		if len(m) == 0 && err == nil && field.HasShort(v.Type()) {
			// A value that only its short form has, such as a mode that is given by its name alone.
			fresh := reflect.New(v.Type())
			fresh.Elem().Set(v)
			if text, ok := fresh.Interface().(field.Short).Short(); ok {
				return text, nil
			}
		}
		return m, err
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			var err error
			if list[i], err = plainValue(v.Index(i)); err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return list, nil
	case reflect.Map:
		m := map[string]any{}
		for _, key := range v.MapKeys() {
			var err error
			if m[key.String()], err = plainValue(v.MapIndex(key)); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		}
		return m, nil
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Interface(), nil
	default:
		return nil, fmt.Errorf("BUG: a configuration cannot have a %s", v.Type())
	}
}

func plainStruct(v reflect.Value) (map[string]any, error) {
	m := map[string]any{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() || v.Field(i).IsZero() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" && options == "inline" {
			inner, err := plainValue(v.Field(i))
			if err != nil {
				return nil, err
			}
			maps.Copy(m, inner.(map[string]any))
			continue
		}
		if name == "" {
			return nil, fmt.Errorf("BUG: field %s of %s has no key", f.Name, v.Type())
		}
		if name == "-" {
			continue
		}
		var err error
		if m[name], err = plainValue(v.Field(i)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return m, nil
}
