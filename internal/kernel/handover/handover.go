// Package handover gives the listening sockets of this process to one that replaces it: its own
// program, which may be a newer one by now, with the same arguments. The sockets are never closed
// meanwhile, so that no connection is refused.
//
// The file descriptors are passed as the service manager passes them (sd_listen_fds(3)), so that a
// process takes sockets of either. The package does not know what they are for.
package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// first is the first descriptor that is passed (SD_LISTEN_FDS_START).
	first = 3
	// maxPassed bounds the number of descriptors.
	maxPassed = 1024
	// startTimeout is the most time until a replacement is ready.
	startTimeout = time.Minute
)

// The variables of the environment. The process ID of a child is not known before it starts: one of
// this package knows its parent instead.
const (
	variableCount  = "LISTEN_FDS"
	variablePID    = "LISTEN_PID"
	variableNames  = "LISTEN_FDNAMES"
	variableParent = "TABANE_REPLACES"
	variableReady  = "TABANE_READY_FD"
)

var variables = []string{variableCount, variablePID, variableNames, variableParent, variableReady}

// Sockets are the sockets that this process has inherited. It is not safe for concurrent use. The
// zero value has none.
type Sockets struct {
	fds   []int
	ready int // 0 if nobody waits
}

// Inherited returns the sockets that the process has inherited, and removes them from the
// environment, so that children do not take them.
func Inherited() (*Sockets, error) {
	count, pid, parent, ready := os.Getenv(variableCount), os.Getenv(variablePID), os.Getenv(variableParent), os.Getenv(variableReady)
	for _, name := range variables {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	s := &Sockets{}
	if pid != strconv.Itoa(os.Getpid()) && parent != strconv.Itoa(os.Getppid()) {
		return s, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxPassed {
		return nil, fmt.Errorf("inherit sockets: %s is %q", variableCount, count)
	}
	for fd := first; fd < first+n; fd++ {
		unix.CloseOnExec(fd)
		s.fds = append(s.fds, fd)
	}
	if ready != "" {
		if s.ready, err = strconv.Atoi(ready); err != nil || s.ready != first+n {
			return nil, fmt.Errorf("inherit sockets: %s is %q", variableReady, ready)
		}
		unix.CloseOnExec(s.ready)
	}
	return s, nil
}

// Take returns a socket that matches, which is the caller's then.
func (s *Sockets) Take(match func(fd int) bool) (fd int, ok bool) {
	for i, fd := range s.fds {
		if match(fd) {
			s.fds = append(s.fds[:i:i], s.fds[i+1:]...)
			return fd, true
		}
	}
	return -1, false
}

// Ready closes the sockets that nobody has taken, and reports to the process that waits, if one
// does, that this one has replaced it.
func (s *Sockets) Ready() error {
	for _, fd := range s.fds {
		_ = unix.Close(fd) // nobody has used it
	}
	s.fds = nil
	if s.ready == 0 {
		return nil
	}
	_, err := unix.Write(s.ready, []byte{1})
	err = errors.Join(err, unix.Close(s.ready))
	s.ready = 0
	if err != nil {
		return fmt.Errorf("report to the replaced process: %w", err)
	}
	return nil
}

// Replace starts the program of this process again, with the sockets, and returns its process ID
// once it is ready. Without that, the new process has ended and nothing has changed. Further
// variables are added to its environment.
func Replace(ctx context.Context, sockets []int, further ...string) (pid int, err error) {
	path, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find own program: %w", err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("open pipe: %w", err)
	}
	defer reader.Close()
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	var copies []*os.File
	defer func() {
		for _, f := range copies {
			_ = f.Close() // a copy
		}
	}()
	for _, fd := range sockets {
		// os.File makes a descriptor blocking when it is passed, and the original shares that: the
		// child resets it for both.
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return 0, errors.Join(fmt.Errorf("copy socket: %w", err), writer.Close())
		}
		copies = append(copies, os.NewFile(uintptr(dup), "socket"))
	}
	files = append(append(files, copies...), writer)
	env := append(clean(os.Environ()), further...)
	env = append(env, variableCount+"="+strconv.Itoa(len(sockets)), variableParent+"="+strconv.Itoa(os.Getpid()), variableReady+"="+strconv.Itoa(first+len(sockets)))
	child, err := os.StartProcess(path, os.Args, &os.ProcAttr{Env: env, Files: files})
	err = errors.Join(err, writer.Close())
	if err != nil {
		return 0, fmt.Errorf("start %q: %w", path, err)
	}
	for _, fd := range sockets {
		_ = unix.SetNonblock(fd, true) // see above
	}
	ended := make(chan struct{})
	go func() {
		_, _ = child.Wait() // or it would stay a zombie while this process lives
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = reader.SetReadDeadline(time.Now()) })
	defer stop()
	var one [1]byte
	if _, err := io.ReadFull(reader, one[:]); err != nil {
		_ = child.Kill() // it may have ended
		<-ended
		return 0, errors.New("the new process has ended before it was ready; its log says why")
	}
	return child.Pid, nil
}

// clean returns an environment without the variables of this package.
func clean(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(variables, name)
	})
}

// Of returns sockets as if they had been inherited.
func Of(fds []int) *Sockets { return &Sockets{fds: fds} }

// Unix takes the listening Unix socket with this name, an abstract one if it begins with @; nil if
// there is none. It is removed when it is closed.
func Unix(s *Sockets, name string) (*net.UnixListener, error) {
	fd, ok := s.Take(func(fd int) bool {
		at, err := unix.Getsockname(fd)
		a, ok := at.(*unix.SockaddrUnix)
		return err == nil && ok && a.Name == name
	})
	if !ok {
		return nil, nil
	}
	l, err := listener(fd)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(true)
	return u, nil
}

// TCP takes the listening TCP socket with this address; nil if there is none.
func TCP(s *Sockets, at netip.AddrPort) (net.Listener, error) {
	fd, ok := s.Take(func(fd int) bool {
		a, err := unix.Getsockname(fd)
		if err != nil {
			return false
		}
		switch a := a.(type) {
		case *unix.SockaddrInet4:
			return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)) == at
		case *unix.SockaddrInet6:
			return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)) == at
		}
		return false
	})
	if !ok {
		return nil, nil
	}
	return listener(fd)
}

func listener(fd int) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), "socket")
	l, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("use inherited socket: %w", err)
	}
	return l, nil
}

// Descriptor returns the file descriptor of a listener, which the caller does not close.
func Descriptor(l syscall.Conn) (int, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("use listener: %w", err)
	}
	n := -1
	if err := raw.Control(func(fd uintptr) { n = int(fd) }); err != nil {
		return -1, fmt.Errorf("use listener: %w", err)
	}
	return n, nil
}
