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

	"github.com/tabane/tabane/internal/kernel/afpacket"
)

// repairedWithin is far below the period of the daemons' resync, and far above what a repair takes:
// less than 100 ms, which the test logs.
const repairedWithin = 3 * time.Second

// TestDeletedObjectsAreRestored: another program deletes objects of each kind in a running edge and
// a running border router while content is delivered. They are restored at once, and no packet
// leaves through a peer that its source address does not belong to.
func TestDeletedObjectsAreRestored(t *testing.T) {
	t.Parallel()
	l := epe(t)
	for _, table := range []string{"101", "102"} {
		l.eventually("the EPE Route in table "+table, 10*time.Second,
			l.shows(true, "2001:db8:c::/64", "server", "route show table "+table))
	}
	sent := l.directed(t, "2001:db8:1::a", "2001:db8:1::b")
	wait := l.stream("8s", 8)
	l.restores(t, []deletion{
		{"server", "rule", `(?m)^(\d+):.*from 2001:db8:1::a lookup 101`, "rule del pref $1"},
		{"server", "rule", `(?m)^(\d+):.*from 2001:db8:1::b unreachable`, "rule del pref $1"},
		{"server", "route show table 101", `(?m)^(2001:db8:c::/64) `, "route del $1 table 101"},
		{"server", "route show table 102", `(?m)^unreachable (default)`, "route del unreachable $1 table 102 metric 4294967295"},
		{"server", "nexthop", `(?m)^id (\d+) .*seg6`, "nexthop del id $1"},
		{"server", "addr", `inet6 (2001:db8:1::b/\d+)`, "address del $1 dev lan"},
		{"asbr1", "rule", `(?m)^(901):.*from all iif \S+ unreachable`, "rule del pref $1"},
		{"asbr1", "route", `(?m)^(fc00:1:1::) .*seg6local`, "route del $1"},
		{"asbr1", "route show table 101", `(?m)^(2001:db8:c::/64) `, "route del $1 table 101"},
	})
	wait()
	sent.check(t)
}

// deletion is the deletion of a kernel object by another program: what shows all objects of its
// kind, what matches it, and the command with the $1 that the match has in parentheses.
type deletion struct{ node, show, match, del string }

// restores checks that each deleted object is restored.
func (l *lab) restores(t *testing.T, deletions []deletion) {
	t.Helper()
	for _, d := range deletions {
		before := l.ip(d.node, d.show)
		found := regexp.MustCompile(d.match).FindStringSubmatch(before)
		if found == nil {
			t.Errorf("%s: no %s in:\n%s", d.node, d.match, before)
			continue
		}
		command := strings.ReplaceAll(d.del, "$1", found[1])
		deleted := time.Now()
		l.ip(d.node, command)
		l.eventually(d.node+": restored after "+command, repairedWithin, func() (bool, string) {
			now := l.ip(d.node, d.show)
			return slices.Equal(objects(now), objects(before)), now
		})
		t.Logf("%s: %s: restored in %s", d.node, command, time.Since(deleted).Round(time.Millisecond))
	}
}

// TestSwappedTables: the tables of two EPE addresses are swapped in the file, and the edge is
// started again after a kill. No packet leaves through the wrong peer at any time.
func TestSwappedTables(t *testing.T) {
	t.Parallel()
	l := epe(t)
	l.eventually("the EPE Routes", 10*time.Second, l.shows(true, "2001:db8:c::/64", "server", "route show table 102"))
	sent := l.directed(t, "2001:db8:1::a", "2001:db8:1::b")
	wait := l.stream("8s", 8)
	l.end("server", "edge", syscall.SIGKILL)
	l.change("server", `"table": 101`, `"table": 199`, `"table": 102`, `"table": 101`, `"table": 199`, `"table": 102`)
	l.start("server", "edge")
	l.eventually("the edge is ready", 15*time.Second, l.contains(true, `"ready":true,"degraded":false`, "server", program, "status", "--json", "edge"))
	l.eventually("the tables are swapped", 5*time.Second, l.shows(true, "from 2001:db8:1::a lookup 102", "server", "rule"))
	wait()
	sent.check(t)
}

// directions counts the packets from the EPE addresses of both peers of epe-steady: at the peer
// that an address belongs to, and at the other one.
type directions struct{ a, b, wrong atomic.Int64 }

// directed counts what arrives at the peers from these EPE addresses until the test ends.
func (l *lab) directed(t *testing.T, a, b string) *directions {
	t.Helper()
	d := &directions{}
	ownA, ownB := netip.MustParseAddr(a), netip.MustParseAddr(b)
	count := func(own, other netip.Addr, right *atomic.Int64) func(afpacket.Packet) {
		return func(p afpacket.Packet) {
			if p.Sent {
				return
			}
			switch source(p.Data) {
			case own:
				right.Add(1)
			case other:
				d.wrong.Add(1)
			}
		}
	}
	l.each(t, "transit-a", "csp", count(ownA, ownB, &d.a))
	l.each(t, "transit-b", "csp", count(ownB, ownA, &d.b))
	return d
}

// source is the source address of an IP packet, not valid if it is none.
func source(b []byte) netip.Addr {
	switch {
	case len(b) >= 40 && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[8:24]))
	case len(b) >= 20 && b[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return netip.Addr{}
}

// check fails the test unless packets arrived at both peers, and none at the wrong one.
func (d *directions) check(t *testing.T) {
	t.Helper()
	if a, b, wrong := d.a.Load(), d.b.Load(), d.wrong.Load(); a == 0 || b == 0 || wrong > 0 {
		t.Errorf("from EPE addresses, %d and %d packets left through the right peers, %d through a wrong one", a, b, wrong)
	}
}

// objects are the lines of a listing in a fixed order, without what the kernel counts.
func objects(text string) []string {
	text = regexp.MustCompile(`(valid_lft|preferred_lft) \S+|expires \S+`).ReplaceAllString(text, "")
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return lines
}
