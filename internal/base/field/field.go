// Package field reads and sets fields of configuration structs by their keys, the names that they
// have in YAML files.
//
// It defines the grammar of single values, so that a value means the same in a file, in "lab set"
// and in "sim sweep --set". It does not read YAML, does not validate more than the type of a value,
// and fills in no defaults.
package field

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
)

// Short is implemented by pointers to structs that have a short form besides the mapping, such as a
// loss of "0.1%".
type Short interface {
	// ParseShort sets the struct to the value of the short form. Errors say what is accepted.
	ParseShort(text string) error
	// Short returns the short form of the struct; false if only a mapping can represent it.
	Short() (text string, ok bool)
}

// Unlimited is the text of a bandwidth or size that is not limited; its value is 0.
const Unlimited = "unlimited"

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	shortType    = reflect.TypeFor[Short]()
	// wants describes the syntax of each type, for messages.
	wants = map[reflect.Type]string{
		durationType:                      `a duration like "50ms" or "1m30s"`,
		reflect.TypeFor[netip.Addr]():     `an IP address like "2001:db8::1"`,
		reflect.TypeFor[netip.Prefix]():   `an IP prefix like "2001:db8::/32"`,
		reflect.TypeFor[netip.AddrPort](): `an address and port like "[::1]:9116"`,
		reflect.TypeFor[unit.Bandwidth](): `a bandwidth like "30Mbit/s"`,
		reflect.TypeFor[unit.Size]():      `a size like "100MB"`,
	}
)

// Each calls f for every key of a struct of type t, including those of inlined structs.
func Each(t reflect.Type, f func(key string, index []int)) {
	for i := range t.NumField() {
		field := t.Field(i)
		if !field.IsExported() {
			continue
		}
		key, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case key == "-":
		case key == "" && slices.Contains(strings.Split(options, ","), "inline"):
			Each(field.Type, func(key string, index []int) { f(key, append([]int{i}, index...)) })
		case key == "":
			panic(fmt.Sprintf("BUG: %s.%s has no yaml key", t, field.Name))
		default:
			f(key, []int{i})
		}
	}
}

// Keys returns the keys of a struct of type T, in the order of its fields.
func Keys[T any]() []string {
	var keys []string
	Each(reflect.TypeFor[T](), func(key string, _ []int) { keys = append(keys, key) })
	return keys
}

// Paths returns the paths of all values that Set can set in a struct of type T. A struct with a
// short form has a path of its own: "forward.loss" as well as "forward.loss.p".
func Paths[T any]() []string { return paths(reflect.TypeFor[T]()) }

func paths(t reflect.Type) []string {
	var list []string
	Each(t, func(key string, index []int) {
		inner := t.FieldByIndex(index).Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case IsScalar(inner):
			list = append(list, key)
		case inner.Kind() == reflect.Struct:
			if reflect.PointerTo(inner).Implements(shortType) {
				list = append(list, key)
			}
			for _, below := range paths(inner) {
				list = append(list, key+"."+below)
			}
		}
	})
	return list
}

