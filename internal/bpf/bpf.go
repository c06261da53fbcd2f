// Package bpf loads the project's eBPF programs into the kernel, attaches them and reads what they have counted.
//
// The programs are compiled beforehand and lie in this package as objects, so neither a compiler nor the kernel's headers
// are needed to build or to run it. It is the only package that knows the library that loads them. It refuses to leave
// anything behind: programs and maps live as long as the process that holds them, and nothing is pinned. It gives no
// meaning to what is counted.
package bpf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ErrNotSupported means that this kernel, or this process on it, cannot do what a program needs. The error that wraps it
// says what is missing and what to do.
var ErrNotSupported = errors.New("eBPF is not available")

// refusal says what the kernel's answer to loading a program or making a map means, where it means that this host cannot.
func refusal(err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &verifier):
		// The last lines say why; what comes before is how the verifier got there.
		lines := verifier.Log
		if last := slices.IndexFunc(lines, func(l string) bool { return len(l) > 9 && l[:9] == "processed" }); last > 0 {
			lines = lines[:last]
		}
		if len(lines) == 0 {
			return fmt.Errorf("%w: this kernel refuses the program: %w; use Linux 5.14 or newer", ErrNotSupported, verifier.Cause)
		}
		reason := lines[len(lines)-1]
		if strings.Contains(reason, "for !root") {
			// What the kernel calls root here is one capability (kernel/bpf/verifier.c, allow_ptr_leaks).
			return fmt.Errorf("%w: this process lacks CAP_PERFMON, without which the kernel lets no program follow pointers; run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (%s)", ErrNotSupported, reason)
		}
		return fmt.Errorf("%w: this kernel refuses the program: %s; use Linux 5.14 or newer", ErrNotSupported, reason)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: this process may not load programs; run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, on a kernel that is not locked down (%w)", ErrNotSupported, err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: this kernel has no bpf system call; use a kernel with CONFIG_BPF_SYSCALL=y", ErrNotSupported)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: this kernel is too old for the program: %w; use Linux 5.14 or newer", ErrNotSupported, err)
	}
	return err
}
