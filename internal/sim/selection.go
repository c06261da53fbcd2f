package sim

import (
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/pathset"
	"github.com/tabane/tabane/internal/gateway/quality"
)

// pathSelection has what replies say to the sending end of a tunnel: how much its paths lose and, for
// the discipline auto, which of them are used together (package pathset).
type pathSelection struct {
	auto     bool
	losses   [pathset.MaxPaths]quality.LossMeter
	state    [pathset.MaxPaths]pathset.Path
	meter    pathset.Meter
	selector pathset.Selector
	decision pathset.Decision
	lost     uint64
	// elastic is the number of retransmissions of all passengers.
	elastic uint64
}

// sent takes a packet of a passenger that enters the tunnel.
func (w *pathSelection) sent(p *packet, from *passenger) {
	switch {
	case p.kind != data:
	case p.seq < from.next:
		w.elastic++
	default:
		from.next = p.seq + 1
	}
}

// addReply adds the highest number of a packet that arrived on a path, and how many packets before
// it are missing.
func (w *pathSelection) addReply(t *carrier, i int, high, missing uint32) {
	w.lost += w.losses[i].AddReport(uint64(high), uint64(missing))
	t.paths[i].Loss = int(w.losses[i].Share * 1e6)
}

// waiting is the least wait in the queue of a busy path.
const waiting = time.Millisecond

// selectPaths selects the paths of auto if a window has ended. Reports of the receiving end arrive
// without delay.
func (w *pathSelection) selectPaths(now time.Duration, t *carrier) {
	if !w.auto {
		return
	}
	busy := true
	sent, bytes := uint64(0), uint64(0)
	for i := range t.paths {
		p := &t.paths[i]
		w.state[i] = pathset.Path{Usable: true, Rate: p.Rate, Delay: p.Delay, Jitter: p.Jitter, Loss: p.Loss}
		sent += t.result.Sent[i]
		bytes += t.result.SentBytes[i]
		if w.decision.Use.Has(i) && t.queues.Wait(i, now) < waiting {
			busy = false
		}
	}
	st := t.receiver.Stats()
	delivered := unit.Size(float64(st.Delivered) * float64(bytes) / float64(max(sent, 1)))
	window, ok := w.meter.AddSample(now, pathset.Totals{Delivered: delivered, Lost: w.lost, Late: st.Late, Elastic: w.elastic}, busy, t.shortestRTT())
	if !ok {
		return
	}
	before := w.decision
	if w.decision = w.selector.Update(now, w.state[:len(t.paths)], window); w.decision != before {
		t.result.Decisions = append(t.result.Decisions, w.decision)
	}
	for i := range t.paths {
		t.paths[i].Resting = !w.decision.Use.Has(i)
	}
}
