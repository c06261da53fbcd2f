package netnstest

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func TestArguments(t *testing.T) {
	for command, want := range map[string]string{
		"": "", "ip link set lo up": "link set lo up", "addr": "-oneline addr", "address show dev lan": "-oneline address show dev lan",
		"-4 route": "-4 route", "route": "-6 route", "rule del pref 7": "-6 rule del pref 7", "route get 192.0.2.1": "route get 192.0.2.1",
		"route add default via 2001:db8::1":                               "-6 route add default via 2001:db8::1",
		"route add fc00::/64 encap seg6local action End.DX4 nh4 10.0.0.1": "-6 route add fc00::/64 encap seg6local action End.DX4 nh4 10.0.0.1",
		"route add 10.0.0.0/8 encap seg6 mode encap segs fc00::1":         "route add 10.0.0.0/8 encap seg6 mode encap segs fc00::1",
		"nexthop": "nexthop", "nexthop add id 7 dev a0": "-6 nexthop add id 7 dev a0", "addr add 10.0.0.1/8 dev lo": "addr add 10.0.0.1/8 dev lo",
	} {
		if got := strings.Join(arguments(command), " "); got != want {
			t.Errorf("%q is %q, want %q", command, got, want)
		}
	}
}

// TestIP makes an object of each kind that tests make, and looks at it.
func TestIP(t *testing.T) {
	ns := New(t)
	IP(t, ns, `link set lo up; link add a0 type veth peer name a1
		ip link set a0 up; link set a1 mtu 1600 up
		addr add 2001:db8:1::1/64 dev a0 nodad; addr add 192.0.2.1/24 dev a0
		neighbor add 2001:db8:1::2 lladdr 02:00:00:00:00:02 dev a0 nud permanent
		nexthop add id 7 encap seg6 mode encap.red segs fc00:1:1:: dev a0 protocol 117
		route add 2001:db8:c::/64 table 101 nhid 7 proto 117
		route add fc00:1:4:: encap seg6local action End.DX4 nh4 192.0.2.2 dev a0
		-4 route add 198.51.100.0/24 via inet6 2001:db8:1::2 dev a0
		rule add from 2001:db8:1::1 lookup 101 pref 1000 protocol 117; -4 rule add unreachable pref 33000`)
	for command, want := range map[string]string{
		"addr show dev a0":     "a0 inet6 2001:db8:1::1/64 scope global nodad",
		"addr":                 "inet 192.0.2.1/24",
		"link":                 "mtu 1600",
		"neigh":                "2001:db8:1::2 dev a0 lladdr 02:00:00:00:00:02 PERMANENT",
		"nexthop":              "id 7 encap seg6 mode encap.red segs 1 [ fc00:1:1:: ] dev a0 scope link proto 117\n",
		"route show table 101": "2001:db8:c::/64 nhid 7 encap seg6 mode encap.red segs 1 [ fc00:1:1:: ] dev a0 proto 117",
		"route":                "fc00:1:4:: encap seg6local action End.DX4 nh4 192.0.2.2 dev a0",
		"-4 route":             "198.51.100.0/24 via inet6 2001:db8:1::2 dev a0\n",
		"rule":                 "1000:\tfrom 2001:db8:1::1 lookup 101 proto 117\n",
		"-4 rule":              "33000:\tfrom all unreachable\n",
		"route get 192.0.2.9":  "192.0.2.9 dev a0 src 192.0.2.1",
		"route get 2001:db8:c::1 from 2001:db8:1::1": "2001:db8:c::1 from 2001:db8:1::1 encap seg6",
	} {
		if out := IP(t, ns, command); !strings.Contains(out, want) {
			t.Errorf("%s: %q is missing in\n%s", command, want, out)
		}
	}
	if out, err := TryIP(t, ns, "route show table 99"); out != "" || err != nil {
		t.Errorf("a table without routes: %q, %v", out, err)
	}
	out, err := TryIP(t, ns, "route show table 101; route get 203.0.113.1; link del a0")
	if err == nil || !strings.HasPrefix(err.Error(), "route get 203.0.113.1: ") || !strings.Contains(err.Error(), "unreachable") || !strings.Contains(out, "nhid 7") {
		t.Errorf("what fails: %q, %v", out, err)
	}
	if out := IP(t, ns, "link"); !strings.Contains(out, "a0") {
		t.Errorf("the command behind the one that failed was run:\n%s", out)
	}
}

func TestMonitor(t *testing.T) {
	ns := New(t)
	IP(t, ns, "link set lo up; route add blackhole 2001:db8:c::/64 proto 117; nexthop add id 9 blackhole protocol 117")
	end := Monitor(t, ns)
	IP(t, ns, "route del blackhole 2001:db8:c::/64; nexthop del id 9; rule add from 2001:db8:1::b lookup 102 pref 1002")
	text := end()
	for _, want := range []string{"Deleted blackhole 2001:db8:c::/64 dev lo proto 117", "Deleted id 9 blackhole", "1002:\tfrom 2001:db8:1::b lookup 102"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "id 9 blackhole proto 117\nblackhole") {
		t.Errorf("what was there before is shown:\n%s", text)
	}
}

// TestSockets looks at listeners and at both ends of connections.
func TestSockets(t *testing.T) {
	ns := New(t)
	IP(t, ns, "link set lo up")
	for _, tt := range []struct{ listen, dial, listening, local string }{
		{"[::1]:80", "[::1]:80", "[::1]:80", "[::1]:80"},
		{"127.0.0.1:81", "127.0.0.1:81", "127.0.0.1:81", "127.0.0.1:81"},
		{":82", "127.0.0.1:82", "[::]:82", "[::ffff:127.0.0.1]:82"},
	} {
		var l net.Listener
		var c net.Conn
		Do(t, ns, func() (err error) {
			if l, err = net.Listen("tcp", tt.listen); err == nil {
				c, err = net.DialTimeout("tcp", tt.dial, 5*time.Second)
			}
			return err
		})
		defer l.Close()
		defer c.Close()
		find := func(state, local string) []Socket {
			t.Helper()
			all, err := Sockets(t, ns, state)
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(all, func(s Socket) bool { return s.Local != netip.MustParseAddrPort(local) })
		}
		if s := find(Listening, tt.listening); len(s) != 1 {
			t.Errorf("%s: listening: %+v", tt.listen, s)
		}
		s := find(Established, tt.local)
		if len(s) != 1 || s[0].PathMTU < 1280 || s[0].Remote.Port() != netip.MustParseAddrPort(c.LocalAddr().String()).Port() {
			t.Errorf("%s: established: %+v", tt.listen, s)
		}
	}
}

func TestEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"[fe80::1%lan]:179": "[fe80::1]:179", "[fe80::1]%lan:179": "[fe80::1]:179", "192.0.2.1%eth0:80": "192.0.2.1:80", "*:80": "[::]:80", "[::]:*": "[::]:0",
	} {
		if got := endpoint(text); got.String() != want {
			t.Errorf("%q is %v, want %s", text, got, want)
		}
	}
}
