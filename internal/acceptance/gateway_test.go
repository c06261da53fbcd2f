package acceptance

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// gateways brings the network of gateway-pair up.
func gateways(t *testing.T) *lab {
	t.Helper()
	return up(t, "gateway-pair", "site1.gateway.log", "site2.gateway.log")
}

// gatewayStatus is what these tests read of a gateway's status.
type gatewayStatus struct {
	Ready, Degraded bool
	Reason          string
	Peers           []struct {
		Name, Reason, Mode string
		Up                 bool
		Sending            int `json:"nat_sending"`
		Receiving          int `json:"nat_receiving"`
	}
	Paths []struct {
		Peer, Path, State string
		Resting           string
		SentBytes         uint64 `json:"sent_bytes"`
		// Received and Missed are packets.
		Received      uint64 `json:"received_packets"`
		Missed        uint64 `json:"missed_packets"`
		ReceivedBytes uint64 `json:"received_bytes"`
	}
	Lines []struct {
		Name string
		Used uint64 `json:"quota_used_bytes"`
	}
	Dropped map[string]uint64
}

func (l *lab) gateway(node string) (s gatewayStatus, text string) {
	l.t.Helper()
	text, err := l.try(node, program, "status", "--json", "gateway") // fails while degraded
	if e := json.Unmarshal([]byte(text), &s); e != nil {
		return s, fmt.Sprint(text, err)
	}
	return s, text
}

// paths is an eventually condition on the states of a gateway's paths.
func (l *lab) paths(node string, states ...string) func() (bool, string) {
	return func() (bool, string) {
		s, text := l.gateway(node)
		var got []string
		for _, p := range s.Paths {
			got = append(got, p.State)
		}
		return slices.Equal(got, states), text
	}
}

// clear counts the packets of the LANs' prefixes that are seen outside of the tunnel, on a path.
func (l *lab) clear(t *testing.T) *atomic.Int64 {
	t.Helper()
	inside := netip.MustParsePrefix("2001:db8::/46")
	return l.onPaths(t, func(b []byte) bool { return inside.Contains(source(b)) })
}

// onPaths counts the packets on both paths of site2 that are wanted.
func (l *lab) onPaths(t *testing.T, wanted func(packet []byte) bool) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	for _, path := range []string{"path1", "path2"} {
		l.each(t, "site2", path, func(p afpacket.Packet) {
			if wanted(p.Data) {
				n.Add(1)
			}
		})
	}
	return &n
}

// streamLimit is how much longer than it should a stream may take before it counts as one that
// stands still.
const streamLimit = 40 * time.Second

// streamed starts a download at a constant rate through the gateways. The function that it returns
// waits for its end, and fails the test unless all of it arrived.
func (l *lab) streamed(seconds int64) (wait func()) {
	l.t.Helper()
	cmd := l.command("client", program, "fetch", "--json", fmt.Sprintf("http://server/cbr?rate=8Mbit/s&duration=%ds", seconds))
	var out strings.Builder
	cmd.Stdout, cmd.WaitDelay = &out, time.Second
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	limit := time.AfterFunc(time.Duration(seconds)*time.Second+streamLimit, func() { _ = cmd.Process.Kill() })
	return func() {
		l.t.Helper()
		err := cmd.Wait()
		limit.Stop()
		var r report
		if e := json.Unmarshal([]byte(out.String()), &r); err != nil || e != nil || r.Bytes != 1_000_000*seconds {
			l.t.Errorf("the stream: %+v, %v, %v", r, err, e)
		}
	}
}

// contentServer is the server's address in gateway-pair.
var contentServer = netip.MustParseAddr("2001:db8:1::1")

// echoed sends echoes from the client, each of which must be answered once.
func (l *lab) echoed(n int) {
	l.t.Helper()
	if e, err := netnstest.Echo(l.namespace("client"), contentServer, n, 1200); err != nil || e.Received != n || e.Duplicates != 0 {
		l.t.Errorf("echoes %+v, %v", e, err)
	}
}

