package pathset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

const (
	ms   = time.Millisecond
	mbit = unit.MbitPerSecond
)

func good(rates ...unit.Bandwidth) []Path {
	paths := make([]Path, len(rates))
	for i, r := range rates {
		paths[i] = Path{Usable: true, Rate: r}
	}
	return paths
}

// net is a network in which each set of paths carries some rate.
type net struct {
	paths []Path
	// carries returns what a set carries, and whether it loses or reorders packets.
	carries func(now time.Duration, s Set) (unit.Bandwidth, bool)
	// offered is what there is to send, 0 for as much as goes.
	offered unit.Bandwidth
}

// run has a selector decide for a time, and returns its decisions and the mean rate.
func (n *net) run(j *Selector, from, to time.Duration) (list []Decision, mean unit.Bandwidth) {
	last := j.Decision()
	use := last.Use
	if last == (Decision{}) { // traffic has begun before
		use = 1<<len(n.paths) - 1
	}
	total, windows := unit.Bandwidth(0), unit.Bandwidth(0)
	for now := from + Length; now <= to; now += Length {
		rate, harmed := n.carries(now, use)
		busy := n.offered == 0 || n.offered > rate
		if !busy {
			rate = n.offered
		}
		w := Window{Delivered: unit.Size(rate / 8 / 2), Busy: busy && !harmed}
		if harmed {
			w.Lost, w.Elastic = 10, 10
		}
		d := j.Update(now, n.paths, w)
		use = d.Use
		if d != last {
			last = d
			list = append(list, d)
		}
		total += rate
		windows++
	}
	return list, total / windows
}

// reasons abbreviates decisions: the time, the reason, the set in use.
func reasons(list []Decision) string {
	var b strings.Builder
	for i, d := range list {
		if i > 0 {
			b.WriteString(" ")
		}
		fmt.Fprintf(&b, "%g:%v:%b", d.At.Seconds(), [...]string{"begin", "nopath", "changed", "below", "again", "better", "worse", "collapsed", "idle"}[d.Reason], d.Use)
	}
	return b.String()
}

func TestSelector(t *testing.T) {
	for _, tt := range []struct {
		name string
		net  net
		// want is the decisions of 30 s.
		want string
	}{
		{"clean paths are never tried alone", net{paths: good(20*mbit, 20*mbit), carries: func(_ time.Duration, s Set) (unit.Bandwidth, bool) {
			return unit.Bandwidth(s.Len()) * 19 * mbit, false
		}}, "0.5:begin:11"},
		{"nor is a path while the sum reaches 0.95 of it", net{paths: good(20*mbit, 20*mbit), carries: func(_ time.Duration, s Set) (unit.Bandwidth, bool) {
			return 19 * mbit, true
		}}, "0.5:begin:11"},
		// 0.5 s are ignored at first and after each change; five windows are compared.
		{"a second path that harms rests 5, 10, .. s", net{paths: good(20*mbit, 10*mbit), carries: func(_ time.Duration, s Set) (unit.Bandwidth, bool) {
			return map[Set]unit.Bandwidth{0b11: 8 * mbit, 0b01: 19 * mbit, 0b10: 9 * mbit}[s], s == 0b11
		}}, "0.5:begin:11 3:below:1 6:better:1 11:again:11 14:worse:1 24:again:11 27:worse:1"},
		{"at once where it collapses", net{paths: good(20*mbit, 10*mbit), carries: func(_ time.Duration, s Set) (unit.Bandwidth, bool) {
			return map[Set]unit.Bandwidth{0b11: 1 * mbit, 0b01: 19 * mbit, 0b10: 9 * mbit}[s], s == 0b11
		}}, "0.5:begin:11 1.5:below:1 4.5:better:1 9.5:again:11 11:collapsed:1 21:again:11 22.5:collapsed:1"},
		{"loss on both paths: one alone is worse", net{paths: good(20*mbit, 10*mbit), carries: func(_ time.Duration, s Set) (unit.Bandwidth, bool) {
			return unit.Bandwidth(s.Len()) * 2 * mbit, true
		}}, "0.5:begin:11 1.5:below:1 4.5:worse:11 9.5:below:10 12.5:worse:11"},
		{"little to send", net{paths: good(20*mbit, 20*mbit), offered: 3 * mbit, carries: func(_ time.Duration, s Set) (unit.Bandwidth, bool) {
			return 40 * mbit, false
		}}, "0.5:begin:11"},
		{"a rate that still grows", net{paths: good(20*mbit, 20*mbit), carries: func(now time.Duration, s Set) (unit.Bandwidth, bool) {
			return min(unit.Bandwidth(now/Length)*4*mbit, 38*mbit), true
		}}, "0.5:begin:11"},
		{"of three paths two are good", net{paths: []Path{{Usable: true, Rate: 20 * mbit}, {Usable: true, Rate: 20 * mbit}, {Usable: true, Rate: 20 * mbit, Jitter: 80 * ms}}, carries: func(now time.Duration, s Set) (unit.Bandwidth, bool) {
			if s.Has(2) {
				return 10 * mbit, true
			}
			return unit.Bandwidth(s.Len()) * 20 * mbit, false
		}}, "0.5:begin:111 1.5:below:11 4.5:better:11 9.5:again:111 11:collapsed:11 21:again:111 22.5:collapsed:11"},
		{"a long path is not tried alone", net{paths: []Path{{Usable: true, Rate: 26 * mbit, Delay: 300 * ms}, {Usable: true, Rate: 20 * mbit}}, carries: func(now time.Duration, s Set) (unit.Bandwidth, bool) {
			return 19 * mbit, true
		}}, "0.5:begin:11"},
		{"nor is one that loses before one that does not", net{paths: []Path{{Usable: true, Rate: 20 * mbit, Loss: 1500}, {Usable: true, Rate: 20 * mbit}}, carries: func(now time.Duration, s Set) (unit.Bandwidth, bool) {
			if s == 0b10 {
				return 19 * mbit, false
			}
			return 9 * mbit, true
		}}, "0.5:begin:11 3:below:10 6:better:10 11:again:11 14:worse:10 24:again:11 27:worse:10"},
		{"a single path", net{paths: good(20 * mbit), carries: func(time.Duration, Set) (unit.Bandwidth, bool) { return mbit, true }}, "0.5:begin:1"},
		{"no path", net{paths: good(0, 0), carries: func(time.Duration, Set) (unit.Bandwidth, bool) { return 0, true }}, "0.5:nopath:0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var j Selector
			list, _ := tt.net.run(&j, 0, 30*time.Second)
			if got := reasons(list); got != tt.want {
				t.Errorf("decides\n%s, want\n%s", got, tt.want)
			}
		})
	}
}

