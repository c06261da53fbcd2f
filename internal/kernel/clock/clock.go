// Package clock reads clocks of the kernel that package time does not give.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns CLOCK_MONOTONIC, which eBPF programs (bpf_ktime_get_ns) and systemd have times
// of.
func Monotonic() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano()), err
}
