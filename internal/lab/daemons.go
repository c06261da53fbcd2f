package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"

	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

// ErrNotOurs is the error of operations that need the process that made the lab, the parent of its
// daemons.
var ErrNotOurs = errors.New("only the process that made the lab can do that")

// Daemons are the processes that a lab runs: those of its nodes and of its emulated links.
type Daemons struct {
	lab      string
	plan     *plan
	launcher launcher
	children children
	// state is nil unless this process made the lab. It is modified only under the lab's lock.
	state *state
}

// Process is a process of a lab.
type Process struct {
	scenario.Daemon
	PID     int
	Running bool
}

// Processes returns the processes that a lab has started, in start order.
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

// List returns the daemons of the lab's nodes, running or not.
func (d *Daemons) List() []scenario.Daemon {
	var all []scenario.Daemon
	for _, n := range d.plan.nodes {
		for _, x := range n.daemons {
			all = append(all, scenario.Daemon{Node: x.node, Role: x.role})
		}
	}
	return all
}

// Running reports whether this process has started the daemon and not stopped it since.
func (d *Daemons) Running(at scenario.Daemon) bool {
	return d.children.find(at) != nil
}

// Exited returns the error of the first daemon that has exited without being stopped, or nil.
func (d *Daemons) Exited() error {
	for _, c := range d.children.all() {
		select {
		case <-c.exited:
			return exitOf(d.lab, c)
		default:
		}
	}
	return nil
}

// Guard returns a context that ends with the error of the first daemon that exits, as Exited
// returns it. The caller calls stop.
func (d *Daemons) Guard(ctx context.Context) (guarded context.Context, stop func()) {
	return guard(ctx, d.lab, d.children.all())
}

// guard implements Guard for some of the daemons.
func guard(ctx context.Context, lab string, daemons []*child) (guarded context.Context, stop func()) {
	guarded, end := context.WithCancelCause(ctx)
	var watchers sync.WaitGroup
	for _, c := range daemons {
		watchers.Go(func() {
			select {
			case <-c.exited:
				end(exitOf(lab, c))
			case <-guarded.Done():
			}
		})
	}
	return guarded, func() {
		end(nil)
		watchers.Wait()
	}
}

// Revive starts the daemons that have exited without being stopped. It does not wait for them to be
// ready.
func (d *Daemons) Revive() error {
	if d.state == nil {
		return ErrNotOurs
	}
	var errs []error
	for _, c := range d.children.all() {
		select {
		case <-c.exited:
		default:
			continue
		}
		d.children.remove(c.daemon)
		again, err := d.launcher.daemon(c.daemon)
		if again != nil {
			d.children.add(again)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, d.record())...)
}

// Start starts a daemon that is not running. It does not wait for it to be ready.
func (d *Daemons) Start(at scenario.Daemon) error {
	x, err := d.plan.daemon(at)
	if err != nil {
		return err
	}
	if d.state == nil {
		return ErrNotOurs
	}
	c, err := d.launcher.daemon(x)
	if c != nil {
		d.children.add(c)
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
	c := d.children.remove(x)
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
	c := d.children.find(at)
	if c == nil {
		return fmt.Errorf("node %q runs no daemon %q of this process", at.Node, at.Role)
	}
	return c.signal(sig)
}

// Status returns a daemon's state as JSON.
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

// Command sends an HTTP request to the control socket of a daemon. The error of a response other
// than 2xx is a *ResponseError.
func (d *Daemons) Command(ctx context.Context, at scenario.Daemon, method, path string) error {
	n, err := d.plan.node(at.Node)
	if err != nil {
		return err
	}
	if _, err := d.plan.daemon(at); err != nil {
		return err
	}
	r, ok := role.Named(at.Role)
	if !ok || r.Control(&n.sections) == "" {
		return fmt.Errorf("daemon %s.%s takes no commands", at.Node, at.Role)
	}
	if _, err := request(ctx, control.Client(r.Control(&n.sections)), method, "http://daemon"+path, nil); err != nil {
		return fmt.Errorf("command daemon %s.%s: %w", at.Node, at.Role, err)
	}
	return nil
}

// startAll starts all daemons. Each is recorded in s before the next is started.
func (d *Daemons) startAll(s *state) error {
	for _, x := range d.plan.daemons() {
		if x.role == RoleBGPD {
			if err := awaitZebra(dirOf(d.lab), x.node); err != nil {
				return err
			}
		}
		c, err := d.launcher.daemon(x)
		if c != nil {
			d.children.add(c)
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

// record writes the running daemons to the state file. Entries that other processes have added are
// kept.
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
	started := d.children.all()
	d.state.merge(recorded)
	d.state.Processes = recorded.emulators(started)
	for _, c := range started {
		d.state.Processes = append(d.state.Processes, c.process)
	}
	return d.state.write(d.lab)
}

// startRelay starts the process of a link that becomes emulated. If this process owns the lab, the
// relay is killed when it exits; otherwise it runs until the lab is removed.
func (d *Daemons) startRelay(x daemon) (*child, error) {
	c, err := d.launcher.daemon(x)
	if c != nil && d.state != nil {
		d.children.add(c)
	}
	return c, err
}

// RunClient runs the lab's own tabane program on a node and passes its standard output to read. The
// program is killed when this process exits or ctx ends. If it fails, the error includes what it
// wrote to standard error.
func (d *Daemons) RunClient(ctx context.Context, node string, args []string, read func(io.Reader) error) error {
	n, err := d.plan.node(node)
	if err != nil {
		return err
	}
	return d.launcher.client(ctx, n.netns, args, read)
}
