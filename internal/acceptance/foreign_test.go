package acceptance

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/programs"
)

// birdTransit is transit-a of epe-steady as BIRD 2.
const birdTransit = `  transit-a:
    forwarding: true
    exec: bird -f -c bird.conf -s bird.ctl
    files:
      bird.conf: |
        router id 10.1.0.1;
        protocol device {}
        protocol kernel { ipv6 { import none; export all; }; }
        template bgp transit {
          local as 65001;
          connect retry time 1;
          ipv6 { import all; export all; };
        }
        protocol bgp asbr1 from transit { neighbor 2001:db8:a::1 as 65000; }
        protocol bgp isp from transit { neighbor 2001:db8:ca::2 as 65003; }
`

// TestBIRDTransit: content leaves over a transit that runs BIRD, which the lab starts and ends.
func TestBIRDTransit(t *testing.T) {
	programs.Need(t, "bird", "birdc")
	l := epe(t, `  transit-a:
    forwarding: true
    router:
      asn: 65001
      router_id: 10.1.0.1
      neighbors:
        - {name: asbr1, asn: 65000, address: "2001:db8:a::1", interface: csp}
        - {name: client-isp, asn: 65003, address: "2001:db8:ca::2", interface: link-a}
`, birdTransit)
	socket := "/run/tabane/lab/" + l.name + "/transit-a.files/bird.ctl"
	if out := l.must("transit-a", "birdc", "-s", socket, "show protocols"); strings.Count(out, "Established") != 2 {
		t.Errorf("BIRD's sessions: %s", out)
	}
	r := l.fetch("--mptcp", "--limit", "3s", "http://server/bytes/100000000")
	if !r.UsedMPTCP || r.Bytes == 0 {
		t.Errorf("report %+v", r)
	}
	if counters := l.must("transit-a", "cat", "/sys/class/net/link-a/statistics/tx_bytes"); len(strings.TrimSpace(counters)) < 7 {
		t.Errorf("BIRD's node forwarded %s bytes", counters)
	}
	if out := l.ip("asbr1", "route show table 101"); !strings.Contains(out, "2001:db8:c") {
		t.Errorf("asbr1 has no route of BIRD's: %s", out)
	}
}