// carried downloads so many bytes, over both paths, and returns the status of site1.
func (l *lab) carried(size int64) (s gatewayStatus, text string) {
	l.t.Helper()
	begun := time.Now()
	if r := l.fetch(fmt.Sprintf("http://server/bytes/%d", size)); r.Bytes != size {
		l.t.Errorf("got %d bytes", r.Bytes)
	}
	l.t.Logf("%.1f Mbit/s", float64(size*8)/1e6/time.Since(begun).Seconds())
	s, text = l.gateway("site1")
	if len(s.Paths) != 2 || min(s.Paths[0].SentBytes, s.Paths[1].SentBytes) < uint64(size/4) || len(s.Peers) != 1 {
		l.t.Fatalf("the paths carried:\n%s", text)
	}
	return s, text
}

// TestGatewaysCarryOneConnection: unchanged hosts reach each other through the tunnel, and one
// connection uses both paths.
func TestGatewaysCarryOneConnection(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	clear := l.clear(t)
	l.echoed(50)
	l.carried(10_000_000)
	if n := clear.Load(); n > 0 {
		t.Errorf("%d packets in clear", n)
	}
	const netAdmin = "CapEff:\t0000000000003000\n"
	if got := l.capabilities(l.process("site1", "gateway").PID); got != netAdmin {
		t.Errorf("the daemon has other capabilities than CAP_NET_ADMIN: %q", got)
	}
}

// capabilities returns the line of a process's effective capabilities.
func (l *lab) capabilities(pid int) string {
	l.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "CapEff:") {
			return line
		}
	}
	return ""
}

// TestGatewayCablePulled: a stream goes on when a path's cable is pulled, and both paths are used
// once it is back.
func TestGatewayCablePulled(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	wait := l.streamed(8)
	time.Sleep(time.Second)
	l.ip("site1", "link set path1 down")
	l.eventually("the path is down", 2*time.Second, l.paths("site1", "down", "up"))
	s, text := l.gateway("site1")
	if !s.Ready || !s.Degraded || !strings.Contains(s.Reason, `interface "path1" of path "path1" is down`) {
		t.Errorf("the status does not say so:\n%s", text)
	}
	time.Sleep(time.Second)
	l.ip("site1", "link set path1 up")
	l.eventually("the path is back", 5*time.Second, l.paths("site1", "up", "up"))
	wait()
}

// TestGatewayKilled: a gateway is killed and started again during a stream. Nothing leaves in clear
// meanwhile, the stream goes on, and a clean stop leaves nothing behind.
func TestGatewayKilled(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	clear := l.clear(t)
	wait := l.streamed(8)
	time.Sleep(time.Second)
	l.end("site1", "gateway", syscall.SIGKILL)
	if routes := l.ip("site1", "route show table 4790"); !strings.Contains(routes, "unreachable 2001:db8:2::/64") {
		t.Errorf("the peer's prefix is reachable without the tunnel:\n%s", routes)
	}
	time.Sleep(500 * time.Millisecond)
	started := time.Now()
	l.start("site1", "gateway")
	l.eventually("the session is back", 5*time.Second, l.paths("site1", "up", "up"))
	t.Logf("paths are up %s after the start", time.Since(started).Round(time.Millisecond))
	wait()
	if n := clear.Load(); n > 0 {
		t.Errorf("%d packets in clear", n)
	}
	l.end("site2", "gateway", syscall.SIGTERM)
	if left := l.ip("site2", "route show table all; rule"); strings.Contains(left, "2001:db8:1::") || strings.Contains(left, "proto 115") {
		t.Errorf("routes are left behind:\n%s", left)
	}
	if links := l.ip("site2", "link"); strings.Contains(links, "tabane0") {
		t.Errorf("the tunnel is left behind:\n%s", links)
	}
}

