package sim

import (
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/gateway/quality"
)

// The schedulers dq and dqj measure delay and jitter by active probing, as in paper D, section 3.2:
// every second a probe of 60 bytes is sent over each path, and answered by a reply of 64 bytes with
// the jitter that the receiver measured.
const (
	probeInterval = time.Second
	probeSize     = 60
	replySize     = 64
)

// phase returns the offset of a connection's probes in the interval, at random: probes in step with
// retransmissions would queue behind them each time.
func (s *Sim) phase(connection int32) time.Duration {
	return 1 + time.Duration(rand.New(rand.NewPCG(s.config.Seed, streamProbe|uint64(connection))).Int64N(int64(probeInterval)))
}

// probing has the estimates of a path's delay and jitter.
type probing struct {
	jitter quality.Jitter // at the receiver
	delay  quality.OneWayDelay
}

// sendProbes sends a probe over each established subflow.
func (c *connection) sendProbes(s *Sim) {
	c.probeAt = s.now + probeInterval
	for i := range c.paths {
		f := &s.senders[int(c.first)+i]
		if f.state != caClosed {
			s.send(&packet{kind: probe, flow: f.flow, hop: f.out, at: s.now}, probeSize)
		}
	}
}

// probed replies to a probe at the receiver.
func (r *receiver) probed(s *Sim, p *packet) {
	state := &r.c.probes[r.index]
	state.jitter.Update(p.at, s.now)
	s.send(&packet{kind: reply, flow: r.flow, hop: r.back, at: p.at, data: uint64(state.jitter.Value)}, replySize)
}

// replied processes the reply on a path.
func (c *connection) replied(s *Sim, path int, p *packet) {
	state := &c.probes[path]
	state.delay.Update(s.now-p.at, 0)
	to := &c.paths[path]
	to.Delay, to.Jitter = state.delay.Value, time.Duration(p.data)
	c.schedule(s)
}
