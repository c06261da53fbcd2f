package seccomptest

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/seccomp"
)

// WithoutIPv6 runs f on a thread of its own for which the kernel has no IPv6, as with
// ipv6.disable=1: sockets of IPv6 are refused. So they are to commands that f starts, but not to
// its goroutines.
func WithoutIPv6(t testing.TB, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, with its filter
		l, err := seccomp.Install([]bpf.Instruction{
			bpf.LoadAbsolute{Off: seccomp.OffsetNumber, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: 3},
			bpf.LoadAbsolute{Off: seccomp.OffsetArgs, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_INET6, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		})
		if err != nil {
			done <- err
			return
		}
		done <- errors.Join(f(), l.Close())
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
