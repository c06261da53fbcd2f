package pathmanager

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
)

// Subflow is a subflow of a connection.
type Subflow struct {
	// Token identifies the connection on this host (RFC 8684 section 3.2).
	Token         uint32
	Local, Remote netip.AddrPort
	// Peer is the egress peer, an index into Options.Peers; -1 for the default address.
	Peer int
	// Backup means that the subflow carries no data unless all others fail; Stalled, that it
	// makes no progress; Parked, that its route was withdrawn and it is kept unused until it
	// can be closed.
	Backup, Stalled, Parked bool
	// Policy is that of the connection, and Use why the subflow carries data or rests; "" if the
	// kernel's scheduler uses all subflows.
	Policy, Use string
}

// List returns the subflows of at most limit connections, in the order of their tokens, and the
// number of all connections. Which connections it returns is arbitrary if there are more. ctx
// limits the wait for Run.
func (m *Manager) List(ctx context.Context, limit int) (subflows []Subflow, connections int, err error) {
	err = m.call(ctx, func(time.Time) { subflows, connections = m.machine.list(limit), len(m.machine.conns) })
	return subflows, connections, err
}

// Memory returns what connections learned of paths, the oldest first. ctx limits the wait for Run.
func (m *Manager) Memory(ctx context.Context) (paths []selection.Entry, err error) {
	err = m.call(ctx, func(now time.Time) { paths = m.machine.memory.Entries(now) })
	return paths, err
}

// call runs a function in the loop, and waits for it until ctx ends.
func (m *Manager) call(ctx context.Context, f func(now time.Time)) error {
	done := make(chan struct{})
	m.post(func(now time.Time) error {
		defer close(done)
		f(now)
		return nil
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("path manager does not run")
	}
}

func (m *machine) list(limit int) (all []Subflow) {
	n := 0
	for token, c := range m.conns {
		if n++; n > limit {
			break
		}
		for _, s := range c.subflows {
			use := ""
			if c.chooses() {
				use = s.use.String()
			}
			all = append(all, Subflow{token, s.local, s.remote, s.peer, s.backup, s.stalled, s.parked, c.policy(), use})
		}
	}
	slices.SortStableFunc(all, func(a, b Subflow) int { return cmp.Compare(a.Token, b.Token) })
	return all
}
