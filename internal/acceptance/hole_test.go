package acceptance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestBrokenPath: a path that carries handshakes and no data is left by the connection that finds
// it, and by the next ones of the network: it is joined once. The log and the status say so.
func TestBrokenPath(t *testing.T) {
	t.Parallel()
	nft := programs.Need(t, "nft")
	const filter = "add table inet middlebox; add chain inet middlebox forward { type filter hook forward priority 0; }; add rule inet middlebox forward tcp sport 80 meta length > 400 "
	for name, tt := range map[string]struct{ action, use, cause string }{
		"hole":            {"", "overflow", "no answer to data"},
		"hole, all":       {"", "all", "no answer to data"},
		"resets":          {"reject with tcp reset", "overflow", `cause=reset`},
		"resets, all":     {"reject with tcp reset", "all", `cause=reset`},
		"no options":      {"reset tcp option mptcp", "overflow", "misses MPTCP options"},
		"no options, all": {"reset tcp option mptcp", "all", "misses MPTCP options"},
	} {
		t.Run(name, func(t *testing.T) {
			l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      mptcp: {use: "+tt.use+"}")
			if tt.action == "" {
				l.ip("transit-b", "link set link-b mtu 1400")
				// Packet Too Big does not reach the server. What clients send comes by transit-a.
				l.ip("transit-b", "-6 route add blackhole 2001:db8:1::b/128")
			} else {
				netnstest.Do(t, l.namespace("transit-b"), func() error {
					out, err := exec.CommandContext(t.Context(), nft, filter+tt.action).CombinedOutput()
					if err != nil {
						return fmt.Errorf("nft: %w: %s", err, out)
					}
					return nil
				})
			}
			var gaps []time.Duration
			for range 3 {
				gaps = append(gaps, l.fetch("--mptcp", "http://server/bytes/10000000").LongestGap)
			}
			out := l.must("server", program, "status", "connections", "--json")
			var status struct {
				Remembered []struct{ Egress, Verdict string }
			}
			if err := json.Unmarshal([]byte(out), &status); err != nil {
				t.Fatal(err)
			}
			broken := 0
			for _, r := range status.Remembered {
				if r.Egress == "transit-b" && r.Verdict == "broken" {
					broken++
				}
			}
			log, err := os.ReadFile(filepath.Join("/run/tabane/lab", l.name, "server.edge.log"))
			if err != nil {
				t.Fatal(err)
			}
			logged := 0
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, "carries handshakes but no data") && strings.Contains(line, tt.cause) {
					logged++
				}
			}
			// One on each EPE address, and transit-a again in the next two connections.
			if joins := l.counter("server", "MPTcpExt:", "MPJoinAckRx"); broken != 1 || logged != 1 || joins != 4 {
				t.Errorf("remembered %d times, logged %d times, %d joins\n%s", broken, logged, joins, out)
			}
			t.Logf("longest pauses %v", gaps)
		})
	}
}
