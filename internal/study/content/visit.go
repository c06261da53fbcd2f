package content

import (
	"iter"
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Visit is one task that is part of a load.
type Visit struct {
	// Start is when its first view is requested. It is negative for those that began before the
	// load is measured.
	Start time.Duration
	Task  Task
}

// visitLasts is longer than the think times of any task.
const visitLasts = time.Minute

// Visits returns visits to services, in turn, that together request bodies at a rate: without end,
// in the order of their Start, and equal for equal seeds. Each visit begins at a random time of the
// interval in which the rate carries its bytes. The first visits start one visit's time before 0,
// so that the load is that of its rate from 0 on, if pages load at once.
func (w *World) Visits(services []Service, heavy bool, rate unit.Bandwidth, seed uint64) iter.Seq[Visit] {
	return func(yield func(Visit) bool) {
		rng := rand.New(rand.NewPCG(seed, streamVisits))
		at := -visitLasts
		for i := 0; ; i++ {
			v := Visit{Task: w.Task(services[i%len(services)], heavy, rng.Uint64())}
			bytes := int64(0)
			for _, l := range v.Task.Loads {
				bytes += l.Bytes()
			}
			slot := rate.TimeFor(unit.Size(bytes))
			v.Start = at + time.Duration(rng.Int64N(int64(slot)+1))
			at += slot
			if !yield(v) {
				return
			}
		}
	}
}
