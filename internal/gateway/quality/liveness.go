package quality

// probesToChange is how many probes in succession change the state of a path.
const probesToChange = 3

// Liveness decides from probes whether a path is alive: dead after three unanswered probes in
// succession, alive after three answered ones; the first answer of all is enough. The zero value is
// that of a path without answers.
type Liveness struct {
	alive, proven bool
	against       int // probes in succession that contradict alive
}

// Alive reports whether the path can be used.
func (l *Liveness) Alive() bool { return l.alive }

// Proven reports whether the path has ever answered.
func (l *Liveness) Proven() bool { return l.proven }

// Answered records that a probe was answered. It reports whether the path has become alive.
func (l *Liveness) Answered() bool { return l.record(true) }

// Missed records that a probe was not answered within the timeout (RTT.RTO). It reports whether the
// path is dead because of that.
func (l *Liveness) Missed() bool { return l.record(false) }

// Down records that the link is down: the path is dead at once. It reports whether it was alive.
func (l *Liveness) Down() bool {
	before := l.alive
	l.alive, l.against = false, 0
	return before
}

func (l *Liveness) record(answered bool) bool {
	if answered == l.alive {
		l.against = 0
		return false
	}
	l.against++
	if l.against < probesToChange && l.proven {
		return false
	}
	l.alive, l.against = answered, 0
	l.proven = l.proven || answered
	return true
}
