package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/tabane/tabane/internal/control"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/scenario"
)

// ErrNotOurs is the error of operations that only the parent of a lab's daemons can do.
var ErrNotOurs = errors.New("only the process that made the lab can do that")

// Daemons are the processes that a lab runs: on its nodes, and those of its emulated links.
type Daemons struct {
	lab, binary      string
	plan             *plan
	detached, opened bool // opened: another process made the lab

	mu       sync.Mutex
	starter  *starter // nil unless this process may start daemons
	children []*child
	// state is nil unless this process made the lab.
	state *state
}

// Process is a process of a lab.
type Process struct {
	scenario.Daemon
	PID     int
	Running bool
}

// Processes returns the processes that a lab has started, in the order of their start.
func Processes(name string) ([]Process, error) {
	s, err := readState(name)
	if err != nil {
		return nil, fmt.Errorf("list processes of lab %q: %w", name, err)
	}
	var all []Process
	for _, p := range s.Processes {
		all = append(all, Process{scenario.Daemon{Node: p.Node, Role: p.Role}, p.PID, p.alive()})
	}
	return all, nil
}

// List returns the daemons of the lab's nodes, whether they run or not.
func (d *Daemons) List() []scenario.Daemon {
	var all []scenario.Daemon
	for _, n := range d.plan.nodes {
		for _, x := range n.daemons {
			all = append(all, scenario.Daemon{Node: x.node, Role: x.role})
		}
	}
	return all
}

// Running reports whether a daemon was started by this process and not stopped since.
func (d *Daemons) Running(at scenario.Daemon) bool {
	return d.child(at) != nil
}

func (d *Daemons) child(at scenario.Daemon) *child {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.children {
		if c.Node == at.Node && c.Role == at.Role {
			return c
		}
	}
	return nil
}

// Exited is the error of the first daemon that has exited although it was not stopped, or nil.
func (d *Daemons) Exited() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.children {
		select {
		case <-c.exited:
			return d.exitOf(c)
		default:
		}
	}
	return nil
}

func (d *Daemons) exitOf(c *child) *exitError {
	return &exitError{c, lastLines(logFile(dirOf(d.lab), c.daemon), logLines)}
}

// Start starts a daemon that does not run. It does not wait until the daemon is ready.
func (d *Daemons) Start(at scenario.Daemon) error {
	x, err := d.plan.daemon(at)
	if err != nil {
		return err
	}
	if d.state == nil {
		return ErrNotOurs
	}
	c, err := d.start(x)
	if c != nil {
		d.add(c)
	}
	return errors.Join(err, d.record())
}

// Stop sends a signal to a daemon and waits until it has exited.
func (d *Daemons) Stop(ctx context.Context, at scenario.Daemon, sig syscall.Signal) error {
	x, err := d.plan.daemon(at)
	if err != nil {
		return err
	}
	if d.state == nil {
		return ErrNotOurs
	}
	c := d.forget(x)
	if c == nil {
		return fmt.Errorf("%s does not run", x)
	}
	if err := c.signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s is still there %s after %s", x, patience, sig))
	defer cancel()
	select {
	case <-c.exited:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), c.signal(syscall.SIGKILL))
	}
	return d.record()
}

// Signal sends a signal to a daemon that this process started.
func (d *Daemons) Signal(at scenario.Daemon, sig syscall.Signal) error {
	c := d.child(at)
	if c == nil {
		return fmt.Errorf("node %q runs no daemon %q of this process", at.Node, at.Role)
	}
	return c.signal(sig)
}

// Status requests a daemon's state, as JSON.
func (d *Daemons) Status(ctx context.Context, at scenario.Daemon) ([]byte, error) {
	b, err := d.Request(ctx, at, http.MethodGet, "/status")
	if err != nil {
		return nil, fmt.Errorf("request status in lab %q: %w", d.lab, err)
	}
	return b, nil
}

// Request sends an HTTP request to a daemon's status address and returns the body of the response.
// The error of a response other than 2xx is a *ResponseError.
func (d *Daemons) Request(ctx context.Context, at scenario.Daemon, method, path string) ([]byte, error) {
	x, err := d.plan.daemon(at)
	if err != nil {
		return nil, err
	}
	if !x.status.IsValid() {
		return nil, fmt.Errorf("daemon %s has no status address", x)
	}
	b, err := ask(ctx, x.netns, method, "http://"+x.status.String()+path, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x, err)
	}
	return b, nil
}

// Command sends an HTTP request to the control socket of a border router's daemon. The error of a
// response other than 2xx is a *ResponseError.
func (d *Daemons) Command(ctx context.Context, at scenario.Daemon, method, path string) error {
	n, err := d.plan.node(at.Node)
	if err != nil {
		return err
	}
	if _, err := d.plan.daemon(at); err != nil {
		return err
	}
	if n.sections.ASBR == nil || at.Role != role.ASBR {
		return fmt.Errorf("daemon %s.%s takes no commands", at.Node, at.Role)
	}
	if _, err := request(ctx, control.Client(n.sections.ASBR.Control), method, "http://daemon"+path, nil); err != nil {
		return fmt.Errorf("command daemon %s.%s: %w", at.Node, at.Role, err)
	}
	return nil
}

