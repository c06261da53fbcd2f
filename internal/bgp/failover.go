package bgp

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// bfdReason is the reason for a session that is closed because BFD went down, worded as in FRR.
const bfdReason = "bfd down"

// failover advertises the loss of a failed neighbor's locators before its routes are withdrawn.
type failover struct{ *sessions }

// bfdDown resets the session with a neighbor whose BFD session went down (RFC 5882 section 4.1).
func (f *failover) bfdDown(name string) {
	f.calls.Lock()
	defer f.calls.Unlock()
	n := f.neighbors[name]
	if n == nil || f.usable() != nil || n.disabled {
		return
	}
	f.mu.Lock()
	up := n.up
	f.mu.Unlock()
	if !up {
		return // the session has already ended
	}
	err := f.originated.setBlackhole(true, n.Locators)
	err = errors.Join(err, f.restart(context.Background(), n, bfdReason))
	if n.ASN == f.opt.ASN {
		err = errors.Join(err, f.originated.setBlackhole(false, n.Locators))
	}
	if err != nil {
		f.log.Error("reset session after bfd down", "neighbor", name, "err", err)
	}
}

// advertiseTimeout limits how long the end of a session is delayed until the loss of its locators
// is advertised. Advertising takes a fraction of it unless the speaker is busy.
const advertiseTimeout = 100 * time.Millisecond

// sessionEnded is called when the session with a neighbor has ended, before its routes are dropped.
// For an external neighbor it first advertises the loss of the locators: dropping a full table
// takes seconds, during which nothing else is advertised.
func (f *failover) sessionEnded(key netip.Addr) {
	f.mu.Lock()
	n := f.byAddr[key]
	unexpected := n != nil && n.up && !n.deleting
	f.mu.Unlock()
	if !unexpected || n.ASN == f.opt.ASN || len(n.Locators) == 0 {
		return
	}
	advertised := make(chan struct{})
	go func() {
		defer close(advertised)
		if err := f.advertiseLoss(n); err != nil {
			f.log.Error("advertise loss of locators", "neighbor", n.Name, "err", err)
		}
	}()
	timeout := time.NewTimer(advertiseTimeout)
	defer timeout.Stop()
	select {
	case <-advertised:
	case <-timeout.C: // the holder of calls may be waiting for this session
	case <-f.done:
	}
}

// advertiseLoss advertises the loss of a neighbor's locators, provided the session that ended is
// still its current one.
func (f *failover) advertiseLoss(n *neighbor) error {
	f.calls.Lock()
	defer f.calls.Unlock()
	f.mu.Lock()
	ending := n.up && !n.deleting
	f.mu.Unlock()
	if f.usable() != nil || f.neighbors[n.Name] != n || !ending {
		return nil
	}
	return f.originated.setBlackhole(true, n.Locators)
}
