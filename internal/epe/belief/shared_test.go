package belief

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// sharing is a table that shares.
func sharing() *Table {
	t := newTable()
	t.Share(true)
	return t
}

// says is the record of a server that measured these means of modes a and b.
func says(p netip.Prefix, at time.Time, ofA, ofB float32) Shared {
	return Shared{Version: SharedVersion, Prefix: p, Measured: at.Unix(), Modes: []SharedMode{{a, ofA, 0.05, 5}, {b, ofB, 0.05, 5}}}
}

// TestShared: what one server measured is where another one begins.
func TestShared(test *testing.T) {
	one, two := sharing(), sharing()
	one.join(start, prefix(1))
	for range 5 {
		one.mustLearn(test, start, prefix(1), a, Best, 1.5)
	}
	x := one.Take(10)
	if len(x.Measured) != 1 || len(x.Asked) != 1 || x.Asked[0] != prefix(1) {
		test.Fatalf("due at the first: %+v", x)
	}
	text, err := x.Measured[0].Encode()
	if err != nil {
		test.Fatal(err)
	}
	two.join(start, prefix(1))
	if x := two.Take(10); len(x.Measured) != 0 || len(x.Asked) != 1 {
		test.Fatalf("due at the second: %+v", x)
	}
	s, err := DecodeShared(start, prefix(1), text)
	if err != nil {
		test.Fatal(err)
	}
	if !two.Apply(start, prefix(1), able, []Shared{s}) {
		test.Error("nothing changed")
	}
	if got := two.Mode(start, prefix(1), origin, able); got != a {
		test.Errorf("begins with %s", got)
	}
	if i, _ := two.Network(start, prefix(1)); i.Why != "best at other servers" || i.Modes[0].Trials != 0 || i.Modes[0].Gain < 0.3 {
		test.Errorf("%+v", i)
	}
	if x := two.Take(10); len(x.Measured) != 0 {
		test.Errorf("shares what it did not measure: %+v", x.Measured)
	}
	// What is measured here counts more.
	for range 4 {
		two.mustLearn(test, start, prefix(1), a, Best, 0.6)
	}
	two.Apply(start, prefix(1), able, []Shared{s})
	if got := two.Mode(start, prefix(1), origin, able); got != Best {
		test.Errorf("stays with %s, which measured worse", got)
	}
}

// TestSharedStall: whatever other servers say, a mode that made no progress here is not believed to
// be good, and what they say of it is withdrawn there.
func TestSharedStall(test *testing.T) {
	t := sharing()
	t.join(start, prefix(1))
	t.mustLearn(test, start, prefix(1), a, Best, 1.5)
	t.Take(10)
	t.Stalled(start, prefix(1), origin, a, false)
	if x := t.Take(10); len(x.Measured) != 1 || len(x.Measured[0].Modes) != 0 {
		test.Errorf("shares %+v of a mode that made no progress", x.Measured)
	}
	lies := []Shared{says(prefix(1), start, mostLn, -mostLn), says(prefix(1), start, mostLn, -mostLn), says(prefix(1), start, mostLn, -mostLn)}
	t.Apply(start, prefix(1), able, lies)
	if got := t.Mode(start, prefix(1), origin, able); got == a {
		test.Error("returned to a path that makes no progress")
	}
	if i, _ := t.Network(start, prefix(1)); i.Modes[0].Mode == a {
		test.Errorf("%+v", i.Modes)
	}
}

