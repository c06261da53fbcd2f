// Package accessor calls everything that a decoded value offers, for tests: a decoder that accepts
// an input must not leave a method that panics. A method that is added later is called without a
// change of the tests.
//
// It does not compare what the methods return, and calls none of other modules.
package accessor

import (
	"fmt"
	"math"
	"reflect"
	"runtime/debug"
	"strings"
	"testing"
)

const (
	module = "github.com/tabane/tabane/"
	// maxDepth bounds results of results, maxElements those of a list, and maxCalls all calls of
	// one value.
	maxDepth    = 6
	maxElements = 32
	maxCalls    = 4096
)

// Call calls the exported methods of the values, of what their exported fields contain and of what
// the methods return, with a copy of each receiver. Methods with parameters are called with extreme
// numbers, empty text and zero values; one with a single int, if the type has a method Len, with
// each index below it. Other ints, pointers and interfaces are for the tests of the method itself.
// A panic fails the test.
func Call(t testing.TB, values ...any) {
	t.Helper()
	for _, v := range values {
		w := walk{t: t, seen: map[visited]bool{}}
		w.value(reflect.ValueOf(v), 0)
	}
}

// visited identifies what a pointer refers to.
type visited struct {
	pointer uintptr
	typ     reflect.Type
}

type walk struct {
	t     testing.TB
	seen  map[visited]bool
	calls int
}

// value visits a value at a depth of results.
func (w *walk) value(v reflect.Value, depth int) {
	w.t.Helper()
	if !v.IsValid() || depth > maxDepth || !v.CanInterface() {
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		w.value(v.Elem(), depth)
		return
	case reflect.Pointer:
		at := visited{v.Pointer(), v.Type()}
		if !v.IsNil() && !w.seen[at] {
			w.seen[at] = true
			w.value(v.Elem(), depth)
		}
		return
	case reflect.Func:
		w.sequence(v, depth)
		return
	}
	w.methods(v, depth)
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			w.value(v.Field(i), depth)
		}
	case reflect.Slice, reflect.Array:
		for i := range min(v.Len(), maxElements) {
			w.value(v.Index(i), depth)
		}
	case reflect.Map:
		for i, k := range v.MapKeys() {
			if i < maxElements {
				w.value(k, depth)
				w.value(v.MapIndex(k), depth)
			}
		}
	}
}

// sequence visits what an iterator yields.
func (w *walk) sequence(v reflect.Value, depth int) {
	w.t.Helper()
	left := maxElements
	switch {
	case v.IsNil():
	case v.Type().CanSeq2():
		for key, x := range v.Seq2() {
			w.value(key, depth+1)
			w.value(x, depth+1)
			if left--; left == 0 {
				return
			}
		}
	case v.Type().CanSeq():
		for x := range v.Seq() {
			w.value(x, depth+1)
			if left--; left == 0 {
				return
			}
		}
	}
}

// methods calls the methods of a value of this module.
func (w *walk) methods(v reflect.Value, depth int) {
	w.t.Helper()
	if !strings.HasPrefix(v.Type().PkgPath()+"/", module) {
		return
	}
	for i := range reflect.PointerTo(v.Type()).NumMethod() {
		receiver := reflect.New(v.Type())
		receiver.Elem().Set(v)
		method := receiver.Method(i)
		name := fmt.Sprintf("%s.%s", v.Type(), receiver.Type().Method(i).Name)
		for _, args := range arguments(method.Type(), v) {
			if w.calls++; w.calls > maxCalls {
				return
			}
			w.call(name, method, args, depth)
		}
	}
}

// call calls one method and visits what it returns, iterators included.
func (w *walk) call(name string, method reflect.Value, args []reflect.Value, depth int) {
	w.t.Helper()
	defer func() {
		w.t.Helper()
		if p := recover(); p != nil {
			w.t.Fatalf("%s panics: %v\nwith %v\n%s", name, p, args, debug.Stack())
		}
	}()
	for _, result := range method.Call(args) {
		w.value(result, depth+1)
	}
}

// arguments returns the lists of arguments to call a method of v with; none if it has a parameter
// that this package has no value for.
func arguments(method reflect.Type, v reflect.Value) [][]reflect.Value {
	n := method.NumIn()
	if method.IsVariadic() {
		n--
	}
	if n == 1 && method.In(0).Kind() == reflect.Int {
		return indices(method.In(0), v)
	}
	lists := [][]reflect.Value{nil}
	for i := range n {
		values := arguments1(method.In(i))
		if len(values) == 0 {
			return nil
		}
		var longer [][]reflect.Value
		for _, list := range lists {
			for _, x := range values {
				longer = append(longer, append(list[:len(list):len(list)], x))
			}
		}
		lists = longer
	}
	return lists
}

// indices returns the first and the last indices of a list.
func indices(typ reflect.Type, v reflect.Value) (lists [][]reflect.Value) {
	length := v.MethodByName("Len")
	if !length.IsValid() || length.Type().NumIn() != 0 || length.Type().NumOut() != 1 || length.Type().Out(0).Kind() != reflect.Int {
		return nil
	}
	n := int(length.Call(nil)[0].Int())
	for i := range n {
		if i < maxElements || i == n-1 {
			lists = append(lists, []reflect.Value{reflect.ValueOf(i).Convert(typ)})
		}
	}
	return lists
}

// arguments1 returns the values of a parameter.
func arguments1(typ reflect.Type) []reflect.Value {
	values := []reflect.Value{reflect.Zero(typ)}
	switch typ.Kind() {
	case reflect.Bool:
		return append(values, reflect.ValueOf(true).Convert(typ))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return append(values, reflect.ValueOf(uint64(math.MaxUint64)).Convert(typ))
	case reflect.String, reflect.Struct, reflect.Array, reflect.Slice:
		return values
	}
	return nil
}
