package acceptance

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// framesLab is two sites with short packets of IPv4, over links of Ethernet with keys of their own.
func framesLab(t *testing.T, peer, link string) *lab {
	t.Helper()
	site := func(name, other string, n, m int) string {
		return fmt.Sprintf(`  %s:
    forwarding: true
    gateway:
      lan: {interfaces: [lan], prefixes: ["10.%d.0.0/24", "2001:db8:%d::/64"]}
      paths: [{name: path1, interface: path1}, {name: path2, interface: path2}]
      peers: [{name: %s, prefixes: ["10.%d.0.0/24", "2001:db8:%d::/64"], %s}]
      policy: [{discipline: {ratio: "1:1"}}]
`, name, n, n, other, m, m, peer)
	}
	lan := func(name, host, gateway string, n int) string {
		return fmt.Sprintf(`  %s:
    %s
    ends:
      - {node: %s, interface: lan, addresses: ["10.%d.0.1/24", "2001:db8:%d::1/64"]}
      - {node: %s, interface: lan, addresses: ["10.%d.0.254/24", "2001:db8:%d::fe/64"]}
`, name, link, host, n, n, gateway, n, n)
	}
	path := func(n int) string {
		return fmt.Sprintf(`  path%d:
    %s
    rate: 50Mbit/s
    ends:
      - {node: site1, interface: path%d, addresses: ["192.0.2.%d/25"]}
      - {node: site2, interface: path%d, addresses: ["192.0.2.%d/25"]}
`, n, link, n, n*128-127, n, n*128-126)
	}
	// Without time stamps an acknowledgment is shorter than the shortest frame.
	text := `name: frames
title: Two sites
sysctls: {net.ipv4.tcp_timestamps: "0"}
nodes:
  server:
    routes: [{dst: "10.2.0.0/24", via: "10.1.0.254"}, {dst: "2001:db8:2::/64", via: "2001:db8:1::fe"}]
    serve: {port: 80}
  client:
    routes: [{dst: "10.1.0.0/24", via: "10.2.0.254"}, {dst: "2001:db8:1::/64", via: "2001:db8:2::fe"}]
` + site("site1", "site2", 1, 2) + site("site2", "site1", 2, 1) + "links:\n" + lan("lan1", "server", "site1", 1) + lan("lan2", "client", "site2", 2) + path(1) + path(2)
	file := filepath.Join(t.TempDir(), "frames.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return up(t, file, "site1.gateway.log", "site2.gateway.log")
}

// TestShortFrames: over each plane, packets arrive that are shorter than the frames they are in, or
// have a trailer behind them, with offloads and without. What is in the frames besides is malformed
// to nobody.
func TestShortFrames(t *testing.T) {
	t.Parallel()
	programs.Need(t, "curl")
	for plane, peer := range map[string]string{"sealed": "mode: tunnel", "open": "seal: none", "plain": "mode: plain", "nat": "mode: nat"} {
		for wire, keys := range map[string]string{"offloads": "offloads: true", "none": "offloads: false", "tail": "{offloads: false, trailer: 4, tagged: true}"} {
			t.Run(plane+wire, func(t *testing.T) {
				t.Parallel()
				l := framesLab(t, peer, strings.ReplaceAll(strings.Trim(keys, "{}"), ", ", "\n    "))
				for _, node := range []string{"site1", "site2"} {
					l.eventually("the session is up", 20*time.Second, l.paths(node, "up", "up"))
				}
				for _, to := range []string{"10.1.0.1", "2001:db8:1::1"} {
					if e, err := netnstest.Echo(l.namespace("client"), netip.MustParseAddr(to), 20, 0); err != nil || e.Received != 20 {
						t.Errorf("%s: of 20 empty echoes %+v, %v", to, e, err)
					}
				}
				for _, host := range []string{"10.1.0.1", "[2001:db8:1::1]"} {
					if out := l.must("client", "curl", "--silent", "--show-error", "--max-time", "20", "--output", "/dev/null", "--write-out", "%{size_download}", "http://"+host+"/bytes/300000"); out != "300000" {
						t.Errorf("%s: a download of 300000 bytes has %q", host, out)
					}
				}
				for _, node := range []string{"site1", "site2"} {
					if _, text := l.gateway(node); strings.Contains(text, "malformed") {
						t.Errorf("%s has malformed packets:\n%s", node, text)
					}
				}
			})
		}
	}
}
