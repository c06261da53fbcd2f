package accessor

import (
	"fmt"
	"iter"
	"runtime"
	"strings"
	"testing"
)

// list is a decoded value whose methods panic for the number that it has.
type list []byte

func (l list) Len() int     { return len(l) }
func (l list) At(i int) one { return one{l[i]} }
func (l list) All() iter.Seq[one] {
	return func(yield func(one) bool) {
		for _, b := range l {
			if b == inIteration {
				panic("in an iteration")
			}
			if !yield(one{b}) {
				return
			}
		}
	}
}

type one struct{ b byte }

const (
	withoutArguments byte = iota + 1
	ofPointer
	withText
	withLargeNumber
	inResult
	inIteration
	last
)

func (o one) Text() string {
	if o.b == withoutArguments {
		panic("without arguments")
	}
	return ""
}

func (o *one) Change() {
	if o.b == ofPointer {
		panic("of a pointer")
	}
	o.b = withoutArguments // of the copy
}

func (o one) Is(s string) bool {
	if o.b == withText {
		panic("with text")
	}
	return false
}

func (o one) Has(n uint32) bool {
	if o.b == withLargeNumber && n > 1<<31 {
		panic("with a large number")
	}
	return false
}

func (o one) Inner() (fmt.Stringer, error) {
	if o.b == inResult {
		return &inner{}, nil
	}
	return nil, nil
}

type inner struct{ next *inner }

func (i *inner) String() string { return fmt.Sprint(i.next.next) } // next is nil

// recorder is a test that records its failure.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure returns how Call fails for a value, "" if it does not.
func failure(v any) string {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Call(r, v)
	}()
	<-done
	return r.failure
}

func TestCall(t *testing.T) {
	for b, want := range map[byte]string{
		withoutArguments: "one.Text panics: without arguments",
		ofPointer:        "one.Change panics: of a pointer",
		withText:         "one.Is panics: with text",
		withLargeNumber:  "one.Has panics: with a large number",
		inResult:         "inner.String panics: runtime error",
		inIteration:      "list.All panics: in an iteration",
	} {
		for _, v := range []any{list{last, b}, &list{b}, struct{ Field any }{list{b}}, map[string]list{"": {last, b}}} {
			if got := failure(v); !strings.HasPrefix(got, "accessor."+want) {
				t.Errorf("%v: %q, want %q", v, got, want)
			}
		}
	}
	for _, v := range []any{nil, list(nil), list{last, 0}, (*one)(nil)} {
		if got := failure(v); got != "" {
			t.Errorf("%v: %s", v, got)
		}
	}
}