// TestChanges: paths fail, return and change while the second one is left out because it harms.
func TestChanges(t *testing.T) {
	var j Selector
	n := net{paths: good(20*mbit, 10*mbit), carries: func(_ time.Duration, s Set) (unit.Bandwidth, bool) {
		return map[Set]unit.Bandwidth{0b11: 8 * mbit, 0b01: 19 * mbit, 0b10: 9 * mbit}[s], s == 0b11
	}}
	at := time.Duration(0)
	step := func(d time.Duration, want string) {
		t.Helper()
		list, _ := n.run(&j, at, at+d)
		if at += d; reasons(list) != want {
			t.Fatalf("until %v:\n%s, want\n%s", at, reasons(list), want)
		}
	}
	step(30*time.Second, "0.5:begin:11 3:below:1 6:better:1 11:again:11 14:worse:1 24:again:11 27:worse:1")
	n.paths[0].Usable = false
	step(5*time.Second, "30.5:changed:10")
	n.paths[0].Usable = true
	step(5*time.Second, "35.5:changed:11 38:below:1")
	step(3*time.Second, "41:better:1")
	n.paths[0].Rate += mbit
	step(2*time.Second, "") // a small change
	n.paths[1].Jitter = 40 * ms
	step(30*time.Second, "47.5:again:11 50.5:worse:1 55.5:again:11 58.5:worse:1 68.5:again:11 71.5:worse:1")
	n.paths[1].Jitter = 2 * ms // the rest of 20 s is shortened
	step(10*time.Second, "80.5:again:11 83.5:worse:1")
	if got, want := j.Decision().Explain([]string{"dsl", "lte"}), "dsl+lte was tried and carried 8Mbit/s, these paths 19Mbit/s"; got != want {
		t.Errorf("explains %q, want %q", got, want)
	}
}

// TestLostProbes: probes that are lost before a flow begins, as while the other gateway starts, do
// not have a path tried alone.
func TestLostProbes(t *testing.T) {
	const rate = 20 * unit.MbitPerSecond
	paths := []Path{{Usable: true, Rate: rate}, {Usable: true, Rate: rate}}
	var j Selector
	now := time.Duration(0)
	look := func(w Window) {
		t.Helper()
		now += Length
		if d := j.Update(now, paths, w); d.Use != 3 {
			t.Fatalf("after %+v at %v: %s", w, now, d.Explain(nil))
		}
	}
	for range 10 {
		look(Window{Delivered: 12_000, Lost: 1})
	}
	for _, delivered := range []unit.Size{100_000, 600_000, 2_000_000, 2_000_000} {
		look(Window{Delivered: delivered, Lost: 1, Elastic: 1, Busy: true})
	}
}

