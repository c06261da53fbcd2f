// Package lab builds the network of a scenario.Spec from network namespaces of this machine, starts the product's own
// daemons in them, and runs the Spec's experiment.
//
// It makes nothing outside its namespaces and its state directory: no link, address, route or file of the host changes,
// except that congestion controls which the Spec names are permitted to namespaces. It simulates nothing, decides
// nothing that a daemon decides, and does not survive a reboot. Whatever happens to its process, a later Up or Down of
// the same name finds and removes all that was made.
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
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/scenario"
)

// DefaultTimeout is how long a lab may take to be ready.
const DefaultTimeout = 30 * time.Second

// ErrNotFound is wrapped by the error of Open for a lab that does not exist.
var ErrNotFound = errors.New("no such lab")

// Options is what Up needs.
type Options struct {
	// Name of the lab; several labs run side by side under different names.
	Name string
	Spec *scenario.Spec
	// Routers is RoutersEmbedded, the default, or RoutersFRR.
	Routers string
	// Binary is the tabane program that the nodes run; the calling program unless given.
	Binary string
	// Detach lets the lab live on when the caller ends. Otherwise its processes die with the caller, however that ends.
	Detach bool
	// Timeout bounds how long it may take until all daemons are ready and the client reaches the server; DefaultTimeout
	// unless given.
	Timeout time.Duration
	Log     *slog.Logger
}

// Condition says how a lab is.
type Condition string

const (
	// Running has everything it was made with.
	Running Condition = "up"
	// Partial is being built or removed, or has lost a part.
	Partial Condition = "partial"
	// Stale has lost its owner or all its processes: only Down, or Up under the same name, is of use.
	Stale Condition = "stale"
)

// Info is what List tells of a lab.
type Info struct {
	Name, Scenario string
	Nodes          []string
	Condition      Condition
	Since          time.Time
	// Owner is the process that made the lab.
	Owner int
}

// Lab is a running lab.
type Lab struct {
	name     string
	spec     *scenario.Spec
	plan     *plan
	routers  string
	binary   string
	detached bool
	opened   bool // and made by somebody else
	log      *slog.Logger
	starter  *starter // nil unless this Lab made the lab

	mu       sync.Mutex
	children []*child
	// state is what is written of a lab that this Lab made.
	state *state
	// shapes are the links that do something else than the plan says, holes where packets vanish.
	shapes map[string]scenario.Shape
	holes  map[spot]bool
}

// Name is the lab's name.
func (l *Lab) Name() string { return l.name }

// Spec is the scenario that the lab was made from. It must not be changed.
func (l *Lab) Spec() *scenario.Spec { return l.spec }

// Up builds a lab and waits until it is ready: every daemon says so, and the experiment's client, if there is one,
// reaches its server. A stale lab of the same name is removed first. When Up fails, or ctx ends first, nothing is
// left.
func Up(ctx context.Context, o Options) (_ *Lab, err error) {
	p, err := newPlan(o.Name, o.Spec)
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	l := &Lab{
		name: o.Name, spec: o.Spec, plan: p, detached: o.Detach, log: o.Log, shapes: map[string]scenario.Shape{}, holes: map[spot]bool{},
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
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
	if l.binary, err = program(o.Binary); err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	unlock, err := lock(ctx, o.Name, true)
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	defer unlock()
	if err := l.up(ctx, cmp.Or(o.Timeout, DefaultTimeout)); err != nil {
		return nil, fmt.Errorf("start lab %q: %w", o.Name, err)
	}
	return l, nil
}

// program is the path of the tabane program. It is looked up once: a name that means another file later, or in another
// process, must not mix two versions in one lab.
func program(given string) (string, error) {
	if given == "" {
		return os.Executable()
	}
	return exec.LookPath(given)
}

// up does the work of Up; the lab is locked.
func (l *Lab) up(ctx context.Context, timeout time.Duration) (err error) {
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
		Scenario: l.spec.Name, Since: time.Now(), Boot: boot, Owner: owner, Detached: l.detached, Routers: l.routers,
		Namespaces: l.plan.namespaces(),
	}
	for _, n := range l.plan.nodes {
		s.Nodes = append(s.Nodes, n.name)
	}
	if err := claim(ctx, l.name, s); err != nil {
		return errors.Join(err, os.RemoveAll(dirOf(l.name)))
	}
	l.starter = newStarter()
	done := false
	defer func() {
		// Also when something panics: nothing may be left.
		if !done {
			err = errors.Join(err, remove(context.WithoutCancel(ctx), l.name, s))
			l.closeStarter()
		}
	}()
	if err := l.writeFiles(); err != nil {
		return err
	}
	if err := build(ctx, l.plan, l.log); err != nil {
		return err
	}
	if err := l.startDaemons(s); err != nil {
		return err
	}
	if err := l.waitReady(ctx, timeout); err != nil {
		return err
	}
	s.Ready = true
	if err := s.write(l.name); err != nil {
		return err
	}
	l.state = s
	done = true
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

// pid is the process to name when somebody asks who runs the lab.
func (s *state) pid() int {
	if s.Detached && s.Ready && len(s.Processes) > 0 {
		return s.Processes[0].PID
	}
	return s.Owner.PID
}

func (l *Lab) writeFiles() error {
	if err := writeSpec(l.name, l.spec); err != nil {
		return err
	}
	// World readable: programs that a node runs as another user resolve names too. The directory is closed to others, but
	// the file is bind-mounted.
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
		}
	}
	return nil
}

// config is the node's configuration file, with the status addresses that the lab asks at written out.
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

// startDaemons starts all daemons at once. Each is written down before the next is started.
func (l *Lab) startDaemons(s *state) error {
	for _, d := range l.plan.daemons() {
		if d.role == RoleBGPD {
			if err := awaitZebra(dirOf(l.name), d.node); err != nil {
				return err
			}
		}
		c, err := l.startDaemon(d)
		if c != nil {
			l.mu.Lock()
			l.children = append(l.children, c)
			l.mu.Unlock()
			s.Processes = append(s.Processes, c.process)
		}
		if err != nil {
			return err
		}
		if err := s.write(l.name); err != nil {
			return err
		}
	}
	return nil
}

// Open finds a lab that somebody made. Its error wraps ErrNotFound when there is none, and says so when the lab is not
// usable.
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
	if s.condition() == Stale || !s.Ready {
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
	l := &Lab{
		name: name, spec: spec, plan: p, routers: s.Routers, binary: binary, detached: s.Detached, opened: true, log: slog.New(slog.DiscardHandler),
		shapes: map[string]scenario.Shape{}, holes: map[spot]bool{},
	}
	if err := l.refresh(); err != nil {
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

// List tells of all labs, by name.
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
				Name: name, Scenario: s.Scenario, Nodes: s.Nodes, Condition: s.condition(), Since: s.Since, Owner: s.Owner.PID,
			})
		}
	}
	return list, nil
}

// Down removes the lab: its processes, those that anyone else runs in its namespaces, the namespaces and the state.
// It does so in any condition, also when nothing is left to remove, and may be called again after an error.
func (l *Lab) Down(ctx context.Context) error {
	err := Down(ctx, l.name)
	if err == nil {
		l.closeStarter()
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

// closeStarter ends the thread that starts processes, and with it those that are told to die with it.
func (l *Lab) closeStarter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starter != nil {
		l.starter.close()
		l.starter = nil
	}
}
