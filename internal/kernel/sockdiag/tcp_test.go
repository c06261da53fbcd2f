package sockdiag

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func TestReplaceRoute(t *testing.T) {
	ns := netnstest.Enter(t)
	for _, command := range []string{
		"link add eth0 type veth peer name eth1", "link set eth0 up", "link set eth1 up", "address add 2001:db8::1/64 dev eth0 nodad",
	} {
		if _, err := netnstest.TryIP(t, ns, command); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		dst, via string
		metrics  RouteMetrics
		want     string
	}{
		{dst: "2001:db8:1::/48", via: "2001:db8::2", want: "2001:db8:1::/48 via 2001:db8::2 dev eth0 metric 1024 pref medium"},
		{
			dst: "2001:db8:1::/48", via: "2001:db8::2", metrics: RouteMetrics{Cwnd: 20, InitCwnd: 10, AdvMSS: 1220, Window: 65535, QuickACK: true},
			want: "2001:db8:1::/48 via 2001:db8::2 dev eth0 metric 1024 window 65535 rtt lock 0ms rttvar lock 0ms ssthresh lock 0 cwnd lock 20 advmss 1220 " +
				"reordering lock 0 initcwnd 10 quickack 1 pref medium",
		},
		{dst: "::/0", via: "2001:db8::3", metrics: RouteMetrics{InitCwnd: 3}, want: "default via 2001:db8::3 dev eth0 metric 1024 initcwnd 3 pref medium"},
	} {
		if err := ReplaceRoute(netip.MustParsePrefix(test.dst), netip.MustParseAddr(test.via), test.metrics); err != nil {
			t.Fatal(err)
		}
		shown, err := netnstest.TryIP(t, ns, "-6 route show")
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(shown, test.want+"\n"); n != 1 {
			t.Errorf("%+v: %q is there %d times in\n%s", test.metrics, test.want, n, shown)
		}
	}
	if err := ReplaceRoute(netip.MustParsePrefix("2001:db8:2::/48"), netip.MustParseAddr("2001:db8:ff::1"), RouteMetrics{}); err == nil {
		t.Error("a route by a gateway that cannot be reached is installed")
	} else if want := "replace route \"2001:db8:2::/48\" via 2001:db8:ff::1: "; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %q, want %q", err, want)
	}
}
