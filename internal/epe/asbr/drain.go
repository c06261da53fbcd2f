package asbr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// Stage is the stage of a drain.
type Stage string

const (
	// Serving: in service.
	Serving Stage = ""
	// Moving: everything works; servers and egress peers are asked to move to other paths.
	Moving Stage = "moving"
	// Withdrawn: no route is advertised; packets in flight are still delivered.
	Withdrawn Stage = "withdrawn"
	// Drained: the SIDs and the peers' tables are empty. The daemon can be stopped.
	Drained Stage = "drained"
)

// withdrawnFor is how long packets are delivered after the withdrawal: it has to reach the servers,
// and what they sent until then has to arrive.
const withdrawnFor = time.Second

// walkPause is how often it is examined whether all routes are withdrawn.
const walkPause = 50 * time.Millisecond

// MaxWait bounds how long a drain may take.
const MaxWait = 10 * time.Minute

// ErrNotServing: a drain is under way or complete already.
var ErrNotServing = errors.New("already draining or drained")

// drain is the state of a drain. Its stage is read and written in the daemon's loop only.
type drain struct {
	stage  Stage
	cancel context.CancelFunc // of the steps under way
	done   chan struct{}      // closed when they have ended
}

// Drain takes the ASBR out of service without losing a packet, and returns at once; Status has the
// stage. For wait, everything works and all routes are advertised with GRACEFUL_SHUTDOWN (RFC
// 8326); then the routes are withdrawn, and last the SIDs removed. It lasts until Undrain or a
// restart of the daemon.
//
// The wait has to be longer than the time in which servers deliver what they have queued on the old
// paths, so that nothing is reinjected. A shorter one loses no data, but pauses downloads.
func (a *ASBR) Drain(wait time.Duration) error {
	if wait < 0 || wait > MaxWait {
		return fmt.Errorf("drain: the wait must be from 0 to %s, got %s", MaxWait, wait)
	}
	err := errors.New("not running")
	a.daemon.Do(context.Background(), func() {
		switch {
		case a.drain.stage != Serving:
			err = ErrNotServing
			return
		case a.reloading:
			err = errReloading
			return
		}
		ctx, cancel := context.WithCancel(a.running)
		a.drain = drain{stage: Moving, cancel: cancel, done: make(chan struct{})}
		done := a.drain.done
		contain.Go(contain.Request, a.log, func() { a.leave(ctx, done, wait) })
		err = nil
	})
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return nil
}

// leave runs the stages. Policies change outside the daemon's loop, which must react to links
// meanwhile: with a full table it takes a while.
func (a *ASBR) leave(ctx context.Context, done chan struct{}, wait time.Duration) {
	defer close(done)
	a.log.Info("drain: advertising graceful shutdown", "wait", wait)
	a.export(func(p bgp.ExportPolicy) bgp.ExportPolicy { p.Shutdown = true; return p })
	if !pause(ctx, wait) || !a.step(ctx, Withdrawn, func(p *peer) { p.hide(true) }) {
		return
	}
	if !a.walked(ctx) {
		return
	}
	a.log.Info("drain: routes withdrawn")
	if !pause(ctx, withdrawnFor) || !a.step(ctx, Drained, func(p *peer) { p.close(true) }) {
		return
	}
	if err := a.daemon.Speaker.Withdraw(a.config.Locator.Prefix); err != nil {
		a.log.Error("drain: withdraw locator", "err", err)
	}
	var everything []netip.Prefix
	for _, v := range a.config.versions() {
		everything = append(everything, v.Anywhere())
	}
	a.export(func(p bgp.ExportPolicy) bgp.ExportPolicy { p.Reject = everything; return p })
	a.log.Info("drain: out of service")
}

// walked waits until the state of all peers is applied to all of their routes, which takes a while
// with a full table. It returns false if ctx ends before.
func (a *ASBR) walked(ctx context.Context) bool {
	for walking := true; walking; {
		a.daemon.Do(ctx, func() { walking = slices.ContainsFunc(a.peers, func(p *peer) bool { return p.walking }) })
		if !pause(ctx, walkPause) {
			return false
		}
	}
	return true
}

// Undrain brings a drained or draining ASBR back into service.
func (a *ASBR) Undrain() error {
	err := errors.New("not running")
	var old drain
	a.daemon.Do(context.Background(), func() {
		if a.drain.stage == Serving || a.drain.cancel == nil {
			err = errors.New("in service")
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
	a.log.Info("drain: reverted")
	// In reverse order: first what packets need, then what attracts them.
	a.export(func(p bgp.ExportPolicy) bgp.ExportPolicy { return p })
	err = a.daemon.Speaker.Originate(a.config.locatorRoute())
	a.step(context.Background(), Serving, func(p *peer) { p.close(false); p.hide(false) })
	if err != nil {
		return fmt.Errorf("undrain: %w", err)
	}
	return nil
}

// step changes all peers and the stage in the daemon's loop; false if ctx ended.
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
		a.advertise()
	})
	return ok
}

// export sets the changed export policy of every neighbor.
func (a *ASBR) export(change func(bgp.ExportPolicy) bgp.ExportPolicy) {
	for _, n := range a.neighbors {
		if err := a.daemon.Speaker.SetExport(n.Name, change(n.Export)); err != nil {
			a.log.Error("drain: set export policy", "err", err)
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
