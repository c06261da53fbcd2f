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

	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/field"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/unit"
	"github.com/tabane/tabane/scenarios"
)

// maxBases bounds the length of a chain of bases.
const maxBases = 8

// network lists the keys that a scenario inherits from its base.
var network = []string{"sysctls", "nodes", "links"}

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

// base decodes the network of the scenario that root names as its base, so that root is then
// decoded over it. A base of the base is decoded first. chain holds the places of the base keys
// that led to this file.
func (d *decoder) base(root ast.Node, spec *scenario.Spec, chain []place) {
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
	file, data, err := readBase(d.file, name)
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
	case len(chain) > maxBases:
		d.fault(value, "base", "more than %d scenarios are based on each other: %s", maxBases, strings.Join(steps, " -> "))
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
	if !slices.ContainsFunc(keys, func(k string) bool { return slices.Contains(network, k) }) && !slices.Contains(keys, "base") {
		d.file = own
		d.fault(value, "base", "%s is no scenario: it has none of %s", file, strings.Join(network, ", "))
		return
	}
	d.base(below, spec, chain)
	d.decodeKeys(below, spec)
	d.over = true
}

// decodeKeys decodes the inherited keys of a base.
func (d *decoder) decodeKeys(root ast.Node, spec *scenario.Spec) {
	for _, p := range d.pairs(d.resolve(root), "", 0) {
		var into reflect.Value
		switch p.name {
		case "sysctls":
			into = reflect.ValueOf(&spec.Sysctls).Elem()
		case "nodes":
			into = reflect.ValueOf(&spec.Nodes).Elem()
		case "links":
			into = reflect.ValueOf(&spec.Links).Elem()
		default:
			continue
		}
		d.hold(p.name, p.key)
		d.decode(p.value, p.name, into)
	}
}

// readBase reads the base called name: an embedded scenario, or a file in the same directory as
// from.
func readBase(from, name string) (file string, data []byte, err error) {
	if !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml") {
		data, err := scenarios.Read(name)
		if err != nil {
			return "", nil, fmt.Errorf("no scenario %q comes with the program%s; there are %s; a file's name ends in .yaml",
				name, fault.Suggest(name, scenarios.Names()), strings.Join(scenarios.Names(), ", "))
		}
		return scenarios.File(name), data, nil
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
		return "", nil, fmt.Errorf("read %s: %w", file, err)
	}
	defer in.Close()
	if data, err = io.ReadAll(io.LimitReader(in, MaxSize+1)); err != nil {
		return "", nil, fmt.Errorf("read %s: %w", file, err)
	}
	return file, data, nil
}

// Encode returns a scenario as YAML, with its base merged into it and translated to its family.
func Encode(spec *scenario.Spec) ([]byte, error) {
	merged := *spec
	merged.Base, merged.Family = "", ""
	b, err := yaml.MarshalWithOptions(tree(reflect.ValueOf(merged)), yaml.Indent(2), yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("encode scenario %q: %w", spec.Name, err)
	}
	return b, nil
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
