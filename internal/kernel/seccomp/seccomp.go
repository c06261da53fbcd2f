// Package seccomp installs seccomp filters. It receives and answers the notifications of those with
// user notification (seccomp_unotify(2)).
//
// It does not know what the filter is for, and starts no process.
package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// Offsets of struct seccomp_data, which a filter reads. Arguments have 64 bits; the lower half
// comes first on the architectures that Arch supports.
const (
	OffsetNumber = 0
	OffsetArch   = 4
	OffsetArgs   = 16
	// SizeArg is the distance between arguments.
	SizeArg = 8
)

// arches are the architectures that the ioctl numbers and offsets of this package hold for.
var arches = map[string]uint32{
	"amd64":   unix.AUDIT_ARCH_X86_64,
	"arm64":   unix.AUDIT_ARCH_AARCH64,
	"riscv64": unix.AUDIT_ARCH_RISCV64,
}

// Arch returns the architecture of this program's system calls as a filter sees it, or false if
// this package does not support it.
func Arch() (uint32, bool) {
	a, ok := arches[runtime.GOARCH]
	return a, ok
}

// SizeNotification is the size of struct seccomp_notif in bytes.
const SizeNotification = 80

// Notification is one system call that waits for its answer.
type Notification struct {
	ID uint64
	// Thread is the thread ID of the caller, 0 if it is not visible in this PID namespace.
	Thread int
	Number int
	Arch   uint32
	Args   [6]uint64
}

// ErrNoNotification is returned by Decode for a buffer into which nothing was received.
var ErrNoNotification = errors.New("the buffer has no notification")

// Decode decodes a struct seccomp_notif.
func Decode(b []byte) (Notification, error) {
	if len(b) < SizeNotification {
		return Notification{}, fmt.Errorf("decode notification: %d bytes, want %d", len(b), SizeNotification)
	}
	e := binary.NativeEndian
	n := Notification{ID: e.Uint64(b), Thread: int(int32(e.Uint32(b[8:]))), Number: int(int32(e.Uint32(b[16:]))), Arch: e.Uint32(b[20:])}
	for i := range n.Args {
		n.Args[i] = e.Uint64(b[32+8*i:])
	}
	if n.ID == 0 {
		return n, ErrNoNotification
	}
	return n, nil
}

// ioctl numbers that package unix lacks (linux/seccomp.h).
const (
	ioctlAddFD    = 0x40182103
	ioctlSetFlags = 0x40082104
)

// notificationSizes is struct seccomp_notif_sizes.
type notificationSizes struct{ notification, response, data uint16 }

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// addFD is struct seccomp_notif_addfd.
type addFD struct {
	id      uint64
	flags   uint32
	source  uint32
	target  uint32
	fdFlags uint32
}

// missing is what this host lacks.
func missing(reason, remedy string, err error) error {
	return &feature.Error{Feature: "seccomp user notification", Reason: reason, Remedy: remedy, Err: err}
}

// Install installs the filter for the calling thread, which must be locked to its goroutine. The
// filter holds for programs that the thread becomes and for their children, and cannot be removed.
// Without CAP_SYS_ADMIN the thread loses the right to gain privileges by set-user-ID programs
// (PR_SET_NO_NEW_PRIVS). The listener is closed on exec. Install returns a *feature.Error if this
// host cannot do it.
func Install(filter []bpf.Instruction) (*Listener, error) {
	if _, ok := Arch(); !ok {
		return nil, missing("tabane does not support it on "+runtime.GOARCH, "", nil)
	}
	program, err := assemble(filter)
	if err != nil {
		return nil, err
	}
	if err := checkSizes(); err != nil {
		return nil, err
	}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, errno := install(program, flags)
	if errno == unix.EACCES {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("set no_new_privs: %w", err)
		}
		fd, errno = install(program, flags)
	}
	switch errno {
	case 0:
	case unix.EBUSY:
		return nil, missing("this process has a seccomp filter with a listener already, a container's or another tabane mptcpify's", "run it outside", nil)
	case unix.EINVAL:
		return nil, missing("this kernel has no SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV", "use Linux 5.19 or newer", nil)
	case unix.EPERM, unix.EACCES:
		return nil, missing("this process may not install a filter", "run it outside of the container", errno)
	default:
		return nil, missing("install filter", "use a kernel with CONFIG_SECCOMP_FILTER=y", errno)
	}
	l := FromFD(fd)
	// Linux 6.6: the supervisor wakes on the CPU of the caller. It is faster, but not needed.
	_ = ioctl(fd, ioctlSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	return l, nil
}

