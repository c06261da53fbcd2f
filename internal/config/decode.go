package config

import (
	"encoding"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/unit"
)

// maxValues bounds how many values a document may hold after its aliases are expanded.
const maxValues = 300_000

// decoder fills Go values from YAML nodes. The library's own decoder stops at the first fault and forgets where values
// stood; this one goes on, and remembers the place of every path for the faults that are found later.
type decoder struct {
	anchors map[*ast.AliasNode]ast.Node
	// places says where each value stands, and holders which key holds it: what a value lacks is missed at its key.
	places, holders map[string]ast.Node
	faults          []Fault
	// broken are the paths that already have a fault: what a checker says of them or of what is below would only repeat it.
	broken map[string]bool
	values int
	// spare is the first value that was too many.
	spare Fault
}

func newDecoder() *decoder {
	return &decoder{places: map[string]ast.Node{}, holders: map[string]ast.Node{}, broken: map[string]bool{}}
}

// fault records what is wrong with the value at path, which stands at n.
func (d *decoder) fault(n ast.Node, path, format string, args ...any) {
	f := at(n, format, args...)
	f.Path = path
	d.faults = append(d.faults, f)
	d.broken[path] = true
}

// add records the faults that a checker found. A fault of something that the file does not have points at the nearest
// thing around it.
func (d *decoder) add(list fault.List) {
	for _, f := range list {
		found := Fault{Fault: f}
		repeated := false
		for path := f.Path; ; path = parent(path) {
			repeated = repeated || d.broken[path]
			n := d.places[path]
			if holder, ok := d.holders[path]; ok && path != f.Path {
				n = holder
			}
			if n != nil && found.Line == 0 {
				place := at(n, "")
				found.Line, found.Column = place.Line, place.Column
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

// parent cuts the last step off a path.
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

// keys returns the names of the document's top-level keys; false, with the fault recorded, when the document is no mapping.
func (d *decoder) keys(root ast.Node) ([]string, bool) {
	d.anchors = map[*ast.AliasNode]ast.Node{}
	d.link(root, map[string]ast.Node{})
	n := d.resolve(root)
	if _, ok := n.(ast.MapNode); !ok {
		d.fault(root, "", "want a mapping (key: value), got %s", describe(n))
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
	// What pairs found wrong is found again when the mapping is decoded.
	faults := d.faults
	d.faults, d.values = nil, 0
	if len(names) == 0 {
		d.faults = faults
		return nil, false
	}
	return names, true
}

// link finds what every alias stands for: the last anchor of its name before it. A node does not contain itself, because
// its anchor counts only after it.
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

// resolve strips anchors and follows aliases. It ends, because an alias stands for something before it.
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

// pairs lists what a mapping holds, in the order of the file, merge keys ("<<") expanded: a key of the mapping itself
// goes before a merged one, and an earlier merged mapping before a later one (YAML merge key, yaml.org/type/merge.html).
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

// merged lists what a merge key brings: a mapping or several.
func (d *decoder) merged(n ast.Node, path string, depth int) []pair {
	if depth > maxDepth {
		d.fault(n, path, "merge keys nest deeper than %d levels", maxDepth)
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

// spent counts a value and says when there are too many, which is then the only fault of the file.
func (d *decoder) spent(n ast.Node, path string) bool {
	d.values++
	if d.values == maxValues+1 {
		d.spare = at(n, "is value %d of the file, aliases expanded, which may hold %d", d.values, maxValues)
		d.spare.Path = path
	}
	return d.values > maxValues
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	// wants says what a text must look like, for types whose own errors speak of Go.
	wants = map[reflect.Type]string{
		reflect.TypeFor[netip.Addr]():     `an IP address like "2001:db8::1"`,
		reflect.TypeFor[netip.Prefix]():   `an IP prefix like "2001:db8::/32"`,
		reflect.TypeFor[netip.AddrPort](): `an address and port like "[::1]:9116"`,
		reflect.TypeFor[unit.Bandwidth](): `a bandwidth like "30Mbit/s"`,
		reflect.TypeFor[unit.Size]():      `a size like "100MB"`,
	}
)

// decode fills v from n. A value that n does not fit stays as it is, with a fault.
func (d *decoder) decode(n ast.Node, path string, v reflect.Value) {
	if d.spent(n, path) {
		return
	}
	d.places[path] = n
	n = d.resolve(n)
	switch {
	case n.Type() == ast.TagType:
		d.fault(n, path, "YAML tags (%s) are not used here", clip(n.GetToken().Value))
	case v.Kind() == reflect.Pointer:
		// An empty section is a section: its checker says what it lacks.
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.decode(n, path, v.Elem())
	case v.Type() == durationType:
		d.decodeDuration(n, path, v)
	case v.Addr().Type().Implements(textType):
		d.decodeText(n, path, v)
	default:
		d.decodeKind(n, path, v)
	}
}

func (d *decoder) decodeKind(n ast.Node, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		d.decodeStruct(n, path, v)
	case reflect.Map:
		d.decodeMap(n, path, v)
	case reflect.Slice:
		d.decodeSlice(n, path, v)
	case reflect.String:
		if text, ok := scalarText(n); ok {
			v.SetString(text)
		} else {
			d.fault(n, path, "want text, got %s", describe(n))
		}
	case reflect.Bool:
		if b, ok := n.(*ast.BoolNode); ok {
			v.SetBool(b.Value)
		} else {
			d.fault(n, path, "want true or false, got %s", describe(n))
		}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(integerText(n), 10, v.Type().Bits())
		if err != nil || !plain(integerText(n)) {
			most := uint64(math.MaxUint64) >> (64 - v.Type().Bits())
			d.fault(n, path, "want a whole number from 0 to %d, got %s", most, describe(n))
			return
		}
		v.SetUint(u)
	case reflect.Int, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(integerText(n), 10, v.Type().Bits())
		if err != nil || !plain(integerText(n)) {
			d.fault(n, path, "want a whole number, got %s", describe(n))
			return
		}
		v.SetInt(i)
	case reflect.Float64:
		text := integerText(n)
		if f, ok := n.(*ast.FloatNode); ok {
			text = f.Token.Value
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			d.fault(n, path, "want a number, got %s", describe(n))
			return
		}
		v.SetFloat(f)
	default:
		panic(fmt.Sprintf("BUG: %s: the decoder knows no %s", path, v.Type()))
	}
}

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
	eachField(v.Type(), func(name string, index []int) {
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
		d.holders[below] = p.key
		d.decode(p.value, below, field)
	}
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
	for _, p := range d.pairs(n, path, 0) {
		value := reflect.New(v.Type().Elem()).Elem()
		below := fault.Join(path, p.name)
		d.holders[below] = p.key
		d.decode(p.value, below, value)
		// Checkers quote a key that would make the path ambiguous, and what they say of the path itself is about the key.
		d.places[below], d.places[fault.Join(path, strconv.Quote(p.name))] = p.key, p.key
		m.SetMapIndex(reflect.ValueOf(p.name), value)
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

func (d *decoder) decodeDuration(n ast.Node, path string, v reflect.Value) {
	text, _ := scalarText(n)
	t, err := time.ParseDuration(text)
	if err != nil {
		d.fault(n, path, `want a duration like "50ms" or "1m30s", got %s`, describe(n))
		return
	}
	v.SetInt(int64(t))
}

func (d *decoder) decodeText(n ast.Node, path string, v reflect.Value) {
	want, known := wants[v.Type()]
	if !known {
		want = "text"
	}
	text, ok := scalarText(n)
	if !ok || text == "" {
		d.fault(n, path, "want %s, got %s", want, describe(n))
		return
	}
	err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
	if b, ok := v.Interface().(unit.Bandwidth); ok && err == nil && b == 0 {
		d.fault(n, path, "must be > 0, got %s: nothing passes at no rate; leave it out where there is no limit", describe(n))
	}
	if err == nil {
		return
	}
	if known && v.Type().PkgPath() == "net/netip" {
		d.fault(n, path, "want %s, got %s", want, describe(n))
		return
	}
	d.fault(n, path, "%v", err)
}

// eachField calls f for every key that a struct of type t has, those of inlined structs included.
func eachField(t reflect.Type, f func(name string, index []int)) {
	for i := range t.NumField() {
		field := t.Field(i)
		if !field.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case name == "-":
		case name == "" && slices.Contains(strings.Split(options, ","), "inline"):
			eachField(field.Type, func(name string, index []int) { f(name, append([]int{i}, index...)) })
		case name == "":
			panic(fmt.Sprintf("BUG: %s.%s has no yaml key", t, field.Name))
		default:
			f(name, []int{i})
		}
	}
}

func keysOf[T any]() []string {
	var names []string
	eachField(reflect.TypeFor[T](), func(name string, _ []int) { names = append(names, name) })
	return names
}

// scalarText returns the text of a scalar as it is written: a number is text where text is wanted ("name: 1.10").
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

func integerText(n ast.Node) string {
	if i, ok := n.(*ast.IntegerNode); ok {
		return i.Token.Value
	}
	return ""
}

// plain refuses numbers that YAML 1.1 and 1.2 read differently, or that only look decimal: 010, 0x10, 1_000, +1.
func plain(number string) bool {
	digits := strings.TrimPrefix(number, "-")
	return digits != "" && strings.Trim(digits, "0123456789") == "" && (len(digits) == 1 || digits[0] != '0')
}

// describe says what a node is, for "want ..., got ...".
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

// clip keeps a fault on one readable line whatever the file holds.
func clip(s string) string {
	const most = 64
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}

func faultOf(path, message string) fault.Fault { return fault.Fault{Path: path, Message: message} }
