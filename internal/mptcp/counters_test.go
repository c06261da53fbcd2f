package mptcp

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns"
)

func TestCounters(t *testing.T) {
	const others = "TcpExt: SyncookiesSent MPCapableSYNRX\nTcpExt: 5 6\nIpExt: InNoRoutes\nIpExt: 7\n"
	for name, tt := range map[string]struct {
		netstat string
		want    Counters
		err     string
	}{
		"all": {others + "MPTcpExt: MPCapableSYNRX MPCapableSYNTX MPCapableACKRX MPCapableFallbackACK MPFallbackTokenInit MPCurrEstab NoDSSInWindow MPTCPRetrans DssFallback\nMPTcpExt: 10 99 8 2 1 3 154 44 6\n",
			Counters{Requested: 10, Accepted: 8, Stripped: 2, TableFull: 1, BeyondWindow: 154, Reinjected: 44, LostOptions: 6}, ""},
		"an old kernel":   {others + "MPTcpExt: MPCapableSYNRX\nMPTcpExt: 10\n", Counters{Requested: 10}, ""},
		"no MPTCP":        {others, Counters{}, ""},
		"fewer values":    {"MPTcpExt: MPCapableSYNRX MPCapableACKRX\nMPTcpExt: 10\n", Counters{}, "1 values of 2"},
		"not a number":    {"MPTcpExt: MPCapableSYNRX\nMPTcpExt: x\n", Counters{}, "MPCapableSYNRX"},
		"names, no value": {"MPTcpExt: MPCapableSYNRX\n", Counters{}, ""},
	} {
		got, err := parseCounters([]byte(tt.netstat))
		if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	before := Counters{Requested: 1, Accepted: 2, Stripped: 3, TableFull: 4, BeyondWindow: 5, Reinjected: 6, Joins: 7, Joined: 8, LostOptions: 9}
	if got, want := (Counters{Requested: 11, Accepted: 22, Stripped: 33, TableFull: 44, BeyondWindow: 55, Reinjected: 66, Joins: 77, Joined: 88, LostOptions: 99}).Since(before), (Counters{Requested: 10, Accepted: 20, Stripped: 30, LostOptions: 90, TableFull: 40, BeyondWindow: 50, Reinjected: 60, Joins: 70, Joined: 80}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestTokenPlaces(t *testing.T) {
	const mb = 1 << 20
	for memory, want := range map[uint64]int{0: 4, mb: 4, 512 * mb: 2048, 513 * mb: 4096, 24104 * mb: 131072, 1 << 40: 262144} {
		if got := TokenPlaces(memory); got != want {
			t.Errorf("%d bytes: %d places, want %d", memory, got, want)
		}
	}
}

// TestReadCounters: the kernel counts an MPTCP connection of a client, in the namespace of the
// server.
func TestReadCounters(t *testing.T) {
	p := newPair(t)
	read := func() (c Counters) {
		t.Helper()
		if err := netns.Do(p.server, func() (err error) { c, err = ReadCounters(); return err }); err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := read()
	p.connect()
	if got, want := read().Since(before), (Counters{Requested: 1, Accepted: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
