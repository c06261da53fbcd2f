package repair

import (
	"math/bits"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
)

// lateness counts the messages of a path that came late, by how late they were, and those that were
// lost, within the last half to whole stat.Memory.
type lateness struct {
	now, before period
	begun       time.Duration
	// known is set while nothing has changed since patience returned last.
	known bool
	last  time.Duration
}

// period has the counts of half of stat.Memory.
type period struct {
	late [lateBins]uint32
	lost uint32
}

// Bins are quarters of an octave from minLate on, up to Limit: wide enough that a message that is a
// little later than those before it is not missed.
const (
	minLate  = 512 * time.Microsecond
	lateBins = 4*10 + 1
)

// bin returns that of a time.
func bin(t time.Duration) int {
	v := uint64(max(t/(minLate/4), 4)) // in quarters of minLate
	octave := bits.Len64(v) - 3
	return min(4*octave+int(v>>octave)-4, lateBins-1)
}

// end returns the end of a bin.
func end(bin int) time.Duration { return minLate / 4 * time.Duration(5+bin%4) << (bin / 4) }

// late adds a message that others have overtaken, by the time between them.
func (l *lateness) late(now, by time.Duration) {
	l.age(now)
	l.now.late[bin(by)]++
	l.known = false
}

// lost adds a message that did not come within Limit.
func (l *lateness) lost(now time.Duration) {
	l.age(now)
	l.now.lost++
	l.known = false
}

// age forgets what is too old.
func (l *lateness) age(now time.Duration) {
	switch passed := now - l.begun; {
	case passed < stat.Memory/2:
		return
	case passed < stat.Memory:
		l.before = l.now
	default:
		l.before = period{}
	}
	l.now, l.begun, l.known = period{}, now, false
}

// patience returns after which time a message is more likely lost than late: no more were later
// than were lost. Where none was lost it is longer than any was late.
func (l *lateness) patience() time.Duration {
	if l.known {
		return l.last
	}
	l.known, l.last = true, 0
	later := uint32(0)
	for i := lateBins - 1; i >= 0 && l.last == 0; i-- {
		if later += l.now.late[i] + l.before.late[i]; later > l.now.lost+l.before.lost {
			l.last = end(i) + reorderMargin
		}
	}
	return l.last
}
