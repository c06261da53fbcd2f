package sim

import (
	"time"

	"github.com/tabane/tabane/internal/judge"
	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/unit"
)

// weighing is what the sending end of a tunnel concludes from replies: how much its paths lose, and, for
// the discipline auto, which of them it uses together.
type weighing struct {
	auto     bool
	losses   [judge.MaxPaths]quality.LossMeter
	state    [judge.MaxPaths]judge.Path
	meter    judge.Meter
	judge    judge.Judge
	decision judge.Decision
	lost     uint64
	// next is the segment after those of the connection that were sent, elastic the number of retransmissions.
	next    uint32
	elastic uint64
}

// sent takes a packet that enters the tunnel.
func (w *weighing) sent(p *packet) {
	switch {
	case p.kind != data:
	case p.seq < w.next:
		w.elastic++
	default:
		w.next = p.seq + 1
	}
}

// path takes from a reply the highest number of a packet that arrived on a path, and how many packets
// before it are missing.
func (w *weighing) path(t *carrier, i int, high, missing uint32) {
	w.lost += w.losses[i].AddReport(uint64(high), uint64(missing))
	t.paths[i].Loss = int(w.losses[i].Share * 1e6)
}

// waiting is the virtual queue from which on a path is busy.
const waiting = time.Millisecond

// look passes what was delivered to the judge. Reports of the receiving end arrive without a delay.
func (w *weighing) look(now time.Duration, t *carrier) {
	if !w.auto {
		return
	}
	busy := true
	sent, bytes := uint64(0), uint64(0)
	for i := range t.paths {
		p := &t.paths[i]
		w.state[i] = judge.Path{Usable: true, Rate: p.Rate, Delay: p.Delay, Jitter: p.Jitter, Loss: p.Loss}
		sent += t.result.Sent[i]
		bytes += t.result.SentBytes[i]
		if w.decision.Use.Has(i) && t.queues.Wait(i, now) < waiting {
			busy = false
		}
	}
	st := t.receiver.Stats()
	delivered := unit.Size(float64(st.Delivered) * float64(bytes) / float64(max(sent, 1)))
	window, ok := w.meter.AddSample(now, judge.Totals{Delivered: delivered, Lost: w.lost, Late: st.Late, Elastic: w.elastic}, busy, t.leastRTT())
	if !ok {
		return
	}
	w.decision = w.judge.Window(now, w.state[:len(t.paths)], window)
	for i := range t.paths {
		t.paths[i].Resting = !w.decision.Use.Has(i)
	}
}