// TestPoisonedShares: no records that other servers have, however many, keep a network on a mode
// that makes no progress, keep one that measures best from being used, or have an effect on another
// network.
func TestPoisonedShares(test *testing.T) {
	rapid.Check(test, func(r *rapid.T) {
		victim, witness := sharing(), sharing()
		for _, t := range []*Table{victim, witness} {
			t.join(start, prefix(1))
			t.join(start, prefix(2))
		}
		now := start
		truth := map[Mode]float64{a: rapid.Float64Range(0.6, 1.6).Draw(r, "a"), b: rapid.Float64Range(0.6, 1.6).Draw(r, "b")}
		dead := rapid.SampledFrom([]Mode{"", a, b}).Draw(r, "dead")
		mean := rapid.Float32Range(-mostLn, mostLn)
		for i := range 60 {
			now = now.Add(time.Minute)
			var lies []Shared
			for range rapid.IntRange(0, 16).Draw(r, "servers") {
				s := says(prefix(1), now.Add(-time.Duration(rapid.IntRange(0, 200).Draw(r, "hours"))*time.Hour), mean.Draw(r, "of a"), mean.Draw(r, "of b"))
				if s.check(now, prefix(1)) == nil {
					lies = append(lies, s)
				}
			}
			victim.Apply(now, prefix(1), able, lies)
			victim.Take(100)
			mode := victim.Mode(now, prefix(1), origin, able)
			victim.Closed(now, prefix(1), originAS(origin), mode, Outcome{Bytes: 100 * Bulk, Goodput: 1e6, Limit: ByPath})
			if mode == dead {
				victim.Stalled(now, prefix(1), origin, mode, false)
				if got := victim.Mode(now, prefix(1), origin, able); got == dead {
					r.Fatalf("connection %d: stays with %s, which makes no progress", i, got)
				}
				continue
			}
			c, in, ok := victim.Try(now, prefix(1), origin, able, 0, Bulk)
			switch {
			case !ok:
			case c == dead:
				victim.Stalled(now, prefix(1), origin, c, false)
			default:
				ratio := func(m Mode) float64 { return map[bool]float64{true: 1, false: truth[m]}[m == Best] }
				if err := victim.Learn(now, prefix(1), Pair{Challenger: c, Incumbent: in, Ratio: ratio(c) / ratio(in), Bytes: Bulk}); err != nil {
					r.Fatal(err)
				}
			}
		}
		got, best := victim.Mode(now, prefix(1), origin, able), Best
		for _, m := range []Mode{a, b} {
			if m != dead && math.Log(truth[m]) > 0 && (best == Best || truth[m] > truth[best]) {
				best = m
			}
		}
		value := func(m Mode) float64 { return map[bool]float64{true: 1, false: truth[m]}[m == Best] }
		if got == dead || value(got) < 0.9*value(best) {
			r.Errorf("after 60 connections %s (%.2f), but %s has %.2f; dead: %s", got, value(got), best, value(best), dead)
		}
		// The other network begins, and is judged, as without any of that, but for what the first
		// one measured, which is one vote of its AS.
		for _, t := range []*Table{victim, witness} {
			t.Mode(now, prefix(2), origin, able)
		}
		x, _ := victim.Network(now, prefix(2))
		y, _ := witness.Network(now, prefix(2))
		if diff := cmp.Diff(y, x, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			r.Errorf("another network changed (-without +with records):\n%s", diff)
		}
	})
}

// TestContradiction: a quorum of servers that contradicts what was measured here has it compared
// again; fewer have no effect.
func TestContradiction(test *testing.T) {
	for servers, want := range map[int]bool{1: false, 2: false, 3: true, 15: true} {
		t := sharing()
		t.join(start, prefix(1))
		for range 6 {
			t.mustLearn(test, start, prefix(1), a, Best, 0.7)
			t.mustLearn(test, start, prefix(1), b, Best, 0.7)
		}
		before, _ := t.Network(start, prefix(1))
		var records []Shared
		for range servers {
			records = append(records, says(prefix(1), start, 0.6, float32(math.Log(0.7))))
		}
		t.Apply(start, prefix(1), able, records)
		after, _ := t.Network(start, prefix(1))
		if t.Mode(start, prefix(1), origin, able) != Best {
			test.Error("changed without a measurement")
		}
		doubted := after.Modes[1].Mode == a && after.Modes[1].SD > before.Modes[1].SD || after.Modes[2].Mode == a && after.Modes[2].SD > before.Modes[2].SD
		if doubted != want {
			test.Errorf("%d servers: doubted: %v, %+v", servers, doubted, after.Modes)
		}
		t.Closed(start, prefix(1), originAS(origin), Best, Outcome{Bytes: 1000 * Bulk, Goodput: 1e6})
		if c, _, ok := t.Try(start, prefix(1), origin, able, 0, 1); want && (!ok || c != a) {
			test.Errorf("%d servers: tries %q, %v", servers, c, ok)
		}
	}
}

// TestTake: networks are asked for at most every ten minutes, new ones first, and those that could
// not be exchanged again.
func TestTake(test *testing.T) {
	t := sharing()
	for i := range 30 {
		t.join(start, prefix(i))
	}
	if x := t.Take(20); len(x.Asked) != 20 {
		test.Fatalf("asked for %d", len(x.Asked))
	} else if t.Return(x); len(t.Take(100).Asked) != 30 {
		test.Error("what was returned is not asked for")
	}
	t.join(start.Add(time.Minute), prefix(1))
	if x := t.Take(100); len(x.Asked) != 0 {
		test.Errorf("asked for %v again after a minute", x.Asked)
	}
	for i := range 30 {
		t.join(start.Add(askAgain), prefix(i))
	}
	t.join(start.Add(askAgain), prefix(99))
	if x := t.Take(1); len(x.Asked) != 1 || x.Asked[0] != prefix(99) {
		test.Errorf("asked for %v, want the new one first", x.Asked)
	}
	if x := t.Take(100); len(x.Asked) != 30 {
		test.Errorf("asked for %d of 30 after ten minutes", len(x.Asked))
	}
	t.join(start, prefix(1)) // the clock was set back
	if x := t.Take(100); len(x.Asked) != 1 {
		test.Errorf("asked for %d after the clock was set back", len(x.Asked))
	}
	t.mustLearn(test, start, prefix(1), a, Best, 2)
	t.Share(false)
	t.mustLearn(test, start, prefix(2), a, Best, 2)
	if x := t.Take(100); len(x.Measured)+len(x.Asked) > 0 {
		test.Errorf("due while nothing is shared: %+v", x)
	}
	t.Share(true)
	if x := t.Take(100); len(x.Measured) != 2 {
		test.Errorf("%d networks are due again", len(x.Measured))
	}
}

