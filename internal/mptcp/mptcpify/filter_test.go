package mptcpify

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/seccomp"
)

// run runs the filter in the interpreter of package bpf for a system call. The interpreter reads
// big-endian numbers.
func run(t *testing.T, vm *bpf.VM, number int, arch uint32, args ...uint64) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[seccomp.OffsetNumber:], uint32(number))
	binary.BigEndian.PutUint32(data[seccomp.OffsetArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[seccomp.OffsetArgs+seccomp.SizeArg*i:], uint32(a))
		binary.BigEndian.PutUint32(data[seccomp.OffsetArgs+seccomp.SizeArg*i+4:], uint32(a>>32))
	}
	action, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(action)
}

func TestNoRings(t *testing.T) {
	const here = unix.AUDIT_ARCH_X86_64
	vm, err := bpf.NewVM(noRings(here))
	if err != nil {
		t.Fatal(err)
	}
	const refused = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	for _, tt := range []struct {
		number int
		arch   uint32
		want   uint32
	}{
		{unix.SYS_IO_URING_SETUP, here, refused},
		{unix.SYS_IO_URING_SETUP, unix.AUDIT_ARCH_I386, unix.SECCOMP_RET_ALLOW},
		{unix.SYS_IO_URING_ENTER, here, unix.SECCOMP_RET_ALLOW},
		{unix.SYS_SOCKET, here, unix.SECCOMP_RET_ALLOW},
	} {
		if got := run(t, vm, tt.number, tt.arch); got != tt.want {
			t.Errorf("call %d of architecture %#x: action %#x, want %#x", tt.number, tt.arch, got, tt.want)
		}
	}
}

func TestFilter(t *testing.T) {
	const here = unix.AUDIT_ARCH_X86_64
	vm, err := bpf.NewVM(filter(here))
	if err != nil {
		t.Fatal(err)
	}
	const x32 = 0x40000000
	for _, tt := range []struct {
		name    string
		number  int
		arch    uint32
		args    [3]uint64
		changed bool
	}{
		{"IPv4", unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, true},
		{"IPv6, TCP", unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, true},
		{"flags", unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET6, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, 0}, true},
		{"int in a register of 64 bits", unix.SYS_SOCKET, here, [3]uint64{1<<40 | unix.AF_INET, 1<<33 | unix.SOCK_STREAM, 1 << 63}, true},
		{"MPTCP", unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, false},
		{"SCTP", unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, false},
		{"UDP", unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET, unix.SOCK_DGRAM, 0}, false},
		{"raw TCP", unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP}, false},
		{"type 17", unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET, 0x12, 0}, false},
		{"Unix", unix.SYS_SOCKET, here, [3]uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, false},
		{"socketpair", unix.SYS_SOCKETPAIR, here, [3]uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, false},
		{"x32", x32 | unix.SYS_SOCKET, here, [3]uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, false},
		{"i386", unix.SYS_SOCKET, unix.AUDIT_ARCH_I386, [3]uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, false},
	} {
		want := uint32(unix.SECCOMP_RET_ALLOW)
		if tt.changed {
			want = unix.SECCOMP_RET_USER_NOTIF
		}
		if got := run(t, vm, tt.number, tt.arch, tt.args[:]...); got != want {
			t.Errorf("%s: action %#x, want %#x", tt.name, got, want)
		}
	}
}