// Resolve returns the path of a name: the path that equals it, or the shortest one that ends in it,
// "buffer.discipline" for "discipline". Unknown and ambiguous names are errors with a suggestion.
func Resolve(name string, paths []string) (string, error) {
	if slices.Contains(paths, name) {
		return name, nil
	}
	var found []string
	for _, p := range paths {
		if !strings.HasSuffix(p, "."+name) {
			continue
		}
		switch depth := strings.Count(p, "."); {
		case len(found) == 0 || depth < strings.Count(found[0], "."):
			found = []string{p}
		case depth == strings.Count(found[0], "."):
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		var tops []string
		for _, p := range paths {
			if top, _, _ := strings.Cut(p, "."); !slices.Contains(tops, top) {
				tops = append(tops, top)
			}
		}
		return "", fmt.Errorf("unknown key %q%s; there are %s", name, fault.Suggest(name, paths), strings.Join(tops, ", "))
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("key %q is ambiguous: write one of %s", name, strings.Join(found, ", "))
}

// Set sets the value at a path of the struct that target points to. Pointers on the path are
// allocated, or their values copied, so that other structs that share them do not change.
//
// The target does not change on an error.
func Set(target any, path, text string) error {
	to := reflect.ValueOf(target).Elem()
	changed := reflect.New(to.Type()).Elem()
	changed.Set(to)
	if err := set(changed, path, text); err != nil {
		return err
	}
	to.Set(changed)
	return nil
}

func set(v reflect.Value, path, text string) error {
	root := v.Type()
	for rest := path; ; {
		key, below, nested := strings.Cut(rest, ".")
		at, ok := lookup(v, key)
		if !ok {
			return fmt.Errorf("unknown key %q%s", path, fault.Suggest(path, paths(root)))
		}
		if at.Kind() == reflect.Pointer {
			fresh := reflect.New(at.Type().Elem())
			if !at.IsNil() {
				fresh.Elem().Set(at.Elem())
			}
			at.Set(fresh)
			at = fresh.Elem()
		}
		if !nested {
			return Parse(at, text)
		}
		if at.Kind() != reflect.Struct {
			return fmt.Errorf("unknown key %q: %s has no keys below it", path, key)
		}
		v, rest = at, below
	}
}

// Assignments returns the struct that target points to as "path=text", one for each value that is
// not zero. Applied to an empty struct with Set, they give an equal struct.
func Assignments(target any) []string {
	return assignments(reflect.ValueOf(target).Elem(), "")
}

func assignments(v reflect.Value, prefix string) []string {
	var list []string
	Each(v.Type(), func(key string, index []int) {
		at, path := v.FieldByIndex(index), fault.Join(prefix, key)
		given := !at.IsZero()
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		if !given {
			return
		}
		if text, ok := format(at); ok {
			list = append(list, path+"="+text)
		} else if at.Kind() == reflect.Struct {
			list = append(list, assignments(at, path)...)
		}
	})
	return list
}

// format returns the text that Parse parses as the value; false if there is none.
func format(v reflect.Value) (string, bool) {
	if HasShort(v.Type()) {
		fresh := reflect.New(v.Type())
		fresh.Elem().Set(v)
		return fresh.Interface().(Short).Short()
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String(), true
	case unit.Bandwidth:
		if x == 0 {
			return Unlimited, true
		}
	case float64:
		return strconv.FormatFloat(x, 'g', -1, 64), true
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		return string(text), err == nil
	}
	return fmt.Sprint(v.Interface()), IsScalar(v.Type())
}

// Clear sets the value at a path to its zero value, as in a file without the key.
func Clear(target any, path string) {
	v := reflect.ValueOf(target).Elem()
	for rest := path; ; {
		key, below, nested := strings.Cut(rest, ".")
		at, ok := lookup(v, key)
		switch {
		case !ok:
			return
		case !nested:
			at.SetZero()
			return
		case at.Kind() == reflect.Pointer && at.IsNil():
			return
		case at.Kind() == reflect.Pointer:
			fresh := reflect.New(at.Type().Elem())
			fresh.Elem().Set(at.Elem())
			at.Set(fresh)
			at = fresh.Elem()
		}
		if at.Kind() != reflect.Struct {
			return
		}
		v, rest = at, below
	}
}

func lookup(v reflect.Value, key string) (at reflect.Value, ok bool) {
	Each(v.Type(), func(k string, index []int) {
		if k == key {
			at, ok = v.FieldByIndex(index), true
		}
	})
	return at, ok
}

// IsScalar reports whether values of the type are written as a single text.
func IsScalar(t reflect.Type) bool {
	if t == durationType || reflect.PointerTo(t).Implements(textType) {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Float64,
		reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	}
	return false
}

// HasShort reports whether structs of the type have a short form.
func HasShort(t reflect.Type) bool { return reflect.PointerTo(t).Implements(shortType) }

// Parse sets v, which is of a scalar type or has a short form, to the value of the text. v does not
// change on an error. A number may be a percentage: "0.1%" is 0.001.
func Parse(v reflect.Value, text string) error {
	if HasShort(v.Type()) {
		fresh := reflect.New(v.Type())
		if err := fresh.Interface().(Short).ParseShort(text); err != nil {
			return err
		}
		v.Set(fresh.Elem())
		return nil
	}
	if v.Type() == durationType {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("want %s, got %q", wants[durationType], text)
		}
		v.SetInt(int64(d))
		return nil
	}
	if reflect.PointerTo(v.Type()).Implements(textType) {
		return parseText(v, text)
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("want true or false, got %q", text)
		}
		v.SetBool(text == "true")
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil || !decimal(text) {
			return fmt.Errorf("want a whole number from 0 to %d, got %q", uint64(math.MaxUint64)>>(64-v.Type().Bits()), text)
		}
		v.SetUint(u)
	case reflect.Int, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil || !decimal(text) {
			return fmt.Errorf("want a whole number, got %q", text)
		}
		v.SetInt(i)
	case reflect.Float64:
		f, err := Number(text)
		if err != nil {
			return err
		}
		v.SetFloat(f)
	default:
		panic(fmt.Sprintf("BUG: a %s has no text", v.Type()))
	}
	return nil
}

func parseText(v reflect.Value, text string) error {
	switch v.Interface().(type) {
	case unit.Bandwidth, unit.Size:
		if text == Unlimited {
			v.SetInt(0)
			return nil
		}
	}
	fresh := reflect.New(v.Type())
	err := fresh.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
	want, known := wants[v.Type()]
	switch {
	case text == "" && known:
		return fmt.Errorf("want %s, got %q", want, text)
	case err != nil && known && v.Type().PkgPath() == "net/netip":
		return fmt.Errorf("want %s, got %q", want, text)
	case err != nil:
		return err
	}
	if b, ok := fresh.Elem().Interface().(unit.Bandwidth); ok && b == 0 {
		return fmt.Errorf("must be > 0, got %q: write %s for no limit", text, Unlimited)
	}
	v.Set(fresh.Elem())
	return nil
}

// Want describes the syntax of the type, for messages.
func Want(t reflect.Type) string {
	if want, ok := wants[t]; ok {
		return want
	}
	return "text"
}

// Number parses a finite number, in decimal notation with or without an exponent, or a percentage.
func Number(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) || strings.ContainsAny(number, "xXpP_+") && !strings.Contains(number, "e+") {
		return 0, fmt.Errorf("want a number like 0.001, 1e-3 or 0.1%%, got %q", text)
	}
	if percent {
		f /= 100
	}
	return f, nil
}

// Probability parses a number from 0 to 1.
func Probability(text string) (float64, error) {
	p, err := Number(text)
	if err == nil && (p < 0 || p > 1) {
		err = errors.New("out of range")
	}
	if err != nil {
		return 0, fmt.Errorf("want a probability like 0.001, 1e-3 or 0.1%%, got %q", text)
	}
	return p, nil
}

// decimal reports whether the number is plain decimal. It refuses what YAML 1.1 and 1.2 read
// differently, or that only looks decimal: 010, 0x10, 1_000, +1.
func decimal(number string) bool {
	digits := strings.TrimPrefix(number, "-")
	return digits != "" && strings.Trim(digits, "0123456789") == "" && (len(digits) == 1 || digits[0] != '0')
}
