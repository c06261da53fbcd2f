package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// source is a source of cross traffic.
type source struct {
	*Cross
	flow     int32
	out      uint32 // hop before the first link
	interval time.Duration
	random   *rand.Rand
	until    time.Duration // end of the on time

	sent, received, receivedBytes uint64

	carrier *carrier // none if nil
	// arrivals and delays are those of numbered datagrams, each once.
	arrivals quality.Sequence
	delays   []float64
	result   CrossResult
}

// take receives a datagram. Numbers begin with 0.
func (x *source) take(s *Sim, p *packet) {
	x.received++
	x.receivedBytes += uint64(p.length)
	if x.Payload == 0 {
		return
	}
	if !x.arrivals.Add(p.data) {
		return
	}
	x.delays = append(x.delays, (s.now - p.at).Seconds())
	if s.config.Bursts {
		x.result.Series = append(x.result.Series, reseq.Burst{At: s.now, Segments: 1, Bytes: x.Payload})
	}
}

// timer sends a datagram, and schedules the next.
func (x *source) timer(s *Sim) {
	id := s.crossSource(x.flow)
	if x.Stop > 0 && s.now >= x.Stop {
		s.events.remove(id)
		return
	}
	if x.Kind == OnOff && s.now >= x.until {
		// Off first, then on.
		wake := sum(s.now, x.sojourn(x.Off))
		x.until = sum(wake, x.sojourn(x.On))
		s.events.set(id, wake)
		return
	}
	s.send(&packet{kind: cross, flow: x.flow, hop: x.out, at: s.now, data: x.sent, length: uint16(x.Size)}, int32(x.Size))
	x.sent++
	wait := x.interval
	if x.Kind == Poisson {
		wait = duration(x.random.ExpFloat64() * float64(wait))
	}
	s.events.set(id, sum(s.now, wait))
}

// sojourn draws an on or off time with that mean.
func (x *source) sojourn(mean time.Duration) time.Duration {
	if x.Pareto == 0 {
		return duration(x.random.ExpFloat64() * float64(mean))
	}
	// The scale parameter that gives the distribution this mean.
	least := float64(mean) * (x.Pareto - 1) / x.Pareto
	return duration(least / math.Pow(1-x.random.Float64(), 1/x.Pareto))
}

// duration converts nanoseconds, limited to between one and 2*MaxDuration.
func duration(ns float64) time.Duration {
	return time.Duration(max(min(ns, float64(2*MaxDuration)), 1))
}

// sum returns t + d, at least a nanosecond later.
func sum(t, d time.Duration) time.Duration { return t + max(min(d, 2*MaxDuration), 1) }

func unitSize(n uint64) unit.Size { return unit.Size(min(n, math.MaxInt64)) }
