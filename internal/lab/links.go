package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/offload"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/lab/emulator"
)

// Links are the links of a lab.
type Links struct {
	lab     string
	plan    *plan
	daemons *Daemons

	mu sync.Mutex
	// shapes has the shapes of links that were changed; holes has the interfaces that drop
	// packets.
	shapes map[string]scenario.Shape
	holes  map[spot]bool
}

// Set changes the shape of a link in both directions while traffic runs.
func (l *Links) Set(link string, s scenario.Shape) error {
	k, err := l.plan.link(link)
	if err != nil {
		return fmt.Errorf("set link in lab %q: %w", l.lab, err)
	}
	if err := s.Check().Err(); err != nil {
		return fmt.Errorf("set link %q: %w", link, err)
	}
	if err := l.refresh(); err != nil {
		return fmt.Errorf("set link %q: %w", link, err)
	}
	if k.relay == nil && !s.Plain() {
		if err := l.interpose(context.Background(), k, s); err != nil {
			return fmt.Errorf("set link %q: emulate it: %w", link, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shapes[link] = s
	return k.setShape(s, l.holes)
}

// Play starts a schedule on an emulated link and replaces the previous one.
func (l *Links) Play(ctx context.Context, link string, s linkmodel.Schedule) error {
	k, err := l.plan.link(link)
	if err != nil {
		return err
	}
	return k.play(ctx, s)
}

// Report returns the statistics of an emulated link; ok is false for another link.
func (l *Links) Report(ctx context.Context, link string) (r emulator.Report, ok bool, _ error) {
	k, err := l.plan.link(link)
	if err != nil || k.relay == nil {
		return r, false, err
	}
	if r, err = k.report(ctx); err != nil {
		return r, false, fmt.Errorf("read statistics of link %q: %w", link, err)
	}
	return r, true, nil
}

// SetUp sets an interface down, or sets it up and restores the node's static routes, which the
// kernel deletes when the interface goes down.
func (l *Links) SetUp(at scenario.Port, up bool) error {
	n, err := l.plan.node(at.Node)
	if err != nil {
		return err
	}
	return netns.Do(n.netns, func() error {
		c, err := route.Dial()
		if err != nil {
			return err
		}
		if err := errors.Join(c.SetLinkUp(at.Interface, up), c.Close()); err != nil || !up {
			return err
		}
		return n.addRoutes()
	})
}

// Blackhole drops packets on egress: at the interface itself, and at the far end of its wire.
func (l *Links) Blackhole(h scenario.Hole) error {
	k, near, far, err := l.plan.port(h.Port())
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, side := range []struct {
		port
		direction scenario.Direction
	}{{near, scenario.Out}, {far, scenario.In}} {
		if !h.Direction.Has(side.direction) {
			continue
		}
		l.holes[side.spot()] = true
		gate := k.gate(side.port)
		if err := netns.Do(gate.netns, func() error { return tc.Block(gate.iface) }); err != nil {
			return err
		}
	}
	return nil
}

// Clear removes the black holes of an interface.
func (l *Links) Clear(at scenario.Port) error {
	k, near, far, err := l.plan.port(at)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holes, near.spot())
	delete(l.holes, far.spot())
	s, changed := l.shapes[k.name]
	if !changed {
		s = k.shape
	}
	return k.setShape(s, l.holes)
}

// DisableOffloads disables segmentation and receive offloads on all interfaces, so that each frame
// is one segment.
func (l *Links) DisableOffloads() error {
	for _, k := range l.plan.links {
		for _, w := range k.wires {
			for _, p := range []port{w.a, w.b} {
				if err := netns.Do(p.netns, func() error { return offload.Prepare(p.iface) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
