package sealed

import (
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// TestLimit: the gateway is asked to look once at each limit, and never waited for.
func TestLimit(t *testing.T) {
	reached := make(chan struct{}, 1)
	l := &line{}
	for _, s := range []struct {
		limit uint64
		bytes int
		asked bool
	}{
		{0, 1000, false}, {2000, 999, false}, {2000, 1, true}, {2000, 5000, false}, // it will look
		{8000, 999, false}, {8000, 1, true}, {0, 1000, false},
	} {
		l.conf.Store(&dataplane.Path{Limit: dataplane.Limit{Carried: s.limit, Reached: reached}})
		l.carry(s.bytes)
		select {
		case <-reached:
			if !s.asked {
				t.Errorf("asked at %d of %d", l.carried.Load(), s.limit)
			}
		default:
			if s.asked {
				t.Errorf("not asked at %d of %d", l.carried.Load(), s.limit)
			}
		}
	}
	reached <- struct{}{} // nobody receives
	l.conf.Store(&dataplane.Path{Limit: dataplane.Limit{Carried: 1, Reached: reached}})
	l.carry(1)
}
