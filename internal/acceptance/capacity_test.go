package acceptance

import (
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestCapacity: a download leaves an egress link that it fills to 90 % of its capacity, and what
// little there is afterwards returns to it. A link whose border router is gone has no load.
func TestCapacity(t *testing.T) {
	programs.Need(t, "curl")
	t.Parallel()
	l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      delivery: {default: auto, explore: 0%}",
		"local_pref: 200 # BGP's best path is Transit A", "local_pref: 200\n          capacity: 8Mbit/s")
	status := func(what, contains string, within time.Duration, command ...string) {
		t.Helper()
		l.eventually(what, within, l.contains(true, contains, "server", append([]string{program, "status"}, command...)...))
	}
	status("the link to transit-a reports its load", `"capacity_bps":8000000`, 20*time.Second, "edge", "--json")
	before := l.sentBy("transit-b")
	stop := l.download(10_000_000_000) // 30 Mbit/s
	status("the download has left the link", `avoids the link to transit-a at 2001:db8:1::1`, 20*time.Second, "networks", "2001:db8:c::10", "--json")
	l.eventually("it goes on through transit-b", 10*time.Second, func() (bool, string) { return l.sentBy("transit-b")-before > 2_000_000, "" })
	stop()
	before = l.sentBy("transit-a")
	slow := l.command("client", "curl", "-sS", "-o", "/dev/null", "--limit-rate", "200k", "http://server/bytes/10000000000")
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	l.eventually("what is left returns to transit-a", 40*time.Second, func() (bool, string) { return l.sentBy("transit-a")-before > 200_000, "" })
	if err := slow.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = slow.Wait() // it was killed
	l.end("asbr1", "asbr", syscall.SIGKILL)
	l.eventually("its link has no load", 20*time.Second, l.contains(false, `transit-a at 2001:db8:1::1`, "server", program, "status", "edge", "--json"))
}