// TestGatewayDefaultPeer: all other networks are reached through a peer, and the paths have nothing
// but default routes, so that the tunnel's own datagrams match its route. A better route of another
// program, a deleted rule and a crash let nothing out in clear, and the stream goes on.
func TestGatewayDefaultPeer(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	clear := l.clear(t)
	wait := l.streamed(4)
	l.ip("site1", "route add 2001:db8:2::/64 dev path1 metric 1") // while the peer has this prefix
	time.Sleep(500 * time.Millisecond)
	l.edit("site1", "gateway", func(s section) {
		s["peers"].([]any)[0].(map[string]any)["prefixes"] = []any{"0.0.0.0/0", "::/0"}
	})
	l.reloaded("site1", "gateway", `peer "site2" replaced`)
	l.ip("site1", "route del 2001:db8:2::/64 dev path1 metric 1; route del 2001:db8:f1::/64 dev path1; route del 2001:db8:f2::/64 dev path2; "+
		"route add default dev path1 metric 50; route add default dev path2 metric 60")
	l.eventually("both paths are up", 5*time.Second, l.paths("site1", "up", "up"))
	l.ip("site1", "rule del priority 4791 fwmark 4790 lookup main")
	l.eventually("the rule is restored", time.Second, func() (bool, string) {
		rules := l.ip("site1", "rule")
		return strings.Contains(rules, "4791:\tnot from all fwmark 0x12b6 lookup main suppress_prefixlength 0"), rules
	})
	time.Sleep(500 * time.Millisecond)
	l.end("site1", "gateway", syscall.SIGKILL)
	time.Sleep(200 * time.Millisecond)
	second := l.start("site1", "gateway").Process
	l.eventually("the session is back", 5*time.Second, l.paths("site1", "up", "up"))
	wait()
	if n := clear.Load(); n > 0 {
		t.Errorf("%d packets in clear", n)
	}
	if err := second.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.eventually("the gateway ends", 10*time.Second, func() (bool, string) {
		stat, gone := ended(second.Pid)
		return gone, stat
	})
	if left := l.ip("site1", "route show table all; rule; -4 route show table all; -4 rule"); strings.Contains(left, "479") || strings.Contains(left, "proto 115") {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestGatewayReload: a reload replaces the policy and paths without the loss of a connection, or
// changes nothing; with another key of the peer there is no session.
func TestGatewayReload(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	wait := l.streamed(6)
	l.edit("site1", "gateway", func(s section) {
		s["policy"] = []any{map[string]any{"discipline": "dq", "resequence": "off"}}
	})
	l.reloaded("site1", "gateway", "policy replaced")
	restore := l.edit("site1", "gateway", func(s section) {
		s["policy"] = []any{map[string]any{"discipline": map[string]any{"ratio": "0:0"}}}
	})
	l.refused("site1", "gateway", "policy[0].discipline.ratio: must give packets to at least one path")
	restore()
	l.edit("site1", "gateway", func(s section) { s["paths"] = s["paths"].([]any)[:1] })
	l.reloaded("site1", "gateway", `path "path2" removed`)
	l.eventually("one path", 5*time.Second, l.paths("site1", "up"))
	wait()
	// The key of somebody else.
	l.edit("site1", "gateway", func(s section) {
		s["peers"].([]any)[0].(map[string]any)["public_key"] = "ygNu9dVxYYMqIj11gtQL8C/9jKT0kk3BTM0JGe48Xik="
	})
	l.reloaded("site1", "gateway", `peer "site2" replaced`)
	time.Sleep(2 * time.Second)
	s, text := l.gateway("site1")
	if s.Ready || len(s.Peers) != 1 || s.Peers[0].Up || !strings.Contains(s.Reason, `peer "site2" has no session`) {
		t.Errorf("there is a session with another key:\n%s", text)
	}
	if e, err := netnstest.Echo(l.namespace("client"), netip.MustParseAddr("2001:db8:1::1"), 3, 56); err != nil || e.Received != 0 {
		t.Errorf("echoes %+v, %v", e, err)
	}
}
