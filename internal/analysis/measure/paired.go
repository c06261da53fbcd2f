package measure

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
)

// settling is the part of a phase that does not count: the queues of paths at rest drain, and what
// was in flight there, sent again, has others lose packets. CUBIC makes good such a loss in
// seconds.
func settling(phase time.Duration) time.Duration { return phase / 2 }

// PairedTime is how long a connection that is switched between that many pairs of phases takes:
// with a phase in which it starts, and a pair that is not counted.
func PairedTime(pairs int, phase time.Duration) time.Duration {
	return phase + 2*time.Duration(pairs+1)*phase
}

// CheckPaired returns why two modes cannot be in one connection.
func (o Offer) CheckPaired(a, b Mode) error {
	for _, m := range []Mode{a, b} {
		delivery, ok := m.Switched()
		if !ok || m.Peer != "" || m.Connections != 1 {
			return fmt.Errorf("the mode %q needs a connection of its own, so that it cannot be paired", m.Name)
		}
		if err := o.Check(Mode{Name: m.Name, Delivery: delivery}); err != nil {
			return err
		}
	}
	if a.Multipath() != b.Multipath() {
		return fmt.Errorf("%q and %q cannot share a connection: one of them is MPTCP", a.Name, b.Name)
	}
	return nil
}

// Paired makes one connection that the server switches between the modes, and returns a trial of
// each phase: those of orders, each a pair of indexes of modes. Before them, the connection starts,
// and is once in each mode, so that the windows of all subflows are open. Of each phase, the start
// is left out.
func (c *Client) Paired(ctx context.Context, modes [2]Mode, orders [][2]int, phase time.Duration) ([][2]Trial, error) {
	first := modes[orders[0][0]]
	delivery, _ := first.Switched() // CheckPaired
	first.Delivery = delivery
	length := PairedTime(len(orders), phase)
	orders = append([][2]int{orders[0]}, orders...)
	target, _, err := c.target(first, Load{Time: length}, 1)
	if err != nil {
		return nil, err
	}
	p, err := c.pinger(ctx, modes[0])
	if err != nil {
		return nil, err
	}
	defer p.close()
	idle, err := p.series(ctx, idlePings, 0)
	if err != nil {
		return nil, err
	}

	loading, ended := context.WithCancel(ctx)
	defer ended()
	var report traffic.Report
	var started time.Time
	begun := make(chan struct{})
	once := sync.OnceFunc(func() { started = time.Now().Add(-Interval); close(begun) })
	fetched := make(chan error, 1)
	go func() {
		var err error
		report, err = traffic.Fetch(loading, traffic.FetchOptions{
			URL: target, Transport: first.Transport, Interval: Interval, Limit: length, Progress: func(traffic.Sample) { once() },
		})
		fetched <- transferError(err)
	}()
	select {
	case err := <-fetched:
		if err == nil {
			err = fmt.Errorf("the connection ended before it was switched")
		}
		return nil, err
	case <-begun:
	}
	phases, failed := c.switchModes(loading, p, started, modes, orders, phase)
	if failed != nil {
		ended()
	}
	err = <-fetched
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	if first.Multipath() && report.Fallback {
		return nil, ErrFallback
	}
	trials := make([][2]Trial, len(orders))
	for i := range trials {
		for mode := range trials[i] {
			t := phases[i][mode].trial(&report)
			if t.Bytes == 0 {
				return nil, fmt.Errorf("nothing arrived in pair %d", i+1)
			}
			t.Idle = latencyOf(idle)
			trials[i][mode] = t
		}
	}
	return trials[1:], nil
}

// pairedPhase is a phase of a connection in one mode: the time that counts, since the request, and
// the latencies in it.
type pairedPhase struct {
	from, to  time.Duration
	latencies []time.Duration
}

// switchModes switches a connection that started at a time, and measures latencies in each phase.
func (c *Client) switchModes(ctx context.Context, p *pinger, started time.Time, modes [2]Mode, orders [][2]int, phase time.Duration) ([][2]pairedPhase, error) {
	phases := make([][2]pairedPhase, len(orders))
	for i, order := range orders {
		for j, mode := range order {
			at := phase + time.Duration(2*i+j)*phase
			if err := sleep(ctx, started.Add(at)); err != nil {
				return nil, err
			}
			name, _ := modes[mode].Switched()
			if _, err := c.short(ctx, http.MethodPost, c.path("deliver", name), nil); err != nil {
				return nil, err
			}
			f := &phases[i][mode]
			f.from, f.to = max(at, time.Since(started))+settling(phase), at+phase
			during, stop := context.WithDeadline(ctx, started.Add(f.to-Interval))
			f.latencies, _ = p.series(during, 0, pingEvery) // without answers there is goodput
			stop()
		}
	}
	return phases, nil
}

// trial returns what arrived in a phase.
func (p *pairedPhase) trial(r *traffic.Report) Trial {
	t := Trial{Subflows: r.Subflows, Loaded: latencyOf(p.latencies)}
	for _, s := range r.Series {
		if s.At >= p.from && s.At+Interval <= p.to {
			t.Series = append(t.Series, s.Bytes)
			t.Bytes += s.Bytes
			t.Duration += Interval
			t.LongestGap = max(t.LongestGap, s.Gap)
		}
	}
	if t.Duration > 0 {
		t.GoodputBps = float64(t.Bytes) * 8 / t.Duration.Seconds()
	}
	return t
}

// sleep waits until a time.
func sleep(ctx context.Context, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
