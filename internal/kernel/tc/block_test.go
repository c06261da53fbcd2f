package tc

import (
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/base/unit"
)

func TestBlock(t *testing.T) {
	for _, rate := range []unit.Bandwidth{0, 10 * unit.MbitPerSecond} {
		shaped := enter(t)
		restore := func() error { return ClearRate("shaped") }
		if rate > 0 {
			restore = func() error { return SetRate("shaped", Rate{Rate: rate, Queue: 20 * time.Millisecond}) }
		}
		supported(t, restore())
		for range 2 { // blocking what is blocked changes nothing
			if err := Block("shaped"); err != nil {
				supported(t, err)
			}
		}
		far, err := netlink.LinkByName("far")
		if err != nil {
			t.Fatal(err)
		}
		before := received(t)
		flood(t, shaped, 10)
		if got := received(t); got != before {
			t.Errorf("%s: %d packets got through", rate, got-before)
		}
		if far.Attrs().OperState != netlink.OperUp {
			t.Errorf("%s: the other end is %s", rate, far.Attrs().OperState)
		}
		if err := restore(); err != nil {
			t.Fatal(err)
		}
		flood(t, shaped, 10)
		if got := received(t); got != before+10 {
			t.Errorf("%s: %d of 10 packets got through after it", rate, got-before)
		}
		s, err := Stats("shaped")
		switch {
		case rate == 0 && !errors.Is(err, ErrNotShaped):
			t.Errorf("not shaped before, and then %+v, %v", s.Rate, err)
		case rate > 0 && (err != nil || s.Rate.Rate != rate):
			t.Errorf("%s before, and then %+v, %v", rate, s.Rate, err)
		}
	}
	if err := Block("nolink"); err == nil {
		t.Error("a link that is not there is blocked")
	}
}

// received is how many packets the far end has got.
func received(t *testing.T) uint64 {
	t.Helper()
	far, err := netlink.LinkByName("far")
	if err != nil {
		t.Fatal(err)
	}
	return far.Attrs().Statistics.RxPackets
}
