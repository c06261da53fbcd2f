package sim

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// TestPacing: a window of a long round trip does not overflow a short queue as a burst. On Linux
// 6.18 the controls carried 10.6 and 10.8 Mbit/s over such a path beside one of 1.4 Mbit/s with
// pacing, and 2.2 and 1.4 without it.
func TestPacing(t *testing.T) {
	c := paper(road{rate: 30 * unit.MbitPerSecond, delay: 240 * ms, queue: linkmodel.Limit{Packets: 18}}, road{rate: unit.MbitPerSecond, delay: 180 * ms, queue: linkmodel.Limit{Packets: 7}})
	c.Duration = 20 * time.Second
	k := &c.Connections[0]
	k.Scheduler, k.Congestion, k.Window, k.ReceiveBuffer, k.RACK, k.Handshake = sched.Default, "cubic", 0, 16*unit.MB, true, true
	bursts := run(t, c).Connections[0].Delivered.Over(c.Duration)
	k.Lowat = true
	if paced := run(t, c).Connections[0].Delivered.Over(c.Duration); paced < 2*bursts {
		t.Errorf("%s paced, %s in bursts", paced, bursts)
	}
}

// TestEarly: a paced subflow sends a buffer at a time, and the next one when that has been sent at
// its rate, less by what it is late, but at least half of that.
func TestEarly(t *testing.T) {
	c := paper(first, lossless())
	c.Connections[0].Scheduler, c.Connections[0].Lowat = sched.Default, true
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	f := &s.senders[0]
	f.pacing.on, f.pacing.rate, f.result.Segments = true, 1e-3, pacingAfter+1 // 1 MB/s
	size := f.c.Segment
	takes := time.Duration(float64(2*size) / f.pacing.rate)
	send := func() {
		for range leastSegments {
			if f.early(s) {
				t.Fatalf("the buffer waits at %s", s.now)
			}
			f.pacing.sent(f, s.now, size)
		}
		f.pacing.flush()
	}
	f.retrans.rtt.MinRTT = 100 * ms
	s.now = time.Second
	f.pacing.next = s.now
	send()
	if !f.early(s) || f.pacing.next != s.now+takes {
		t.Errorf("the next buffer leaves at %s, want %s later", f.pacing.next, takes)
	}
	s.now += 10 * takes
	send()
	if !f.early(s) || f.pacing.next != s.now+takes/2 {
		t.Errorf("the buffer after a late one leaves at %s, want %s later", f.pacing.next, takes/2)
	}
}
