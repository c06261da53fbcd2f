package flows

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/flowcount"
)

// crossing is a connection of host 10.1.0.N over a gateway with the paths p0 and p1, as packets on
// each interface show it.
func crossing(k *kernel, host byte, port uint16) {
	addr := func(text string) [16]byte { return netip.MustParseAddr(text).As16() }
	lan := netip.AddrFrom4([4]byte{10, 1, 0, host}).As16()
	key := func(source, destination [16]byte, from, to uint16, ifindex uint32, direction uint8) flowcount.Key {
		return flowcount.Key{
			Source: source, Destination: destination, SourcePort: from, DestinationPort: to, Ifindex: ifindex, Family: 4, Protocol: 17, Direction: direction,
		}
	}
	far := addr("10.2.0.1")
	for path, n := range []uint64{300, 100} {
		local, remote := addr([]string{"192.0.2.1", "198.51.100.1"}[path]), addr([]string{"203.0.113.1", "203.0.113.2"}[path])
		k.carry(key(local, far, port, 80, uint32(path), 1), 1, n)
		k.carry(key(remote, lan, 80, port, uint32(path), 0), 1, n/10)
	}
	k.carry(key(lan, far, port, 80, 2, 0), 2, 400)
	k.carry(key(far, lan, 80, port, 2, 1), 2, 40)
}

func gatewayTracker(room int) *tracker {
	t := newTracker(map[uint32]string{0: "p0", 1: "p1", 2: "lan"}, nil, time.Second, room)
	t.gateway = &Gateway{
		Paths: map[string]string{"p0": "fiber", "p1": "lte"},
		LAN:   []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, NAT: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")},
	}
	return t
}

// TestSessionsAreConnections: the packets of a connection that gateways translate are shown as one,
// with a row for each path, the host's address, and shares, whichever interface is read first.
func TestSessionsAreConnections(t *testing.T) {
	k := newKernel(64)
	crossing(k, 1, 1000)
	crossing(k, 2, 1001)
	tr := gatewayTracker(64)
	now := time.Unix(1, 0)
	if err := tr.read(k, now, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := tr.finish(k, now); err != nil {
		t.Fatal(err)
	}
	s := &tr.snapshot
	for _, f := range s.Flows {
		host, far, ok := f.NAT()
		if port := uint16(1000) + uint16(host.Addr().As4()[3]) - 1; !ok || host.Port() != port || far != netip.MustParseAddrPort("10.2.0.1:80") {
			t.Errorf("%v to %v is of %v to %v", f.Local, f.Remote, host, far)
		}
		if want := map[string]float64{"fiber": 0.75, "lte": 0.25, "": 1}[f.Path]; f.Share() != want {
			t.Errorf("%v to %v on %q has a share of %v", f.Local, f.Remote, f.Path, f.Share())
		}
	}
	var table, lines bytes.Buffer
	if err := NewTable(&table, TableOptions{}).Write(s, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"nat udp 10.1.0.1:1000", "nat udp 10.1.0.2:1001", "  fiber", "75 %", "  lte", "25 %"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, table.String())
		}
	}
	if n := strings.Count(table.String(), "\n"); n != 1+1+2*3+1 {
		t.Errorf("the table has %d lines:\n%s", n, table.String())
	}
	if err := NewJSON(&lines, 0).Write(s); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(lines.String(), `"path":"fiber","packets"`); n != 4 {
		t.Errorf("%d flows are of a path:\n%s", n, lines.String())
	}
	if n := strings.Count(lines.String(), `"nat_host":"10.1.0.2:1001","nat_far":"10.2.0.1:80"`); n != 6 {
		t.Errorf("%d flows are of the second connection:\n%s", n, lines.String())
	}
	// Nothing is kept of flows that end.
	for now = now.Add(time.Minute); len(tr.flows) > 0; now = now.Add(time.Second) {
		if err := tr.read(k, now, time.Second); err != nil {
			t.Fatal(err)
		}
		if err := tr.finish(k, now); err != nil {
			t.Fatal(err)
		}
	}
	if len(tr.translations) > 0 {
		t.Errorf("connections are kept: %v", tr.translations)
	}
}
