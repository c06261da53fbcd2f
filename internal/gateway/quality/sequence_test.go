package quality

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSequence(t *testing.T) {
	for _, tt := range []struct {
		numbers                                 []uint64
		received, duplicates, reordered, behind uint64
	}{
		{nil, 0, 0, 0, 0},
		{[]uint64{0, 1, 2, 200}, 4, 0, 0, 0},
		{[]uint64{0, 2, 1, 3}, 4, 0, 1, 1},
		{[]uint64{5, 1, 2, 6, 0}, 5, 0, 3, 6},
		{[]uint64{0, 0, 2, 1, 1, 2}, 6, 3, 1, 1},
	} {
		var s Sequence
		for _, n := range tt.numbers {
			s.Add(n)
		}
		if s.Received != tt.received || s.Duplicates != tt.duplicates || s.Reordered != tt.reordered || s.Behind != tt.behind {
			t.Errorf("%d: %d received, %d duplicates, %d reordered by at most %d", tt.numbers, s.Received, s.Duplicates, s.Reordered, s.Behind)
		}
	}
}

// TestPropertySequence: any arrivals are counted as sorting and comparing counts them.
func TestPropertySequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOf(rapid.Uint64Range(0, 300)).Draw(t, "numbers")
		var s Sequence
		var want Sequence
		for i, n := range numbers {
			want.Received++
			fresh := !slices.Contains(numbers[:i], n)
			if s.Add(n) != fresh {
				t.Fatalf("arrival %d, of number %d: fresh %t", i, n, !fresh)
			}
			if !fresh {
				want.Duplicates++
			} else if i > 0 && slices.Max(numbers[:i]) > n {
				want.Reordered++
				want.Behind = max(want.Behind, slices.Max(numbers[:i])-n)
			}
		}
		if s.Received != want.Received || s.Duplicates != want.Duplicates || s.Reordered != want.Reordered || s.Behind != want.Behind {
			t.Fatalf("%d: counted %+v, want %+v", numbers, s, want)
		}
	})
}
