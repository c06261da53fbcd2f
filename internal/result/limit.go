package result

import (
	"time"

	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

// Limits is what a cell could reach at most, as payload in bits per second. 0 stands for no limit,
// and for Offered when the source offers as much as it can.
type Limits struct {
	// Links is what the usable links carry after all headers of the transport, or the offered rate
	// when that is less.
	Links float64
	// LinksTCP is the same with the headers of plain TCP, whatever the transport: the stricter
	// yardstick for MPTCP.
	LinksTCP float64
	// Offered is the rate of a constant bit rate source.
	Offered float64
}

// Phase is a time in a run in which the limits stay the same.
type Phase struct {
	// At is when it begins, from the request on; it lasts until the next begins, the last one until
	// the run ends.
	At time.Duration
	// Event is the index of the event that it begins with, of the case's events; 0 for the first
	// phase too, and EventSchedule for one that begins with a step of a link's schedule.
	Event int
	Limits
	// Carry and CarryTCP are what the links carry, whatever the source offers, in bit/s.
	Carry, CarryTCP float64
}

// EventSchedule is Phase.Event of a phase that begins with a step of a link's schedule.
const EventSchedule = -1

// Mean returns the limits of a run that lasted so long: what its phases let through together. What
// a source offered while the links did not carry it may follow when they do.
func Mean(phases []Phase, lasted time.Duration) Limits {
	mean := Limits{Offered: phases[0].Offered}
	if lasted <= 0 {
		return mean
	}
	through := func(carry func(Phase) float64) float64 {
		sum := 0.0
		for i, p := range phases {
			until := lasted
			if i+1 < len(phases) {
				until = min(until, phases[i+1].At)
			}
			if until <= p.At {
				continue
			}
			switch rate, offered := carry(p), mean.Offered*until.Seconds(); {
			case rate == 0 && mean.Offered == 0:
				return 0
			case rate == 0:
				sum = offered
			default:
				sum = Lesser(sum+rate*(until-p.At).Seconds(), offered)
			}
		}
		return sum / lasted.Seconds()
	}
	mean.Links = through(func(p Phase) float64 { return p.Carry })
	mean.LinksTCP = through(func(p Phase) float64 { return p.CarryTCP })
	return mean
}

// Put adds the limits that there are to a run's metrics.
func (l Limits) Put(metrics map[string]float64) {
	for name, v := range map[string]float64{LimitRate: l.Links, LimitTCPRate: l.LinksTCP, OfferedRate: l.Offered} {
		if v > 0 {
			metrics[name] = v
		}
	}
}

// Through is how long the limits take to let so much through, if they are known.
func Through(bytes unit.Size, phases []Phase) (took time.Duration, known bool) {
	for i, p := range phases {
		if p.Links == 0 {
			return 0, false
		}
		rate := unit.Bandwidth(p.Links)
		need := rate.TimeFor(bytes)
		if i+1 == len(phases) || p.At+need <= phases[i+1].At {
			return p.At + need, true
		}
		bytes -= rate.SizeIn(phases[i+1].At - p.At)
	}
	return 0, false
}

// PutDelivery adds to a run's metrics what the receiver measured.
func PutDelivery(metrics map[string]float64, r traffic.Report) {
	metrics[Goodput] = r.GoodputBps
	metrics[Bytes] = float64(r.Bytes)
	metrics[FirstByte] = r.FirstByte.Seconds()
	metrics[Duration] = r.Duration.Seconds()
	metrics[EmptyIntervals] = float64(r.EmptyIntervals)
	metrics[LongestGap] = r.LongestGap.Seconds()
}

// Lesser is the lesser of two limits of which 0 is none.
func Lesser(a, b float64) float64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
