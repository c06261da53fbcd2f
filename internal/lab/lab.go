// Package lab builds the network of a scenario.Spec from network namespaces and starts tabane's own
// daemons in them.
//
// It creates nothing outside of its namespaces and its state directory: links, addresses, routes
// and files of the host do not change, except that the congestion controls of the Spec are
// permitted in namespaces. It does not simulate, makes no routing decisions, and does not survive a
// reboot. However its process ends, a later Up or Down of the same name finds and removes
// everything.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

// DefaultTimeout is how long a lab may take to become ready.
const DefaultTimeout = 30 * time.Second

// ErrNotFound is wrapped by the error of Open for a lab that does not exist.
var ErrNotFound = errors.New("no such lab")

// ErrNotReady is wrapped by the error of Up for a lab that was built but did not become ready.
var ErrNotReady = errors.New("the lab is not ready")

type unreadyError struct{ error }

func (e unreadyError) Is(target error) bool { return target == ErrNotReady }

func (e unreadyError) Unwrap() error { return e.error }

// Options are the parameters of Up.
type Options struct {
	// Name of the lab; several labs run side by side under different names.
	Name string
	Spec *scenario.Spec
	// Routers is RoutersEmbedded, the default, or RoutersFRR.
	Routers string
	// Binary is the program with the daemons and clients that the nodes run; by default the calling
	// program.
	Binary string
	// Detach keeps the lab running when the caller exits. Otherwise its processes are killed
	// when the caller exits, for whatever reason.
	Detach bool
	// Timeout bounds the time until all daemons are ready and the client reaches the server; 0
	// means DefaultTimeout.
	Timeout time.Duration
	// KeepUnready keeps a lab that does not become ready in time, or in which a daemon exits:
	// Up then returns it with an error that wraps ErrNotReady.
	KeepUnready bool
	// Files are written beside the configuration files of the nodes, which may name them. They are
	// removed with the lab.
	Files map[string][]byte
	Log   *slog.Logger
}

// Condition is the state of a lab.
type Condition string

const (
	// Running: everything that was made is there.
	Running Condition = "up"
	// NotReady: everything is there, but was not ready in time, or is still starting.
	NotReady Condition = "not ready"
	// Partial: the lab is being built or removed, or a part of it is gone.
	Partial Condition = "partial"
	// Stale: the owner or all processes of the lab are gone. It can only be removed, by Down,
	// or by Up with the same name.
	Stale Condition = "stale"
)

// Info describes a lab.
type Info struct {
	Name, Scenario string
	Nodes          []string
	Condition      Condition
	Since          time.Time
	// Owner is the PID of the process that made the lab, User the ID of the user it ran for:
	// with sudo, the user that called it.
	Owner, User int
	// Owned is whether the owner is still running.
	Owned bool
}

// User returns the ID of the user that this process runs for: the user that called sudo, or the
// real user.
func User() int {
	if id, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		return id
	}
	return os.Getuid()
}

// Lab is a running lab. Its methods and those of its parts are safe for concurrent use, except
// Close and Down.
type Lab struct {
	name    string
	spec    *scenario.Spec
	plan    *plan
	routers string
	log     *slog.Logger
	daemons *Daemons
	links   *Links
	files   map[string][]byte // see Options.Files
}

func newLab(name string, spec *scenario.Spec, p *plan, self, binary string) *Lab {
	d := &Daemons{lab: name, plan: p, launcher: launcher{lab: name, self: self, binary: binary}}
	return &Lab{
		name: name, spec: spec, plan: p, log: slog.New(slog.DiscardHandler), daemons: d,
		links: &Links{lab: name, plan: p, daemons: d, shapes: map[string]scenario.Shape{}, holes: map[spot]bool{}},
	}
}

// Name returns the lab's name.
func (l *Lab) Name() string { return l.name }

// Spec returns the scenario that the lab was made from. It must not be modified.
func (l *Lab) Spec() *scenario.Spec { return l.spec }

// Daemons returns the processes of the lab.
func (l *Lab) Daemons() *Daemons { return l.daemons }

// Links returns the lab's links.
func (l *Lab) Links() *Links { return l.links }

