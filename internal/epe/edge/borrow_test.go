package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBorrow: a client's address has a mode of its own until it is returned or not renewed, through
// peers with a route to it alone, and then what its network has. Nothing of it is left.
func TestBorrow(t *testing.T) {
	config := dualStack()
	config.Delivery = Delivery{Default: Mode{Spread: map[string]uint32{"a": 80, "b": 20}}}
	e, w := newTestEgress(config)
	now := time.Unix(1e9, 0)
	e.now = func() time.Time { return now }
	announce := func(peer int, prefix string, withdrawn bool) {
		t.Helper()
		p := vpnPath(fmt.Sprintf("10.0.0.%d:1", peer), fmt.Sprintf("fc00:%d:1::", peer), fmt.Sprint("65000:10", peer))
		p.Prefix, p.Withdrawn = netip.MustParsePrefix(prefix), withdrawn
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	const network, address = "2001:db8:100::/48", "2001:db8:100::7/128"
	const a, b, both = "fc00:1:1::", "fc00:2:1::", "fc00:1:1::*80 fc00:2:1::*20"
	client := netip.MustParseAddr("2001:db8:100::7")
	check := func(when, want string) {
		t.Helper()
		if got := w.delivered(address); got != want {
			t.Errorf("%s: through %s, want %s", when, got, want)
		}
		if len(e.delivery.borrowed) == 0 && e.delivery.networks.Size() != 1 {
			t.Errorf("%s: %d networks", when, e.delivery.networks.Size())
		}
	}
	announce(1, network, false)
	if err := e.borrow(client, "through.b"); err == nil || !strings.Contains(err.Error(), `0 of the peers of "through.b" have a route to 2001:db8:100::7, and it needs 1`) {
		t.Errorf("a peer without a route: %v", err)
	}
	if err := e.borrow(client, "spread"); err == nil || !strings.Contains(err.Error(), "1 of the peers") {
		t.Errorf("one peer of two: %v", err)
	}
	check("refused", "none")
	announce(2, network, false)
	if got := w.delivered(network); got != both {
		t.Errorf("the network through %s", got)
	}
	if err := e.borrow(client, "through.b"); err != nil {
		t.Fatal(err)
	}
	check("borrowed", b)
	if n := e.networks(netip.MustParsePrefix(address), 10); len(n.List) != 1 || n.List[0].Rule != borrowedRule {
		t.Errorf("status: %+v", n)
	}
	announce(2, network, true)
	check("its peer has no route any more", "none")
	announce(2, network, false)
	check("it has again", b)
	e.setDelivery(&Delivery{Default: Mode{Single: "a"}})
	for e.step(1000) {
	}
	check("another configuration", b)
	if err := e.borrow(client, "through.a"); err != nil {
		t.Fatal(err)
	}
	check("replaced", a)
	now = now.Add(BorrowedFor - 1)
	e.returnDue()
	check("in time", a)
	if err := e.borrow(client, "through.a"); err != nil { // renewed
		t.Fatal(err)
	}
	now = now.Add(BorrowedFor - 1)
	e.returnDue()
	check("renewed", a)
	now = now.Add(1)
	e.returnDue()
	check("not renewed", "none")
	if err := e.borrow(client, "through.b"); err != nil {
		t.Fatal(err)
	}
	e.returnBorrowed(host(client))
	e.returnBorrowed(host(client))
	check("returned", "none")
	if len(w.lines(address)) > 0 {
		t.Errorf("left behind: %v", w.lines(address))
	}
}

// TestBorrowRefused: what is not a client, and what the edge does not have, is refused.
func TestBorrowRefused(t *testing.T) {
	config := dualStack()
	e, _ := newTestEgress(config)
	if got := e.borrowedModes(); !slices.Equal(got, []string{"through.a", "through.b"}) {
		t.Errorf("modes %q", got)
	}
	for client, want := range map[string]string{
		"2001:db8:1::7": "inside our own 2001:db8:1::/64",
		"fc00:1::7":     "packets to SIDs have no clients",
		"2001:db8::7":   "0 of the peers",
	} {
		if err := e.borrow(netip.MustParseAddr(client), "through.a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", client, err)
		}
	}
	for _, mode := range []string{"", "auto", "spread", "spray", "through.", "through.c", "best"} {
		if err := e.borrow(netip.MustParseAddr("2001:db8::7"), mode); err == nil || !strings.Contains(err.Error(), "edge cannot deliver by") {
			t.Errorf("%q: %v", mode, err)
		}
	}
	for i := range mostBorrowed {
		e.delivery.borrowed[netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32)] = &borrowed{}
	}
	if err := e.borrow(netip.MustParseAddr("2001:db8::7"), "through.a"); err == nil || !strings.Contains(err.Error(), "64 clients are measured already") {
		t.Errorf("too many: %v", err)
	}
	if len(e.delivery.borrowed) != mostBorrowed {
		t.Error("it is borrowed")
	}
	config.Delivery.DryRun = true
	dry, _ := newTestEgress(config)
	if got := dry.borrowedModes(); got != nil {
		t.Errorf("in a dry run: %q", got)
	}
}
