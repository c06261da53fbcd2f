package sealed

import (
	"os/exec"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestDeadMapping: a line whose packets from the configured port a router leads elsewhere for as
// long as they come is used over another port. A line that a peer begins with keeps its port.
func TestDeadMapping(t *testing.T) {
	t.Parallel()
	nft := programs.Need(t, "nft")
	a, b := pair(t, 2)
	for _, g := range []*gateway{a, b} {
		g.prepare = func(p *Plane) { p.turnAfter = time.Second }
		g.run()
	}
	a.up(2)
	netnstest.Do(t, b.namespace, func() error {
		return exec.Command(nft, `add table ip dead; add chain ip dead in { type filter hook prerouting priority 0; }; add rule ip dead in iifname p0 udp sport 4790 drop`).Run()
	})
	eventually(t, "the line is dead", func() bool { return a.ready(1) })
	a.up(2)
	if from := b.plane.Status().Peers[0].Links[0].Endpoint; from.Port() == 4790 {
		t.Errorf("the first line is used from %v", from)
	}
	for i, l := range b.plane.lines {
		if port := l.socket.Load().Local().Port(); port != 4790 {
			t.Errorf("line %d of the peer sends from port %d", i, port)
		}
	}
	// It comes back also with the port that was configured.
	netnstest.Do(t, b.namespace, func() error {
		return exec.Command(nft, `flush chain ip dead in; add rule ip dead in iifname p0 udp sport != 4790 drop`).Run()
	})
	eventually(t, "the line is dead", func() bool { return a.ready(1) })
	a.up(2)
}
