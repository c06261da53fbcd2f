package outcome

import (
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The entries of the table of connections take 1/tableShare of the memory, of which each takes a cache
// line; the bounds are powers of two.
const (
	tableShare                 = 1024
	cacheLine                  = 64
	minTableBits, maxTableBits = 14, 22
)

// tableBits returns the power of two that is the number of entries of the table of connections.
func tableBits() (uint32, error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return 0, fmt.Errorf("read size of memory: %w", err)
	}
	// The kernel charges the table to the control group, and kills a process that exceeds its limit.
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		groups = nil // the kernel has none
	}
	memory := min(uint64(host.Totalram)*uint64(host.Unit), memoryLimit(string(groups), os.DirFS("/sys/fs/cgroup")))
	return tableBitsFor(memory), nil
}

func tableBitsFor(memory uint64) uint32 {
	return uint32(min(max(bits.Len64(memory/tableShare/cacheLine)-1, minTableBits), maxTableBits))
}

// memoryLimit returns the least limit in bytes of the control groups of a process and of those above
// them, MaxUint64 if there is none. They are listed as in /proc/self/cgroup; files has those of
// version 2, and those of version 1 in the directory memory. In a container only the uppermost of the
// directories may be there.
func memoryLimit(groups string, files fs.FS) uint64 {
	least := uint64(math.MaxUint64)
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		top, file := ".", "memory.max"
		switch {
		case fields[1] == "":
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			top, file = "memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// In a namespace of control groups the path of an outer one begins with "..".
		for dir := path.Join(top, path.Join("/", fields[2])); ; dir = path.Dir(dir) {
			if b, err := fs.ReadFile(files, path.Join(dir, file)); err == nil {
				if limit, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil { // else "max"
					least = min(least, limit)
				}
			}
			if dir == top {
				break
			}
		}
	}
	return least
}
