package pathmanager

import "time"

// deadline names a time that the loop of a Manager keeps.
type deadline int

const (
	resyncDue     deadline = iota // a dump of all connections that is needed
	dumpDue                       // the periodic dump; unset without connections
	sampleDue                     // the next sample of the subflows
	weighDue                      // the next look at connections not worth announcements; unset without them
	standstillDue                 // the next read of the counter of reinjections; as dumpDue
	rememberDue                   // the next call of Options.Remember; unset without a change

	// The loop wakes for those above, and not for those below.

	countDue       // the next count of unjoined addresses, which needs a step for another reason
	sampleAllowed  // the earliest next sample, for the CPU time that it takes
	sampleAllUntil // the end of the time in which all connections are sampled
	deadlines      // their number

	wakes = rememberDue + 1
)

// schedule is the queue of deadlines. A deadline that is not set is zero.
type schedule [deadlines]time.Time

func (s *schedule) set(d deadline, at time.Time) { s[d] = at }

func (s *schedule) isSet(d deadline) bool { return !s[d].IsZero() }

// due reports whether a deadline is set and not in the future.
func (s *schedule) due(d deadline, now time.Time) bool { return s.isSet(d) && !now.Before(s[d]) }

// pending reports whether a deadline is in the future.
func (s *schedule) pending(d deadline, now time.Time) bool { return now.Before(s[d]) }

func (s *schedule) cancel(all ...deadline) {
	for _, d := range all {
		s[d] = time.Time{}
	}
}

// ensure sets a deadline unless it is set.
func (s *schedule) ensure(d deadline, at time.Time) {
	if !s.isSet(d) {
		s[d] = at
	}
}

// advance sets a deadline unless it is set to an earlier time.
func (s *schedule) advance(d deadline, at time.Time) {
	s[d] = earliest(s[d], at)
}

// postpone moves a deadline to another one if that is later.
func (s *schedule) postpone(d, least deadline) {
	if s[d].Before(s[least]) {
		s[d] = s[least]
	}
}

// next returns the first deadline for which the loop wakes, or another time that is earlier; zero
// is none.
func (s *schedule) next(other time.Time) time.Time {
	for _, at := range s[:wakes] {
		other = earliest(other, at)
	}
	return other
}

// earliest returns the earlier of two times, where zero means none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
