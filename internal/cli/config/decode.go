package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/field"
)

// MaxValues bounds the number of values of a document after expansion of its aliases.
const MaxValues = 300_000

// decoder fills Go values from YAML nodes. The library's own decoder stops at the first fault and
// does not keep positions; this one continues, and records the position of every path for faults
// that are found later.
type decoder struct {
	anchors map[*ast.AliasNode]ast.Node
	// places has the position of each value, holders that of its key. A missing value is
	// reported at the key of the mapping that lacks it.
	places, holders map[string]place
	// file is the file being decoded. over is set while it is decoded over a base; replaced has
	// the positions of the values in the base that it overrides.
	file     string
	over     bool
	replaced map[string]place
	faults   []Fault
	// broken has the paths that have a fault already. Faults that a checker reports at or below
	// them would be repetitions.
	broken map[string]bool
	values int
	order  int // of the last ordered value
	// spare is the fault of the first value above MaxValues.
	spare Fault
	// kind is set if the file is of a kind that is not read here.
	kind *KindError
}

func newDecoder() *decoder {
	return &decoder{places: map[string]place{}, holders: map[string]place{}, replaced: map[string]place{}, broken: map[string]bool{}}
}

// fault records a fault of the value at path, whose node is n.
func (d *decoder) fault(n ast.Node, path, format string, args ...any) {
	f := at(n, format, args...)
	f.Path, f.File = path, d.file
	d.faults = append(d.faults, f)
	d.broken[path] = true
}

// add records the faults that a checker found. A fault of a missing value is reported at its
// nearest existing parent.
func (d *decoder) add(list fault.List) {
	for _, f := range list {
		found := Fault{Fault: f}
		repeated := false
		for path := f.Path; ; path = parent(path) {
			repeated = repeated || d.broken[path]
			p := d.places[path]
			if holder, ok := d.holders[path]; ok && path != f.Path {
				p = holder
			}
			if p.node != nil && found.Line == 0 {
				value := at(p.node, "")
				found.File, found.Line, found.Column = p.file, value.Line, value.Column
				if before, ok := d.replaced[path]; ok {
					found.Message += fmt.Sprintf(" (in place of %s)", before)
				} else if p.file != d.file {
					found.Message += fmt.Sprintf(" (the base of %s)", d.places["base"])
				}
			}
			if path == "" {
				break
			}
		}
		if !repeated {
			d.faults = append(d.faults, found)
		}
	}
}

// locate records the position of the value at path.
func (d *decoder) locate(path string, n ast.Node) {
	if before, ok := d.places[path]; ok && before.file != d.file {
		d.replaced[path] = before
	}
	d.places[path] = place{n, d.file}
}

// hold records the key of the value at path.
func (d *decoder) hold(path string, key ast.Node) { d.holders[path] = place{key, d.file} }

// remove records that a null in the file removes the base's value at path.
func (d *decoder) remove(p pair, path string, has bool) {
	if !has {
		d.fault(p.key, path, "is null, which removes what the base has, and the base (%s) has none", d.places["base"])
	}
	d.locate(path, p.key)
}

// removes reports whether a pair is a null that removes a value of the base.
func (d *decoder) removes(p pair) bool {
	return d.over && d.resolve(p.value).Type() == ast.NullType
}

// parent returns path without its last element.
func parent(path string) string {
	if i := strings.LastIndexAny(path, ".["); i > 0 {
		return path[:i]
	}
	return ""
}

// pair is a key and its value.
type pair struct {
	name       string
	key, value ast.Node
}

// keys returns the names of the document's top-level keys; false, with the fault recorded, when the
// document is no mapping.
func (d *decoder) keys(root ast.Node) ([]string, bool) {
	d.anchors = map[*ast.AliasNode]ast.Node{}
	d.link(root, map[string]ast.Node{})
	n := d.resolve(root)
	if _, ok := n.(ast.MapNode); !ok {
		got := describe(n)
		if _, ok := scalarText(n); ok {
			got = "text" // which may be that of any file
		}
		d.fault(root, "", "want a mapping (key: value), got %s", got)
	}
	if len(d.faults) > 0 {
		return nil, false
	}
	var names []string
	for _, p := range d.pairs(n, "", 0) {
		names = append(names, p.name)
	}
	if len(names) == 0 {
		d.fault(root, "", "is empty")
	}
	// Decoding the mapping reports the faults of pairs again.
	faults := d.faults
	d.faults, d.values = nil, 0
	if len(names) == 0 {
		d.faults = faults
		return nil, false
	}
	return names, true
}

// link resolves every alias to the last anchor of its name before it. An anchor is defined only
// after its node, so that no node contains itself.
func (d *decoder) link(n ast.Node, anchors map[string]ast.Node) {
	switch n := n.(type) {
	case *ast.AnchorNode:
		d.link(n.Value, anchors)
		anchors[n.Name.GetToken().Value] = n.Value
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		target, ok := anchors[name]
		if !ok {
			d.fault(n, "", "alias %q has no anchor before it", name)
			return
		}
		d.anchors[n] = target
	case *ast.TagNode:
		d.link(n.Value, anchors)
	case *ast.MappingNode:
		for _, v := range n.Values {
			d.link(v, anchors)
		}
	case *ast.MappingValueNode:
		d.link(n.Key, anchors)
		d.link(n.Value, anchors)
	case *ast.MappingKeyNode:
		d.link(n.Value, anchors)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			d.link(v, anchors)
		}
	}
}

