package seccomp

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

// need skips the test where this process may not install a filter, or fails it with
// TABANE_LAB=require.
func need(t *testing.T) {
	t.Helper()
	if err := Supported(); err != nil {
		if os.Getenv("TABANE_LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func TestDecode(t *testing.T) {
	b := make([]byte, SizeNotification)
	if _, err := Decode(b); !errors.Is(err, ErrNoNotification) {
		t.Errorf("an empty buffer: %v", err)
	}
	if _, err := Decode(b[1:]); err == nil || errors.Is(err, ErrNoNotification) {
		t.Errorf("a short buffer: %v", err)
	}
	e := binary.NativeEndian
	e.PutUint64(b, 7)
	e.PutUint32(b[8:], 1234)
	e.PutUint32(b[16:], unix.SYS_SOCKET)
	e.PutUint32(b[20:], unix.AUDIT_ARCH_X86_64)
	for i := range 6 {
		e.PutUint64(b[32+8*i:], uint64(100+i))
	}
	want := Notification{ID: 7, Thread: 1234, Number: unix.SYS_SOCKET, Arch: unix.AUDIT_ARCH_X86_64, Args: [6]uint64{100, 101, 102, 103, 104, 105}}
	if got, err := Decode(b); err != nil || got != want {
		t.Errorf("Decode = %+v, %v; want %+v", got, err, want)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(make([]byte, SizeNotification))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := Decode(b)
		accessor.Call(t, n)
		if (err == nil) != (len(b) >= SizeNotification && n.ID != 0) {
			t.Errorf("Decode of %d bytes = %+v, %v", len(b), n, err)
		}
	})
}

// The main goroutine keeps the main thread: a thread with a filter must end with its goroutine, and
// that one cannot.
func init() { runtime.LockOSThread() }

// TestNotifications has one thread call getpid and getppid under a filter and answers for the
// kernel.
func TestNotifications(t *testing.T) {
	need(t)
	listener := make(chan *Listener)
	numbers := make(chan uintptr)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		l, err := Install([]bpf.Instruction{
			bpf.LoadAbsolute{Off: OffsetNumber, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_GETPGID, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
			bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF},
		})
		if err != nil {
			t.Error(err)
		}
		listener <- l
		for range 3 {
			n, _, _ := unix.Syscall(unix.SYS_GETPGID, 0, 11, 12)
			numbers <- n
		}
	}()
	l := <-listener
	if l == nil {
		return
	}
	receive := func() Notification {
		t.Helper()
		b := make([]byte, SizeNotification)
		if err := l.Receive(b); err != nil {
			t.Fatal(err)
		}
		n, err := Decode(b)
		arch, _ := Arch()
		if err != nil || n.Number != unix.SYS_GETPGID || n.Arch != arch || n.Thread <= 0 || n.Args[1] != 11 || n.Args[2] != 12 {
			t.Fatalf("received %+v, %v", n, err)
		}
		return n
	}
	n := receive()
	if err := l.Return(n.ID, 4711); err != nil {
		t.Error(err)
	}
	if err := l.Return(n.ID, 4712); !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.ENOENT) {
		t.Errorf("a second answer: %v", err)
	}
	if got := <-numbers; got != 4711 {
		t.Errorf("the call returned %d, want 4711", got)
	}
	if err := l.Continue(receive().ID); err != nil {
		t.Error(err)
	}
	if got := <-numbers; int(got) != unix.Getpgrp() {
		t.Errorf("the call returned %d, want %d", got, unix.Getpgrp())
	}
	n = receive()
	fd, err := l.AddFD(n.ID, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags != unix.FD_CLOEXEC {
		t.Errorf("flags of the added file: %#x, %v", flags, err)
	}
	if unused, err := l.Unused(0); err != nil || unused {
		t.Errorf("Unused = %v, %v", unused, err)
	}
	if err := errors.Join(unix.Close(fd), l.Return(n.ID, fd)); err != nil {
		t.Error(err)
	}
	if got := <-numbers; int(got) != fd {
		t.Errorf("the call returned %d, want %d", got, fd)
	}
	if unused, err := l.Unused(-1); err != nil || !unused {
		t.Errorf("Unused = %v, %v after the thread has ended", unused, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestSecondListener checks the error in a container whose runtime has a listener.
func TestSecondListener(t *testing.T) {
	need(t)
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		allow := []bpf.Instruction{bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}}
		l, err := Install(allow)
		if err == nil {
			_, err = Install(allow)
			_ = l.Close()
		}
		result <- err
	}()
	var missing *feature.Error
	if err := <-result; !errors.As(err, &missing) {
		t.Errorf("a second listener: %v", err)
	}
}