// TestLittleToSend: a path is not tried alone because echoes, or the acknowledgments of a download,
// are late, nor because a connection begins or loses packets at its start. A connection that stays
// slow is harmed.
func TestLittleToSend(t *testing.T) {
	kbit := func(n unit.Size, late, elastic int) Window {
		return Window{Delivered: n * 1000 / 16, Late: late, Elastic: elastic}
	}
	echoes := []Window{kbit(0, 0, 0), kbit(981, 1, 0), kbit(981, 3, 0), kbit(759, 0, 0), kbit(981, 1, 0)}
	for _, tt := range []struct {
		name string
		then []Window
		want string
	}{
		{"acknowledgments", slices.Repeat([]Window{kbit(1280, 2, 0)}, 20), "0.5:begin:11"},
		{"a connection", []Window{kbit(4570, 9, 4), kbit(15_000, 9, 4), kbit(38_000, 9, 4), kbit(38_000, 9, 4)}, "0.5:begin:11"},
		{"one that loses packets early", []Window{kbit(1500, 9, 9), kbit(2500, 0, 0), kbit(3500, 0, 0), kbit(5000, 0, 0), kbit(9000, 0, 0), kbit(19_000, 0, 0)}, "0.5:begin:11"},
		{"one that is harmed", slices.Repeat([]Window{kbit(1500, 9, 9)}, 3), "0.5:begin:11 4:below:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var j Selector
			var list []Decision
			now := time.Duration(0)
			for _, w := range slices.Concat(echoes, tt.then) {
				now += Length
				if d := j.Update(now, good(20*mbit, 20*mbit), w); len(list) == 0 || d != list[len(list)-1] {
					list = append(list, d)
				}
			}
			if got := reasons(list); got != tt.want {
				t.Errorf("decides %s, want %s", got, tt.want)
			}
		})
	}
}

func TestMeter(t *testing.T) {
	var m Meter
	rtt := 100 * ms
	look := func(now time.Duration, delivered unit.Size, lost, late uint64, waiting bool, want Window, ends bool) {
		t.Helper()
		if got, ok := m.AddSample(now, Totals{delivered, lost, late, lost + late}, waiting, rtt); got != want || ok != ends {
			t.Errorf("at %v: %+v, %v; want %+v, %v", now, got, ok, want, ends)
		}
	}
	look(0, 1000, 5, 0, true, Window{}, false) // counters from before
	look(200*ms, 2000, 5, 0, true, Window{}, false)
	look(400*ms, 3000, 5, 1, true, Window{}, false)
	look(500*ms, 4000, 8, 2, false, Window{Delivered: 3000, Lost: 3, Late: 2, Elastic: 5, Busy: true}, true)
	look(1000*ms, 5000, 8, 2, false, Window{Delivered: 1000}, true)
	look(2000*ms, 9000, 8, 2, true, Window{Delivered: 2000, Busy: true}, true)         // twice as long
	look(2500*ms, 700, 1, 0, false, Window{Delivered: 700, Lost: 1, Elastic: 1}, true) // started again
	rtt = 500 * ms
	look(4400*ms, 4000, 1, 0, false, Window{}, false)
	look(4500*ms, 4700, 1, 0, false, Window{Delivered: 1000}, true) // four round trips
}

// TestPropertySelector: for any paths and windows, the paths in use are usable ones, at least one
// if there is any, and trials become rare while nothing changes.
func TestPropertySelector(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.Custom(func(t *rapid.T) Path {
			return Path{
				Usable: rapid.Bool().Draw(t, "usable"),
				Rate:   unit.Bandwidth(rapid.Int64Range(0, 1e12).Draw(t, "rate")),
				Delay:  time.Duration(rapid.Int64Range(-int64(time.Second), int64(time.Second)).Draw(t, "delay")),
				Jitter: time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "jitter")),
				Loss:   rapid.IntRange(0, 1e6).Draw(t, "loss"),
			}
		})
		paths := rapid.SliceOfN(path, 0, MaxPaths).Draw(t, "paths")
		var j Selector
		trials := 0
		now := time.Duration(0)
		for range 200 {
			now += Length
			if len(paths) > 0 && rapid.IntRange(0, 50).Draw(t, "change") == 50 {
				paths[rapid.IntRange(0, len(paths)-1).Draw(t, "which")] = path.Draw(t, "path")
				trials = 0
			}
			before := j.Decision()
			d := j.Update(now, paths, Window{
				Delivered: unit.Size(rapid.Int64Range(0, 1e10).Draw(t, "delivered")),
				Lost:      rapid.IntRange(0, 2).Draw(t, "lost"),
				Elastic:   rapid.IntRange(0, 1).Draw(t, "elastic"),
				Busy:      rapid.Bool().Draw(t, "busy"),
			})
			if d != before && (d.Reason == Below || d.Reason == Again) {
				trials++
			}
			usable := Set(0)
			for i := range paths {
				if paths[i].Usable && paths[i].Rate > 0 {
					usable |= 1 << i
				}
			}
			if d.Use&^usable != 0 || d.Use == 0 && usable != 0 {
				t.Fatalf("uses %b of %b", d.Use, usable)
			}
			if d.Explain(nil) == "" {
				t.Fatal("no reason")
			}
		}
		// A success begins the rests again, so 100 s have at most a trial each 5 s.
		if trials > 20 {
			t.Fatalf("%d trials in 100 s", trials)
		}
	})
}

// TestNoAllocation: a window allocates nothing while paths do not change.
func TestNoAllocation(t *testing.T) {
	var j Selector
	paths := good(20*mbit, 10*mbit)
	now, i := time.Duration(0), 0
	if n := testing.AllocsPerRun(500, func() {
		now += Length
		i++
		j.Update(now, paths, Window{Delivered: unit.Size(i % 7 * 100_000), Lost: 1, Elastic: 1})
	}); n > 0 {
		t.Errorf("%g allocations for a window", n)
	}
}
