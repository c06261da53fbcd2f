package mptcpify

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringParameters is struct io_uring_params (linux/io_uring.h), ringOffsets both of its structs of
// offsets.
type ringParameters struct {
	submissions, completions, flags, cpu, idle, features, queue uint32
	_                                                           [3]uint32
	submission, completion                                      ringOffsets
}

// ringOffsets is struct io_sqring_offsets: the last one is array. That of io_cqring_offsets begins
// alike, and its sixth number is cqes.
type ringOffsets struct {
	head, tail, mask, entries, fifth, sixth, array uint32
	_                                              uint32
	_                                              uint64
}

const (
	// Offsets of mappings and numbers of linux/io_uring.h.
	ringEntries        = 0x10000000
	ringWaits          = 1 // IORING_ENTER_GETEVENTS
	ringOpSocket       = 45
	ringEntrySize      = 64
	ringEntryDomain    = 4  // fd
	ringEntryProtocol  = 24 // len
	ringEntryType      = 8  // off
	ringCompletionSize = 16
)

// ringSocket opens a TCP socket by IORING_OP_SOCKET.
func ringSocket() (fd int, err error) {
	var p ringParameters
	n, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return -1, errno
	}
	ring := int(n)
	defer unix.Close(ring)
	// Both rings are in one mapping (IORING_FEAT_SINGLE_MMAP, Linux 5.4).
	size := max(p.submission.array+4*p.submissions, p.completion.sixth+ringCompletionSize*p.completions)
	const protection = unix.PROT_READ | unix.PROT_WRITE
	rings, err := unix.Mmap(ring, 0, int(size), protection, unix.MAP_SHARED)
	if err != nil {
		return -1, fmt.Errorf("map rings: %w", err)
	}
	defer unix.Munmap(rings)
	entries, err := unix.Mmap(ring, ringEntries, int(ringEntrySize*p.submissions), protection, unix.MAP_SHARED)
	if err != nil {
		return -1, fmt.Errorf("map entries: %w", err)
	}
	defer unix.Munmap(entries)
	word := func(b []byte, offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&b[offset])) }
	entries[0] = ringOpSocket
	*word(entries, ringEntryDomain) = unix.AF_INET
	*word(entries, ringEntryType) = unix.SOCK_STREAM | unix.SOCK_CLOEXEC
	*word(entries, ringEntryProtocol) = unix.IPPROTO_TCP
	atomic.AddUint32(word(rings, p.submission.tail), 1)
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(ring), 1, 1, ringWaits, 0, 0); errno != 0 {
		return -1, fmt.Errorf("submit: %w", errno)
	}
	result := int32(*word(rings, p.completion.sixth+8))
	if result < 0 {
		return -1, fmt.Errorf("open socket: %w", syscall.Errno(-result))
	}
	return int(result), nil
}

// ring reports the protocol of a TCP socket as programs open it that prefer io_uring.
func ring() error {
	fd, err := ringSocket()
	if errors.Is(err, unix.ENOSYS) {
		return report(open(unix.AF_INET, unix.SOCK_STREAM, 0).Got)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return err
	}
	return report(protocol)
}

// TestRing: a program that opens sockets by io_uring has MPTCP sockets, unless it needs io_uring.
func TestRing(t *testing.T) {
	need(t)
	if fd, err := ringSocket(); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Logf("this host has no IORING_OP_SOCKET (Linux 5.19): %v", err)
	} else if err != nil {
		t.Fatal(err)
	} else {
		unix.Close(fd)
		allowed := command("ring")
		allowed.Env = append(allowed.Env, ringsKey+"=yes")
		if got := output[int](t, allowed); got != unix.IPPROTO_TCP {
			t.Errorf("protocol %d with io_uring, want %d", got, unix.IPPROTO_TCP)
		}
	}
	if got := output[int](t, command("ring")); got != unix.IPPROTO_MPTCP {
		t.Errorf("protocol %d, want %d", got, unix.IPPROTO_MPTCP)
	}
}
