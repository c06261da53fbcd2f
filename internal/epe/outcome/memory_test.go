package outcome

import (
	"math"
	"testing"
	"testing/fstest"
)

// TestMemoryLimit: the table is sized by what this process may use, or the kernel kills it.
func TestMemoryLimit(t *testing.T) {
	files := fstest.MapFS{
		"memory.max":                                 {Data: []byte("max\n")},
		"a/memory.max":                               {Data: []byte("1048576\n")},
		"a/b/memory.max":                             {Data: []byte("2097152\n")},
		"c/memory.max":                               {Data: []byte("max\n")},
		"memory/memory.limit_in_bytes":               {Data: []byte("9223372036854771712\n")},
		"memory/docker/memory.limit_in_bytes":        {Data: []byte("125829120\n")},
		"memory/docker/nested/memory.limit_in_bytes": {Data: []byte("9223372036854771712\n")},
	}
	for groups, want := range map[string]uint64{
		"":             math.MaxUint64,
		"garbage\n":    math.MaxUint64,
		"0::/c\n":      math.MaxUint64,
		"0::/a/b\n":    1 << 20, // that of the group above is less
		"0::/../a\n":   1 << 20,
		"0::/gone/x\n": math.MaxUint64,
		"12:cpuset:/\n9:memory:/docker/nested\n0::/\n": 125829120,
		"9:cpu,memory:/docker/unseen\n":                125829120,
	} {
		if got := memoryLimit(groups, files); got != want {
			t.Errorf("%q: %d, want %d", groups, got, want)
		}
	}
	for memory, want := range map[uint64]uint32{0: 14, 512 << 20: 14, 24 << 30: 18, 64 << 30: 20, 1 << 40: 22, math.MaxUint64: 22} {
		if got := tableBitsFor(memory); got != want {
			t.Errorf("%d bytes of memory: a table of 2^%d entries, want 2^%d", memory, got, want)
		}
	}
}
