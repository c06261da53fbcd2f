// Package clock reads clocks of the kernel that package time does not give.
package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns CLOCK_MONOTONIC, which eBPF programs (bpf_ktime_get_ns) and systemd have times
// of.
func Monotonic() time.Duration { return read(unix.CLOCK_MONOTONIC) }

// Thread returns the processor time of the calling thread.
func Thread() time.Duration { return read(unix.CLOCK_THREAD_CPUTIME_ID) }

// Process returns the processor time of all threads of this process.
func Process() time.Duration { return read(unix.CLOCK_PROCESS_CPUTIME_ID) }

func read(clock int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		// All exist since Linux 2.6.12, and have no argument that could be invalid.
		panic(fmt.Sprintf("BUG: read clock %d: %v", clock, err))
	}
	return time.Duration(t.Nano())
}
