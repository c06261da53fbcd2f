package gateway

import (
	"encoding"
	"testing"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// FuzzValues: the text of a value that was read is read as the same value.
func FuzzValues(f *testing.F) {
	for _, text := range []string{"auto", "none", "off", "50Mbit/s", "20ms", "ef", "af41", "63", "icmp", "47", "hq.example:4790", "[2001:db8::1]:1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		again(t, text, new(Rate), new(Rate))
		again(t, text, new(Protocol), new(Protocol))
		again(t, text, new(DSCP), new(DSCP))
		again(t, text, new(Resequence), new(Resequence))
		again(t, text, new(Endpoint), new(Endpoint))
	})
}

// value is a value of a file.
type value[T any] interface {
	*T
	encoding.TextUnmarshaler
	encoding.TextMarshaler
}

func again[T comparable, P value[T]](t *testing.T, text string, v, w P) {
	t.Helper()
	if v.UnmarshalText([]byte(text)) != nil {
		return
	}
	accessor.Call(t, v)
	written, err := v.MarshalText()
	if err != nil {
		t.Fatalf("%q as %T: %v", text, v, err)
	}
	if err := w.UnmarshalText(written); err != nil || *v != *w {
		t.Errorf("%q as %T is written %q, which is read as %v, %v", text, v, written, *w, err)
	}
}
