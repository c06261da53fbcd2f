package acceptance

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/netns/netnstest"
)

// open restarts both gateways with a discipline and a key of their peer that needs the program.
func (l *lab) open(discipline, key, value string) (daemons map[string]*exec.Cmd) {
	l.t.Helper()
	daemons = map[string]*exec.Cmd{}
	for _, node := range []string{"site1", "site2"} {
		l.edit(node, "gateway", func(s section) {
			s["policy"] = []any{map[string]any{"discipline": discipline}}
			s["peers"].([]any)[0].(map[string]any)[key] = value
		})
		l.refused(node, "gateway", "a restart is needed")
		l.end(node, "gateway", syscall.SIGTERM)
		daemons[node] = l.start(node, "gateway")
	}
	for _, node := range []string{"site1", "site2"} {
		// The kernel verifies the programs, which takes seconds on a busy machine.
		l.eventually("the session is up", 20*time.Second, l.paths(node, "up", "up"))
	}
	return daemons
}

// TestGatewayPlain: with mode plain, packets of unchanged hosts are sent as they are, over both paths; when a
// path dies the other one is used at once, and while none is known they are sealed.
func TestGatewayPlain(t *testing.T) {
	l := gateways(t)
	daemons := l.open("dq", "mode", "plain")
	clear := l.clear(t)
	l.echoed(20)
	const size = 6_000_000
	s, text := l.carried(size)
	if s.Peers[0].Mode != "plain" {
		t.Errorf("the mode is %q", s.Peers[0].Mode)
	}
	// Packets of 1500 bytes, in both directions: nearly all are as the hosts sent them.
	if n := clear.Load(); n < size/1500 {
		t.Errorf("%d packets in clear\n%s", n, text)
	}

	wait := l.streamed(2)
	time.Sleep(500 * time.Millisecond)
	l.ip("site1", "link set path1 down")
	wait()
	if s, text := l.gateway("site2"); !strings.Contains(s.Reason, "path1") {
		t.Errorf("site2 does not notice:\n%s", text)
	}
	const programs = "CapEff:\t0000008000001000\n" // CAP_BPF, CAP_NET_ADMIN
	if got := l.capabilities(daemons["site1"].Process.Pid); got != programs {
		t.Errorf("the daemon has capabilities %q", got)
	}
	if err := daemons["site1"].Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := daemons["site1"].Wait(); err != nil {
		t.Error(err)
	}
	if e, err := netnstest.Echo(l.namespace("server"), netip.MustParseAddr("2001:db8:2::1"), 2, 56); err != nil || e.Received != 0 {
		t.Errorf("packets are sent after a clean stop: %+v, %v", e, err)
	}
}

// TestGatewayNAT: with mode nat, TCP and echoes of unchanged hosts are sent over both paths with the paths' addresses
// and arrive with the hosts' own. A gateway that restarts without its sessions is sent no packets of them once it has reset them.
func TestGatewayNAT(t *testing.T) {
	l := gateways(t)
	daemons := l.open("dq", "mode", "nat")
	from := func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[8:24])) }
	to := func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[24:40])) }
	ours := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("2001:db8:1::1") || a == netip.MustParseAddr("2001:db8:2::1")
	}
	clear := l.onPaths(t, func(b []byte) bool { return b[0]>>4 == 6 && ours(from(b)) })
	translated := l.onPaths(t, func(b []byte) bool { return b[0]>>4 == 6 && !ours(from(b)) && ours(to(b)) })
	l.echoed(20)
	const size = 6_000_000
	s, text := l.carried(size)
	if s.Peers[0].Sending < 2 || s.Peers[0].Receiving < 2 {
		t.Errorf("the sessions:\n%s", text)
	}
	if n := translated.Load(); n < size/1500 {
		t.Errorf("%d packets are translated\n%s", n, text)
	}
	if n := clear.Load(); n > 0 {
		t.Errorf("%d packets with the source of a host", n)
	}
	wait := l.streamed(1)
	time.Sleep(300 * time.Millisecond)
	if err := daemons["site1"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemons["site1"].Wait()
	l.start("site1", "gateway")
	wait()
}

// isOpenMessage reports whether a packet is a message of the tunnel that does not encrypt.
func isOpenMessage(b []byte) bool {
	at := 20
	if b[0]>>4 == 6 {
		at = 40
	}
	const udp, messageType = 8, 6
	return len(b) > at+udp && b[at+udp] == messageType
}

// TestGatewayUnsealed: with seal none, packets of unchanged hosts are sent by the program in messages
// that are not encrypted, over both paths, and each arrives once where all are copied.
func TestGatewayUnsealed(t *testing.T) {
	l := gateways(t)
	l.open("dq", "seal", "none")
	clear, open := l.clear(t), l.onPaths(t, isOpenMessage)
	l.echoed(20)
	const size = 6_000_000
	s, text := l.carried(size)
	if s.Peers[0].Mode != "tunnel, seal none" {
		t.Errorf("the mode is %q", s.Peers[0].Mode)
	}
	if n := open.Load(); n < size/1500 {
		t.Errorf("%d open messages\n%s", n, text)
	}
	if n := clear.Load(); n > 0 {
		t.Errorf("%d packets without a tunnel", n)
	}

	for _, node := range []string{"site1", "site2"} {
		l.edit(node, "gateway", func(s section) { s["policy"] = []any{map[string]any{"discipline": "redundant"}} })
		l.reloaded(node, "gateway", "policy replaced")
	}
	before := open.Load()
	l.echoed(20)
	l.eventually("each echo and answer is sent twice and delivered once", 5*time.Second, func() (bool, string) {
		s, text := l.gateway("site1")
		return open.Load()-before >= 80 && s.Dropped["duplicate"] >= 20, fmt.Sprint(open.Load()-before, " ", text)
	})
}
