// Package lab builds the network of a scenario.Spec from network namespaces of this machine, starts
// the product's own daemons in them, and runs the Spec's experiment.
//
// It makes nothing outside its namespaces and its state directory: no link, address, route or file
// of the host changes, except that congestion controls which the Spec names are permitted to
// namespaces. It simulates nothing, decides nothing that a daemon decides, and does not survive a
// reboot. Whatever happens to its process, a later Up or Down of the same name finds and removes
// all that was made.
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

	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/scenario"
)

// DefaultTimeout is how long a lab may take to be ready.
const DefaultTimeout = 30 * time.Second

// ErrNotFound is wrapped by the error of Open for a lab that does not exist.
var ErrNotFound = errors.New("no such lab")

// ErrNotReady is wrapped by the error of Up for a lab that was built but did not become ready.
var ErrNotReady = errors.New("the lab is not ready")

type unreadyError struct{ error }

func (e unreadyError) Is(target error) bool { return target == ErrNotReady }

func (e unreadyError) Unwrap() error { return e.error }

// Options is what Up needs.
type Options struct {
	// Name of the lab; several labs run side by side under different names.
	Name string
	Spec *scenario.Spec
	// Routers is RoutersEmbedded, the default, or RoutersFRR.
	Routers string
	// Binary is the tabane program that the nodes run; the calling program unless given.
	Binary string
	// Detach lets the lab live on when the caller ends. Otherwise its processes die with the
	// caller, however that ends.
	Detach bool
	// Timeout bounds how long it may take until all daemons are ready and the client reaches the
	// server; DefaultTimeout unless given.
	Timeout time.Duration
	// KeepUnready leaves a lab in place that is not ready in time, or in which a daemon exits
	// before: Up then returns it with an error that wraps ErrNotReady.
	KeepUnready bool
	Log         *slog.Logger
}

// Condition says how a lab is.
type Condition string

const (
	// Running has everything it was made with.
	Running Condition = "up"
	// NotReady has everything, but did not become ready in time, or is still starting.
	NotReady Condition = "not ready"
	// Partial is being built or removed, or has lost a part.
	Partial Condition = "partial"
	// Stale has lost its owner or all its processes: it can only be removed, by Down or by Up
	// under the same name.
	Stale Condition = "stale"
)

// Info describes a lab.
type Info struct {
	Name, Scenario string
	Nodes          []string
	Condition      Condition
	Since          time.Time
	// Owner is the process that made the lab, User the user it ran for: that of sudo, if there is
	// one.
	Owner, User int
	// Owned is whether the owner still runs.
	Owned bool
}

// User is the user that this process runs for: who called sudo, or the real user.
func User() int {
	if id, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		return id
	}
	return os.Getuid()
}

// Lab is a running lab. Its methods and those of its parts are safe for concurrent use, but for
// Close and Down.
type Lab struct {
	name    string
	spec    *scenario.Spec
	plan    *plan
	routers string
	log     *slog.Logger
	daemons *Daemons
	links   *Links
}

func newLab(name string, spec *scenario.Spec, p *plan, binary string) *Lab {
	d := &Daemons{lab: name, plan: p, launcher: launcher{lab: name, binary: binary}}
	return &Lab{
		name: name, spec: spec, plan: p, log: slog.New(slog.DiscardHandler), daemons: d,
		links: &Links{lab: name, plan: p, daemons: d, shapes: map[string]scenario.Shape{}, holes: map[spot]bool{}},
	}
}

// Name is the lab's name.
func (l *Lab) Name() string { return l.name }

// Spec is the scenario that the lab was made from. It must not be changed.
func (l *Lab) Spec() *scenario.Spec { return l.spec }

// Daemons are the processes that the lab runs.
func (l *Lab) Daemons() *Daemons { return l.daemons }

// Links are the lab's links.
func (l *Lab) Links() *Links { return l.links }

