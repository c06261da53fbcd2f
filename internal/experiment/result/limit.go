package result

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
)

// Limits are upper bounds of a cell's goodput, as payload in bits per second. 0 means no limit; in
// Offered, a source without a rate.
type Limits struct {
	// Links is the available capacity of the usable links, after all headers of the transport,
	// or the offered rate if that is less.
	Links float64
	// LinksTCP is the same with the headers of plain TCP, whatever the transport: a stricter
	// limit for MPTCP.
	LinksTCP float64
	// Offered is the rate of a constant bit rate source.
	Offered float64
}

// Phase is a period of a run with constant limits.
type Phase struct {
	// At is its start, from the request on. It lasts until the next phase or the end of the
	// run.
	At time.Duration
	// Event is the index of the case's event that starts it; 0 for the first phase too,
	// EventSchedule for a phase that starts with a step of a link's schedule.
	Event int
	Limits
	// Capacity and CapacityTCP are Links and LinksTCP regardless of the offered rate, in bit/s.
	Capacity, CapacityTCP float64
}

// EventSchedule is Phase.Event of a phase that starts with a step of a link's schedule.
const EventSchedule = -1

// Mean returns the mean limits of a run that lasted so long. What the links could not carry when it
// was offered may be carried in a later phase.
func Mean(phases []Phase, lasted time.Duration) Limits {
	mean := Limits{Offered: phases[0].Offered}
	if lasted <= 0 {
		return mean
	}
	deliveredBy := func(carry func(Phase) float64) float64 {
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
	mean.Links = deliveredBy(func(p Phase) float64 { return p.Capacity })
	mean.LinksTCP = deliveredBy(func(p Phase) float64 { return p.CapacityTCP })
	return mean
}

// Put adds the limits that are not 0 to a run's metrics.
func (l Limits) Put(metrics map[string]float64) {
	for name, v := range map[string]float64{LimitRate: l.Links, LimitTCPRate: l.LinksTCP, OfferedRate: l.Offered} {
		if v > 0 {
			metrics[name] = v
		}
	}
}

// TransferTime returns how long a transfer takes at the limits, if they are known.
func TransferTime(bytes unit.Size, phases []Phase) (took time.Duration, known bool) {
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
	if n := len(r.Objects); n > 0 {
		metrics[Objects] = float64(n)
		metrics[ObjectTimeP50], metrics[ObjectTimeP95] = r.ObjectTime(0.5).Seconds(), r.ObjectTime(0.95).Seconds()
	}
	if d := r.Datagrams; d != nil {
		unique := float64(d.Received - d.Duplicates)
		metrics[DatagramsSent], metrics[DatagramsReceived] = float64(d.Sent), float64(d.Received)
		metrics[LostShare] = 1 - unique/float64(max(1, d.Sent))
		metrics[DuplicatedShare] = float64(d.Duplicates) / max(1, unique)
		metrics[ReorderedShare] = float64(d.Reordered) / max(1, unique)
		metrics[ReorderedBehind] = float64(d.Behind)
		if d.DelayP95 > 0 {
			metrics[DatagramDelayP95] = d.DelayP95.Seconds()
		}
	}
}

// PutDownloads adds to a run's metrics what downloads at once carried in a time, in bytes each. In no
// time there is no rate.
func PutDownloads(metrics map[string]float64, bytes []float64, lasted time.Duration) {
	if lasted <= 0 {
		return
	}
	sum := 0.0
	for _, n := range bytes {
		sum += n
	}
	metrics[AllRate], metrics[LeastRate] = 8*sum/lasted.Seconds(), 8*slices.Min(bytes)/lasted.Seconds()
}

// Lesser returns the lesser of two limits, of which 0 means none.
func Lesser(a, b float64) float64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
