package acceptance

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestEgressJudge: the judge of TestSoak and TestNoPacketLeavesUnannounced finds each kind of
// packet that must not arrive at a peer, and no other.
func TestEgressJudge(t *testing.T) {
	begun := time.Now()
	at := func(d time.Duration) time.Time { return begun.Add(d) }
	j := &egressJudge{net: threePeers, machine: &machineLoad{}, down: map[string][]interval{}, unguarded: map[string][]interval{}, released: map[int][]interval{}}
	for range j.net.peers {
		j.history = append(j.history, map[string][]interval{})
	}
	// transit-a advertises two prefixes, and withdraws them after 10 s; transit-c does while its
	// border router is down.
	j.advertises(0, []string{"2001:db8:100::/48", "10.100.0.0/16"}, at(0))
	j.advertises(0, nil, at(10*time.Second))
	j.advertises(2, []string{"2001:db8:100::/48"}, at(0))
	j.down["asbr2"] = []interval{{from: at(9 * time.Second), to: at(12 * time.Second)}}
	j.advertises(2, nil, at(10*time.Second))
	j.advertises(1, []string{"2001:db8:100::/48"}, at(29*time.Second))
	j.advertises(1, nil, at(30*time.Second))
	j.advertises(0, []string{"2001:db8:200::/48"}, at(15*time.Second))
	j.unguarded["asbr1"] = []interval{{from: at(5 * time.Second), to: at(5 * time.Second)}, {from: at(20 * time.Second), to: at(20 * time.Second)}}
	j.released[1] = []interval{{from: at(7 * time.Second), to: at(8 * time.Second)}}
	j.machine.stalls = []interval{{from: at(20 * time.Second), to: at(20*time.Second + 200*time.Millisecond)}, {from: at(30*time.Second + 100*time.Millisecond), to: at(30*time.Second + 300*time.Millisecond)}}
	for _, c := range []struct {
		name   string
		at     time.Duration
		peer   int
		kind   kind
		origin int
		dst    string
		want   string
	}{
		{"advertised", time.Second, 0, fromEPE, 0, "2001:db8:100::1", ""},
		{"advertised in IPv4", time.Second, 0, best, 0, "10.100.9.1", ""},
		{"just withdrawn", 10*time.Second + propagation, 0, fromEPE, 0, "2001:db8:100::1", ""},
		{"withdrawn", 10*time.Second + propagation + time.Millisecond, 0, fromEPE, 0, "2001:db8:100::1", "its destination was withdrawn 501ms before"},
		{"withdrawn before the machine stalled", 30*time.Second + propagation + 200*time.Millisecond, 1, fromEPE, 1, "2001:db8:100::1", ""},
		{"withdrawn long before the machine stalled", 30*time.Second + propagation + 201*time.Millisecond, 1, fromEPE, 1, "2001:db8:100::1", "its destination was withdrawn 501ms before"},
		{"withdrawn in IPv4", 12 * time.Second, 0, best, 0, "10.100.9.1", "its destination was withdrawn 2s before"},
		{"withdrawn while the border router was down", 20 * time.Second, 2, fromEPE, 2, "2001:db8:100::1", ""},
		{"withdrawn long before", 12*time.Second + staleAfterRestart + time.Second, 2, fromEPE, 2, "2001:db8:100::1", "its destination was withdrawn 1s before"},
		{"never advertised", time.Second, 1, fromEPE, 1, "2001:db8:100::1", "its destination was never advertised by this peer"},
		{"of no test", time.Second, 1, other, 0, "2001:db8:300::1", "its destination was never advertised by this peer"},
		{"our own space", time.Second, 0, best, 0, "2001:db8:1::77", "is for our own space"},
		{"a SID", time.Second, 0, best, 0, "fc00:2:1::", "is for our own space"},
		{"our own space in IPv4", time.Second, 0, best, 0, "10.1.0.77", "is for our own space"},
		{"of another peer's address", time.Second, 0, fromEPE, 1, "2001:db8:100::1", "is for transit-b"},
		{"of another peer's SID", time.Second, 0, toSID, 2, "10.100.9.1", "is for transit-c"},
		{"of an address that is none of a peer's", 7500 * time.Millisecond, 0, fromEPE, 1, "2001:db8:100::1", ""},
		{"transit", time.Second, 0, intruding, 1, "2001:db8:100::1", "is transit"},
		{"transit without the filter", 5 * time.Second, 0, intruding, 1, "2001:db8:100::1", ""},
		{"transit through the other border router", 5 * time.Second, 0, intruding, 2, "2001:db8:100::1", "is transit"},
		{"transit after the filter, which the machine restored when it ran again", 20*time.Second + propagation + 199*time.Millisecond, 0, intruding, 1, "2001:db8:200::1", ""},
		{"transit long after the filter", 20*time.Second + propagation + 201*time.Millisecond, 0, intruding, 1, "2001:db8:200::1", "is transit"},
	} {
		s := sighting{at: at(c.at), peer: c.peer, kind: c.kind, origin: c.origin, dst: netip.MustParseAddr(c.dst)}
		if got := j.fault(s); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestEgressJudgeWithoutLookup is TestEgressJudge for a peer whose border router sends it whatever
// arrives for its SID: servers alone follow a withdrawal.
func TestEgressJudgeWithoutLookup(t *testing.T) {
	begun := time.Now()
	at := func(d time.Duration) time.Time { return begun.Add(d) }
	const (
		peer         = 2
		epe, epe4    = "2001:db8:1::c", "10.1.0.12"
		never, later = "its destination was never advertised by this peer", "its destination was withdrawn 1s before"
	)
	j := &egressJudge{net: threePeers, machine: &machineLoad{}, down: map[string][]interval{}, frozen: map[string][]interval{}, unguarded: map[string][]interval{}}
	j.net.peers = slices.Clone(j.net.peers)
	j.net.peers[peer].direct = true
	for range j.net.peers {
		j.history = append(j.history, map[string][]interval{})
	}
	for i := range j.net.peers {
		j.advertises(i, []string{"2001:db8:100::/48", "10.100.0.0/16"}, at(0))
		j.advertises(i, nil, at(10*time.Second))
		j.advertises(i, []string{"2001:db8:200::/48"}, at(30*time.Second))
		j.advertises(i, nil, at(32*time.Second))
	}
	j.unguarded["asbr1"] = []interval{{from: at(5 * time.Second), to: at(5 * time.Second)}}
	j.frozen["server"] = []interval{{from: at(10200 * time.Millisecond), to: at(12 * time.Second)}}
	j.down["server"] = []interval{{from: at(31 * time.Second), to: at(33 * time.Second)}}
	for _, c := range []struct {
		name           string
		at             time.Duration
		peer           int
		kind           kind
		origin         int
		src, dst, want string
	}{
		{"to the SID", time.Second, peer, toSID, peer, "2001:db8:1::fe", "2001:db8:1::77", ""},
		{"to another SID", time.Second, peer, toSID, 1, "2001:db8:1::fe", "2001:db8:100::1", "is for transit-b"},
		{"to a SID with a lookup", time.Second, 1, toSID, 1, "2001:db8:1::fe", "2001:db8:300::1", never},
		{"transit to the SID", time.Second, peer, intruding, 1, epe, "2001:db8:300::1", never},
		{"transit to the SID without the filter", 5 * time.Second, peer, intruding, 1, epe, "2001:db8:300::1", ""},
		{"withdrawn", 10*time.Second + propagation/5, peer, fromEPE, peer, epe, "2001:db8:100::1", ""},
		{"withdrawn, the server is frozen", 12 * time.Second, peer, fromEPE, peer, epe, "2001:db8:100::1", ""},
		{"of a connection, the server is frozen", 12 * time.Second, peer, other, 0, epe4, "10.100.9.1", ""},
		{"withdrawn, the server runs again", 13 * time.Second, peer, fromEPE, peer, epe, "2001:db8:100::1", later},
		{"by the best path, the server is frozen", 11 * time.Second, peer, best, 0, "2001:db8:1::10", "2001:db8:100::1", later},
		{"with a lookup, the server is frozen", 11 * time.Second, 0, fromEPE, 0, "2001:db8:1::a", "2001:db8:100::1", later},
		{"never advertised, the server is frozen", 12 * time.Second, peer, fromEPE, peer, epe, "2001:db8:300::1", never},
		{"withdrawn, the server is down", 50 * time.Second, peer, fromEPE, peer, epe, "2001:db8:200::1", ""},
		{"withdrawn long before", 34*time.Second + staleAfterRestart, peer, fromEPE, peer, epe, "2001:db8:200::1", later},
	} {
		s := sighting{at: at(c.at), peer: c.peer, kind: c.kind, origin: c.origin, src: netip.MustParseAddr(c.src), dst: netip.MustParseAddr(c.dst)}
		if got := j.fault(s); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestGrowth: memory that grows without an end is found, a heap that grows at all.
func TestGrowth(t *testing.T) {
	for _, c := range []struct {
		name               string
		slope, step, after int // bytes for each of 600 samples, and once
		resident, liveHeap bool
	}{
		{"flat", 0, 0, 0, false, false}, {"within the bound", 5000, 0, 0, false, false}, {"a leak", 30000, 0, 0, true, true},
		{"smaller", -30000, 0, 0, false, false}, {"an early step", 0, 12 << 20, 240, false, true},
		{"a late step", 0, 12 << 20, 450, false, true}, {"a leak with a step", 30000, 12 << 20, 450, true, true},
	} {
		var bytes []int
		for i := range 600 {
			b := 40<<20 + i*c.slope + i%7*100000
			if i > c.after {
				b += c.step
			}
			bytes = append(bytes, b)
		}
		if occupies, heap := occupiesMore(bytes), rises(bytes, flatHeap); occupies != c.resident || heap != c.liveHeap {
			t.Errorf("%s: %t and %t, medians %d", c.name, occupies, heap, thirds(bytes))
		}
	}
}
