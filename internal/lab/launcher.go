package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

// launcher starts the processes of a lab in the namespaces of its nodes. It is safe for concurrent
// use.
type launcher struct {
	lab string
	// self is this program, which enters namespaces and emulates links, and binary the one with the
	// daemons and clients.
	self, binary     string
	detached, opened bool // opened: another process made the lab

	mu      sync.Mutex
	starter *starter // nil before the first start
	closed  bool
}

// daemon starts a daemon on its node with its output in its log file. If the process was started,
// the child is returned even with an error.
func (l *launcher) daemon(x daemon) (*child, error) {
	out, err := os.OpenFile(logFile(dirOf(l.lab), x), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	argv := append([]string{l.program(x)}, x.arguments(dirOf(l.lab))...)
	// A session of its own, so that Ctrl-C reaches only the caller, which then removes the lab.
	attr, parent := &syscall.SysProcAttr{Setsid: true}, 0
	if !l.detached && !l.opened {
		attr.Pdeathsig, parent = syscall.SIGKILL, os.Getpid()
	}
	cmd := exec.Command(l.self, l.arguments(x.netns, strconv.Itoa(parent), argv)...)
	cmd.Dir = x.workingDirectory(dirOf(l.lab))
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, out, attr
	if err := l.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", x, err)
	}
	c := &child{daemon: x, process: process{PID: cmd.Process.Pid, Node: x.node, Role: x.role}, exited: make(chan struct{})}
	// The child is not reaped before Wait below, so its PID cannot have been reused.
	st, err := procStat(c.PID)
	c.Start = st.start
	go func() {
		c.err = cmd.Wait()
		close(c.exited)
	}()
	if err != nil {
		return c, fmt.Errorf("start %s: %w", x, err)
	}
	return c, nil
}

// program returns the program that a daemon is run by.
func (l *launcher) program(x daemon) string {
	if x.program != "" {
		return x.program
	}
	if r, ok := role.Named(x.role); ok && r.Program == role.Product {
		return l.binary
	}
	return l.self
}

// client implements Daemons.RunClient in a namespace.
func (l *launcher) client(ctx context.Context, namespace string, args []string, read func(io.Reader) error) error {
	argv := append([]string{l.binary}, args...)
	cmd := exec.CommandContext(ctx, l.self, l.arguments(namespace, strconv.Itoa(os.Getpid()), argv)...)
	var complaint tail
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := l.start(cmd); err != nil {
		return err
	}
	if err = read(out); err != nil {
		// Discard the rest of its output, so that it can exit.
		_, copyErr := io.Copy(io.Discard, out)
		err = errors.Join(err, copyErr)
	}
	if failed := cmd.Wait(); failed != nil {
		if text := strings.TrimSpace(complaint.String()); text != "" {
			return fmt.Errorf("the client failed (%w): %s", failed, text)
		}
		return fmt.Errorf("the client failed: %w", failed)
	}
	return err
}

// tail keeps the end of what a client writes to standard error.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	const maxTail = 4096
	t.Buffer.Write(p)
	if over := t.Len() - maxTail; over > 0 {
		t.Next(over)
	}
	return len(p), nil
}

// arguments returns the command line that makes the tabane program run argv in a namespace: the
// verb and the arguments of Enter. parent is asCommand, or the PID of the process with which a
// daemon is killed, 0 for none.
func (l *launcher) arguments(namespace, parent string, argv []string) []string {
	return append([]string{Verb, namespace, filepath.Join(dirOf(l.lab), hostsName), parent}, argv...)
}

// start starts a process from the starter's thread, which is the parent for its parent death
// signal.
func (l *launcher) start(cmd *exec.Cmd) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("lab %q is closed", l.lab)
	}
	if l.starter == nil {
		l.starter = newStarter()
	}
	return l.starter.start(cmd)
}

// close ends the starter's thread, which kills the processes that have it as parent.
func (l *launcher) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starter != nil {
		l.starter.close()
		l.starter = nil
	}
	l.closed = true
}

// children are the daemons that this process has started and not stopped. Safe for concurrent use.
type children struct {
	mu   sync.Mutex
	list []*child
}

// all returns the children in start order.
func (cs *children) all() []*child {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return slices.Clone(cs.list)
}

// find returns the child that is the daemon, or nil.
func (cs *children) find(at scenario.Daemon) *child {
	for _, c := range cs.all() {
		if c.Node == at.Node && c.Role == at.Role {
			return c
		}
	}
	return nil
}

func (cs *children) add(c *child) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.list = append(cs.list, c)
}

// remove removes the child of a daemon and returns it, or nil.
func (cs *children) remove(x daemon) *child {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	i := slices.IndexFunc(cs.list, func(c *child) bool { return c.daemon == x })
	if i < 0 {
		return nil
	}
	c := cs.list[i]
	cs.list = slices.Delete(cs.list, i, i+1)
	return c
}
