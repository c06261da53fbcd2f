package iproute_test

import (
	"bytes"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/iproute"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
	"github.com/tabane/tabane/internal/programs"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// setup makes every kind of object that tests make.
const setup = `link add a0 address 02:00:00:00:00:01 type veth peer name a1 address 02:00:00:00:00:02
link set lo up; link set a0 up; link set a1 mtu 1600 up
address add 2001:db8:1::1/64 dev a0 nodad
address add 2001:db8:1::a/128 dev a0 nodad preferred_lft 0 valid_lft 4294967295
address add 192.0.2.1/32 dev a0
neighbor add 2001:db8:1::2 lladdr 02:00:00:00:00:02 dev a0 nud permanent
nexthop add id 7 encap seg6 mode encap.red segs fc00:1:1:: dev a0 protocol 117
nexthop add id 8 encap seg6 mode encap segs fc00:1:2::,fc00:1:3:: dev a0
nexthop add id 9 via 2001:db8:1::2 dev a0 protocol 117
route add 2001:db8:c::/64 via 2001:db8:1::2 dev a0 mtu 1400 initcwnd 20
route add 2001:db8:c::/64 table 101 nhid 7 proto 117
route add 2001:db8:d::/64 encap seg6 mode inline segs fc00:1:1:: dev a0 table 101
route add 2001:db8:e::/64 encap seg6 mode encap segs fc00:1:2::,fc00:1:3:: dev a0 metric 20 proto bird
route add unreachable default table 101 metric 4294967295 proto 117
route add blackhole 2001:db8:f::/64
route add fc00:1:1:: encap seg6local action End.DT6 table 101 dev a0
route add fc00:1:2:: table 102 encap seg6local action End.DX6 nh6 2001:db8:1::2 dev a0
route add fc00:1:4:: encap seg6local action End.DX4 nh4 192.0.2.2 dev a0
route add fc00:1:5:: encap seg6local action End dev a0
route append 2001:db8:10::/64 via fe80::1 dev a0 proto 118
route append 2001:db8:10::/64 via fe80::2 dev a1 proto 118
route add 198.51.100.0/24 dev a0 src 192.0.2.1 encap seg6 mode encap segs fc00:1:4::
rule add from 2001:db8:1::a lookup 101 pref 1000 protocol 117
rule add pref 1001 from 2001:db8::/32 fwmark 1 table 102`

// shows are commands that show something, and a line of what they show.
var shows = map[string]string{
	"route show table 101":                       "2001:db8:c::/64 nhid 7 encap seg6 mode encap.red segs 1 [ fc00:1:1:: ] dev a0 proto 117 metric 1024",
	"route show table all":                       "fc00:1:2:: encap seg6local action End.DX6 nh6 2001:db8:1::2 dev a0 table 102 metric 1024",
	"route show table all proto 117":             "unreachable default dev lo table 101 metric 4294967295",
	"route show":                                 "2001:db8:e::/64 encap seg6 mode encap segs 2 [ fc00:1:2:: fc00:1:3:: ] dev a0 proto bird metric 20",
	"route show 2001:db8:c::/64":                 "2001:db8:c::/64 via 2001:db8:1::2 dev a0 metric 1024 mtu 1400 initcwnd 20",
	"route show proto 118":                       "nexthop via fe80::2 dev a1 weight 1",
	"route get 2001:db8:c::5":                    "2001:db8:c::5 from :: via 2001:db8:1::2 dev a0 src 2001:db8:1::1 metric 1024 mtu 1400 initcwnd 20",
	"route get 2001:db8:c::5 from 2001:db8:1::1": "2001:db8:c::5 from 2001:db8:1::1 via 2001:db8:1::2 dev a0 src 2001:db8:1::1 metric 1024 mtu 1400 initcwnd 20",
	"nexthop": "id 8 encap seg6 mode encap segs 2 [ fc00:1:2:: fc00:1:3:: ] dev a0",
	"rule":    "1001: from 2001:db8::/32 fwmark 0x1 lookup 102",
}

// plain is text with single spaces, without what the program says of a route's preference, of a
// nexthop's scope, or, in some versions, of a rule's owner.
func plain(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = " " + strings.Join(strings.Fields(line), " ") + " "
		line = strings.ReplaceAll(line, " scope link ", " ")
		line = strings.ReplaceAll(line, " pref medium ", " ")
		if strings.Contains(line, ": from") {
			line, _, _ = strings.Cut(line, " proto ")
		}
		out.WriteString(strings.TrimSpace(line) + "\n")
	}
	return out.String()
}

