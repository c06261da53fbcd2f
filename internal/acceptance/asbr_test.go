package acceptance

import (
	"testing"
	"time"
)

// watched are the pieces of the scenario that put BFD on the sessions between the ASBRs and the reflector, and on that
// with transit-a.
var watched = []string{
	`{name: asbr1, address: "2001:db8:1::1"}`, `{name: asbr1, address: "2001:db8:1::1", bfd: {interval: 50ms, multiplier: 4}}`,
	"        - address: 2001:db8:1::fe\n      peers:\n        - name: transit-a\n",
	"        - address: 2001:db8:1::fe\n          bfd: {interval: 50ms}\n      peers:\n        - name: transit-a\n          bfd: {interval: 50ms, multiplier: 4}\n",
	`{name: asbr1, asn: 65000, address: "2001:db8:a::1", interface: csp}`,
	`{name: asbr1, asn: 65000, address: "2001:db8:a::1", interface: csp, bfd: {interval: 50ms, multiplier: 4}}`,
}

// TestAnASBRThatDiesSilentlyIsFound cuts an ASBR off without a word to anybody: its own end of the segment goes, the
// reflector's stays up. The hold time is 9 s: only BFD can be as fast as this.
func TestAnASBRThatDiesSilentlyIsFound(t *testing.T) {
	l := epe(t, watched...)
	watching := func(node, role, neighbor string) func() (bool, string) {
		return l.contains(true, `"neighbor":"`+neighbor+`","up":true,"bfd":"up"`, node, program, "status", "--json", role)
	}
	l.eventually("the reflector watches asbr1", 10*time.Second, watching("reflector", "reflector", "asbr1"))
	l.eventually("transit-a watches asbr1", 10*time.Second, watching("transit-a", "router", "asbr1"))
	l.must("asbr1", "ip", "link", "set", "lan", "down")
	l.eventually("the server's EPE Route goes", 4*time.Second,
		l.contains(false, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
	l.eventually("the SID's nexthop object goes", 4*time.Second, l.contains(false, "fc00:1:1::", "server", "ip", "nexthop"))
	l.eventually("the best path moves to transit-b", 4*time.Second,
		l.contains(true, "2001:db8:c::/64 via 2001:db8:1::2", "server", "ip", "-6", "route"))
	l.eventually("the reflector says why", 4*time.Second,
		l.contains(true, "within the time of BFD", "reflector", program, "status", "--json", "reflector"))
	l.must("asbr1", "ip", "link", "set", "lan", "up")
	l.eventually("the EPE Route is back", 20*time.Second,
		l.contains(true, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
	l.eventually("the reflector watches asbr1 again", 10*time.Second, watching("reflector", "reflector", "asbr1"))
}

// TestATransitThatLosesEveryPacketIsFound: the link stays up, nothing comes over it any more.
func TestATransitThatLosesEveryPacketIsFound(t *testing.T) {
	l := epe(t, watched...)
	l.eventually("asbr1 watches transit-a", 10*time.Second,
		l.contains(true, `"neighbor":"transit-a","up":true,"bfd":"up"`, "asbr1", program, "status", "--json", "asbr"))
	// A neighbour that is not who it was: frames to it are dropped by its NIC.
	l.must("asbr1", "ip", "-6", "neigh", "replace", "2001:db8:a::2", "lladdr", "02:00:00:00:00:01", "dev", "wan", "nud", "permanent")
	l.must("transit-a", "ip", "-6", "neigh", "replace", "2001:db8:a::1", "lladdr", "02:00:00:00:00:02", "dev", "csp", "nud", "permanent")
	l.eventually("the SID goes", 4*time.Second, l.contains(false, "fc00:1:1::", "asbr1", "ip", "-6", "route"))
	l.eventually("the server's EPE Route goes", 4*time.Second,
		l.contains(false, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
	l.must("asbr1", "ip", "-6", "neigh", "del", "2001:db8:a::2", "dev", "wan")
	l.must("transit-a", "ip", "-6", "neigh", "del", "2001:db8:a::1", "dev", "csp")
	l.eventually("the EPE Route is back", 20*time.Second,
		l.contains(true, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
}