// resolve strips anchors and follows aliases. It terminates because an alias refers only to an
// earlier node.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			target, ok := d.anchors[v]
			if !ok {
				return n
			}
			n = target
		default:
			return n
		}
	}
}

// pairs lists the pairs of a mapping in file order, merge keys ("<<") expanded. A key of the
// mapping itself overrides a merged one, and an earlier merged mapping overrides a later one (YAML
// merge key, yaml.org/type/merge.html).
func (d *decoder) pairs(n ast.Node, path string, depth int) []pair {
	var out, merged []pair
	first := map[string]ast.Node{}
	for _, v := range mapValues(n) {
		if d.spent(v.Key, path) {
			return nil
		}
		if _, ok := v.Key.(*ast.MergeKeyNode); ok {
			merged = append(merged, d.merged(v.Value, path, depth)...)
			continue
		}
		name, ok := keyName(v.Key)
		if !ok {
			d.fault(v.Key, path, "want plain text as key, got %s", describe(d.resolve(v.Key)))
			continue
		}
		if before, ok := first[name]; ok {
			d.fault(v.Key, fault.Join(path, name), "key is given twice; first on line %d", before.GetToken().Position.Line)
			continue
		}
		first[name] = v.Key
		out = append(out, pair{name, v.Key, v.Value})
	}
	for _, p := range merged {
		if _, ok := first[p.name]; !ok {
			first[p.name] = p.key
			out = append(out, p)
		}
	}
	return out
}

// merged lists the pairs of a merge key's value, which is a mapping or a list of mappings.
func (d *decoder) merged(n ast.Node, path string, depth int) []pair {
	if depth > MaxDepth {
		d.fault(n, path, "merge keys nest deeper than %d levels", MaxDepth)
		return nil
	}
	switch v := d.resolve(n).(type) {
	case ast.MapNode:
		return d.pairs(v.(ast.Node), path, depth+1)
	case *ast.SequenceNode:
		var out []pair
		for _, item := range v.Values {
			out = append(out, d.merged(item, path, depth+1)...)
		}
		return out
	default:
		d.fault(n, path, "want a mapping to merge, got %s", describe(v))
		return nil
	}
}

