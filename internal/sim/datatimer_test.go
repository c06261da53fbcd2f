package sim

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// TestDataTimer: a long path loses its first window and then recovers slowly, without a timeout,
// while a short one has nothing to send because the receive window is full. The timer of the
// connection reinjects the data over the short path.
func TestDataTimer(t *testing.T) {
	link := func(delay time.Duration) Link {
		return Link{Profile: linkmodel.Profile{Rate: 10 * unit.MbitPerSecond, Delay: delay}}
	}
	c := Config{
		Duration: time.Minute, Links: []Link{link(5 * ms), link(5 * ms), link(300 * ms), link(300 * ms)},
		Changes: []Change{{At: 990 * ms, Link: 2, Down: true}, {At: 2100 * ms, Link: 2, Up: true}},
		Connections: []Connection{{
			MPTCP: true, Scheduler: sched.Default, Segment: 1340, Bytes: 1200 * unit.KB, ReceiveBuffer: 256 * unit.KiB, InitialWindow: 10, RACK: true, Lowat: true, Handshake: true,
			Paths: []Path{{Out: []int{0}, Back: []int{1}}, {Out: []int{2}, Back: []int{3}}},
		}},
	}
	r := run(t, c).Connections[0]
	if r.Reinjected == 0 || r.Finish == Never || r.Finish > 5*time.Second {
		t.Errorf("%d segments reinjected, delivered %s at %s, %d timeouts", r.Reinjected, r.Delivered, r.Finish, r.Paths[1].Timeouts)
	}
}
