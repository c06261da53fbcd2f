package ccbpf

import (
	"testing"
	"time"
	"unsafe"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// encode returns statistics as a map has them.
func encode(s newrenoStats) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s))
}

func TestDecodeStats(t *testing.T) {
	b := encode(newrenoStats{Acks: 7, Busy: 2e6, Limited: 5e5, Window: 3e7, Each: 1 << 30, Losses: 3, Timeouts: 2, Highest: 40, Repairs: 1})
	got, err := DecodeStats(b)
	want := Stats{
		Acks: 7, Busy: 2 * time.Second, Limited: time.Second / 2, MeanWindow: 15, HighestWindow: 40, Increase: 0.25, Losses: 3, Timeouts: 2, Repairs: 1,
	}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := DecodeStats(b[:len(b)-1]); err == nil {
		t.Error("a short value is accepted")
	}
}

func FuzzDecodeStats(f *testing.F) {
	f.Add(encode(newrenoStats{Busy: 1, Window: 10}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeStats(b)
		accessor.Call(t, s)
		if err == nil && s.MeanWindow < 0 {
			t.Errorf("statistics %+v", s)
		}
	})
}