// Up builds a lab and waits until it is ready: every daemon says so, and the experiment's client,
// if there is one, reaches its server. A stale lab of the same name is removed first. When Up
// fails, or ctx ends first, nothing is left, except as Options.KeepUnready says.
func Up(ctx context.Context, o Options) (_ *Lab, err error) {
	p, err := newPlan(o.Name, o.Spec)
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	binary, err := program(o.Binary)
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	l := newLab(o.Name, o.Spec, p, binary)
	l.daemons.launcher.detached = o.Detach
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

// program is the path of the tabane program. It is looked up once: a name that means another file
// later, or in another process, must not mix two versions in one lab.
func program(given string) (string, error) {
	if given == "" {
		return os.Executable()
	}
	return exec.LookPath(given)
}

// up does the work of Up; the lab is locked.
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
		// Also when something panics: nothing may be left.
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

// takeOver removes a stale lab of the same name, and refuses the name of a live one.
func (l *Lab) takeOver(ctx context.Context) error {
	old, err := readState(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if old.condition() != Stale {
		return fmt.Errorf("lab %q is running (pid %d): tabane lab down %s", l.name, old.pid(), l.name)
	}
	l.log.Info("remove stale lab", "name", l.name, "since", old.Since)
	if err := teardown(ctx, old); err != nil {
		return fmt.Errorf("remove stale lab: %w", err)
	}
	// The directory stays, with the lock in it; what is in it must not be taken for the new lab's.
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

// pid is the process named in errors about a lab that runs.
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
	// World readable: programs that a node runs as another user resolve names too. The directory is
	// closed to others, but the file is bind-mounted.
	hosts := filepath.Join(dirOf(l.name), hostsName)
	if err := os.WriteFile(hosts, []byte(l.plan.hosts), 0o644); err != nil {
		return err
	}
	for _, k := range l.plan.links {
		if err := k.writeRelay(dirOf(l.name)); err != nil {
			return err
		}
	}
	for _, n := range l.plan.nodes {
		if b, err := n.config(); err != nil {
			return err
		} else if err := writeFile(configFile(dirOf(l.name), n.name), b); err != nil {
			return err
		} else if err := n.writeFRR(dirOf(l.name)); err != nil {
			return err
		} else if err := n.writeFiles(dirOf(l.name)); err != nil {
			return err
		}
	}
	return nil
}

// config is the node's configuration file, with the status addresses that the lab asks at written
// out.
func (n *node) config() ([]byte, error) {
	sections := map[string]any{}
	for _, d := range n.daemons {
		if r, ok := role.Named(d.role); ok { // not one of FRR's
			sections[d.role] = r.WithStatus(&n.sections, d.status)
		}
	}
	b, err := encode(sections)
	if err != nil {
		return nil, fmt.Errorf("write configuration of node %q: %w", n.name, err)
	}
	return b, nil
}

// Open finds a lab that exists. Its error wraps ErrNotFound when there is none, and says so when
// the lab is not usable.
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
	if s.condition() == Stale || !s.Built {
		return nil, fmt.Errorf("open lab %q: it is %s: tabane lab down %s", name, s.condition(), name)
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
	binary, err := program("")
	if err != nil {
		return nil, fmt.Errorf("open lab %q: %w", name, err)
	}
	l := newLab(name, spec, p, binary)
	l.routers, l.daemons.launcher.detached, l.daemons.launcher.opened = s.Routers, s.Detached, true
	if err := l.links.refresh(); err != nil {
		return nil, fmt.Errorf("open lab %q: %w", name, err)
	}
	return l, nil
}

// others is the hint which labs there are.
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

// Down removes the lab: its processes, those that anyone else runs in its namespaces, the
// namespaces and the state. It does so in any condition, also when nothing is left to remove, and
// may be called again after an error.
func (l *Lab) Down(ctx context.Context) error {
	err := Down(ctx, l.name)
	if err == nil {
		l.Close()
	}
	return err
}

// Down removes the lab of that name as Lab.Down does; it needs no lab that could be opened.
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
		s, err = &state{}, nil // it died before it made anything
	}
	if err == nil {
		err = remove(ctx, name, s)
	}
	if err != nil {
		return fmt.Errorf("remove lab %q: %w", name, err)
	}
	return nil
}

// Close releases what this process holds of the lab. The lab of Up ends with it unless it is
// detached, and nothing can be started in it any more.
func (l *Lab) Close() { l.daemons.launcher.close() }
