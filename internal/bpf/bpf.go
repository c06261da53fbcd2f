// Package bpf loads the project's eBPF programs into the kernel, attaches them and reads what they have counted.
//
// The programs are compiled beforehand and lie in this package as objects, so neither a compiler nor the kernel's headers
// are needed to build or to run it. It is the only package that knows the library that loads them. It refuses to leave
// anything behind: programs and maps live as long as the process that holds them, and nothing is pinned. It gives no
// meaning to what is counted.
package bpf

import (
	"errors"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/feature"
)

const (
	needLinux        = "use Linux 5.14 or newer"
	needCapabilities = "run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
)

// missing is what this kernel, or this process on it, lacks.
func missing(reason, remedy string, err error) error {
	return &feature.Error{Feature: "eBPF", Reason: reason, Remedy: remedy, Err: err}
}

// refusal turns the kernel's answer to loading a program or creating a map into a *feature.Error where it means that
// this host lacks something.
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
			return missing("the verifier rejects the program", needLinux, verifier.Cause)
		}
		reason := lines[len(lines)-1]
		if strings.Contains(reason, "for !root") {
			// What the kernel calls root here is one capability (kernel/bpf/verifier.c, allow_ptr_leaks).
			return missing("this process lacks CAP_PERFMON, without which the verifier rejects pointer arithmetic", needCapabilities, errors.New(reason))
		}
		return missing("the verifier rejects the program", needLinux, errors.New(reason))
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return missing("this process may not load programs", needCapabilities+", on a kernel that is not locked down", err)
	case errors.Is(err, unix.ENOSYS):
		return missing("this kernel has no bpf system call", "use a kernel with CONFIG_BPF_SYSCALL=y", nil)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		return missing("this kernel is too old for the program", needLinux, err)
	}
	return err
}
