package bgp

import (
	"maps"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// TestWhyDown: each session that is not established, or ends, has a reason. The sessions run in
// parallel because each attempt takes a second.
func TestWhyDown(t *testing.T) {
	wrongAS, wrongASPeer := newRouter(t, 1, 65000), newRouter(t, 2, 65001)
	secret, secretPeer := newRouter(t, 3, 65000), newRouter(t, 4, 65001)
	lonely := newRouter(t, 5, 65000)
	silent := newRouter(t, 6, 65000)
	ended := newRouter(t, 8, 65000)

	wrongAS.peer(wrongASPeer, func(n *Neighbor) { n.ASN = 65010 })
	wrongASPeer.peer(wrongAS, passive)
	secret.peer(secretPeer, func(n *Neighbor) { n.Password = "right" })
	secretPeer.peer(secret, passive, func(n *Neighbor) { n.Password = "wrong" })
	lonely.must(lonely.AddNeighbor(Neighbor{
		Name: "nobody", Address: address(10), LocalAddress: address(5), ASN: 65001, Families: []Family{IPv6Unicast},
	}))
	raw := func(r *router, n int) *rawPeer {
		r.must(r.AddNeighbor(Neighbor{
			Name: "raw", Address: address(n), ASN: 65001, Families: []Family{IPv6Unicast}, Passive: true, HoldTime: 3 * time.Second,
		}))
		return dialRaw(t, r, n, 65001)
	}
	raw(silent, 7)
	endedPeer := raw(ended, 9)

	because := func(r *router, want string) {
		t.Helper()
		var got SessionStatus
		for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if got = r.Sessions()[0]; !got.Up && strings.Contains(got.Reason, want) {
				return
			}
		}
		t.Errorf("never saw %q: %+v", want, got)
	}
	ended.wait("session", func() bool { return ended.up["raw"] })
	if s := ended.Sessions()[0]; s.Reason != "" || s.LastReset != "" || s.Flaps != 0 {
		t.Errorf("status of a session that is up: %+v", s)
	}
	shutdown, err := gobgp.NewBGPNotificationMessage(6, 2, append([]byte{4}, "soon"...)).Serialize()
	ended.must(err)
	endedPeer.write(shutdown)
	ended.wait("end", func() bool { return !ended.up["raw"] })
	const words = `Cease/Administrative Shutdown (6/2): "soon"`
	if s := ended.Sessions()[0]; s.Received != words || s.Flaps != 1 || s.LastReset != "NOTIFICATION received: "+words {
		t.Errorf("status of a session that the neighbor ended: %+v", s)
	}

	because(wrongAS, "OPEN Message Error/Bad Peer AS (2/2): the neighbor's OPEN has another as number than 65010")
	if s := wrongAS.Sessions()[0]; s.Sent != "OPEN Message Error/Bad Peer AS (2/2)" {
		t.Errorf("notification sent: %q", s.Sent)
	}
	because(wrongASPeer, "the neighbor refused the session")
	because(secretPeer, "md5 password differs from the neighbor's")
	because(secret, "md5 password") // by the timeout or the counter, which both apply here
	because(lonely, "connection to [fd00::a]:179 refused")
	silent.wait("hold timer", func() bool { return silent.downs["raw"] == "hold timer expired" })
	if s := silent.Sessions()[0]; s.Sent != "Hold Timer Expired (4/0)" || s.LastReset != "hold timer expired" {
		t.Errorf("status after the hold timer expired: %+v", s)
	}
}

// TestCounters: the status counts messages by type, and faults of UPDATEs that do not end the
// session by what was done about them.
func TestCounters(t *testing.T) {
	r := newRouter(t, 90, 65000)
	r.must(r.AddNeighbor(Neighbor{Name: "raw", Address: address(91), ASN: 65001, Families: []Family{IPv6Unicast}, Passive: true}))
	p := dialRaw(t, r, 91, 65001)
	r.wait("session", func() bool { return r.up["raw"] })
	path, good := rawPath(segment(2, 65001)), prefix("2a00:1::/32")
	for range 2 {
		p.update(path, unicastReach(good, address(91))) // no ORIGIN
	}
	p.update(rawOrigin, path, attr(0x40, 6, []byte{1}), unicastReach(good, address(91)))
	p.update(rawOrigin, path, vpnReach(good, nullLabel...))
	p.update(rawOrigin, path, unicastReach(prefix("2a00:2::/32"), address(91)))
	r.wait("routes", func() bool { return len(r.adjIn["raw"]) == 2 })
	s := r.Sessions()[0]
	if want := map[string]uint64{"treated-as-withdraw": 2, "attribute-discarded": 1, "ignored": 1}; !maps.Equal(s.Faults, want) || !s.Up || s.Flaps != 0 {
		t.Errorf("faults %v, want %v: %+v", s.Faults, want, s)
	}
	if want := "MP_REACH_NLRI: the session does not have this family (ignored)"; s.LastFault != want {
		t.Errorf("last fault %q, want %q", s.LastFault, want)
	}
	if got := s.MessagesReceived; got["open"] != 1 || got["update"] != 5 || got["keepalive"] != 1 || got["notification"] != 0 || len(got) != 5 {
		t.Errorf("messages received %v", got)
	}
	if got := s.MessagesSent; got["open"] != 1 || got["keepalive"] == 0 || got["update"] != 0 {
		t.Errorf("messages sent %v", got)
	}
	r.must(r.Reset("raw"))
	r.wait("end", func() bool { return !r.up["raw"] })
	if s := r.Sessions()[0]; s.MessagesSent["notification"] != 1 || s.Faults["treated-as-withdraw"] != 2 {
		t.Errorf("after the end of the session: %+v", s)
	}
}
