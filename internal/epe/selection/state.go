package selection

import (
	"fmt"
	"slices"
	"time"
)

// state is what a path does in a connection. docs/adr/0019 has the diagram.
type state uint8

const (
	// stateUnknown: it carries nothing, and it is not known what it can carry.
	stateUnknown state = iota
	// stateFirst: it carries data, alone while it suffices.
	stateFirst
	// stateOpen: it carries data besides another path.
	stateOpen
	// stateResting: it carries nothing until it is needed, at the earliest at path.until.
	stateResting
	// stateFailed: it is the first one and makes no progress. Meanwhile all others are open.
	stateFailed
)

var stateNames = [...]string{stateUnknown: "unknown", stateFirst: "first", stateOpen: "open", stateResting: "resting", stateFailed: "failed"}

func (s state) String() string { return stateNames[s] }

// carries reports whether a path in this state is given data.
func (s state) carries() bool { return s == stateFirst || s == stateOpen || s == stateFailed }

// transitions are the states that can follow each state.
var transitions = [...][]state{
	stateUnknown: {stateFirst, stateOpen, stateResting},
	stateFirst:   {stateOpen, stateResting, stateFailed},
	stateOpen:    {stateFirst, stateResting},
	stateResting: {stateUnknown, stateFirst, stateOpen},
	stateFailed:  {stateFirst, stateResting},
}

// enter changes the state of a path, or only the reason for it.
func (p *path) enter(to state, why Reason) {
	if to != p.state && !slices.Contains(transitions[p.state], to) {
		panic(fmt.Sprintf("BUG: a path that is %s becomes %s (%s)", p.state, to, why))
	}
	p.state, p.why = to, why
}

// open has the path carry data besides others, which carry rateBefore in bytes/s without it; 0:
// that is not to be judged.
func (p *path) open(now time.Duration, why Reason, rateBefore float64) {
	if !p.state.carries() {
		p.opened, p.rateBefore, p.tried = now, rateBefore, rateBefore == 0
	}
	p.enter(stateOpen, why)
}

// rest has the path carry nothing, for longer each time that it does not help.
func (p *path) rest(now time.Duration, why Reason) {
	p.enter(stateResting, why)
	p.closed = now
	if why != Unused {
		if why == Window {
			p.times = max(p.times, windowRests)
		}
		p.until = now + rest(restFirst, p.times)
		p.times++
		p.verdict, p.learned = why, true
	}
}

// rest returns how long a path rests that did not help so many times before, and the first time for
// first.
func rest(first time.Duration, before int) time.Duration {
	return min(restMost, first<<min(before, 8))
}

// remember forgets what a path at rest carried after some time: that may have been little because
// of something that has passed, which only another trial shows. Each trial costs data a delay, so
// they become rarer. A path of which nothing is known is unknown again.
func (p *path) remember(now time.Duration) {
	if p.state == stateResting && p.used && !p.remembers(now) && now >= p.until && now-p.carriedAt >= rest(restFirst, p.forgotten) {
		p.used, p.burstRate = false, 0
		p.rate, p.settled, p.whole, p.flight = peak{}, peak{}, peak{}, peak{}
		p.forgotten++
	}
	switch unmeasured := p.unmeasured(now); {
	case p.state == stateUnknown && !unmeasured:
		p.enter(stateResting, p.why)
	case p.state == stateResting && unmeasured && now >= p.until:
		p.enter(stateUnknown, p.why)
	}
}

// since is from when on a condition has held in each sample.
type since struct {
	start time.Duration
	holds bool
}

// set notes whether the condition holds, and reports whether it begins to.
func (s *since) set(now time.Duration, holds bool) (begins bool) {
	if begins = holds && !s.holds; begins {
		s.start = now
	}
	s.holds = holds
	return begins
}

// lasted reports whether the condition has held for some time.
func (s *since) lasted(now, least time.Duration) bool { return s.holds && now-s.start >= least }
