package repair

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/ablation"
)

const (
	// Limit is how long after it was missed a message is requested, and how long a sender keeps it:
	// a receiver does not hold later packets for longer (reseq.ReceiverOptions).
	Limit = 500 * time.Millisecond
	// Attempts is how often a message is requested.
	Attempts = 2
	// maxMissing bounds the missing messages of a path, and maxBurst those of one gap: a path that
	// loses more at once was interrupted.
	maxMissing, maxBurst = 1024, 512
)

// The constants of requests, which only Constants lets an experiment change.
var (
	// reorderMargin is added to the time that messages may be overtaken by others.
	reorderMargin = time.Millisecond
	// giveUp and attempts are Limit and Attempts.
	giveUp         = Limit
	attempts uint8 = Attempts
)

// Constants returns the constants of requests, each with the value that removes it.
func Constants() []ablation.Constant {
	return []ablation.Constant{
		ablation.Duration("reorderMargin", &reorderMargin, 0),
		ablation.Duration("giveUp", &giveUp, 0),
		ablation.Integer("attempts", &attempts, 0),
	}
}

// Gaps are the missing messages of a path, by the counter that numbers them. A message is requested
// at once, or where a path reorders, as soon as it is more likely lost than late, and again if it
// has not been retransmitted a round trip later. It is not safe for concurrent use. The zero value
// has no gaps.
type Gaps struct {
	// missing are to be requested, settled have been retransmitted or requested for the last time.
	// Both are in the order of counters.
	missing, settled []gap
	overtaken        lateness
	next             next
}

// next is when the first of the missing messages is due, for this patience and round trip. There
// may be a thousand of them, and each packet that arrives asks.
type next struct {
	known         bool
	patience, rtt time.Duration
	at            time.Duration
}

// of returns when a missing message is due.
func (n *next) of(m *gap) time.Duration {
	return min(m.due(n.patience, n.rtt), m.since+giveUp)
}

// removed is called before a message is removed.
func (n *next) removed(m *gap) { n.known = n.known && n.of(m) > n.at }

// gap is a missing message.
type gap struct {
	counter      uint64
	since, asked time.Duration
	attempts     uint8
}

// Request asks for messages of a path.
type Request struct {
	// Attempt is how often they have been asked for, from 1.
	Attempt uint8
	// Counters are in ascending order.
	Counters []uint64
}

// Missed records that n messages before a counter have not arrived, though that one has.
func (g *Gaps) Missed(now time.Duration, counter, n uint64) {
	g.next.at = min(g.next.at, g.next.of(&gap{since: now}))
	for c := counter - min(n, maxBurst); c < counter; c++ {
		g.missing = append(g.missing, gap{counter: c, since: now})
	}
	if more := len(g.missing) - maxMissing; more > 0 {
		g.missing = slices.Delete(g.missing, 0, more)
		g.next.known = false
	}
}

// find returns where a counter is in a list, or would be.
func find(list []gap, counter uint64) (at int, found bool) {
	return slices.BinarySearchFunc(list, counter, func(m gap, c uint64) int { return cmp.Compare(m.counter, c) })
}

// Arrived takes the arrival of a message that later ones have overtaken. It was late and not lost,
// also if it has been retransmitted meanwhile: a retransmission has a counter of its own.
func (g *Gaps) Arrived(now time.Duration, counter uint64) {
	for _, list := range [...]*[]gap{&g.missing, &g.settled} {
		if i, found := find(*list, counter); found {
			g.overtaken.late(now, now-(*list)[i].since)
			g.next.removed(&(*list)[i])
			*list = slices.Delete(*list, i, i+1)
		}
	}
}

// Retransmitted takes the retransmission of a message. It returns how often the message was
// requested, also after the last request was not answered in time: the message was lost all the
// same, and is not late because paths differ. It returns 0 if the message is not known, or came in
// the meantime.
func (g *Gaps) Retransmitted(counter uint64) (attempts uint8) {
	if i, found := find(g.missing, counter); found {
		g.settle(g.missing[i])
		g.next.removed(&g.missing[i])
		g.missing = slices.Delete(g.missing, i, i+1)
	}
	if i, found := find(g.settled, counter); found {
		attempts = g.settled[i].attempts
	}
	return attempts
}

// settle has a message not requested any more. Whether it was late or lost is not known yet.
func (g *Gaps) settle(m gap) {
	i, _ := find(g.settled, m.counter)
	g.settled = slices.Insert(g.settled, i, m)
	if more := len(g.settled) - maxMissing; more > 0 {
		g.settled = slices.Delete(g.settled, 0, more)
	}
}

// due returns when a message is to be requested.
func (m *gap) due(patience, rtt time.Duration) time.Duration {
	if m.attempts == 0 {
		return m.since + patience
	}
	return m.asked + rtt
}

// Due returns the next request of messages that are due, and false if none is. rtt is how long the
// answer to a request takes at most. The counters are valid until the next call.
func (g *Gaps) Due(now, rtt time.Duration, counters []uint64) (Request, bool) {
	g.overtaken.age(now)
	at, any := g.Next(rtt)
	due := any && now >= at
	if due {
		g.next.known = false
		g.missing = slices.DeleteFunc(g.missing, func(m gap) bool {
			over := now-m.since >= giveUp || m.attempts >= attempts && now-m.asked >= rtt
			if over {
				g.settle(m)
			}
			return over
		})
	}
	lost := 0 // a message that has not come by now is lost
	for lost < len(g.settled) && now-g.settled[lost].since >= giveUp {
		g.overtaken.lost(now)
		lost++
	}
	if lost > 0 {
		g.settled = slices.Delete(g.settled, 0, lost)
	}
	r := Request{Counters: counters[:0]}
	if !due && lost == 0 {
		return r, false
	}
	patience := g.overtaken.patience()
	for i := range g.missing {
		m := &g.missing[i]
		if m.attempts >= attempts || m.due(patience, rtt) > now || r.Attempt > 0 && m.attempts+1 != r.Attempt {
			continue
		}
		g.next.known = false
		if len(r.Counters) == MaxCounters || len(r.Counters) > 0 && m.counter-r.Counters[0] > maxSpan {
			break
		}
		m.attempts++
		m.asked = now
		r.Attempt = m.attempts
		r.Counters = append(r.Counters, m.counter)
	}
	return r, len(r.Counters) > 0
}

// MaxCounters is the largest number of messages in a Request, which are at most maxSpan apart.
const (
	MaxCounters = 64
	maxSpan     = 1<<16 - 1
)

// Next returns when Due is to be called next, and false if nothing is missing.
func (g *Gaps) Next(rtt time.Duration) (at time.Duration, any bool) {
	if len(g.missing) == 0 {
		return 0, false
	}
	patience := g.overtaken.patience()
	if n := &g.next; !n.known || n.patience != patience || n.rtt != rtt {
		*n = next{known: true, patience: patience, rtt: rtt, at: math.MaxInt64}
		for i := range g.missing {
			n.at = min(n.at, n.of(&g.missing[i]))
		}
	}
	return g.next.at, true
}

// Reset forgets what is missing, because counters begin again.
func (g *Gaps) Reset() {
	g.missing, g.settled, g.next = g.missing[:0], g.settled[:0], next{}
}
