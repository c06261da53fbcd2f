package acceptance

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestBegin: with mode auto, short connections begin through the egress peer that is nearer by what
// the subflows of longer ones measured, and on the best path again when that peer has no route.
func TestBegin(t *testing.T) {
	t.Parallel()
	l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      delivery: {default: auto, explore: 0%}")
	l.must("client", program, "lab", "set", "--lab", l.name, "a", "delay=60ms")
	status := func(contains string) {
		t.Helper()
		l.eventually("the network is "+contains, 20*time.Second, l.contains(true, contains, "server", program, "status", "networks", "2001:db8:c::10", "--json"))
	}
	const size, objects = 50_000, 10
	// get gets objects on connections of their own, and tests whether they left through transit-b.
	get := func(through bool) {
		t.Helper()
		before := l.sentBy("transit-b")
		for range objects {
			l.must("client", program, "fetch", "--mptcp", "http://server/bytes/"+strconv.Itoa(size))
		}
		if got := l.sentBy("transit-b") - before; through && got < objects*size || !through && got > objects*size/10 {
			t.Errorf("%d bytes of %d through transit-b", got, objects*size)
		}
	}
	status(`"mode":"auto: multipath"`)
	get(false)
	l.eventually("connections begin through transit-b", 30*time.Second, func() (bool, string) {
		l.must("client", program, "fetch", "--mptcp", "http://server/bytes/4000000")
		out := l.must("server", program, "status", "networks", "2001:db8:c::10", "--json")
		return strings.Contains(out, `"through":["transit-b"]`), out
	})
	status(`"mode":"auto: multipath"`)
	status(`"state":"in use"`)
	get(true)
	l.ip("transit-b", "link set link-b down")
	status(`"through":["best path"]`)
	get(false)
}