func checkSizes() error {
	var s notificationSizes
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&s)))
	switch {
	case errno != 0:
		return missing("", "use Linux 5.19 or newer with CONFIG_SECCOMP_FILTER=y", errno)
	case s.notification != SizeNotification || s.response != uint16(unsafe.Sizeof(response{})):
		return missing(fmt.Sprintf("notifications of this kernel have %d bytes, answers %d", s.notification, s.response), "", nil)
	}
	return nil
}

// Restrict installs a filter without notifications, as Install does. It does not give up the right
// to gain privileges: without that or CAP_SYS_ADMIN it returns a *feature.Error.
func Restrict(filter []bpf.Instruction) error {
	program, err := assemble(filter)
	if err != nil {
		return err
	}
	switch _, errno := install(program, 0); errno {
	case 0:
		return nil
	case unix.EACCES:
		return &feature.Error{Feature: "seccomp filter", Reason: "this process has neither CAP_SYS_ADMIN nor no_new_privs", Remedy: "run it as root, or by setpriv --no-new-privs", Err: errno}
	default:
		return &feature.Error{Feature: "seccomp filter", Remedy: "use a kernel with CONFIG_SECCOMP_FILTER=y", Err: errno}
	}
}

func assemble(filter []bpf.Instruction) ([]unix.SockFilter, error) {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	program := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return program, nil
}

func install(program []unix.SockFilter, flags uintptr) (int, unix.Errno) {
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&p)))
	runtime.KeepAlive(program)
	return int(fd), errno
}

// Supported returns a *feature.Error if this process cannot install a filter. It tries on a thread
// of its own, which ends.
func Supported() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		l, err := Install([]bpf.Instruction{bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}})
		if err == nil {
			err = l.Close()
		}
		result <- err
	}()
	return <-result
}

// Listener receives the notifications of a filter. Any number of processes may have it open; each
// notification is received by one of them, and can be answered by all.
type Listener struct{ fd int }

// FromFD returns the listener of a file descriptor, which it owns from then on.
func FromFD(fd int) *Listener { return &Listener{fd} }

// File returns a copy of the listener to pass to a process. The caller closes it.
func (l *Listener) File() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(l.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate listener: %w", err)
	}
	return os.NewFile(uintptr(fd), "seccomp listener"), nil
}

// Close closes the listener. When the last copy is closed, system calls that wait for an answer and
// all later ones fail with ENOSYS.
func (l *Listener) Close() error { return unix.Close(l.fd) }

// Receive waits for a notification and has the kernel write it to b, which has SizeNotification
// bytes, all zero. b keeps it whole whenever this process is killed: the kernel takes a
// notification that it cannot write back. The error is ENOENT if the caller was killed meanwhile or
// no process has the filter any more, see Unused.
func (l *Listener) Receive(b []byte) error {
	if len(b) < SizeNotification {
		panic("BUG: the buffer is too small for a notification")
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&b[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

// AddFD duplicates a file of this process into the calling process and returns its number there.
// The system call continues to wait for its answer. The error is ENOENT if the caller was killed.
func (l *Listener) AddFD(id uint64, fd int, closeOnExec bool) (int, error) {
	a := addFD{id: id, source: uint32(fd)}
	if closeOnExec {
		a.fdFlags = unix.O_CLOEXEC
	}
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), ioctlAddFD, uintptr(unsafe.Pointer(&a)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR: // a signal to this process; the kernel has not added the file
		default:
			return 0, errno
		}
	}
}

// Return has the system call return the value. The error is ENOENT if the caller was killed, and
// EINPROGRESS if it has an answer already.
func (l *Listener) Return(id uint64, value int) error {
	return l.send(response{id: id, value: int64(value)})
}

// Continue has the kernel execute the system call as if there were no filter. Its errors are those
// of Return.
func (l *Listener) Continue(id uint64) error {
	return l.send(response{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func (l *Listener) send(r response) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}

// Unused waits until no process has the filter, at most for the timeout, forever if that is
// negative, and reports whether that is so.
func (l *Listener) Unused(timeout time.Duration) (bool, error) {
	ms := -1
	if timeout >= 0 {
		ms = int(timeout.Milliseconds())
	}
	fds := []unix.PollFd{{Fd: int32(l.fd)}}
	for {
		_, err := unix.Poll(fds, ms)
		switch {
		case err == nil:
			return fds[0].Revents&unix.POLLHUP != 0, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("poll listener: %w", err)
		}
	}
}

func ioctl(fd int, request, argument uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, argument); errno != 0 {
		return errno
	}
	return nil
}
