package acceptance

import (
	"bytes"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestDeliveryOfForwarded: what a container sends through the server, with its address translated,
// leaves by the mode of the network, and arrives as it does by the best path. So do packets that
// are longer than the MTU. What other programs' rules find in some bits of a mark changes nothing,
// and the server's own connections do not begin at an EPE address.
func TestDeliveryOfForwarded(t *testing.T) {
	programs.Need(t, "curl", "ping")
	nft := programs.Need(t, "nft")
	t.Parallel()
	for name, tt := range map[string]struct{ version, gateway, container, family, client, source, asbr1 string }{
		"ipv6": {"-6", "fd17::1/64 nodad", "fd17::2/64 nodad", "ip6", "2001:db8:c::10", "2001:db8:1::10", "2001:db8:1::1"},
		"ipv4": {"-4", "172.17.0.1/24", "172.17.0.2/24", "ip", "10.12.0.16", "10.1.0.16", "10.1.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			var l *lab
			if name == "ipv4" {
				l = ipv4(t)
			} else {
				l = epe(t)
			}
			at, _, _ := strings.Cut(tt.container, "/")
			router, _, _ := strings.Cut(tt.gateway, "/")
			container := netnstest.New(t)
			l.ip("server", "link add to-container type veth peer name eth0 netns "+container+"; link set to-container up; "+
				tt.version+" address add dev to-container "+tt.gateway)
			netnstest.IP(t, container, "link set eth0 up; "+tt.version+" address add dev eth0 "+tt.container+"; "+
				tt.version+" route add default via "+router)
			l.in(t, "server", func() error {
				for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
					if err := netns.Sysctl(key, "1"); err != nil {
						return err
					}
				}
				rules := "add table " + tt.family + " nat; add chain " + tt.family + " nat pre { type nat hook prerouting priority -100 ; }; " +
					"add rule " + tt.family + " nat pre iifname lan tcp dport 8080 dnat to " + at
				out, err := exec.CommandContext(t.Context(), nft, rules).CombinedOutput()
				if err != nil {
					t.Logf("nft: %s", out)
				}
				return err
			})
			content := bytes.Repeat([]byte{'x'}, 1_000_000)
			var listener net.Listener
			netnstest.Do(t, container, func() (err error) {
				listener, err = net.Listen("tcp", net.JoinHostPort(at, "8080"))
				return err
			})
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })}
			go func() { _ = server.Serve(listener) }()
			defer server.Close()
			l.ip("server", tt.version+" rule add pref 100 fwmark 0x1/0xff lookup 77; "+tt.version+" route add default via "+tt.asbr1+" table 77")

			for _, mode := range []any{
				"best", map[string]any{"single": "transit-b"}, map[string]any{"spread": map[string]int{"transit-a": 1, "transit-b": 1}},
				map[string]any{"spray": []string{"transit-b", "transit-a"}},
			} {
				if mode != "best" { // as it is at the start
					l.edit("server", "edge", func(s section) { s["delivery"] = map[string]any{"default": mode} })
					l.reloaded("server", "edge", "delivery changed")
					l.eventually("a route of the mode", 5*time.Second, l.shows(true, "metric 4095", "server", tt.version+" route show"))
				}
				before := l.sentBy("transit-b")
				for _, port := range []string{":80/bytes/1000000", ":8080/"} {
					if out, err := l.try("client", "curl", "-sSfm", "10", "-o", "/dev/null", "http://server"+port); err != nil {
						t.Errorf("%v: http://server%s: %v %s", mode, port, err, out)
					}
				}
				named, _ := mode.(map[string]any)
				if named["single"] != nil && l.sentBy("transit-b")-before < 2*len(content) {
					t.Errorf("%v: through transit-b: %d bytes", mode, l.sentBy("transit-b")-before)
				}
				if out, err := l.try("client", "ping", "-c", "2", "-W", "2", "-s", "3000", "server"); err != nil {
					t.Errorf("%v: long packets: %v %s", mode, err, out)
				}
				if got := l.ip("server", "route get "+tt.client); !strings.Contains(got, "src "+tt.source+" ") {
					t.Errorf("%v: connections begin at another address: %s", mode, got)
				}
			}
		})
	}
}
