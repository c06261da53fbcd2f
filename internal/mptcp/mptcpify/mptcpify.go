// Package mptcpify runs a program with MPTCP sockets in place of its TCP sockets, although the
// program does not ask for MPTCP.
//
// It changes sockets when they are opened and never sees their data. It does not change sockets
// that the program inherits, and configures no path manager.
package mptcpify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/kernel/seccomp"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/mptcp/protocol"
)

// How is a way to give a program MPTCP sockets.
type How string

// The ways. Auto is the first one of the others that this host supports.
const (
	Auto    How = "auto"
	BPF     How = "bpf"
	Seccomp How = "seccomp"
	Preload How = "preload"
)

// ways are the ways but Auto, in its order.
var ways = []struct {
	how How
	// supported returns a *feature.Error if this host does not support the way. Some programs may
	// be refused although it does.
	supported func() error
	// apply prepares this process for the program. After any other error than a *feature.Error it
	// is unfit for another way.
	apply func(*Options) error
}{
	{BPF, protocol.Supported, useProgram},
	{Seccomp, seccomp.Supported, func(*Options) error { return confine() }},
	{Preload, func() error { _, err := findLibrary(libraries); return err }, usePreload},
}

// Ways returns the names of all ways, Auto first.
func Ways() []How {
	all := []How{Auto}
	for _, w := range ways {
		all = append(all, w.how)
	}
	return all
}

// Supported returns a *feature.Error if this host does not support the way.
func Supported(how How) error {
	for _, w := range ways {
		if w.how == how {
			return w.supported()
		}
	}
	panic(fmt.Sprintf("BUG: way %q", how))
}

// Options are the parameters of Exec.
type Options struct {
	How How
	// Program is the path of the program; Args are its arguments, from its name on.
	Program string
	Args    []string
	Env     []string
	// Congestion is the congestion control of the sockets, empty for that of their network
	// namespace. Only Seccomp sets it.
	Congestion string
	// Rings allows io_uring, which opens TCP sockets in any way.
	Rings bool
	// Log is called with what a user may want to know; nil: with nothing.
	Log func(string)
}

// ExecError is the error of a program that cannot be executed.
type ExecError struct {
	Program string
	Err     error
}

func (e *ExecError) Error() string { return fmt.Sprintf("execute %q: %v", e.Program, e.Err) }

func (e *ExecError) Unwrap() error { return e.Err }

// Exec has the program replace this process, as execve(2), and returns only on errors: an
// *ExecError if the program cannot be executed, a *feature.Error if this host cannot do it. It must
// be called on the main thread, whose attributes are those of the process, and in a program that
// calls Process.
func Exec(o Options) error {
	if !prepared {
		panic("BUG: the program does not call mptcpify.Process")
	}
	if err := mptcp.Supported(); err != nil {
		return err
	}
	if o.Congestion != "" {
		if err := checkCongestion(o.Congestion); err != nil {
			return err
		}
		congestion = o.Congestion
	}
	var refused []error
	for _, w := range ways {
		if o.How != Auto && o.How != w.how {
			continue
		}
		var err error
		if o.Congestion != "" && w.how != Seccomp {
			err = &feature.Error{Feature: "a congestion control by " + string(w.how), Remedy: "use seccomp, or leave it out"}
		} else {
			err = w.apply(&o)
		}
		var missing *feature.Error
		switch {
		case err == nil:
			o.log("MPTCP sockets by %s", w.how)
			o.refuseRings()
			return replace(o)
		case !errors.As(err, &missing):
			return err
		}
		o.log("not by %s: %s", w.how, missing.Cause())
		refused = append(refused, err)
	}
	return errors.Join(refused...)
}

// refuseRings has the kernel refuse io_uring, unless it is allowed.
func (o *Options) refuseRings() {
	if o.Rings {
		o.log("sockets that io_uring opens stay TCP")
		return
	}
	arch, known := seccomp.Arch()
	if !known {
		o.log("sockets that io_uring opens stay TCP: tabane does not support seccomp on %s", runtime.GOARCH)
		return
	}
	if err := seccomp.Restrict(noRings(arch)); err != nil {
		o.log("sockets that io_uring opens stay TCP: %v", err)
		return
	}
	o.log("io_uring is refused (ENOSYS), because sockets that it opens stay TCP")
}

func (o *Options) log(format string, args ...any) {
	if o.Log != nil {
		o.Log(fmt.Sprintf(format, args...))
	}
}

// ErrCongestion means that sockets cannot have a congestion control.
var ErrCongestion = errors.New("set congestion control")

// checkCongestion returns an error, which wraps ErrCongestion, if sockets of this process cannot
// have the control.
func checkCongestion(name string) error {
	// Of TCP: one of MPTCP takes any name until it has a subflow.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err == nil {
		defer unix.Close(fd)
		err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	}
	if err != nil {
		return fmt.Errorf("%w %q: %w", ErrCongestion, name, err)
	}
	return nil
}

// confine installs the filter for the calling thread and starts its supervisor.
func confine() error {
	arch, _ := seccomp.Arch()
	listener, err := seccomp.Install(filter(arch))
	if err != nil {
		return err
	}
	// Not on this thread: its children have the filter. The runtime starts threads from one that
	// has no state of a locked thread.
	started := make(chan error)
	go func() { started <- start(listener) }()
	if err := <-started; err != nil {
		return fmt.Errorf("start the supervisor: %w", err)
	}
	return nil
}

// start starts the supervisor and returns when it and its spare have the listener.
func start(l *seccomp.Listener) error {
	listener, err := l.File()
	if err != nil {
		return err
	}
	defer listener.Close()
	return launch(starterRole, strconv.Itoa(os.Getpid()), listener)
}

// launch runs a process that starts others, and returns when these are ready.
func launch(role, argument string, file *os.File) error {
	output, input, err := os.Pipe()
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := process(role, argument)
	cmd.Stdout = input
	cmd.ExtraFiles = []*os.File{file}
	if err := errors.Join(cmd.Start(), input.Close()); err != nil {
		return err
	}
	report, err := io.ReadAll(output)
	switch exit := cmd.Wait(); {
	case err != nil:
		return err
	case string(report) == ready:
		return nil
	case len(report) > 0:
		return errors.New(string(bytes.TrimSpace(report)))
	case exit != nil:
		return exit
	}
	return errors.New("it was killed")
}

// replace has the program replace this process.
func replace(o Options) error {
	// A signal that was ignored when this process started is ignored again, as far as Go remembers
	// it.
	signal.Reset()
	return &ExecError{o.Program, syscall.Exec(o.Program, o.Args, o.Env)}
}

// Find returns the path of a program as a shell finds it. The error is an *ExecError.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || errors.Is(err, exec.ErrDot) {
		return path, nil
	}
	var e *exec.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	return "", &ExecError{name, err}
}
