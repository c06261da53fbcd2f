package sealed

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/judge"
	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/unit"
)

// TestHarmfulPathRests: two paths together bring a tenth of what the first one brings alone. The second
// rests within 5 s, for auto only, and what was copied does not count.
func TestHarmfulPathRests(t *testing.T) {
	r := &peer{plane: &Plane{log: slog.New(slog.DiscardHandler)}, paths: make([]sched.Path, tunnel.MaxPaths)[:2]}
	for i := range r.paths {
		r.paths[i] = sched.Path{Usable: true, Room: math.MaxInt, Rate: 20 * unit.MbitPerSecond, Delay: time.Duration(i) * time.Millisecond}
	}
	const look = 50 * time.Millisecond
	rested := time.Duration(0)
	for now := look; now < 10*time.Second; now += look {
		bytes := uint64(20_000_000 / 8 / 20) // in 50 ms
		if !r.paths[1].Resting {
			bytes /= 10
			r.weighing.lost++
		} else if rested == 0 {
			rested = now
		}
		r.links[0].report.Bytes += 2 * bytes
		r.weighing.copied += bytes
		r.weigh(now)
	}
	if rested == 0 || rested > 5*time.Second {
		t.Fatalf("the second path rests after %v", rested)
	}
	if r.paths[0].Resting {
		t.Error("the first path rests, too")
	}
	if d := r.weighing.decision; d.Reason != judge.Better || d.Against > 3*unit.MbitPerSecond || d.Rate < 19*unit.MbitPerSecond || d.Rate > 21*unit.MbitPerSecond {
		t.Errorf("%+v: %s", d, d.Explain(nil))
	}
	for _, name := range []string{plane.Auto, "dq"} {
		u, err := r.newScheduler(plane.Discipline{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		var used sched.Set
		for range 100 {
			used |= u.Next(r.paths, sched.Segment{Now: time.Minute, Size: 1400, Version: r.weighing.version})
		}
		if alone := used == sched.One(0); alone != (name == plane.Auto) {
			t.Errorf("%s sends over %b", name, used)
		}
		r.queues = sched.Queues{}
	}
}

// TestEstimatedRate: the rate of a path without a configured one follows what arrives.
func TestEstimatedRate(t *testing.T) {
	r := &peer{plane: &Plane{log: slog.New(slog.DiscardHandler)}, paths: make([]sched.Path, tunnel.MaxPaths)}
	l := &r.links[0]
	l.rate = plane.Rate{Estimated: true}
	first := l.upRate()
	for now := 50 * time.Millisecond; now < 5*time.Second; now += 50 * time.Millisecond {
		n := uint64(50_000_000 / 8 / 20)
		l.sent.add(1, int(n))
		l.report.Bytes += n
		r.sample(0, now)
	}
	if got := l.upRate(); got < 48*unit.MbitPerSecond || got > 52*unit.MbitPerSecond {
		t.Errorf("50 Mbit/s arrive, and the rate went from %v to %v", first, got)
	}
}

// TestReorderingIsNotLoss: packets that a path reorders are missing for a while, each time others.
func TestReorderingIsNotLoss(t *testing.T) {
	k := &keys{}
	r := &peer{plane: &Plane{}, paths: make([]sched.Path, tunnel.MaxPaths), sending: k}
	for i := range 1000 {
		missing := uint64(i % 3 * 5)
		r.reported(k, tunnel.Report{Next: uint64(100 * (i + 1)), Lost: missing}, time.Duration(i)*time.Millisecond)
	}
	if l := &r.links[0]; r.weighing.lost != 10 || l.loss.Lost != 10 || l.loss.Sent != 100_000 {
		t.Errorf("of %d packets %d were lost, and %d for the judge; want 10", l.loss.Sent, l.loss.Lost, r.weighing.lost)
	}
}
