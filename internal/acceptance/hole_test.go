package acceptance

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestPathMTUHole: a path that drops packets that are larger than those of its handshake, without
// an answer, is left by the connection that finds it, once, and remembered for the next ones.
func TestPathMTUHole(t *testing.T) {
	t.Parallel()
	l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      mptcp: {use: overflow}")
	l.ip("transit-b", "link set link-b mtu 1400")
	// Packet Too Big does not reach the server. What clients send comes by transit-a.
	l.ip("transit-b", "-6 route add blackhole 2001:db8:1::b/128")
	l.eventually("the path is remembered as stalled", 20*time.Second, func() (bool, string) {
		l.must("client", program, "fetch", "--mptcp", "http://server/bytes/12000000")
		out := l.must("server", program, "status", "connections", "--json")
		return strings.Contains(out, `"stalled"`), out
	})
	log, err := os.ReadFile(filepath.Join("/run/tabane/lab", l.name, "server.edge.log"))
	if err != nil {
		t.Fatal(err)
	}
	stalls := map[string]int{}
	for _, found := range regexp.MustCompile(`msg="subflows stalled".* token=(\S+) `).FindAllStringSubmatch(string(log), -1) {
		stalls[found[1]]++
	}
	for token, n := range stalls {
		if n > 1 {
			t.Errorf("connection %s stalled %d times", token, n)
		}
	}
	if len(stalls) == 0 {
		t.Error("no connection stalled")
	}
}
