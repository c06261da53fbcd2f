package link

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// priority is the lowest of real time: above all that has none, below whatever the host runs with
// one on purpose.
const priority = 1

// Realtime gives the calling process real-time priority (SCHED_FIFO), with all its threads, so that
// its links are on time on a busy machine. It is for a process that does nothing but links; call it
// first. The links do without when it fails, which it does without CAP_SYS_NICE, and in a CPU
// cgroup without cpu.rt_runtime_us.
//
// It is the process and not the relay's thread alone that needs it: Go's scheduler interrupts a
// goroutine every 10 ms and may need another thread to go on with it. On a machine whose CPUs are
// all busy, that thread would be waited for.
func Realtime() error {
	// A thread that starts meanwhile inherits its starter's policy, which may be the old one: look
	// until none is new.
	done := map[int]bool{}
	for fresh := true; fresh; {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		fresh = false
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || done[tid] {
				continue
			}
			fresh, done[tid] = true, true
			err = unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}, 0)
			if err != nil && !errors.Is(err, unix.ESRCH) { // a thread that has ended
				return fmt.Errorf("set real-time priority: %w", err)
			}
		}
	}
	return nil
}

// hasRealtime reports whether the calling thread has real-time priority.
func hasRealtime() bool {
	a, err := unix.SchedGetAttr(0, 0)
	return err == nil && a.Policy == unix.SCHED_FIFO
}
