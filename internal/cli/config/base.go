package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/base/unit"
)

// MaxBases bounds the length of a chain of bases.
const MaxBases = 8

// place is the file and the node of a value.
type place struct {
	node ast.Node
	file string
}

// String prints the place as "FILE:LINE:COL".
func (p place) String() string {
	f := at(p.node, "")
	return fmt.Sprintf("%s:%d:%d", p.file, f.Line, f.Column)
}

// base decodes the inherited keys of the file that root names as its base, so that root is then
// decoded over them. A base of the base is decoded first. chain holds the places of the base keys
// that led to this file.
func (d *decoder) base(root ast.Node, k Kind, into reflect.Value, chain []place) {
	var value ast.Node
	for _, p := range d.pairs(d.resolve(root), "", 0) {
		if p.name == "base" {
			value = p.value
		}
	}
	if value == nil {
		return
	}
	name, ok := scalarText(d.resolve(value))
	if !ok || name == "" {
		return // the decoder finds it
	}
	chain = append(chain, place{value, d.file})
	file, data, err := k.readBase(d.file, name)
	if err != nil {
		d.fault(value, "base", "%v", err)
		return
	}
	steps := make([]string, len(chain))
	for i, p := range chain {
		steps[i] = p.String()
	}
	switch from := slices.IndexFunc(chain, func(p place) bool { return p.file == file }); {
	case from >= 0:
		d.fault(value, "base", "%s is based on itself: %s", file, strings.Join(steps[from:], " -> "))
		return
	case len(chain) > MaxBases:
		d.fault(value, "base", "more than %d scenarios are based on each other: %s", MaxBases, strings.Join(steps, " -> "))
		return
	}
	below, err := readDocument(data)
	if err != nil {
		var f Fault
		if !errors.As(err, &f) {
			f.Message = err.Error()
		}
		d.fault(value, "base", "%s:%d:%d: %s", file, f.Line, f.Column, f.Fault.Error())
		return
	}
	own, anchors := d.file, d.anchors
	d.file = file
	defer func() { d.file, d.anchors = own, anchors }()
	keys, ok := d.keys(below)
	if !ok {
		return
	}
	if !slices.ContainsFunc(keys, func(key string) bool { return slices.Contains(k.Inherited, key) }) && !slices.Contains(keys, "base") {
		d.file = own
		d.fault(value, "base", "%s is no scenario: it has none of %s", file, strings.Join(k.Inherited, ", "))
		return
	}
	d.base(below, k, into, chain)
	d.decodeKeys(below, k.Inherited, into)
	d.over = true
}

// decodeKeys decodes the inherited keys of a base into the fields of a struct.
func (d *decoder) decodeKeys(root ast.Node, inherited []string, into reflect.Value) {
	fields := map[string]reflect.Value{}
	field.Each(into.Type(), func(key string, index []int) {
		if slices.Contains(inherited, key) {
			fields[key] = into.FieldByIndex(index)
		}
	})
	for _, p := range d.pairs(d.resolve(root), "", 0) {
		if to, ok := fields[p.name]; ok {
			d.hold(p.name, p.key)
			d.decode(p.value, p.name, to)
		}
	}
}

// readBase reads the base called name: an embedded file, or one in the same directory as from.
func (k Kind) readBase(from, name string) (file string, data []byte, err error) {
	if !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml") {
		return k.Embedded(name)
	}
	if strings.ContainsAny(name, `/\`) {
		return "", nil, fmt.Errorf("must be a scenario that comes with the program, or a file in the same directory, got %q", name)
	}
	file = filepath.Join(filepath.Dir(from), name)
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() {
		return "", nil, fmt.Errorf("%s is no regular file", file)
	}
	var in *os.File
	if err == nil {
		in, err = os.Open(file)
	}
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return "", nil, fmt.Errorf("read %q: %w", file, err)
	}
	defer in.Close()
	if data, err = io.ReadAll(io.LimitReader(in, MaxSize+1)); err != nil {
		return "", nil, fmt.Errorf("read %q: %w", file, err)
	}
	return file, data, nil
}

// Encode returns a struct as YAML, under the keys from which it is read.
func Encode(v any) ([]byte, error) {
	return yaml.MarshalWithOptions(tree(reflect.ValueOf(v)), yaml.Indent(2), yaml.IndentSequence(true))
}

// tree converts a value to mappings in field order, lists and scalars. Zero fields are omitted.
func tree(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		return tree(v.Elem())
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case unit.Bandwidth:
		if x == 0 {
			return field.Unlimited
		}
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		if err != nil {
			panic(fmt.Sprintf("BUG: a value that was read has no text: %v", err))
		}
		return string(text)
	}
	switch v.Kind() {
	case reflect.Struct:
		m := yaml.MapSlice{}
		field.Each(v.Type(), func(key string, index []int) {
			if at := v.FieldByIndex(index); !at.IsZero() {
				m = append(m, yaml.MapItem{Key: key, Value: tree(at)})
			}
		})
		if len(m) == 0 && field.HasShort(v.Type()) {
			// A value that only its short form has, such as a mode that is given by its name alone.
			fresh := reflect.New(v.Type())
			fresh.Elem().Set(v)
			if text, ok := fresh.Interface().(field.Short).Short(); ok {
				return text
			}
		}
		return m
	case reflect.Map:
		m := yaml.MapSlice{}
		order := func(key reflect.Value) int {
			if o, ok := orderedOf(v.MapIndex(key)); ok {
				return o.Order()
			}
			return 0
		}
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int {
			return cmp.Or(cmp.Compare(order(a), order(b)), strings.Compare(a.String(), b.String()))
		}) {
			m = append(m, yaml.MapItem{Key: key.String(), Value: tree(v.MapIndex(key))})
		}
		return m
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = tree(v.Index(i))
		}
		return list
	}
	return v.Interface()
}