// Up builds a lab and waits until it is ready: every daemon is ready, and the client of the
// experiment, if there is one, reaches its server. A stale lab of the same name is removed first.
// If Up fails or ctx ends, everything is removed, except with Options.KeepUnready.
func Up(ctx context.Context, o Options) (_ *Lab, err error) {
	p, err := newPlan(o.Name, o.Spec)
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	self, binary, err := executables(o.Binary)
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	l := newLab(o.Name, o.Spec, p, self, binary)
	l.daemons.launcher.detached = o.Detach
	l.files = o.Files
	if o.Log != nil {
		l.log = o.Log
	}
	if l.routers = cmp.Or(o.Routers, RoutersEmbedded); l.routers == RoutersFRR {
		zebra, bgpd, err := frrPrograms()
		if err == nil {
			err = p.useFRR(dirOf(o.Name), zebra, bgpd)
		}
		if err != nil {
			return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
		}
	}
	unlock, err := lock(ctx, o.Name, true)
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	defer unlock()
	switch err := l.up(ctx, cmp.Or(o.Timeout, DefaultTimeout), o.KeepUnready); {
	case errors.Is(err, ErrNotReady):
		return l, fmt.Errorf("start lab %q: %w", o.Name, err)
	case err != nil:
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	return l, nil
}

// executables returns the paths of the calling program and of that with the daemons. They are
// looked up once, so that all processes of a lab run the same version even if the paths change.
func executables(given string) (self, binary string, err error) {
	if self, err = os.Executable(); err != nil || given == "" {
		return self, self, err
	}
	binary, err = exec.LookPath(given)
	return self, binary, err
}

// up implements Up; the caller holds the lab's lock.
func (l *Lab) up(ctx context.Context, timeout time.Duration, keepUnready bool) (err error) {
	if err := l.takeOver(ctx); err != nil {
		return err
	}
	owner, err := self()
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	s := &state{
		Scenario: l.spec.Name, Since: time.Now(), Boot: boot, Owner: owner, Detached: l.daemons.launcher.detached, Routers: l.routers,
		Namespaces: l.plan.namespaces(), User: User(),
	}
	for _, n := range l.plan.nodes {
		s.Nodes = append(s.Nodes, n.name)
	}
	if err := claim(ctx, l.name, s); err != nil {
		return errors.Join(err, os.RemoveAll(dirOf(l.name)))
	}
	done := false
	defer func() {
		// Deferred, so that everything is removed even after a panic.
		if !done {
			err = errors.Join(err, remove(context.WithoutCancel(ctx), l.name, s))
			l.Close()
		}
	}()
	if err := l.writeFiles(); err != nil {
		return err
	}
	if err := build(ctx, l.plan, l.log); err != nil {
		return err
	}
	if err := l.daemons.startAll(s); err != nil {
		return err
	}
	s.Built = true
	if err := s.write(l.name); err != nil {
		return err
	}
	settle := time.Duration(0)
	if keepUnready {
		settle = settleTime
	}
	unready := l.waitReady(ctx, timeout, settle)
	if unready != nil && (!keepUnready || ctx.Err() != nil) {
		return unready
	}
	s.Ready = unready == nil
	if err := s.write(l.name); err != nil {
		return err
	}
	l.daemons.state = s
	done = true
	if unready != nil {
		return unreadyError{unready}
	}
	return nil
}

// takeOver removes a stale lab of the same name, and returns an error if that lab is not stale.
func (l *Lab) takeOver(ctx context.Context) error {
	old, err := readState(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if old.condition() != Stale {
		return fmt.Errorf("lab %q is running (pid %d): choose another with --name, or end it with tabane lab down %s", l.name, old.pid(), l.name)
	}
	l.log.Info("remove stale lab", "name", l.name, "since", old.Since)
	if err := teardown(ctx, old); err != nil {
		return fmt.Errorf("remove stale lab: %w", err)
	}
	// The directory stays because the lock is in it; its other files must not be mistaken for
	// the new lab's.
	entries, err := os.ReadDir(dirOf(l.name))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != lockFile {
			errs = append(errs, os.RemoveAll(filepath.Join(dirOf(l.name), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// pid returns the process that errors about a running lab name.
func (s *state) pid() int {
	if s.Detached && s.Built && len(s.Processes) > 0 {
		return s.Processes[0].PID
	}
	return s.Owner.PID
}

func (l *Lab) writeFiles() error {
	if err := writeSpec(l.name, l.spec); err != nil {
		return err
	}
	// World-readable, because programs that run as another user on a node also resolve names.
	// Others cannot enter the directory, but the file is bind-mounted.
	hosts := filepath.Join(dirOf(l.name), hostsName)
	if err := os.WriteFile(hosts, []byte(l.plan.hosts), 0o644); err != nil {
		return err
	}
	for name, content := range l.files {
		if err := writeFile(filepath.Join(dirOf(l.name), name), content); err != nil {
			return err
		}
	}
	for _, k := range l.plan.links {
		if err := k.writeRelay(dirOf(l.name)); err != nil {
			return err
		}
	}
	for _, n := range l.plan.nodes {
		if err := n.writeKey(); err != nil {
			return err
		}
		if err := l.writeConfig(n); err != nil {
			return err
		} else if err := n.writeFRR(dirOf(l.name)); err != nil {
			return err
		} else if err := n.writeFiles(dirOf(l.name)); err != nil {
			return err
		}
	}
	return nil
}

// config returns the node's configuration file, with explicit status addresses.
func (n *node) config() ([]byte, error) {
	sections := map[string]any{}
	for _, d := range n.daemons {
		if r, ok := role.Named(d.role); ok { // not an FRR daemon
			sections[d.role] = r.WithStatus(&n.sections, d.status)
		}
	}
	b, err := encode(sections)
	if err != nil {
		return nil, fmt.Errorf("write configuration of node %q: %w", n.name, err)
	}
	return b, nil
}

// Open opens an existing lab. Its error wraps ErrNotFound if there is none. A lab that is stale or
// not built is an error.
func Open(name string) (*Lab, error) {
	if err := CheckName(name); err != nil {
		return nil, fmt.Errorf("open lab: %w", err)
	}
	s, err := readState(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open lab %q: %w%s", name, ErrNotFound, others())
	}
	if err != nil {
		return nil, fmt.Errorf("open lab %q: %w", name, err)
	}
	switch stale := s.condition() == Stale; {
	case stale:
		return nil, fmt.Errorf("open lab %q: it is %s: tabane lab down %s", name, Stale, name)
	case !s.Built:
		return nil, fmt.Errorf("open lab %q: process %d is building or removing it; try again when that is done", name, s.Owner.PID)
	}
	spec, err := readSpec(name)
	if err != nil {
		return nil, fmt.Errorf("open lab %q: %w", name, err)
	}
	p, err := newPlan(name, spec)
	if err != nil {
		return nil, fmt.Errorf("open lab %q: %w", name, err)
	}
	if s.Routers == RoutersFRR {
		if err := p.useFRR(dirOf(name), "", ""); err != nil {
			return nil, fmt.Errorf("open lab %q: %w", name, err)
		}
	}
	self, binary, err := executables("")
	if err != nil {
		return nil, fmt.Errorf("open lab %q: %w", name, err)
	}
	l := newLab(name, spec, p, self, binary)
	l.routers, l.daemons.launcher.detached, l.daemons.launcher.opened = s.Routers, s.Detached, true
	if err := l.links.refresh(); err != nil {
		return nil, fmt.Errorf("open lab %q: %w", name, err)
	}
	return l, nil
}

// others returns a hint that lists the existing labs.
func others() string {
	names, err := labNames()
	if err != nil || len(names) == 0 {
		return "; no lab is running"
	}
	return "; there are " + strings.Join(names, ", ")
}

// List describes all labs, ordered by name.
func List() ([]Info, error) {
	names, err := labNames()
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var list []Info
	for _, name := range names {
		s, err := readState(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			list = append(list, Info{Name: name, Condition: Partial})
		case err != nil:
			return nil, fmt.Errorf("list labs: %w", err)
		default:
			list = append(list, Info{
				Name: name, Scenario: s.Scenario, Nodes: s.Nodes, Condition: s.condition(), Since: s.Since, Owner: s.Owner.PID, User: s.User, Owned: s.Owner.alive(),
			})
		}
	}
	return list, nil
}

// Down removes the lab: its processes, all other processes in its namespaces, the namespaces and
// the state. It works in any condition, also if nothing is left to remove, and may be called again
// after an error.
func (l *Lab) Down(ctx context.Context) error {
	err := Down(ctx, l.name)
	if err == nil {
		l.Close()
	}
	return err
}

// Down removes the lab of that name as Lab.Down does; the lab need not be open or usable.
func Down(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return fmt.Errorf("remove lab: %w", err)
	}
	unlock, err := lock(ctx, name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove lab %q: %w", name, err)
	}
	defer unlock()
	s, err := readState(name)
	if errors.Is(err, fs.ErrNotExist) {
		s, err = &state{}, nil // its process died before it made anything
	}
	if err == nil {
		err = remove(ctx, name, s)
	}
	if err != nil {
		return fmt.Errorf("remove lab %q: %w", name, err)
	}
	return nil
}

// Close releases the resources of this process for the lab. A lab from Up ends with it unless it is
// detached; no further processes can be started in it.
func (l *Lab) Close() { l.daemons.launcher.close() }
