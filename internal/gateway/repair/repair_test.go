package repair

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/stat"
)

const ms = time.Millisecond

// TestRequests: a lost message is requested at once, and again after a round trip.
func TestRequests(t *testing.T) {
	var g Gaps
	g.Missed(0, 10, 2)
	for i, want := range []struct {
		at      time.Duration
		attempt uint8
	}{{0, 1}, {29 * ms, 0}, {30 * ms, 2}, {59 * ms, 0}, {60 * ms, 0}} {
		r, ok := g.Due(want.at, 30*ms, nil)
		if r.Attempt != want.attempt || ok != (want.attempt > 0) || ok && !slices.Equal(r.Counters, []uint64{8, 9}) {
			t.Errorf("%d: at %v: %+v, want attempt %d", i, want.at, r, want.attempt)
		}
	}
	if _, any := g.Next(30 * ms); any {
		t.Error("something is missing after the last attempt")
	}
}

// TestReordering: where messages overtake others by up to 20 ms, one is missed after 21 ms.
func TestReordering(t *testing.T) {
	var g Gaps
	g.Missed(0, 5, 1)
	if r, _ := g.Due(0, 100*ms, nil); r.Attempt != 1 {
		t.Fatalf("%+v, want a request at once while no reordering is known", r)
	}
	g.Arrived(20*ms, 4)
	g.Missed(30*ms, 9, 2)
	at, any := g.Next(100 * ms)
	if patience := at - 30*ms; !any || patience <= 20*ms || patience > 25*ms {
		t.Errorf("the next request is at %v", at)
	}
	if _, ok := g.Due(at-1, 100*ms, nil); ok {
		t.Error("messages are requested though they may be overtaken")
	}
	g.Arrived(at-1, 7)
	again, _ := g.Next(100 * ms)
	if again <= at {
		t.Errorf("the other one is requested at %v, though one came later than all before", again)
	}
	if r, _ := g.Due(again, 100*ms, nil); !slices.Equal(r.Counters, []uint64{8}) {
		t.Errorf("%+v", r)
	}
	if n := g.Retransmitted(8); n != 1 {
		t.Errorf("a message is retransmitted after %d requests, want 1", n)
	}
	if n := g.Retransmitted(7); n != 0 {
		t.Errorf("a message that came late is retransmitted after %d requests, want 0", n)
	}
}

// TestRetransmittedTooLate: what is retransmitted after its last request was not answered in time
// was lost, and is not late because paths differ.
func TestRetransmittedTooLate(t *testing.T) {
	var g Gaps
	g.Missed(0, 5, 1)
	for _, at := range []time.Duration{0, 30 * ms, 60 * ms} {
		g.Due(at, 30*ms, nil)
	}
	if _, any := g.Next(30 * ms); any {
		t.Fatal("the message is still requested")
	}
	if n := g.Retransmitted(4); n != Attempts {
		t.Errorf("%d requests, want %d", n, Attempts)
	}
}

// TestLateIsNotLost: a message that comes after its retransmission was late, whenever that is, and
// one that never comes was lost.
func TestLateIsNotLost(t *testing.T) {
	for name, late := range map[string]bool{"late": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			var g Gaps
			counter, now := uint64(0), time.Duration(0)
			for range 100 {
				counter += 10
				g.Missed(now, counter, 1)
				g.Due(now, 100*ms, nil)
				g.Retransmitted(counter - 1)
				if now += 40 * ms; late {
					g.Arrived(now, counter-1)
				}
				now += 10 * ms
			}
			g.Missed(now, counter+10, 1)
			at, any := g.Next(100 * ms)
			if !any || late != (at-now > 40*ms) {
				t.Errorf("the next one is requested after %v", at-now)
			}
		})
	}
}

// TestPatience: a message is missed when it is more likely lost than late.
func TestPatience(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		late := rapid.SliceOfN(rapid.Int64Range(0, int64(Limit)), 1, 300).Draw(t, "late")
		lost := rapid.IntRange(0, len(late)).Draw(t, "lost")
		var l lateness
		for _, by := range late {
			l.late(ms, time.Duration(by))
		}
		for range lost {
			l.lost(ms)
		}
		slices.Sort(late)
		patience, least := l.patience(), time.Duration(0)
		if lost < len(late) { // all later ones together are as many as were lost
			least = time.Duration(late[len(late)-1-lost])
		}
		if patience < least || patience > max(minLate, least)*5/4+reorderMargin {
			t.Fatalf("%v, want %v at least and a quarter more at most", patience, least)
		}
		l.age(2 * stat.Memory)
		if p := l.patience(); p != 0 {
			t.Fatalf("%v after all was forgotten", p)
		}
	})
}

// TestKept: a message is taken once for each attempt, and is displaced when it is old.
func TestKept(t *testing.T) {
	var k Kept[int]
	for i := range 1000 {
		if m, full := k.Put(time.Duration(i)*ms, uint64(i), i); full && i-m < 500 {
			t.Fatalf("message %d displaced %d, which is younger than %v", i, m, Limit)
		}
	}
	now := 1000 * ms
	for _, tt := range []struct {
		counter uint64
		attempt uint8
		ok      bool
	}{{900, 1, true}, {900, 1, false}, {900, 2, true}, {1001, 1, false}, {100, 1, false}} {
		if m, ok := k.Take(now, tt.counter, tt.attempt); ok != tt.ok || ok && m != int(tt.counter) {
			t.Errorf("message %d, attempt %d: %d, %v", tt.counter, tt.attempt, m, ok)
		}
	}
	n := 0
	k.Clear(func(int) { n++ })
	if _, ok := k.Take(now, 901, 1); ok || n < 500 {
		t.Errorf("%d messages were kept, one is still", n)
	}
}

// TestPropertyRepair: over a path that loses and reorders, every message is requested that is lost
// and not too old, none more than twice, and Next says when.
func TestPropertyRepair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g Gaps
		now, high := time.Duration(0), uint64(0)
		missing, asked := map[uint64]bool{}, map[uint64]uint8{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 40).Draw(t, "wait")) * ms
			if lost := rapid.IntRange(0, 3).Draw(t, "lost"); rapid.Bool().Draw(t, "new") {
				for range lost {
					missing[high] = true
					high++
				}
				g.Missed(now, high, uint64(lost))
				high++
			} else if lost < len(missing) {
				var all []uint64
				for c := range missing {
					all = append(all, c)
				}
				slices.Sort(all)
				g.Arrived(now, all[lost])
				delete(missing, all[lost])
			}
			for {
				r, ok := g.Due(now, 30*ms, nil)
				if !ok {
					break
				}
				if !slices.IsSorted(r.Counters) || r.Attempt > Attempts {
					t.Fatalf("%+v", r)
				}
				for _, c := range r.Counters {
					if asked[c]++; !missing[c] || asked[c] != r.Attempt {
						t.Fatalf("at %v: %+v asks for %d, missing: %v, asked %d times", now, r, c, missing[c], asked[c])
					}
				}
			}
			if at, any := g.Next(30 * ms); any && at <= now {
				t.Fatalf("at %v: the next request is at %v, and there is none", now, at)
			}
		}
	})
}
