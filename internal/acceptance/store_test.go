package acceptance

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestStore: a network begins with what another server of the site measured. Without the store the
// server goes on, says so, and uses it again once it is back.
func TestStore(t *testing.T) {
	programs.Need(t, "redis-server", "redis-cli", "curl")
	t.Parallel()
	l := epe(t, "locators: [fc00::/16]", "locators: [fc00::/16]\n      delivery: {default: auto, explore: 0%}")
	store := func() (stop func()) {
		t.Helper()
		cmd := l.command("reflector", "redis-server", "--bind", "2001:db8:1::fe", "--requirepass", "secret", "--save", "", "--dir", t.TempDir())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := false
		stop = func() {
			if !ended {
				ended = true
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_ = cmd.Wait() // redis ends with an exit code of its own
			}
		}
		t.Cleanup(stop)
		// Another server measured that transit B is much better.
		record := fmt.Sprintf(`{"v":1,"prefix":"2001:db8:c::/64","at":%d,"modes":[{"m":"single transit-b","ln":0.7,"sd":0.05,"n":9}]}`, time.Now().Unix())
		l.eventually("the store takes a record", 10*time.Second, func() (bool, string) {
			out, err := l.try("reflector", "redis-cli", "-h", "2001:db8:1::fe", "-a", "secret", "--no-auth-warning", "HSET", "tabane:65000:2001:db8:c::/64", "10.0.0.99", record)
			return err == nil && out == "1\n", out
		})
		return stop
	}
	said := func(contains string) {
		t.Helper()
		l.eventually("status says "+contains, 40*time.Second, l.contains(true, contains, "server", program, "status", "edge", "--json"))
	}
	network := func(contains string) {
		t.Helper()
		l.eventually("the network is "+contains, 40*time.Second, l.contains(true, contains, "server", program, "status", "networks", "2001:db8:c::10", "--json"))
	}
	network(`"mode":"auto: `)
	l.edit("server", "edge", func(s section) {
		s["delivery"] = map[string]any{"default": "auto", "explore": "0%", "store": "valkey://:secret@[2001:db8:1::fe]"}
	})
	l.reloaded("server", "edge", "delivery changed")
	said("store valkey://[2001:db8:1::fe]:6379: connect: ")
	download := func() {
		t.Helper()
		if out := l.must("client", "curl", "-sS", "-o", "/dev/null", "-w", "%{size_download}", "http://server/bytes/2000000"); out != "2000000" {
			t.Errorf("curl got %s bytes", out)
		}
	}
	download()
	stop := store()
	network(`"why":"best at other servers"`)
	network(`"through":["transit-b"]`)
	said(`"up":true`)
	before := l.sentBy("transit-b")
	download()
	if got := l.sentBy("transit-b") - before; got < 2_000_000 {
		t.Errorf("%d bytes through transit B", got)
	}
	stop()
	said(`"up":false`)
	download()
	store()
	said(`"up":true`)
}
