package acceptance

import (
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestSecondUplink: a server reaches its border routers over another interface than that of its
// addresses, with a smaller MTU, from a start on. Deliveries are in the kernel, and what is sent
// arrives, as by the best path.
func TestSecondUplink(t *testing.T) {
	programs.Need(t, "curl")
	t.Parallel()
	l := epe(t)
	l.ip("server", "link add second type veth peer name second netns "+l.namespace("sw-csp")+`
link set second up mtu 1400
address add 2001:db8:1::12/64 dev second nodad noprefixroute
-6 route add 2001:db8:1::1/128 dev second
-6 route add 2001:db8:1::2/128 dev second`)
	netnstest.IP(t, l.namespace("sw-csp"), "link set second master switch; link set second up")
	l.edit("server", "edge", func(s section) { s["delivery"] = map[string]any{"default": map[string]any{"single": "transit-b"}} })
	l.end("server", "edge", syscall.SIGTERM)
	l.start("server", "edge")
	for _, mode := range []map[string]any{
		{"single": "transit-b"}, {"spread": map[string]int{"transit-a": 1, "transit-b": 1}}, {"spray": []string{"transit-b", "transit-a"}},
	} {
		if mode["single"] == nil {
			l.edit("server", "edge", func(s section) { s["delivery"] = map[string]any{"default": mode} })
			l.reloaded("server", "edge", "delivery changed")
		}
		l.eventually("a route with the MTU of the uplink", 20*time.Second, l.shows(true, "metric 4095 mtu 1360", "server", "-6 route show 2001:db8:c::/64"))
		before := l.sentBy("transit-b")
		if out, err := l.try("client", "curl", "-sSfm", "10", "-o", "/dev/null", "http://server/bytes/1000000"); err != nil {
			t.Errorf("%v: %v %s", mode, err, out)
		}
		if mode["single"] != nil && l.sentBy("transit-b")-before < 1_000_000 {
			t.Errorf("%v: through transit-b: %d bytes", mode, l.sentBy("transit-b")-before)
		}
	}
}
