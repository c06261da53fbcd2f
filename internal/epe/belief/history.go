package belief

import (
	"net/netip"
	"time"
)

// mostChanges bounds the changes of modes that are kept.
const mostChanges = 1000

// Change is a change of the mode of a network.
type Change struct {
	At       time.Time
	Prefix   netip.Prefix
	From, To Mode
	Why      string
}

// history has the last changes of modes, in a ring.
type history struct {
	changes []Change
	count   uint64 // of all changes
}

func (h *history) add(c Change) {
	if len(h.changes) < mostChanges {
		h.changes = append(h.changes, c)
	} else {
		h.changes[h.count%mostChanges] = c
	}
	h.count++
}

// Changed is the number of changes of modes so far.
func (t *Table) Changed() uint64 { return t.history.count }

// Changes returns at most that many of the last changes of modes in the networks that are wanted,
// the latest first.
func (t *Table) Changes(wanted func(netip.Prefix) bool, most int) (list []Change) {
	h := &t.history
	for i := uint64(1); i <= uint64(len(h.changes)) && len(list) < most; i++ {
		if c := h.changes[(h.count-i)%mostChanges]; wanted(c.Prefix) {
			list = append(list, c)
		}
	}
	return list
}
