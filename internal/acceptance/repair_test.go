package acceptance

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/packet"
)

// repairedWithin is far below the period of the daemons' resync, and far above what a repair takes:
// less than 100 ms, which the test logs.
const repairedWithin = 3 * time.Second

// TestDeletedObjectsAreRestored: another program deletes objects of each kind in a running edge and
// a running border router while content is delivered. They are restored at once, and no packet
// leaves through a peer that its source address does not belong to.
func TestDeletedObjectsAreRestored(t *testing.T) {
	l := epe(t)
	for _, table := range []string{"101", "102"} {
		l.eventually("the EPE Route in table "+table, 10*time.Second,
			l.shows(true, "2001:db8:c::/64", "server", "route show table "+table))
	}
	right, wrong := l.directed(t)
	wait := l.stream("8s", 8)
	for _, c := range []struct{ node, show, match, del string }{
		{"server", "rule", `(?m)^(\d+):.*from 2001:db8:1::a lookup 101`, "rule del pref $1"},
		{"server", "rule", `(?m)^(\d+):.*from 2001:db8:1::b lookup 0 `, "rule del pref $1"},
		{"server", "route show table 101", `(?m)^(2001:db8:c::/64) `, "route del $1 table 101"},
		{"server", "route show table 102", `(?m)^unreachable (default)`, "route del unreachable $1 table 102 metric 4294967295"},
		{"server", "nexthop", `(?m)^id (\d+) .*seg6`, "nexthop del id $1"},
		{"server", "addr", `inet6 (2001:db8:1::b/\d+)`, "address del $1 dev lan"},
		{"asbr1", "rule", `(?m)^(901):.*from all lookup 0 `, "rule del pref $1"},
		{"asbr1", "route", `(?m)^(fc00:1:1::) .*seg6local`, "route del $1"},
		{"asbr1", "route show table 101", `(?m)^(2001:db8:c::/64) `, "route del $1 table 101"},
	} {
		before := l.ip(c.node, c.show)
		found := regexp.MustCompile(c.match).FindStringSubmatch(before)
		if found == nil {
			t.Errorf("%s: no %s in:\n%s", c.node, c.match, before)
			continue
		}
		command := strings.ReplaceAll(c.del, "$1", found[1])
		deleted := time.Now()
		l.ip(c.node, command)
		l.eventually(c.node+": restored after "+command, repairedWithin, func() (bool, string) {
			now := l.ip(c.node, c.show)
			return slices.Equal(objects(now), objects(before)), now
		})
		t.Logf("%s: %s: restored in %s", c.node, command, time.Since(deleted).Round(time.Millisecond))
	}
	wait()
	if r, w := right.Load(), wrong.Load(); r == 0 || w > 0 {
		t.Errorf("%d packets left through the right peer, %d through the wrong one", r, w)
	}
}

// TestSwappedTables: the tables of two EPE addresses are swapped in the file, and the edge is
// started again after a kill. No packet leaves through the wrong peer at any time.
func TestSwappedTables(t *testing.T) {
	l := epe(t)
	l.eventually("the EPE Routes", 10*time.Second, l.shows(true, "2001:db8:c::/64", "server", "route show table 102"))
	right, wrong := l.directed(t)
	wait := l.stream("8s", 8)
	l.end("server", "edge", syscall.SIGKILL)
	l.change("server", `"table": 101`, `"table": 199`, `"table": 102`, `"table": 101`, `"table": 199`, `"table": 102`)
	l.start("server", "edge")
	l.eventually("the edge is ready", 15*time.Second, l.contains(true, `"ready":true,"degraded":false`, "server", program, "status", "--json", "edge"))
	l.eventually("the tables are swapped", 5*time.Second, l.shows(true, "from 2001:db8:1::a lookup 102", "server", "rule"))
	wait()
	if r, w := right.Load(), wrong.Load(); r == 0 || w > 0 {
		t.Errorf("%d packets left through the right peer, %d through the wrong one", r, w)
	}
}

// directed counts the packets from EPE addresses that arrive at their transit, and at the other one.
func (l *lab) directed(t *testing.T) (right, wrong *atomic.Int64) {
	t.Helper()
	right, wrong = &atomic.Int64{}, &atomic.Int64{}
	a, b := netip.MustParseAddr("2001:db8:1::a"), netip.MustParseAddr("2001:db8:1::b")
	for node, own := range map[string]netip.Addr{"transit-a": a, "transit-b": b} {
		l.each(t, node, "csp", func(p packet.Packet) {
			if p.Sent || len(p.Data) < 40 {
				return
			}
			switch source := netip.AddrFrom16([16]byte(p.Data[8:24])); {
			case source == own:
				right.Add(1)
			case source == a || source == b:
				wrong.Add(1)
			}
		})
	}
	return right, wrong
}

// objects are the lines of a listing in a fixed order, without what the kernel counts.
func objects(text string) []string {
	text = regexp.MustCompile(`(valid_lft|preferred_lft) \S+|expires \S+`).ReplaceAllString(text, "")
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return lines
}