func network(t *testing.T) string {
	t.Helper()
	ns := netnstest.New(t)
	if _, err := iproute.In(ns, setup); err != nil {
		t.Fatal(err)
	}
	return ns
}

func TestShow(t *testing.T) {
	ns := network(t)
	for command, want := range shows {
		out, err := iproute.In(ns, command)
		if err != nil || !strings.Contains(plain(out), want) {
			t.Errorf("%s: %v, %s, want %q", command, err, out, want)
		}
	}
}

// TestIproute2 compares everything that is shown with what the program says.
func TestIproute2(t *testing.T) {
	ip := programs.Need(t, "ip")
	ns := network(t)
	program := func(command string) string {
		var out bytes.Buffer
		cmd := exec.Command(ip, append([]string{"-6"}, strings.Fields(command)...)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := netns.Start(ns, cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, &out)
		}
		return plain(out.String())
	}
	for command := range shows {
		// The kernel adds routes of its own in the background, soon after a link is up.
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			want := program(command)
			got, err := iproute.In(ns, command)
			if err != nil {
				t.Fatal(err)
			}
			if plain(got) == want {
				break
			}
			if time.Now().After(end) {
				t.Errorf("%s:\n%s\nwant:\n%s", command, plain(got), want)
				break
			}
		}
	}
}

func TestChangesAreUndone(t *testing.T) {
	ns := network(t)
	for _, tt := range []struct{ show, trace, undo string }{
		{"route show 2001:db8:f::/64", "blackhole", "route del blackhole 2001:db8:f::/64"},
		{"route show table 101", "2001:db8:c::/64", "route del 2001:db8:c::/64 table 101"},
		{"rule", "1000:", "rule del pref 1000"},
		{"nexthop", "id 8 ", "nexthop del id 8"},
		{"addr show dev a0 scope global", "2001:db8:1::a/128", "addr del 2001:db8:1::a/128 dev a0"},
		{"link show", "a1:", "ip link del a1"},
	} {
		before, err := iproute.In(ns, tt.show)
		if err != nil || !strings.Contains(before, tt.trace) {
			t.Fatalf("%s before: %q, %v", tt.show, before, err)
		}
		if _, err := iproute.In(ns, tt.undo); err != nil {
			t.Fatal(err)
		}
		if after, err := iproute.In(ns, tt.show); err != nil || strings.Contains(after, tt.trace) {
			t.Errorf("after %s: %q, %v", tt.undo, after, err)
		}
	}
}

func TestMonitor(t *testing.T) {
	ns := network(t)
	end, err := iproute.Monitor(ns)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := iproute.In(ns, "route del 2001:db8:c::/64 table 101; nexthop del id 9; rule add from 2001:db8:1::b lookup 102 pref 1002"); err != nil {
		t.Fatal(err)
	}
	text, err := end()
	for _, want := range []string{"Deleted 2001:db8:c::/64 nhid 7", "Deleted id 9 via 2001:db8:1::2", "1002:\tfrom 2001:db8:1::b lookup 102"} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v, %q is missing in:\n%s", err, want, text)
		}
	}
}

// TestSockets looks at a listener and at both ends of a connection.
func TestSockets(t *testing.T) {
	ns := network(t)
	var l net.Listener
	var c net.Conn
	if err := netns.Do(ns, func() (err error) {
		if l, err = net.Listen("tcp", "[::1]:80"); err == nil {
			c, err = net.Dial("tcp", "[::1]:80")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer c.Close()
	if s, err := iproute.Sockets(ns, iproute.Listening); err != nil || len(s) != 1 || s[0].Local.String() != "[::1]:80" {
		t.Errorf("listening: %+v, %v", s, err)
	}
	s, err := iproute.Sockets(ns, iproute.Established)
	if err != nil || len(s) != 2 || s[0].Local != s[1].Remote || s[0].PathMTU < 1280 {
		t.Errorf("established: %+v, %v", s, err)
	}
}

func TestRefused(t *testing.T) {
	ns := network(t)
	for command, want := range map[string]string{
		"tunnel add": `"tunnel add" is not a command`, "route show proto": "needs a value", "route show tab 3": "no address",
		"route show table x": `table "x"`, "route add 2001:db8:9::/64 dev a0 encap mpls 3": `encap "mpls"`, "link set a0 sideways": "not understood",
		"rule add from 2001:db8::1 prio 3": "not understood", "route get 2001:db8:ffff::1": "unreachable",
	} {
		if out, err := iproute.In(ns, command); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %q", command, out, err, want)
		}
	}
}
