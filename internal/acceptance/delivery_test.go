package acceptance

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// sentBy returns the bytes that a transit sent to the client's provider.
func (l *lab) sentBy(transit string) int {
	l.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(l.must(transit, "cat", "/sys/class/net/link-"+transit[len(transit)-1:]+"/statistics/tx_bytes")))
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// download begins to get a number of bytes that takes longer than the test. stop ends it, which
// must be under way until then.
func (l *lab) download(size int) (stop func()) {
	l.t.Helper()
	cmd := l.command("client", "curl", "-sS", "-o", "/dev/null", "http://server/bytes/"+strconv.Itoa(size))
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() {
		l.t.Helper()
		select {
		case err := <-ended:
			l.t.Errorf("the download ended: %v", err)
		default:
			if err := cmd.Process.Kill(); err != nil {
				l.t.Error(err)
			}
			<-ended
		}
	}
}

// TestDeliveryMoves: a download that is under way moves to another egress peer with a reload, and
// goes on there. After a clean stop, packets follow the best path again, and flows are hashed as
// before.
func TestDeliveryMoves(t *testing.T) {
	programs.Need(t, "curl")
	t.Parallel()
	l := epe(t)
	deliver := func(mode any) {
		t.Helper()
		l.edit("server", "edge", func(s section) { s["delivery"] = map[string]any{"default": mode} })
		l.reloaded("server", "edge", "delivery changed")
	}
	const size = 10_000_000_000 // more than it can get in the time of all conditions; it is stopped
	const part = 2_000_000
	stop := l.download(size)
	l.eventually("the download is under way", 10*time.Second, func() (bool, string) { return l.sentBy("transit-a") > part, "" })
	deliver(map[string]any{"single": "transit-b"})
	before := l.sentBy("transit-b")
	l.eventually("it has moved to transit-b", 5*time.Second, func() (bool, string) { return l.sentBy("transit-b")-before > part, "" })
	deliver("best")
	before = l.sentBy("transit-a")
	l.eventually("it has moved back to transit-a", 5*time.Second, func() (bool, string) { return l.sentBy("transit-a")-before > part, "" })
	stop()
	deliver(map[string]any{"spread": map[string]int{"transit-a": 1, "transit-b": 1}})
	l.end("server", "edge", syscall.SIGTERM)
	for _, version := range []string{"4", "6"} {
		if got := strings.TrimSpace(l.must("server", "cat", "/proc/sys/net/ipv"+version+"/fib_multipath_hash_policy")); got != "0" {
			t.Errorf("the hash policy of IPv%s is %s after a clean stop", version, got)
		}
	}
	if left := l.ip("server", "nexthop; route show table main proto 117"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestDelivery: an ordinary client's downloads leave through the egress peers of its network's
// mode, and only while they have a route to it, over a reload, a kill, a withdrawal and a clean
// stop.
func TestDelivery(t *testing.T) {
	programs.Need(t, "curl")
	t.Parallel()
	l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      delivery: {networks: [{prefix: \"2001:db8:c::/48\", mode: {single: transit-b}}]}")
	const size = 500_000
	// download gets a number of objects, each with a connection of its own, and returns how many
	// bytes left through each transit.
	download := func(n int) (a, b int) {
		t.Helper()
		a, b = l.sentBy("transit-a"), l.sentBy("transit-b")
		get := "for i in $(seq " + strconv.Itoa(n) + "); do curl -sS -o /dev/null -w '%{size_download}\\n' http://server/bytes/" + strconv.Itoa(size) + " || exit 1; done"
		if out := l.must("client", "sh", "-c", get); strings.Count(out, strconv.Itoa(size)) != n {
			t.Errorf("curl: %s", out)
		}
		return l.sentBy("transit-a") - a, l.sentBy("transit-b") - b
	}
	delivered := func(state string) {
		t.Helper()
		l.eventually("the network is "+state, 5*time.Second, l.contains(true, state, "server", program, "status", "networks", "2001:db8:c::10"))
	}
	delivered("in use")
	l.ip("server", "-6 rule add pref 600 not fwmark 0xca6c lookup 777")
	l.ip("server", "-6 route add default via 2001:db8:1::1 table 777")
	delivered("overridden: packets to 2001:db8:c::1 follow the route ::/0 of another program in table 777")
	l.ip("server", "-6 rule del pref 600")
	l.ip("server", "-6 route add 2001:db8:c::/64 via 2001:db8:1::1 dev lan metric 10")
	delivered("overridden: packets to 2001:db8:c::1 follow the route 2001:db8:c::/64 of another program in table 254")
	l.ip("server", "-6 route del 2001:db8:c::/64 metric 10")
	delivered("in use")
	if a, b := download(2); b < 2*size || a > size/10 {
		t.Errorf("single transit-b: %d bytes through transit-a and %d through transit-b", a, b)
	}

	deliver := func(network map[string]any) {
		l.edit("server", "edge", func(s section) {
			s["delivery"] = map[string]any{"networks": []map[string]any{network}}
		})
		l.reloaded("server", "edge", "delivery changed")
	}
	deliver(map[string]any{"asn": 65003, "mode": map[string]any{"spread": map[string]int{"transit-a": 50, "transit-b": 50}}})
	l.eventually("flows are spread", 5*time.Second, l.contains(true, "transit-a 50 %, transit-b 50 %", "server", program, "status", "networks"))
	l.eventually("the route is that of a group", 5*time.Second, l.shows(true, "metric 4095", "server", "route show 2001:db8:c::/64"))
	// Of 40 flows, all take the same of two ways once in 2^39 runs.
	if a, b := download(40); a < size || b < size {
		t.Errorf("spread: %d bytes through transit-a and %d through transit-b", a, b)
	}

	const policy = "/proc/sys/net/ipv6/fib_multipath_hash_policy"
	if got := strings.TrimSpace(l.must("server", "cat", policy)); got != "1" {
		t.Errorf("the hash policy is %s while flows are spread", got)
	}

	const state = "nexthop; route show table main proto 117"
	before := l.ip("server", state)
	l.end("server", "edge", syscall.SIGKILL)
	if a, b := download(40); a < size || b < size {
		t.Errorf("without a daemon: %d bytes through transit-a and %d through transit-b", a, b)
	}
	edge := l.start("server", "edge")
	l.eventually("the next instance spreads flows", 10*time.Second, l.contains(true, "in use", "server", program, "status", "networks"))
	if after := l.ip("server", state); after != before {
		t.Errorf("the next instance changed\n%sto\n%s", before, after)
	}

	// A download is under way over each transit when one withdraws.
	slow := l.command("client", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do curl -sS -o /dev/null -w '%{size_download} ' http://server/bytes/3000000 & done; wait")
	out := &strings.Builder{}
	slow.Stdout = out
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	l.ip("transit-b", "link set link-b down")
	l.eventually("transit-b is no longer used", 5*time.Second, l.contains(true, "no route of transit-b", "server", program, "status", "networks"))
	if err := slow.Wait(); err != nil || strings.Count(out.String(), "3000000") != 8 {
		t.Errorf("downloads while a peer withdraws: %s, %v", out, err)
	}
	if groups := l.ip("server", "nexthop"); strings.Contains(groups, "group") {
		t.Errorf("a group is left:\n%s", groups)
	}
	l.ip("transit-b", "link set link-b up")
	l.eventually("transit-b is used again", 20*time.Second, l.contains(true, "transit-a 50 %, transit-b 50 %", "server", program, "status", "networks"))

	if err := edge.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := edge.Wait(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if left := l.ip("server", state); strings.Contains(left, "metric 4095") || strings.Contains(left, "id ") {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestSpray: the packets of one download of an ordinary client leave through two egress peers, a
// download is complete after a kill, while the next instance takes over and while the first peer
// withdraws, and nothing is left behind at a clean stop.
func TestSpray(t *testing.T) {
	programs.Need(t, "curl")
	t.Parallel()
	const a, b = "  a:\n    rate: 30Mbit/s\n", "  b:\n    rate: 30Mbit/s\n"
	l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      delivery: {networks: [{prefix: \"2001:db8:c::/48\", mode: {spray: [transit-a, transit-b]}}]}",
		a, a+"    delay: 5ms\n", b, b+"    delay: 5ms\n") // TCP takes packets to be lost that are late by a quarter of its shortest round trip
	download := func(size int) {
		t.Helper()
		if out := l.must("client", "curl", "-sS", "-o", "/dev/null", "-w", "%{size_download}", "http://server/bytes/"+strconv.Itoa(size)); out != strconv.Itoa(size) {
			t.Errorf("curl got %s of %d bytes", out, size)
		}
	}
	status := func(contains string) {
		t.Helper()
		l.eventually("the network is "+contains, 20*time.Second, l.contains(true, contains, "server", program, "status", "networks", "2001:db8:c::10"))
	}
	status("transit-a, transit-b")
	status("in use")
	const size = 6_000_000
	// A path that had packets retransmitted is left for some time.
	l.eventually("one download leaves through both", 2*time.Minute, func() (bool, string) {
		a, b := l.sentBy("transit-a"), l.sentBy("transit-b")
		download(size)
		a, b = l.sentBy("transit-a")-a, l.sentBy("transit-b")-b
		return min(a, b) > size/4, fmt.Sprintf("%d bytes left through transit-a, %d through transit-b", a, b)
	})
	// sent is what left through both: which of them is the first one is known of by then.
	sent := func() int { return l.sentBy("transit-a") + l.sentBy("transit-b") }

	// route is that of the network, with its program.
	route := func() string { return strings.TrimSpace(l.ip("server", "route show 2001:db8:c::/64 metric 4095")) }
	before := route()
	if !strings.Contains(before, "encap bpf xmit tabane-program-") {
		t.Errorf("the route is %q", before)
	}
	l.end("server", "edge", syscall.SIGKILL)
	download(size / 6)
	edge := l.start("server", "edge")
	l.eventually("the next instance has a program of its own", 20*time.Second, func() (bool, string) { return route() != before && route() != "", route() })
	status("in use")
	download(size / 6)

	slow := l.command("client", "curl", "-sS", "-o", "/dev/null", "-w", "%{size_download}", "http://server/bytes/"+strconv.Itoa(4*size))
	out := &strings.Builder{}
	slow.Stdout = out
	begun := sent()
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	l.eventually("the download is under way", 10*time.Second, func() (bool, string) { return sent()-begun > size/4, "" })
	l.ip("transit-a", "link set link-a down")
	status("no route of transit-a")
	if err := slow.Wait(); err != nil || out.String() != strconv.Itoa(4*size) {
		t.Errorf("the download while a peer withdraws: %s, %v", out, err)
	}
	l.ip("transit-a", "link set link-a up")
	status("transit-a, transit-b")

	// After a reload to another mode nothing is left, and one back has it spray again. A download
	// that is under way goes on.
	stop := l.download(10_000_000_000)
	for _, mode := range []any{"best", map[string]any{"spray": []string{"transit-a", "transit-b"}}} {
		l.edit("server", "edge", func(s section) { s["delivery"] = map[string]any{"default": mode} })
		l.reloaded("server", "edge", "delivery changed")
		sprays := mode != "best"
		l.eventually("rules and the route are as the mode has them", 20*time.Second, func() (bool, string) {
			rules := l.ip("server", "rule show")
			return strings.Contains(rules, "fwmark") == sprays && strings.Contains(rules, "to fc00::/16") == sprays && strings.Contains(route(), "program") == sprays, rules + route()
		})
		before := sent()
		l.eventually("the download goes on", 20*time.Second, func() (bool, string) { return sent()-before > size/4, "" })
	}
	stop()
	if err := edge.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := edge.Wait(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if left := route() + l.ip("server", "rule show"); strings.Contains(left, "fwmark") || strings.Contains(left, "program") {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestAuto: an instance that is killed while it compares modes leaves nothing of the comparison to
// the next one. A network's downloads move to the egress peer that measured better, the next
// instance goes on with that mode after a clean stop and after a kill, and a running download
// leaves a path that carries nothing more, long before BGP notices.
func TestAuto(t *testing.T) {
	programs.Need(t, "curl")
	t.Parallel()
	const a, b = `        - {name: transit-a, rt: "65000:101", address: "2001:db8:1::a", table: 101}` + "\n", `        - {name: transit-b, rt: "65000:102", address: "2001:db8:1::b", table: 102}` + "\n"
	l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      delivery: {default: auto, explore: 50%}",
		a+b, b+a) // the first one is tried first
	l.set("a", "rate=6Mbit/s", "queue=100ms")
	status := func(within time.Duration, contains string) {
		t.Helper()
		l.eventually("the network is "+contains, within, l.contains(true, contains, "server", program, "status", "networks", "2001:db8:c::10", "--json"))
	}
	const size, endless = 2_000_000, 10_000_000_000
	// through gets an object, and tests which transit it left through.
	through := func(used, other string) {
		t.Helper()
		before, without := l.sentBy(used), l.sentBy(other)
		if out := l.must("client", "curl", "-sS", "-o", "/dev/null", "-w", "%{size_download}", "http://server/bytes/"+strconv.Itoa(size)); out != strconv.Itoa(size) {
			t.Errorf("curl got %s bytes", out)
		}
		if got, by := l.sentBy(used)-before, l.sentBy(other)-without; got < size || by > size/10 {
			t.Errorf("%d bytes through %s and %d through %s", got, used, by, other)
		}
	}
	status(20*time.Second, `"mode":"auto: `)
	stop := l.download(endless)
	status(30*time.Second, `"trying":"single transit-b"`)
	l.end("server", "edge", syscall.SIGKILL)
	edge := l.start("server", "edge")
	status(20*time.Second, `"mode":"auto: multipath"`) // as before the comparison
	sent := l.sentBy("transit-a")
	l.eventually("the download goes on through the best path", 20*time.Second, func() (bool, string) { return l.sentBy("transit-a")-sent > size/4, "" })
	stop() // one is measured once, when it has carried 1 MiB
	before := l.sentBy("transit-b")
	stop = l.download(endless)
	const chosen, why = `"mode":"auto: single"`, `"why":"measured +`
	status(30*time.Second, why)
	status(time.Second, chosen)
	status(time.Second, `"through":["transit-b"]`)
	l.eventually("the running download has moved", 10*time.Second, func() (bool, string) { return l.sentBy("transit-b")-before > size, "" })
	stop()
	l.edit("server", "edge", func(s section) { s["delivery"] = map[string]any{"default": "auto", "explore": "0%"} })
	l.reloaded("server", "edge", "delivery changed")
	through("transit-b", "transit-a")

	goesOn := func() {
		t.Helper()
		status(20*time.Second, why)
		status(20*time.Second, `"state":"in use"`)
		status(time.Second, chosen)
		through("transit-b", "transit-a")
	}
	if err := edge.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := edge.Wait(); err != nil {
		t.Errorf("stop: %v", err)
	}
	edge = l.start("server", "edge")
	goesOn()
	if err := edge.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = edge.Wait() // it was killed
	l.start("server", "edge")
	goesOn()

	stop = l.download(endless)
	before = l.sentBy("transit-b")
	l.eventually("a download is under way", 10*time.Second, func() (bool, string) { return l.sentBy("transit-b")-before > size, "" })
	before = l.sentBy("transit-a")
	l.set("b", "loss=100%")
	// BGP's sessions over the link end after their hold time of 90 s.
	const failed = `"why":"single transit-b made no progress"`
	status(10*time.Second, failed)
	l.eventually("the download goes on through transit-a", 10*time.Second, func() (bool, string) { return l.sentBy("transit-a")-before > size/4, "" })
	stop()

	// It is back after its rest, and fails while nothing is established.
	get := func() {
		if out := l.must("client", "curl", "-sS", "-m", "30", "-o", "/dev/null", "-w", "%{size_download}", "http://server/bytes/"+strconv.Itoa(size)); out != strconv.Itoa(size) {
			t.Errorf("curl got %s bytes", out)
		}
	}
	l.set("b", "loss=0%")
	l.eventually("the network is back", 30*time.Second, func() (bool, string) {
		get()
		return l.contains(true, `"through":["transit-b"]`, "server", program, "status", "networks", "2001:db8:c::10", "--json")()
	})
	l.set("b", "loss=100%")
	get()
	status(time.Second, failed)
}

// TestDeliveryLeavesDeadPaths: where the configuration names egress peers, connections that are
// requested while the path through one of them carries nothing are established through another one,
// long before BGP notices, and the path is used again after it was repaired.
func TestDeliveryLeavesDeadPaths(t *testing.T) {
	programs.Need(t, "curl")
	t.Parallel()
	l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      delivery: {default: {single: transit-b}}")
	const size, flows = 100_000, 12
	status := func(contains string) {
		t.Helper()
		l.eventually("the network is "+contains, 20*time.Second, l.contains(true, contains, "server", program, "status", "networks", "2001:db8:c::10", "--json"))
	}
	loss := func(share string) { l.set("b", "loss="+share) }
	download := func() {
		t.Helper()
		get := "for i in $(seq " + strconv.Itoa(flows) + "); do curl -sS -m 30 -o /dev/null -w '%{size_download}\\n' http://server/bytes/" + strconv.Itoa(size) + " & done; wait"
		if out := l.must("client", "sh", "-c", get); strings.Count(out, strconv.Itoa(size)) != flows {
			t.Errorf("curl: %s", out)
		}
	}
	const used, left = `"state":"in use"`, `"state":"no progress through transit-b"`
	status(used)
	loss("100%")
	download()
	status(left)
	loss("0%")
	status(used)

	l.edit("server", "edge", func(s section) {
		s["delivery"] = map[string]any{"default": map[string]any{"spread": map[string]int{"transit-a": 1, "transit-b": 1}}}
	})
	l.reloaded("server", "edge", "delivery changed")
	status(used)
	download()
	loss("100%")
	download() // of 12 flows, all leave through the first peer once in 4,096 runs
	status(left)
	status(`"through":["transit-a"]`)
	loss("0%")
	status(used)

	l.edit("server", "edge", func(s section) {
		s["delivery"] = map[string]any{"default": map[string]any{"spray": []string{"transit-b", "transit-a"}}}
	})
	l.reloaded("server", "edge", "delivery changed")
	status(used)
	download()
	loss("100%")
	download() // requests are answered through the first peer
	status(left)
	status(`"through":["transit-a"]`)
	loss("0%")
	status(used)
}
