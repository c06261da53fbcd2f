package asbr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/bgp"
)

// Stage is how far an ASBR has left service.
type Stage string

const (
	// Serving is an ASBR in service.
	Serving Stage = ""
	// Moving: everything works still; servers and egress peers are asked to use others from now on.
	Moving Stage = "moving"
	// Withdrawn: nobody is told of a route any more; what is on its way is still delivered.
	Withdrawn Stage = "withdrawn"
	// Drained: the SIDs and the peers' tables are empty. The daemon can be stopped.
	Drained Stage = "drained"
)

// withdrawnFor is how long packets are delivered although no route leads here any more: the withdrawal has to reach the
// servers, and what they sent until then has to arrive.
const withdrawnFor = time.Second

// MaxWait bounds how long a drain may take.
const MaxWait = 10 * time.Minute

// ErrNotServing says that a drain was asked for twice, or undone without one.
var ErrNotServing = errors.New("it is leaving service or out of service already")

// drain is where an ASBR stands between service and maintenance. Its stage is the daemon loop's to read and write.
type drain struct {
	stage  Stage
	cancel context.CancelFunc // of the steps under way
	done   chan struct{}      // closed when they have ended
}

// Drain takes the ASBR out of service without losing a packet, and returns at once; Status tells how far it is. For wait,
// everything works and everybody is asked to move to other paths (RFC 8326); then the routes are withdrawn, and the SIDs go
// last. It holds until Undrain, or until the daemon starts anew.
//
// The wait has to be longer than what servers have queued towards the egress peers takes to arrive: they deliver that over
// the old path, and so send nothing twice. A shorter one loses no data either, but pauses downloads.
func (a *ASBR) Drain(wait time.Duration) error {
	if wait < 0 || wait > MaxWait {
		return fmt.Errorf("drain: the wait must be from 0 to %s, got %s", MaxWait, wait)
	}
	err := errors.New("it is not running")
	a.daemon.Do(context.Background(), func() {
		if a.drain.stage != Serving {
			err = ErrNotServing
			return
		}
		ctx, cancel := context.WithCancel(a.running)
		a.drain = drain{stage: Moving, cancel: cancel, done: make(chan struct{})}
		go a.leave(ctx, a.drain.done, wait)
		err = nil
	})
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return nil
}

// leave goes through the stages. Policies change outside of the daemon's loop: with a full table that takes a while, in
// which the loop has links to follow.
func (a *ASBR) leave(ctx context.Context, done chan struct{}, wait time.Duration) {
	defer close(done)
	a.log.Info("drain: asking servers and egress peers to move", "wait", wait)
	a.export(func(p bgp.ExportPolicy) bgp.ExportPolicy { p.Shutdown = true; return p })
	if !pause(ctx, wait) || !a.step(ctx, Withdrawn, func(p *peer) { p.hide(true) }) {
		return
	}
	a.log.Info("drain: routes are withdrawn")
	if err := a.daemon.Speaker.Withdraw(a.config.announced()...); err != nil {
		a.log.Error("drain: withdraw own prefixes", "err", err)
	}
	if !pause(ctx, withdrawnFor) || !a.step(ctx, Drained, func(p *peer) { p.close(true) }) {
		return
	}
	if err := a.daemon.Speaker.Withdraw(a.config.Locator.Prefix); err != nil {
		a.log.Error("drain: withdraw locator", "err", err)
	}
	a.export(func(p bgp.ExportPolicy) bgp.ExportPolicy { p.Reject = []netip.Prefix{anywhere}; return p })
	a.log.Info("drain: out of service")
}

// Undrain brings a drained ASBR, or one that is about to be, back into service.
func (a *ASBR) Undrain() error {
	err := errors.New("it is not running")
	var old drain
	a.daemon.Do(context.Background(), func() {
		if a.drain.stage == Serving || a.drain.cancel == nil {
			err = errors.New("it is in service")
			return
		}
		old, err = a.drain, nil
		a.drain.cancel = nil // nobody else gets here
	})
	if err != nil {
		return fmt.Errorf("undrain: %w", err)
	}
	old.cancel()
	<-old.done
	a.log.Info("drain: undone")
	// The reverse order: what packets need first, then who may send them.
	a.export(func(p bgp.ExportPolicy) bgp.ExportPolicy { return p })
	err = a.daemon.Speaker.Originate(a.config.routes()...)
	a.step(context.Background(), Serving, func(p *peer) { p.close(false); p.hide(false) })
	if err != nil {
		return fmt.Errorf("undrain: %w", err)
	}
	return nil
}

// step changes all peers and the stage in the daemon's loop; false means that there is nothing more to do.
func (a *ASBR) step(ctx context.Context, stage Stage, change func(*peer)) bool {
	ok := false
	a.daemon.Change(ctx, func() {
		if ctx.Err() != nil {
			return
		}
		ok, a.drain.stage = true, stage
		for _, p := range a.peers {
			change(p)
		}
		a.withdraw()
	})
	return ok
}

// export gives every neighbor its own export policy, changed.
func (a *ASBR) export(change func(bgp.ExportPolicy) bgp.ExportPolicy) {
	for _, n := range a.neighbors {
		if err := a.daemon.Speaker.SetExport(context.Background(), n.Name, change(n.Export)); err != nil {
			a.log.Error("drain: change what a neighbor is told", "err", err)
		}
	}
}

// pause reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