func mapValues(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func keyName(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// spent counts a value and reports whether there are more than MaxValues, which is then the only
// fault of the file.
func (d *decoder) spent(n ast.Node, path string) bool {
	d.values++
	if d.values == MaxValues+1 {
		d.spare = at(n, "is value %d of the file, aliases expanded, which may hold %d", d.values, MaxValues)
		d.spare.Path = path
	}
	return d.values > MaxValues
}

// decode fills v from n. If n does not fit, v is unchanged and a fault is recorded.
func (d *decoder) decode(n ast.Node, path string, v reflect.Value) {
	if d.spent(n, path) {
		return
	}
	d.locate(path, n)
	n = d.resolve(n)
	switch {
	case n.Type() == ast.TagType:
		d.fault(n, path, "YAML tags (%s) are not used here", clip(n.GetToken().Value))
	case v.Kind() == reflect.Pointer:
		// An empty section is allocated, so that its checker reports the missing keys.
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.decode(n, path, v.Elem())
	case field.HasShort(v.Type()):
		if text, ok := scalarText(n); ok {
			if err := field.Parse(v, text); err != nil {
				d.fault(n, path, "%v", err)
			}
			return
		}
		v.SetZero()
		d.decodeStruct(n, path, v)
	case v.Kind() == reflect.Struct && !field.IsScalar(v.Type()):
		d.decodeStruct(n, path, v)
	case v.Kind() == reflect.Map:
		d.decodeMap(n, path, v)
	case v.Kind() == reflect.Slice:
		d.decodeSlice(n, path, v)
	default:
		d.decodeScalar(n, path, v)
	}
}

// decodeScalar sets a value from a scalar node.
func (d *decoder) decodeScalar(n ast.Node, path string, v reflect.Value) {
	text, ok := scalarText(n)
	switch n := n.(type) {
	case *ast.BoolNode:
		// YAML accepts other spellings of a bool; only true and false are accepted here.
		_, own := v.Addr().Interface().(encoding.TextUnmarshaler) // which may have more values than these
		text, ok = strconv.FormatBool(n.Value), v.Kind() == reflect.Bool || own
	case *ast.StringNode, *ast.LiteralNode:
		// A quoted string is not a number, but the YAML parser returns 0.1% and 1e-3 as
		// strings.
		plain := n.GetToken().Type == token.StringType || strings.HasSuffix(text, "%")
		if kind := v.Kind(); v.Type().PkgPath() == "" && (kind == reflect.Bool || isInteger(kind) || kind == reflect.Float64 && !plain) {
			ok = false
		}
	}
	var err error
	if ok {
		err = field.Parse(v, text)
	}
	if ok && err == nil {
		return
	}
	switch kind := v.Kind(); {
	case kind == reflect.Bool:
		d.fault(n, path, "want true or false, got %s", describe(n))
	case v.Type().PkgPath() == "" && kind == reflect.Float64:
		d.fault(n, path, "want a number, got %s", describe(n))
	case v.Type().PkgPath() == "" && kind >= reflect.Uint && kind <= reflect.Uint64:
		d.fault(n, path, "want a whole number from 0 to %d, got %s", uint64(math.MaxUint64)>>(64-v.Type().Bits()), describe(n))
	case v.Type().PkgPath() == "" && isInteger(kind):
		d.fault(n, path, "want a whole number, got %s", describe(n))
	case ok && text != "" && v.Type().PkgPath() != "net/netip" && v.Type() != reflect.TypeFor[time.Duration]():
		d.fault(n, path, "%v", err)
	default:
		d.fault(n, path, "want %s, got %s", field.Want(v.Type()), describe(n))
	}
}

func isInteger(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Uint64 }

func (d *decoder) decodeStruct(n ast.Node, path string, v reflect.Value) {
	if n.Type() == ast.NullType {
		return
	}
	if _, ok := n.(ast.MapNode); !ok {
		d.fault(n, path, "want a mapping (key: value), got %s", describe(n))
		return
	}
	fields := map[string]reflect.Value{}
	var names []string
	field.Each(v.Type(), func(name string, index []int) {
		fields[name] = v.FieldByIndex(index)
		names = append(names, name)
	})
	for _, p := range d.pairs(n, path, 0) {
		below := fault.Join(path, p.name)
		field, ok := fields[p.name]
		if !ok {
			d.fault(p.key, fault.Join(path, clip(p.name)), "unknown key%s; known here: %s", fault.Suggest(p.name, names), strings.Join(names, ", "))
			continue
		}
		d.hold(below, p.key)
		if d.removes(p) {
			d.remove(p, below, !field.IsZero())
			field.SetZero()
			continue
		}
		d.decode(p.value, below, field)
	}
}

// ordered is implemented by values of mappings whose order in the file counts.
type ordered interface {
	SetOrder(n int)
	Order() int
}

func orderedOf(v reflect.Value) (ordered, bool) {
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return nil, false
	}
	o, ok := v.Interface().(ordered)
	return o, ok
}

func (d *decoder) decodeMap(n ast.Node, path string, v reflect.Value) {
	if n.Type() == ast.NullType {
		return
	}
	if _, ok := n.(ast.MapNode); !ok {
		d.fault(n, path, "want a mapping (key: value), got %s", describe(n))
		return
	}
	m := reflect.MakeMap(v.Type())
	for _, key := range v.MapKeys() {
		m.SetMapIndex(key, v.MapIndex(key))
	}
	for _, p := range d.pairs(n, path, 0) {
		value := reflect.New(v.Type().Elem()).Elem()
		below, key := fault.Join(path, p.name), reflect.ValueOf(p.name)
		before := m.MapIndex(key)
		d.hold(below, p.key)
		if d.removes(p) {
			d.remove(p, below, before.IsValid())
			m.SetMapIndex(key, reflect.Value{})
			continue
		}
		if before.IsValid() {
			value.Set(before)
		}
		d.decode(p.value, below, value)
		if o, ok := orderedOf(value); ok && o.Order() == 0 {
			d.order++
			o.SetOrder(d.order)
		}
		// Checkers quote a key that would make the path ambiguous. A fault of the path
		// itself is a fault of the key.
		d.locate(below, p.key)
		d.locate(fault.Join(path, strconv.Quote(p.name)), p.key)
		m.SetMapIndex(key, value)
	}
	v.Set(m)
}

func (d *decoder) decodeSlice(n ast.Node, path string, v reflect.Value) {
	if n.Type() == ast.NullType {
		return
	}
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fault(n, path, "want a list, got %s", describe(n))
		return
	}
	s := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		d.decode(item, fmt.Sprintf("%s[%d]", path, i), s.Index(i))
	}
	v.Set(s)
}

// scalarText returns the text of a scalar as it is written. A number is accepted where text is
// expected ("name: 1.10").
func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// describe returns a description of a node for "want ..., got ...".
func describe(n ast.Node) string {
	switch n := n.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return clip(n.GetToken().Value)
	case *ast.StringNode:
		return strconv.Quote(clip(n.Value))
	case *ast.LiteralNode:
		return strconv.Quote(clip(n.Value.Value))
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a mapping"
	case *ast.TagNode:
		return "a YAML tag"
	}
	return "a YAML " + strings.ToLower(n.Type().YAMLName())
}

// clip shortens text from the file, so that a fault stays readable.
func clip(s string) string {
	const maxShown = 64
	if r := []rune(s); len(r) > maxShown {
		return string(r[:maxShown]) + "..."
	}
	return s
}

func faultOf(path, message string) fault.Fault { return fault.Fault{Path: path, Message: message} }