// start starts a daemon on its node with its output in its log file.
func (d *Daemons) start(x daemon) (*child, error) {
	out, err := os.OpenFile(logFile(dirOf(d.lab), x), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	argv := append([]string{cmp.Or(x.program, d.binary)}, x.arguments(dirOf(d.lab))...)
	// Its own session: Ctrl-C is for the caller, who takes the lab down in order.
	attr, parent := &syscall.SysProcAttr{Setsid: true}, 0
	if !d.detached && !d.opened {
		attr.Pdeathsig, parent = syscall.SIGKILL, os.Getpid()
	}
	cmd := exec.Command(d.binary, d.enterArguments(x.netns, strconv.Itoa(parent), argv)...)
	cmd.Dir = x.workingDirectory(dirOf(d.lab))
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, out, attr
	if err := d.starter.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", x, err)
	}
	c := &child{daemon: x, process: process{PID: cmd.Process.Pid, Node: x.node, Role: x.role}, exited: make(chan struct{})}
	// The child cannot be reaped before Wait below, so its pid still is its own.
	st, err := procStat(c.PID)
	c.Start = st.start
	go func() {
		c.err = cmd.Wait()
		close(c.exited)
	}()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", x, err)
	}
	return c, nil
}

// startAll starts all daemons at once. Each is recorded in s before the next is started.
func (d *Daemons) startAll(s *state) error {
	for _, x := range d.plan.daemons() {
		if x.role == RoleBGPD {
			if err := awaitZebra(dirOf(d.lab), x.node); err != nil {
				return err
			}
		}
		c, err := d.start(x)
		if c != nil {
			d.add(c)
			s.Processes = append(s.Processes, c.process)
		}
		if err != nil {
			return err
		}
		if err := s.write(d.lab); err != nil {
			return err
		}
	}
	return nil
}

func (d *Daemons) add(c *child) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.children = append(d.children, c)
}

// forget takes a daemon off the list of those that are to run, and returns it.
func (d *Daemons) forget(x daemon) *child {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.children, func(c *child) bool { return c.daemon == x })
	if i < 0 {
		return nil
	}
	c := d.children[i]
	d.children = slices.Delete(d.children, i, i+1)
	return c
}

// record writes to the state file which daemons run. What other processes have added to the lab
// stays recorded.
func (d *Daemons) record() error {
	unlock, err := lock(context.Background(), d.lab, false)
	if err != nil {
		return err
	}
	defer unlock()
	recorded, err := readState(d.lab)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.merge(recorded)
	d.state.Processes = d.foreign(recorded)
	for _, c := range d.children {
		d.state.Processes = append(d.state.Processes, c.process)
	}
	return d.state.write(d.lab)
}

// merge takes over what another process may have added to the lab.
func (d *Daemons) merge(s *state) {
	d.state.Namespaces, d.state.Interposed = slices.Clone(s.Namespaces), slices.Clone(s.Interposed)
	d.state.Processes = slices.Clone(s.Processes)
}

// foreign are the emulators that other processes have added to the lab.
func (d *Daemons) foreign(s *state) []process {
	ours := map[int]bool{}
	for _, c := range d.children {
		ours[c.PID] = true
	}
	return slices.DeleteFunc(slices.Clone(s.Processes), func(p process) bool { return p.Role != RoleLink || ours[p.PID] || !p.alive() })
}

// startRelay starts the process of a link that becomes emulated. It dies with the owner of the lab,
// if that is this process; otherwise it runs until the lab is removed.
func (d *Daemons) startRelay(x daemon) (*child, error) {
	d.mu.Lock()
	if d.starter == nil {
		d.starter = newStarter()
	}
	d.mu.Unlock()
	c, err := d.start(x)
	if c != nil && d.state != nil {
		d.add(c)
	}
	return c, err
}

// enterArguments are the arguments of the tabane program that make it a command in a namespace:
// Enter's after the verb. parent is asCommand, or the pid of the process that a daemon dies with, 0
// for none.
func (d *Daemons) enterArguments(namespace, parent string, argv []string) []string {
	return append([]string{Verb, namespace, filepath.Join(dirOf(d.lab), hostsName), parent}, argv...)
}

// RunClient runs the lab's own tabane program on a node and passes its standard output to read. The
// program dies with this process, and is killed when ctx ends. The error of a program that fails
// ends with what it printed on standard error.
func (d *Daemons) RunClient(ctx context.Context, node string, args []string, read func(io.Reader) error) error {
	n, err := d.plan.node(node)
	if err != nil {
		return err
	}
	argv := append([]string{d.binary}, args...)
	cmd := exec.CommandContext(ctx, d.binary, d.enterArguments(n.netns, strconv.Itoa(os.Getpid()), argv)...)
	var complaint tail
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := d.starter.start(cmd); err != nil {
		return err
	}
	if err = read(out); err != nil {
		// The rest of its output must not keep it from ending.
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
	const most = 4096
	t.Buffer.Write(p)
	if over := t.Len() - most; over > 0 {
		t.Next(over)
	}
	return len(p), nil
}

// close ends the thread that starts processes, and with it those that die with it.
func (d *Daemons) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.starter != nil {
		d.starter.close()
		d.starter = nil
	}
}
