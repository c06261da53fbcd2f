package pathmanager

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/tabane/tabane/internal/mptcp"
)

// evidence is what this host shows of subflows that clients do not establish. The zero value shows
// nothing.
type evidence struct {
	listeners func() ([]mptcp.Listener, error)
	counters  *mptcp.CounterReader
	// before are the counters when a client began to lack subflows, nil while none does.
	before *mptcp.Counters
}

// openEvidence reads the network namespace of the calling thread, as d does.
func openEvidence(d *mptcp.Diag) (evidence, error) {
	counters, err := mptcp.OpenCounters()
	return evidence{listeners: d.Listeners, counters: counters}, err
}

// answer returns what this host answers to subflows: that it accepts them, where listening sockets
// cannot be listed. They are listed when the first answer is needed.
func (e *evidence) answer() func(netip.AddrPort) mptcp.Answer {
	if e.listeners == nil {
		return func(netip.AddrPort) mptcp.Answer { return mptcp.JoinAccepted }
	}
	list := sync.OnceValues(e.listeners)
	return func(at netip.AddrPort) mptcp.Answer {
		all, err := list()
		if err != nil {
			return mptcp.JoinAccepted
		}
		return mptcp.AnswerTo(all, at)
	}
}

// explain adds to the meaning whether subflows that this host accepts have arrived.
func (e *evidence) explain(u *Unjoined) {
	if u.Connections == 0 || e.counters == nil {
		e.before = nil
		return
	}
	now, err := e.counters.Read()
	if err != nil {
		return
	}
	if e.before == nil {
		e.before = &now
		return
	}
	u.arrived(now.Since(*e.before))
}

// arrived corrects the meaning by what has arrived since clients lack subflows: limits of clients
// are not the cause where they begin subflows, and complete none.
func (u *Unjoined) arrived(c mptcp.Counters) {
	if !u.Reset && c.Joins > 0 && c.Joined == 0 {
		u.Meaning = fmt.Sprintf("client has %d of %d addresses: %d SYNs of subflows arrived here, and none was completed; look for what drops the answers from EPE addresses: tabane status edge, rules of firewalls", u.Joined, u.Announced, c.Joins)
	}
}
