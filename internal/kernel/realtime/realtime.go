// Package realtime gives a process real-time priority, so that it meets its deadlines on a busy
// machine. It is independent of what the process does.
package realtime

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// priority is the lowest real-time priority, below that of other real-time processes of the host.
const priority = 1

// Process gives the calling process real-time priority (SCHED_FIFO), with all its threads. It is
// meant for a process that needs little CPU; call it first. It fails without CAP_SYS_NICE or
// RLIMIT_RTPRIO, and in a CPU cgroup without cpu.rt_runtime_us; the process then runs at normal
// priority.
//
// All threads need it: Go's scheduler preempts a goroutine every 10 ms and may resume it on another
// thread, which on a busy machine would have to wait for a CPU.
func Process() error {
	// A thread that starts meanwhile inherits the policy of its parent, which may be the old
	// one: repeat until there is no new thread.
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

// Permit allows processes that this one starts later to have the priority without CAP_SYS_NICE, if
// this process may allow it.
func Permit() {
	// Without the right to it, Process of the other process reports what is missing.
	_ = unix.Setrlimit(unix.RLIMIT_RTPRIO, &unix.Rlimit{Cur: priority, Max: priority})
}

// Thread reports whether the calling thread has real-time priority.
func Thread() bool {
	a, err := unix.SchedGetAttr(0, 0)
	return err == nil && a.Policy == unix.SCHED_FIFO
}
