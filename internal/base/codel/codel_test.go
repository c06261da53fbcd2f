package codel

import (
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

// packet is a packet of 1000 bytes, known by when it arrived.
type packet struct{ arrived time.Duration }

// list is a queue.
type list struct {
	packets []packet
	dropped int
	// capable: packets are ECN-capable and marked instead of dropped.
	capable bool
	marked  int
}

func (l *list) Pop() (packet, time.Duration, bool) {
	if len(l.packets) == 0 {
		return packet{}, 0, false
	}
	p := l.packets[0]
	l.packets = l.packets[1:]
	return p, p.arrived, true
}

func (l *list) Bytes() int { return 1000 * len(l.packets) }

func (l *list) Signal(packet) bool {
	if l.capable {
		l.marked++
		return true
	}
	l.dropped++
	return false
}

// The times of drops follow RFC 8289, section 5: the first drop is an interval after the sojourn
// time rose above the target, and the next ones follow at interval/sqrt(count).
func TestDropTimes(t *testing.T) {
	for _, marks := range []bool{false, true} {
		testTimes(t, marks)
	}
}

// testTimes checks the times of drops, or those of marks, which are the same.
func testTimes(t *testing.T, marks bool) {
	var s State
	q := &list{capable: marks}
	l := Law{Target: 5 * ms, Interval: 100 * ms, Frame: 1514}
	var drops []time.Duration
	// A packet is dequeued every millisecond after a sojourn time of 20 ms, and the queue stays
	// long.
	for now := time.Duration(0); now < 400*ms; now += ms {
		for len(q.packets) < 10 {
			q.packets = append(q.packets, packet{now - 20*ms})
		}
		for i := range q.packets {
			q.packets[i].arrived = now - 20*ms
		}
		before := q.dropped + q.marked
		if _, ok := Dequeue(&s, l, now, q); !ok {
			t.Fatal("nothing to send")
		}
		for range q.dropped + q.marked - before {
			drops = append(drops, now)
		}
	}
	// Drops are due at 100 ms, then 100/sqrt(1), 100/sqrt(2), 100/sqrt(3), ... later, each at
	// the next dequeue.
	next, want := 100.0, []time.Duration{100 * ms}
	for n := 1; ; n++ {
		next += 100 / math.Sqrt(float64(n))
		if next >= 400 {
			break
		}
		want = append(want, time.Duration(math.Ceil(next-1e-6))*ms)
	}
	if len(drops) != len(want) {
		t.Fatalf("drops at %v, want %v", drops, want)
	}
	for i := range want {
		if drops[i] != want[i] {
			t.Errorf("drop %d at %s, want %s", i, drops[i], want[i])
		}
	}
	if marks && q.dropped > 0 || !marks && q.marked > 0 {
		t.Errorf("%d dropped and %d marked, where marking is %v", q.dropped, q.marked, marks)
	}
}

func TestLeavesShortQueuesAlone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		wait  time.Duration
		count int
	}{
		{"below the target", 4 * ms, 10},
		{"one packet left", 50 * ms, 2},
	} {
		var s State
		q := &list{}
		for now := time.Duration(0); now < time.Second; now += ms {
			q.packets = q.packets[:0]
			for range tt.count {
				q.packets = append(q.packets, packet{now - tt.wait})
			}
			Dequeue(&s, Law{Target: 5 * ms, Interval: 100 * ms, Frame: 1514}, now, q)
		}
		if q.dropped > 0 {
			t.Errorf("%s: %d dropped", tt.name, q.dropped)
		}
	}
}