func TestInvalidShares(test *testing.T) {
	good := says(prefix(1), start, 0.1, 0.2)
	for name, change := range map[string]func(*Shared){
		"version":    func(s *Shared) { s.Version = 2 },
		"prefix":     func(s *Shared) { s.Prefix = prefix(2) },
		"future":     func(s *Shared) { s.Measured += 120 },
		"negative":   func(s *Shared) { s.Measured = -1 },
		"old":        func(s *Shared) { s.Measured -= 8 * 24 * 3600 },
		"best":       func(s *Shared) { s.Modes[0].Mode = Best },
		"twice":      func(s *Shared) { s.Modes[1].Mode = a },
		"long":       func(s *Shared) { s.Modes[0].Mode = Mode(strings.Repeat("x", maxName+1)) },
		"mean":       func(s *Shared) { s.Modes[0].Mean = mostLn + 1 },
		"deviation":  func(s *Shared) { s.Modes[0].SD = -1 },
		"trials":     func(s *Shared) { s.Modes[0].Trials = 0 },
		"many modes": func(s *Shared) { s.Modes = append(s.Modes, make([]SharedMode, MaxModes)...) },
	} {
		s := says(prefix(1), start, 0.1, 0.2)
		change(&s)
		text, err := s.Encode()
		if err != nil {
			test.Fatal(err)
		}
		if _, err := DecodeShared(start, prefix(1), text); err == nil {
			test.Errorf("%s: accepted", name)
		}
	}
	text, _ := good.Encode()
	if got, err := DecodeShared(start, prefix(1), text); err != nil || fmt.Sprint(got) != fmt.Sprint(good) {
		test.Errorf("%+v, %v", got, err)
	}
}

func FuzzDecodeShared(f *testing.F) {
	good := says(prefix(1), start, 0.1, 0.2)
	text, _ := good.Encode()
	f.Add(text)
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(test *testing.T, text []byte) {
		s, err := DecodeShared(start, prefix(1), text)
		if err != nil {
			return
		}
		t := sharing()
		t.join(start, prefix(1))
		t.Apply(start, prefix(1), able, []Shared{s})
		t.Mode(start, prefix(1), origin, able)
		i, _ := t.Network(start, prefix(1))
		for _, m := range i.Modes {
			if math.IsNaN(m.Gain) || math.IsNaN(m.SD) {
				test.Errorf("%+v of %s", m, text)
			}
		}
		accessor.Call(test, s)
	})
}

// TestWrongRecord: whatever a record says that a network begins with, its own comparisons correct
// it.
func TestWrongRecord(test *testing.T) {
	for _, truth := range [][2]float64{{0.6, 0.6}, {0.6, 1.6}, {1.6, 0.6}, {0.9, 1.6}, {1.6, 0.9}, {0.8, 1.25}, {1.25, 1.25}, {3, 0.3}} {
		value := map[Mode]float64{Best: 1, a: truth[0], b: truth[1]}
		for _, lie := range [][2]float32{{mostLn, -mostLn}, {mostLn, mostLn}, {-mostLn, -mostLn}, {1, 1}, {1, 0.5}, {0.5, 1}, {-1, 1}, {1, -1}, {0.2, 0.2}, {-0.2, -0.2}} {
			t := sharing()
			t.join(start, prefix(1))
			t.Apply(start, prefix(1), able, []Shared{says(prefix(1), start, lie[0], lie[1])})
			for range 25 {
				mode := t.Mode(start, prefix(1), origin, able)
				t.Closed(start, prefix(1), originAS(origin), mode, Outcome{Bytes: 100 * Bulk, Goodput: 1e6, Limit: ByPath})
				if c, i, ok := t.Try(start, prefix(1), origin, able, 0, Bulk); ok {
					t.mustLearn(test, start, prefix(1), c, i, value[c]/value[i])
				}
			}
			if got := t.Mode(start, prefix(1), origin, able); value[got] < 0.9*max(1, truth[0], truth[1]) {
				test.Errorf("modes bring %v, a record said %v: %s after 25 connections", truth, lie, got)
			}
		}
	}
}
