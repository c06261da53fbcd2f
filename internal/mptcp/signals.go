package mptcp

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// Signals is what the kernel reports of sockets, which depends on its version: the lengths of
// struct tcp_info and struct mptcp_info.
type Signals struct{ TCP, MPTCP int }

const (
	solMPTCP  = 284
	mptcpInfo = 1
	// mostInfo is larger than both structures.
	mostInfo = 1024
)

// ReadSignals asks the kernel.
func ReadSignals() (s Signals, err error) {
	for _, ask := range []struct {
		protocol, level, option int
		length                  *int
	}{{unix.IPPROTO_TCP, unix.SOL_TCP, unix.TCP_INFO, &s.TCP}, {unix.IPPROTO_MPTCP, solMPTCP, mptcpInfo, &s.MPTCP}} {
		if *ask.length, err = infoLength(ask.protocol, ask.level, ask.option); err != nil {
			return s, fmt.Errorf("read the length of the kernel's socket information: %w", err)
		}
	}
	return s, nil
}

// infoLength returns the length of a structure that getsockopt fills.
func infoLength(protocol, level, option int) (length int, err error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
	}
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	var b [mostInfo]byte
	n := uint32(len(b))
	_, _, failed := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if failed != 0 {
		err = os.NewSyscallError("getsockopt", failed)
	}
	return int(n), errors.Join(err, unix.Close(fd))
}

// Choosing returns a *feature.Error if the kernel does not report what choosing the paths of a
// connection needs: what a subflow delivered, has not sent, its least round-trip time and its
// window.
func (s Signals) Choosing() error {
	if s.TCP >= tcpInfoSendWindow+4 {
		return nil
	}
	return &feature.Error{
		Feature: "choosing the paths of MPTCP connections (use: overflow, policies)", Reason: fmt.Sprintf("struct tcp_info has %d bytes, of which it needs %d", s.TCP, tcpInfoSendWindow+4),
		Remedy: "use Linux 5.4 or newer",
	}
}

// kernelTypes has the names of the kernel's types (BTF).
const kernelTypes = "/sys/kernel/btf/vmlinux"

// SchedulersByBPF reports whether the kernel accepts MPTCP schedulers as eBPF programs (struct_ops
// of type mptcp_sched_ops), which mainline Linux up to 6.18 does not.
func SchedulersByBPF() (bool, error) { return namesType(kernelTypes, "bpf_struct_ops_mptcp_sched_ops") }

func namesType(file, name string) (bool, error) {
	types, err := os.ReadFile(file)
	return bytes.Contains(types, []byte("\x00"+name+"\x00")), err
}

// Standstills returns a *feature.Error if the kernel does not count the bytes of MPTCP connections,
// by which those are found that stand still.
func (s Signals) Standstills() error {
	if s.MPTCP >= mptcpInfoCounted {
		return nil
	}
	return &feature.Error{
		Feature: "ending MPTCP connections that stand still", Reason: fmt.Sprintf("struct mptcp_info has %d bytes, of which it needs %d", s.MPTCP, mptcpInfoCounted),
		Remedy: "use Linux 6.5 or newer",
	}
}
