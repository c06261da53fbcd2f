package labrun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/role"
)

const (
	// recoverFor bounds the time until a lab is restored. BGP alone may wait for a minute: an
	// implementation delays the restart of a failed session (RFC 4271 section 8.1.1,
	// DampPeerOscillations).
	recoverFor = 90 * time.Second
	// unchanged is how long the kernel state of a lab must not change before it counts as
	// settled.
	unchanged = time.Second
	// pollInterval is the interval at which conditions are polled.
	pollInterval = 10 * time.Millisecond
	// patience is how long a restarted server may take to become ready, and the kernel to save
	// the bound of a window.
	patience = 5 * time.Second
)

// holdings returns the kernel objects that the daemons own, as sorted lines with the name of the
// node.
func holdings(l *lab.Lab) ([]string, error) {
	var all []string
	for _, d := range l.Daemons().List() {
		owner, ok := role.Named(d.Role)
		if !ok || owner.Protocol == 0 {
			continue
		}
		n, err := l.Node(d.Node)
		if err != nil {
			return nil, err
		}
		err = n.Do(func() error {
			lines, err := held(owner)
			for _, line := range lines {
				all = append(all, d.Node+": "+line)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the kernel state of %s (%s): %w", d.Node, d.Role, err)
		}
	}
	slices.Sort(all)
	return all, nil
}

// held returns the objects that the owner has in the kernel, in the caller's namespace.
func held(owner role.Descriptor) ([]string, error) {
	c, err := route.Dial()
	if err != nil {
		return nil, err
	}
	objects, err := c.Dump(owner.Protocol)
	if err := errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	var lines []string
	for _, o := range objects {
		lines = append(lines, o.String())
	}
	if !owner.Endpoints {
		return lines, nil
	}
	m, err := mptcp.Dial()
	if err != nil {
		return nil, err
	}
	endpoints, err := m.Endpoints()
	for _, e := range endpoints {
		lines = append(lines, fmt.Sprintf("mptcp endpoint %s backup %t", e.Address, e.Backup))
	}
	return lines, errors.Join(err, m.Close())
}

// settle waits until all daemons are ready and their kernel objects no longer change, and returns
// these objects. Without it, a session that fails meanwhile, as on a busy machine, would be missing
// from the state with which later runs are compared.
func settle(ctx context.Context, l *lab.Lab) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, recoverFor, fmt.Errorf("still changing after %s", recoverFor))
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last []string
	since := time.Now()
	for {
		now, err := holdings(l)
		if err != nil {
			return nil, err
		}
		if !slices.Equal(now, last) {
			last, since = now, time.Now()
		}
		if time.Since(since) >= unchanged {
			if err := l.WaitReady(ctx, recoverFor); err != nil {
				return nil, fmt.Errorf("settle lab %q: %w", l.Name(), err)
			}
			switch now, err := holdings(l); {
			case err != nil:
				return nil, err
			case slices.Equal(now, last):
				return last, nil
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("settle lab %q: %w", l.Name(), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// restore reverts a case's events, and waits until the daemons are ready and own the same kernel
// objects as before.
func restore(ctx context.Context, l *lab.Lab, events []scenario.Event, whole []string) error {
	if err := repair(ctx, l, events); err != nil {
		return fmt.Errorf("restore lab %q: %w", l.Name(), err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, recoverFor, fmt.Errorf("not as it was after %s", recoverFor))
	defer cancel()
	if err := l.WaitReady(ctx, recoverFor); err != nil {
		return fmt.Errorf("restore lab %q: %w", l.Name(), err)
	}
	tick := time.NewTicker(5 * pollInterval)
	defer tick.Stop()
	for {
		now, err := holdings(l)
		if err != nil {
			return fmt.Errorf("restore lab %q: %w", l.Name(), err)
		}
		if slices.Equal(now, whole) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("restore lab %q: %w: %s", l.Name(), context.Cause(ctx), difference(whole, now))
		case <-tick.C:
		}
	}
}

// repair reverts events, whether or not they were applied, except changes of links' shapes.
func repair(ctx context.Context, l *lab.Lab, events []scenario.Event) error {
	var errs []error
	for _, e := range events {
		switch {
		case e.Down != nil:
			errs = append(errs, l.Links().SetUp(*e.Down, true))
		case e.Flap != nil && e.Flap.Interface != "":
			errs = append(errs, l.Links().SetUp(scenario.Port{Node: e.Flap.Node, Interface: e.Flap.Interface}, true))
		case e.Blackhole != nil:
			errs = append(errs, l.Links().Clear(e.Blackhole.Port()))
		case e.Advertise != nil:
			errs = append(errs, l.Originate(*e.Advertise, false))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, d := range l.Daemons().List() {
		if stopped := slices.ContainsFunc(events, func(e scenario.Event) bool { return e.Ends(d) }); stopped && !l.Daemons().Running(d) {
			errs = append(errs, l.Daemons().Start(d))
		}
	}
	for _, e := range events {
		// A daemon that has just been started is in service, and may not yet accept
		// requests.
		if e.Drain == nil || slices.ContainsFunc(events, func(x scenario.Event) bool { return x.Ends(scenario.Daemon{Node: e.Drain.Node, Role: role.ASBR}) }) {
			continue
		}
		errs = append(errs, undrain(ctx, l, *e.Drain))
	}
	return errors.Join(errs...)
}

// difference returns the missing and the additional lines, at most four.
func difference(want, got []string) string {
	count := map[string]int{}
	for _, line := range want {
		count[line]++
	}
	for _, line := range got {
		count[line]--
	}
	const maxParts = 4
	var parts []string
	for _, line := range slices.Sorted(maps.Keys(count)) {
		switch n := count[line]; {
		case n > 0:
			parts = append(parts, "missing "+line)
		case n < 0:
			parts = append(parts, "too much "+line)
		}
	}
	if more := len(parts) - maxParts; more > 0 {
		parts = append(parts[:maxParts], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}
