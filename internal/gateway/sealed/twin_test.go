package sealed

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
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
	s.run(time.Hour)
	s.cut = map[[2]int]bool{{0, 0}: true}
	s.run(5 * time.Second)
	if reason() == tooMany {
		t.Errorf("without the peer, an hour later: %q", reason())
	}
}

// TestTwin: once sessions with a key begin again and again, the gateway that has one keeps it, with
// new keys too, and another one with the same key gets none until the first one is gone.
func TestTwin(t *testing.T) {
	t.Parallel()
	a, b := pair(t, 2)
	twin := &gateway{t: t, number: 1, key: a.key, namespace: netnstest.New(t), state: a.state}
	ip(t, a.namespace, "ip link set p1 netns %s", twin.namespace)
	ip(t, twin.namespace, "ip link set lo up")
	ip(t, twin.namespace, "ip link set p1 up")
	ip(t, twin.namespace, "ip -4 addr add 192.168.1.1/24 dev p1")
	twin.state.Paths, a.state.Paths = a.state.Paths[1:], a.state.Paths[:1]
	twin.state.Peers = slices.Clone(a.state.Peers)
	a.state.Peers[0].Endpoints = []netip.AddrPort{netip.MustParseAddrPort("192.168.0.2:4790")}
	twin.state.Peers[0].Endpoints = []netip.AddrPort{netip.MustParseAddrPort("192.168.1.2:4790")}
	b.state.Peers[0].Endpoints = nil
	a.run()
	b.run()
	a.up(1)
	for range contestedSessions {
		again(t, a, b)
	}
	replayed(t, a, b)
	epoch := b.plane.Status().Peers[0].Epoch
	twin.run()
	refused := func() uint64 { return b.plane.Status().Dropped["handshake refused"] }
	eventually(t, "initiations of the twin", func() bool { return refused() > 4 })
	if s := b.plane.Status().Peers[0]; s.Epoch != epoch || s.Reason != tooMany || twin.plane.Status().Peers[0].Up {
		t.Errorf("with a twin: %+v", s)
	}
	again(t, a, b)
	a.crash()
	twin.up(1)
}

// replayed checks that an old initiation that is replayed from elsewhere is not one of a twin.
func replayed(t *testing.T, a, b *gateway) {
	t.Helper()
	old := newPeer(a.plane, a.key, a.state.Peers[0])
	old.session.assoc.Want(0)
	message, err := old.session.assoc.Advance(0, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	r := b.plane.peers[a.key.Public()]
	h := handshakeMessage{line: r.links[0].line, message: message, from: netip.MustParseAddrPort("203.0.113.1:4790")}
	if err := b.plane.answer(h); !errors.Is(err, handshake.ErrStale) {
		t.Errorf("a replayed initiation: %v", err)
	}
}

// again has a gateway begin another session.
func again(t *testing.T, a, b *gateway) {
	t.Helper()
	epoch := b.plane.Status().Peers[0].Epoch
	r := a.plane.peers[b.key.Public()]
	r.mu.Lock()
	r.session.assoc.Want(a.plane.now())
	r.wakeControlLocked()
	r.mu.Unlock()
	eventually(t, "a new session", func() bool { return b.plane.Status().Peers[0].Epoch > epoch })
}
