// Package bpf loads eBPF programs into the kernel and attaches them to network interfaces.
//
// It knows neither the maps nor the purpose of a program: those are in a package for each family of
// programs below this one, with its bindings and object, so that building needs no compiler and no
// kernel headers. Programs and maps live as long as the process that holds them, but for those with
// Pins.
package bpf

import (
	"errors"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/kernel/privilege"
)

const (
	// needLinux is the remedy for programs that need no more than the types and helpers of
	// flowcount.
	needLinux        = "use Linux 5.14 or newer"
	needCapabilities = "run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
)

// namePrefix begins the names of programs in the kernel, as bpftool shows them: 15 characters of
// the whole.
const namePrefix = "tabane_"

// Load creates the maps and loads the programs of spec and assigns them to the fields of objects,
// as ebpf.CollectionSpec.LoadAndAssign does. In the kernel, "tabane_" precedes the names of the
// programs. It returns a *feature.Error when this host cannot load them.
func Load(spec *ebpf.CollectionSpec, objects any) error { return LoadWith(spec, objects, nil) }

// LoadWith is Load with maps that exist, by name, in place of new ones.
func LoadWith(spec *ebpf.CollectionSpec, objects any, maps map[string]*ebpf.Map) error {
	if err := permitted(); err != nil {
		return err
	}
	for name, p := range spec.Programs {
		p.Name = namePrefix + name
	}
	return refusal(spec.LoadAndAssign(objects, &ebpf.CollectionOptions{MapReplacements: maps}), needLinux)
}

// LoadAll creates all maps but those that exist, and loads all programs of spec. It returns the
// errors that Load does, with the kernel that the programs need as remedy. The kernel's types come
// from the cache, since decoding them takes longer than the rest. The caller closes the collection.
func LoadAll(spec *ebpf.CollectionSpec, need string, kernel *btf.Cache, maps map[string]*ebpf.Map) (*ebpf.Collection, error) {
	if err := permitted(); err != nil {
		return nil, err
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Cache: kernel, MapReplacements: maps})
	return c, refusal(err, need)
}

// missing is what this kernel, or this process on it, lacks.
func missing(reason, remedy string, err error) error {
	return &feature.Error{Feature: "eBPF", Reason: reason, Remedy: remedy, Err: err}
}

// forbidden is the error of a process that may not load a program; err is the kernel's answer, or
// nil if it was not asked.
func forbidden(err error) error {
	return missing("this process may not load programs", needCapabilities+", on a kernel that is not locked down", err)
}

// permitted returns an error if this process lacks the capability that each program needs. The
// kernel's answers do not say so in each case: without the capability it takes no types, and then
// calls maps that need them invalid.
func permitted() error {
	lacking, err := privilege.Lacking(privilege.BPF, privilege.SysAdmin)
	if err == nil && len(lacking) == 2 { // either is enough
		return forbidden(nil)
	}
	return nil
}

// refusal turns the kernel's answer to loading a program or creating a map into a *feature.Error
// where it means that this host lacks something. need names the kernel to use.
func refusal(err error, need string) error {
	var verifier *ebpf.VerifierError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &verifier):
		// The last line of the log before the summary is the reason.
		lines := verifier.Log
		if last := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "processed") }); last > 0 {
			lines = lines[:last]
		}
		if len(lines) == 0 {
			return missing("the verifier rejects the program", need, verifier.Cause)
		}
		reason := lines[len(lines)-1]
		if strings.Contains(reason, "for !root") {
			// What the kernel calls root here is one capability (kernel/bpf/verifier.c,
			// allow_ptr_leaks).
			return missing("this process lacks CAP_PERFMON, without which the verifier rejects pointer arithmetic", needCapabilities, errors.New(reason))
		}
		return missing("the verifier rejects the program", need, errors.New(reason))
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		// What the library adds to EPERM is about a limit that kernels with these programs do not
		// have.
		answer := unix.EPERM
		if errors.Is(err, unix.EACCES) {
			answer = unix.EACCES
		}
		return forbidden(answer)
	case errors.Is(err, unix.ENOSYS):
		return missing("this kernel has no bpf system call", "use a kernel with CONFIG_BPF_SYSCALL=y", nil)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		return missing("this kernel is too old for the program", need, err)
	}
	return err
}
