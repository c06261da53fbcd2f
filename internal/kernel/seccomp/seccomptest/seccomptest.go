// Package seccomptest kills processes at chosen system calls, for tests of what they leave behind.
package seccomptest

import (
	"errors"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/seccomp"
)

// Kill starts a process and kills it before number n, from 1, of its system calls that are listed,
// or when it is up. start is given what starts the process on the calling thread, and returns a
// channel that says whether it came up. Kill returns how many of these system calls the process has
// begun.
func Kill(t testing.TB, calls []uint32, n int, start func(func(*exec.Cmd) error) (*exec.Cmd, <-chan bool)) (begun int) {
	t.Helper()
	filter := []bpf.Instruction{bpf.LoadAbsolute{Off: seccomp.OffsetNumber, Size: 4}}
	for _, call := range calls {
		filter = append(filter, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF})
	}
	filter = append(filter, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	var listener *seccomp.Listener
	c, up := start(func(c *exec.Cmd) (err error) {
		runtime.LockOSThread() // and never unlocked: the thread ends, with its filter
		if listener, err = seccomp.Install(filter); err == nil {
			err = c.Start()
		}
		return err
	})
	waits, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	over, ended := make(chan bool), make(chan error, 1)
	go func() {
		for {
			select {
			case <-over:
				ended <- nil
				return
			default:
			}
			// The main thread, which cannot end, may have the filter for good: Receive would wait.
			fds := []unix.PollFd{{Fd: int32(waits.Fd()), Events: unix.POLLIN}}
			if n, _ := unix.Poll(fds, 10); n < 1 || fds[0].Revents&unix.POLLIN == 0 {
				continue
			}
			var b [seccomp.SizeNotification]byte
			if listener.Receive(b[:]) != nil {
				continue // the caller has been killed
			}
			call, err := seccomp.Decode(b[:])
			if err != nil {
				ended <- err
				return
			}
			if begun++; begun < n {
				_ = listener.Continue(call.ID) // the caller may have been killed
			} else if begun == n {
				_ = c.Process.Kill()
			}
		}
	}()
	if <-up {
		_ = c.Process.Kill()
	}
	_ = c.Wait()
	close(over)
	if err := errors.Join(<-ended, waits.Close(), listener.Close()); err != nil {
		t.Fatal(err)
	}
	return begun
}
