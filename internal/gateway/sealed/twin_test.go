package sealed

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// TestSessionsBeginAgain: that sessions begin again and again, as with two gateways that have the
// same key, is said once, and for as long as it is so. New keys and restarts are not said.
func TestSessionsBeginAgain(t *testing.T) {
	t.Parallel()
	s := simulate(t, [2][]dataplane.Use{make([]dataplane.Use, 1), make([]dataplane.Use, 1)})
	reason := func() string { return s.planes[1].Status().Peers[0].Reason }
	s.run(10 * time.Minute)
	if s.planes[1].Status().Peers[0].Epoch < 4 || reason() != "" {
		t.Fatalf("after new keys: %+v", s.planes[1].Status().Peers[0])
	}
	for range 2 * manySessions {
		r := s.peer(0)
		r.mu.Lock()
		r.session.assoc.Want(s.now)
		r.due = 0
		r.mu.Unlock()
		s.run(time.Second)
	}
	for n := range s.planes {
		if got := s.planes[n].Status().Peers[0].Reason; got != tooMany {
			t.Errorf("gateway %d says %q", n, got)
		}
	}
	s.run(2 * time.Minute)
	if reason() != "" {
		t.Errorf("two minutes later: %q", reason())
	}
}
