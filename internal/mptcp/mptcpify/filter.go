package mptcpify

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/seccomp"
)

// typeMask are the bits of a socket's type that are not flags (SOCK_TYPE_MASK in the kernel).
const typeMask = 0xf

// filter returns the program that the kernel runs for each system call: it notifies of the calls
// that open a TCP socket and allows all others. Calls of another architecture, as of 32-bit
// programs on a 64-bit kernel, have other numbers and are allowed.
func filter(arch uint32) []bpf.Instruction {
	const words = 4
	argument := func(n uint32) bpf.Instruction {
		return bpf.LoadAbsolute{Off: seccomp.OffsetArgs + n*seccomp.SizeArg, Size: words}
	}
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: seccomp.OffsetNumber, Size: words},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SOCKET, SkipFalse: 12},
		bpf.LoadAbsolute{Off: seccomp.OffsetArch, Size: words},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipFalse: 10},
		argument(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipFalse: 7},
		argument(1),
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: typeMask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_STREAM, SkipFalse: 4},
		argument(2),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipFalse: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	}
}

// noRings returns the program that refuses io_uring as a kernel without it does, which programs
// know: it opens sockets (IORING_OP_SOCKET) that neither filter nor update_socket_protocol see.
// Where the number of a system call is all that a filter reads, the kernel runs it once and not for
// each call.
func noRings(arch uint32) []bpf.Instruction {
	const words = 4
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: seccomp.OffsetNumber, Size: words},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_IO_URING_SETUP, SkipFalse: 3},
		bpf.LoadAbsolute{Off: seccomp.OffsetArch, Size: words},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipFalse: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	}
}
