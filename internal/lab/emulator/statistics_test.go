package emulator

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Buckets are contiguous, and none is wider than an eighth of its upper bound.
func TestPropertyBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "d"))
		b := bucket(d)
		if end := upper(b); d >= end || bucket(end) != b+1 {
			t.Fatalf("%d is in bucket %d, which ends at %d; the end is in %d", d, b, end, bucket(end))
		}
		if b > 0 {
			if start := upper(b - 1); d < start || upper(b)-start > max(histogramUnit, upper(b)/histogramSteps) {
				t.Fatalf("%d is in bucket %d from %d to %d", d, b, start, upper(b))
			}
		}
	})
}

func TestQuantiles(t *testing.T) {
	var h histogram
	if got := h.lateness(); got != (Lateness{}) {
		t.Errorf("empty: %+v", got)
	}
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	h.add(-time.Second)
	h.add(100 * time.Hour)
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond} {
		if got := h.quantile(q); got < want || got > want*9/8+histogramUnit {
			t.Errorf("quantile %v is %s, want %s to an eighth", q, got, want)
		}
	}
	if h.max != 100*time.Hour || h.quantile(1) != h.max {
		t.Errorf("max %s, quantile 1 %s", h.max, h.quantile(1))
	}
}

// The arena allocates each slot once, up to its limit, and frees slots without references.
func TestPropertyArena(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newArena(100, 100*300)
		held := map[int32]int{}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				slot, ok := a.take()
				if ok == (len(held) >= 256) { // two chunks fit into 300 slots
					t.Fatalf("take says %v with %d held", ok, len(held))
				}
				if !ok {
					return
				}
				if held[slot] != 0 {
					t.Fatalf("slot %d is given twice", slot)
				}
				held[slot] = 1
				a.fill(slot, 4)
				copy(a.space(slot), []byte{byte(slot), byte(slot >> 8), 1, 2})
			},
			"retain": func(t *rapid.T) {
				for slot := range held {
					if held[slot] < 2 {
						a.Retain(slot)
						held[slot]++
					}
					return
				}
			},
			"release": func(t *rapid.T) {
				for slot := range held {
					if b := a.bytes(slot); len(b) != 4 || b[0] != byte(slot) || b[1] != byte(slot>>8) {
						t.Fatalf("slot %d holds %x", slot, b)
					}
					a.Release(slot)
					if held[slot]--; held[slot] == 0 {
						delete(held, slot)
					}
					return
				}
			},
			"": func(t *rapid.T) {
				if a.used() != len(held) {
					t.Fatalf("%d used, %d held", a.used(), len(held))
				}
			},
		})
	})
}
