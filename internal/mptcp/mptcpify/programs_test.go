package mptcpify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// roles are what this test binary plays, by the name in the environment.
var roles = map[string]func(args []string) error{
	"group":   playGroup,
	"sockets": func([]string) error { return report(opened()) },
	"child":   func([]string) error { return child() },
	"ring":    func([]string) error { return ring() },
	"process": func([]string) error { return inherited() },
	"leave":   func([]string) error { return leave() },
	"linger":  linger,
	"stress":  stress,
	"time":    measure,
}

func report(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

// a socket is what a program got for a call of socket(2).
type socket struct {
	Domain, Type, Protocol int
	// Number is the lowest free file descriptor if the call succeeded.
	Number, Free int
	Errno        syscall.Errno
	Got          int // SO_PROTOCOL
	CloseOnExec  bool
	NonBlocking  bool
}

// open calls socket(2) and closes the socket.
func open(domain, kind, protocol int) (s socket) {
	s.Domain, s.Type, s.Protocol = domain, kind, protocol
	s.Free, _ = unix.Dup(0)
	_ = unix.Close(s.Free)
	// Not unix.Socket, which the runtime expects not to block: where a thread of the supervisor's
	// process is the caller, it would wait for this one to stop the world.
	n, _, errno := unix.Syscall(unix.SYS_SOCKET, uintptr(domain), uintptr(kind), uintptr(protocol))
	if s.Errno = errno; errno != 0 {
		return s
	}
	fd := int(n)
	defer unix.Close(fd)
	s.Number = fd
	s.Got, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	s.CloseOnExec = flags&unix.FD_CLOEXEC != 0
	flags, _ = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	s.NonBlocking = flags&unix.O_NONBLOCK != 0
	return s
}

// opened opens sockets of many kinds.
func opened() (all []socket) {
	for _, domain := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_UNIX, -1} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.SOCK_STREAM | unix.SOCK_NONBLOCK, unix.SOCK_STREAM | 1<<20, unix.SOCK_DGRAM} {
			for _, protocol := range []int{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				all = append(all, open(domain, kind, protocol))
			}
		}
	}
	// The kernel's answer when there is no file descriptor left.
	free, _ := unix.Dup(0)
	_ = unix.Close(free)
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: uint64(free)})
	return append(all, open(unix.AF_INET, unix.SOCK_STREAM, 0))
}

// child has a child of this process open a socket.
func child() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), played+"=sockets")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// attributes are what a program inherits.
type attributes struct {
	PID, Parent, Session, Group int
	Args                        []string
	Dir                         string
	Files                       []string
	ParentDeath                 int
	IgnoresHangup               bool
	IgnoresInterrupt            bool
	Children                    bool
	OpenFiles                   uint64
}

// inherited reads files 3 and 4 as a browser its DevTools pipe and reports what this process is.
func inherited() error {
	a := attributes{PID: os.Getpid(), Parent: os.Getppid(), Args: os.Args, IgnoresHangup: signal.Ignored(syscall.SIGHUP), IgnoresInterrupt: signal.Ignored(syscall.SIGINT)}
	a.Session, _ = unix.Getsid(0)
	a.Group, _ = unix.Getpgid(0)
	a.Dir, _ = os.Getwd()
	a.ParentDeath, _ = parentDeath()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, f := range files {
		if target, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && target != fmt.Sprintf("/proc/%d/fd", a.PID) && target != "anon_inode:[eventpoll]" && target != "anon_inode:[eventfd]" {
			a.Files = append(a.Files, f.Name())
		}
	}
	slices.Sort(a.Files)
	_, err = unix.Wait4(-1, nil, unix.WNOHANG, nil)
	a.Children = !errors.Is(err, unix.ECHILD)
	var limit unix.Rlimit
	_ = unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit)
	a.OpenFiles = limit.Max
	request, err := io.ReadAll(os.NewFile(3, "request"))
	if err != nil {
		return err
	}
	answer := os.NewFile(4, "answer")
	if _, err := answer.Write(slices.Concat(request, request)); err != nil {
		return err
	}
	if err := report(a); err != nil {
		return err
	}
	os.Exit(7)
	return nil
}

func parentDeath() (sig int, err error) {
	var v int32
	err = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptrTo(&v), 0, 0, 0)
	return int(v), err
}

// identity is whose a socket is.
type identity struct {
	Namespace, Here uint64 // the network namespace of the socket, and of the caller
	User            uint32
	Protocol        int
}

// leave opens a socket in another network namespace and as another user.
func leave() error {
	runtime.LockOSThread()
	var all []identity
	for _, change := range []func() error{
		func() error { return nil },
		func() error { return unix.Unshare(unix.CLONE_NEWNET) },
		func() error { return unix.Setfsuid(1) },
	} {
		if err := change(); err != nil {
			return err
		}
		var i identity
		here, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		i.Here, _ = unix.GetsockoptUint64(here, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		i.Namespace, _ = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		i.Protocol, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		var stat unix.Stat_t
		if err := errors.Join(unix.Fstat(fd, &stat), unix.Close(fd), unix.Close(here)); err != nil {
			return err
		}
		i.User = stat.Uid
		all = append(all, i)
	}
	return report(all)
}

// linger leaves a child behind that reads standard input to its end and then opens a socket.
func linger(args []string) error {
	if len(args) == 1 {
		_, err := io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, report(open(unix.AF_INET, unix.SOCK_STREAM, 0)))
	}
	cmd := exec.Command("/proc/self/exe", "child")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Start()
}

// stressed is what stress has seen.
type stressed struct {
	Sockets, MPTCP int
	// Wrong are the calls that did not return the lowest free file descriptor, and Errors those
	// that failed.
	Wrong, Errors []string
	// Longest is the longest call.
	Longest time.Duration
}

// stress reports true when it runs and opens sockets until standard input ends.
func stress(args []string) error {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	runtime.LockOSThread()
	var r stressed
	if err := report(true); err != nil {
		return err
	}
	for {
		select {
		case <-ended:
			return report(r)
		default:
		}
		start := time.Now()
		s := open(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		r.Longest = max(r.Longest, time.Since(start))
		r.Sockets++
		switch {
		case s.Errno != 0:
			r.Errors = append(r.Errors, s.Errno.Error())
		case s.Number != s.Free:
			r.Wrong = append(r.Wrong, fmt.Sprintf("%d, not %d", s.Number, s.Free))
		case s.Got == unix.IPPROTO_MPTCP:
			r.MPTCP++
		}
	}
}

// measure opens sockets, or makes another system call, and reports how long each call took in
// nanoseconds.
func measure(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	took := make([]int64, n)
	for i := range took {
		start := time.Now()
		if args[0] == "call" {
			unix.Getppid()
			took[i] = time.Since(start).Nanoseconds()
			continue
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		took[i] = time.Since(start).Nanoseconds()
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return err
		}
	}
	return report(took)
}
