package sealed

import (
	"cmp"
	"time"

	"github.com/tabane/tabane/internal/judge"
	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/unit"
)

// weighing decides which paths auto uses together, from what the peer reports.
type weighing struct {
	meter    judge.Meter
	judge    judge.Judge
	decision judge.Decision
	state    [tunnel.MaxPaths]judge.Path
	// delivered is the last total of reported bytes without copies, lost that of lost packets, late
	// that of late ones, and copied the bytes of copies sent.
	delivered, copied uint64
	lost, late        uint64
	// version is Segment.Version of the paths.
	version uint64
}

// waiting is the virtual queue from which on a path is busy.
const waiting = time.Millisecond

// weigh looks at what was delivered, and lets paths rest. The mutex is locked.
func (r *peer) weigh(now time.Duration) {
	w := &r.weighing
	paths := r.paths[:tunnel.MaxPaths]
	reported, busy := uint64(0), true
	for i := range r.links {
		l, p := &r.links[i], &paths[i]
		w.state[i] = judge.Path{Usable: p.Usable, Rate: p.Rate, Delay: p.Delay, Jitter: p.Jitter, Loss: p.Loss}
		reported += l.report.Bytes
		if p.Usable && w.decision.Use.Has(i) && r.queues.Wait(i, now) < waiting {
			busy = false
		}
	}
	// Copies are counted when they are sent and reported when they arrive.
	w.delivered = max(w.delivered, reported-min(reported, w.copied))
	window, ok := w.meter.Look(now, judge.Totals{Delivered: unit.Size(w.delivered), Lost: w.lost, Late: w.late}, busy)
	if !ok {
		return
	}
	d := w.judge.Window(now, w.state[:], window)
	if d == w.decision {
		return
	}
	w.decision = d
	for i := range paths {
		paths[i].Resting = d.Use != 0 && !d.Use.Has(i)
	}
	w.version++
	if d.Reason != judge.Begin && d.Reason != judge.NoPath {
		r.plane.log.Info("paths of auto", "peer", r.conf.Name, "use", d.Use.List(r.names()), "because", d.Explain(r.names()))
	}
}

// names returns the names of the paths. The mutex is locked.
func (r *peer) names() []string {
	names := make([]string, len(r.links))
	for i := range r.links {
		if l := &r.links[i]; l.line != nil {
			names[i] = cmp.Or(l.name, l.line.name)
		}
	}
	return names
}

// sampleInterval is the least time between two samples of the rate of a path.
const sampleInterval = 200 * time.Millisecond

// measuring estimates the rate of a path.
type measuring struct {
	capacity       quality.Capacity
	since          time.Duration
	sent, received uint64 // at that time
	looks, waits   int
}

// sample takes a report of a path whose rate is not configured. The mutex is locked.
func (r *peer) sample(i int, now time.Duration) {
	l := &r.links[i]
	m := &l.measuring
	m.looks++
	if r.queues.Wait(i, now) > waiting {
		m.waits++
	}
	took := now - m.since
	if took < sampleInterval {
		return
	}
	sent, received := l.sent.value().Bytes, l.report.Bytes
	if m.since > 0 && took < 10*sampleInterval && received >= m.received && sent >= m.sent {
		m.capacity.Update(quality.CapacitySample{
			Interval: took, Sent: unit.Size(sent - m.sent), Arrived: unit.Size(received - m.received),
			Busy: 4*m.waits >= 3*m.looks, Standing: l.report.Standing, Jitter: l.report.Jitter,
		})
	}
	m.since, m.sent, m.received, m.looks, m.waits = now, sent, received, 0, 0
}
