package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/tc"
)

// View is the current state of a lab.
type View struct {
	Name      string      `json:"name"`
	Scenario  string      `json:"scenario"`
	Condition Condition   `json:"condition"`
	Nodes     []NodeView  `json:"nodes"`
	Links     []*LinkView `json:"links"`
}

// NodeView is the current state of a node.
type NodeView struct {
	Name       string          `json:"name"`
	Namespace  string          `json:"namespace"`
	Interfaces []InterfaceView `json:"interfaces"`
	Daemons    []DaemonView    `json:"daemons"`
}

// InterfaceView is an interface with its global addresses.
type InterfaceView struct {
	Name      string         `json:"name"`
	Up        bool           `json:"up"`
	Addresses []netip.Prefix `json:"addresses"`
}

// DaemonView is the current state of a daemon. PID is 0 if it is not running.
type DaemonView struct {
	Role string `json:"role"`
	PID  int    `json:"pid,omitempty"`
	// Problem is the reason why the daemon is not ready; empty if it is.
	Problem string `json:"problem,omitempty"`
	// Log is the file with the daemon's output.
	Log string `json:"log"`
}

// LinkView is the current state of a link.
type LinkView struct {
	Name string `json:"name"`
	// Kind is "wire", "switch" or "emulated".
	Kind string          `json:"kind"`
	Ends []scenario.Port `json:"ends"`
	MTU  int             `json:"mtu"`
	// Shape is the current shape; Text is the same in the syntax of lab set.
	Shape scenario.Shape `json:"-"`
	Text  string         `json:"shape"`
	// Blackholes are the interfaces whose packets are dropped.
	Blackholes []scenario.Port `json:"blackholes,omitempty"`
}

// askOnce is the timeout of a status request in View; the daemon may be stopped.
const askOnce = time.Second

// View returns the current state of a link.
func (l *Links) View(ctx context.Context, link string) (*LinkView, error) {
	k, err := l.plan.link(link)
	if err != nil {
		return nil, fmt.Errorf("view link in lab %q: %w", l.lab, err)
	}
	if err := l.refresh(); err != nil {
		return nil, fmt.Errorf("view link %q: %w", link, err)
	}
	v, err := k.view(ctx, l.plan)
	if err != nil {
		return nil, fmt.Errorf("view link %q: %w", link, err)
	}
	return v, nil
}

// View returns the current state of the lab's nodes, links and daemons.
func (l *Lab) View(ctx context.Context) (View, error) {
	s, err := readState(l.name)
	if err != nil {
		return View{}, fmt.Errorf("view lab %q: %w", l.name, err)
	}
	v := View{Name: l.name, Scenario: s.Scenario, Condition: s.condition()}
	running := map[scenario.Daemon]int{}
	for _, p := range s.Processes {
		if p.alive() {
			running[scenario.Daemon{Node: p.Node, Role: p.Role}] = p.PID
		}
	}
	for _, n := range l.plan.nodes {
		nv := NodeView{Name: n.name, Namespace: n.netns, Daemons: make([]DaemonView, len(n.daemons))}
		if nv.Interfaces, err = interfaces(n.netns); err != nil {
			return View{}, fmt.Errorf("view node %q of lab %q: %w", n.name, l.name, err)
		}
		v.Nodes = append(v.Nodes, nv)
	}
	var asking sync.WaitGroup
	for i, n := range l.plan.nodes {
		for j, d := range n.daemons {
			asking.Go(func() {
				v.Nodes[i].Daemons[j] = l.viewDaemon(ctx, d, running[scenario.Daemon{Node: d.node, Role: d.role}])
			})
		}
	}
	asking.Wait()
	for _, k := range l.plan.links {
		lv, err := k.view(ctx, l.plan)
		if err != nil {
			return View{}, fmt.Errorf("view link %q of lab %q: %w", k.name, l.name, err)
		}
		v.Links = append(v.Links, lv)
	}
	return v, nil
}

func (l *Lab) viewDaemon(ctx context.Context, d daemon, pid int) DaemonView {
	v := DaemonView{Role: d.role, PID: pid, Log: logFile(dirOf(l.name), d)}
	if pid == 0 {
		v.Problem = "does not run"
		return v
	}
	if w := l.daemons.condition(d); w != nil {
		ctx, cancel := context.WithTimeout(ctx, askOnce)
		defer cancel()
		if err := w.ask(ctx); err != nil {
			v.Problem = err.Error()
		}
	}
	return v
}

// interfaces returns the interfaces of a namespace except the loopback and detours.
func interfaces(namespace string) (all []InterfaceView, err error) {
	err = netns.Do(namespace, func() error {
		list, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, i := range list {
			if _, detour := detourOf(i.Name); detour || i.Flags&net.FlagLoopback != 0 {
				continue
			}
			v := InterfaceView{Name: i.Name, Up: i.Flags&net.FlagRunning != 0}
			addresses, err := i.Addrs()
			if err != nil {
				return err
			}
			for _, a := range addresses {
				p, err := netip.ParsePrefix(a.String())
				if err == nil && p.Addr().IsGlobalUnicast() {
					v.Addresses = append(v.Addresses, p)
				}
			}
			all = append(all, v)
		}
		return nil
	})
	return all, err
}

// view reads the link's current shape from the kernel, or from the process of an emulated link.
func (l *link) view(ctx context.Context, p *plan) (*LinkView, error) {
	v := &LinkView{Name: l.name, Kind: "wire", MTU: l.mtu}
	switch {
	case l.relay != nil:
		v.Kind = "emulated"
	case len(l.wires) > 1:
		v.Kind = "switch"
	}
	for _, at := range l.nodePorts() {
		v.Ends = append(v.Ends, p.named(at))
	}
	for i, at := range l.nodePorts() {
		gate := l.gate(at)
		var rate unit.Bandwidth
		var queue time.Duration
		err := netns.Do(gate.netns, func() error {
			s, err := tc.Stats(gate.iface)
			if errors.Is(err, tc.ErrNotShaped) {
				return nil
			}
			if s.Blocked {
				v.Blackholes = append(v.Blackholes, v.Ends[i])
				return err
			}
			rate, queue = s.Rate.Rate, s.Queue.Round(100*time.Microsecond)
			return err
		})
		if err != nil {
			return nil, err
		}
		if queue == tc.DefaultQueue {
			queue = 0
		}
		if rate > 0 && v.Shape.IsZero() {
			v.Shape = scenario.Shape{Rate: rate, Queue: queue}
		}
	}
	if l.relay != nil {
		r, err := l.report(ctx)
		if err != nil {
			return nil, err
		}
		v.Shape = scenario.ShapeOf(r.Forward.Profile, r.Backward.Profile)
	}
	v.Text = v.Shape.String()
	return v, nil
}

// named returns the port with the name of its node.
func (p *plan) named(at port) scenario.Port {
	for _, n := range p.nodes {
		if n.netns == at.netns {
			return scenario.Port{Node: n.name, Interface: at.iface}
		}
	}
	return scenario.Port{Node: at.netns, Interface: at.iface}
}
