package sealed

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// mesh makes two gateways of which each line reaches each line of the other one: line i of the
// first has 192.168.0.10i, of the second 192.168.0.20i. All have a rate of 1 Gbit/s.
func mesh(t testing.TB, lines [2]int) (a, b *gateway) {
	t.Helper()
	network := netnstest.New(t)
	ip(t, network, "ip link add br0 type bridge")
	ip(t, network, "ip link set br0 up")
	a, b = &gateway{t: t, number: 1, network: network}, &gateway{t: t, number: 2, network: network}
	for n, g := range []*gateway{a, b} {
		g.namespace = netnstest.New(t)
		ip(t, g.namespace, "ip link set lo up")
		// Each line answers for its own address only.
		for _, setting := range [][2]string{{"arp_ignore", "1"}, {"arp_announce", "2"}, {"rp_filter", "0"}} {
			sysctl(t, g.namespace, "net.ipv4.conf.all."+setting[0], setting[1])
		}
		var err error
		if g.key, err = handshake.GenerateKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
		g.state = dataplane.State{Key: g.key, Port: 4790, MTU: 1400, Policy: dataplane.Policy{{Discipline: dataplane.Discipline{Name: "dq"}}}}
		for i := range lines[n] {
			ip(t, network, "ip link add g%d-%d type veth peer name p%d netns %s", n, i, i, g.namespace)
			ip(t, network, "ip link set g%d-%d master br0 up", n, i)
			ip(t, g.namespace, "ip link set p%d up", i)
			ip(t, g.namespace, "ip -4 addr add 192.168.0.%d/24 dev p%d", 100*g.number+i, i)
			g.state.Paths = append(g.state.Paths, dataplane.Path{
				Name: fmt.Sprintf("%c%d", 'a'+n, i), Interface: fmt.Sprintf("p%d", i), Usable: true,
				Up: dataplane.Rate{Bandwidth: unit.GbitPerSecond}, Down: dataplane.Rate{Bandwidth: unit.GbitPerSecond},
			})
		}
	}
	for _, g := range []*gateway{a, b} {
		other := b
		if g == b {
			other = a
		}
		peer := dataplane.Peer{Name: "other", Public: other.key.Public(), Prefixes: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", other.number)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", other.number)),
		}}
		if g == a {
			for i := range lines[1] {
				peer.Endpoints = append(peer.Endpoints, netip.MustParseAddrPort(fmt.Sprintf("192.168.0.%d:4790", 200+i)))
			}
		}
		g.state.Peers = []dataplane.Peer{peer}
	}
	return a, b
}

// meet waits until so many paths are up, which both gateways say the same of, and these lines have
// one.
func meet(t testing.TB, a, b *gateway, what string, paths int, lines ...string) {
	t.Helper()
	var got [2][]string
	defer func() {
		if t.Failed() {
			t.Logf("%v, want %d paths of %v", got, paths, lines)
		}
	}()
	eventually(t, what, func() bool {
		var used [2][]string
		for n, g := range []*gateway{a, b} {
			got[n] = nil
			for _, l := range g.plane.Status().Peers[0].Links {
				pair := []string{l.Line, l.Meets}
				if l.State == "up" {
					used[n] = append(used[n], pair...)
					slices.Sort(pair)
					got[n] = append(got[n], strings.Join(pair, "-"))
				}
			}
			slices.Sort(got[n])
			slices.Sort(used[n])
			used[n] = slices.Compact(used[n])
		}
		return len(got[0]) == paths && slices.Equal(got[0], got[1]) && slices.Equal(used[0], lines) && slices.Equal(used[1], lines)
	})
}

// TestLinesMeet: each line of either gateway has a path, whichever answers first; one that goes is
// replaced, and one that returns is used again.
func TestLinesMeet(t *testing.T) {
	t.Parallel()
	a, b := mesh(t, [2]int{2, 2})
	// Both lines begin with the same endpoint.
	e := a.state.Peers[0].Endpoints
	a.state.Peers[0].Endpoints = []netip.AddrPort{e[0], e[0], e[1]}
	a.run()
	b.run()
	meet(t, a, b, "each line meets another one", 2, "a0", "a1", "b0", "b1")
	ip(t, b.namespace, "ip link set p1 down")
	meet(t, a, b, "a line is shared", 2, "a0", "a1", "b0")
	ip(t, b.namespace, "ip link set p1 up")
	meet(t, a, b, "a line of the peer returns", 2, "a0", "a1", "b0", "b1")
	usable := func(is bool) {
		paths := slices.Clone(a.state.Paths)
		paths[0].Usable = is
		state := a.state
		state.Paths = paths
		if err := a.plane.Apply(state); err != nil {
			t.Fatal(err)
		}
	}
	ip(t, a.namespace, "ip link set p0 down")
	usable(false)
	meet(t, a, b, "the only line has two paths", 2, "a1", "b0", "b1")
	ip(t, a.namespace, "ip link set p0 up")
	usable(true)
	meet(t, a, b, "a line returns", 2, "a0", "a1", "b0", "b1")
}

// TestLineReturns: a line of either gateway that was away for long has a path within 5 s of its
// return, and so has each other line, also where one gateway has more lines, and of random lines,
// which are slower in one direction.
func TestLineReturns(t *testing.T) {
	t.Parallel()
	r := mathrand.New(mathrand.NewPCG(36, 2))
	for _, away := range []time.Duration{5 * time.Second, 90 * time.Second, time.Hour} {
		for _, counts := range [][2]int{{2, 2}, {3, 2}, {2, 3}} {
			for n := range 2 {
				if away == time.Hour && counts[0] != counts[1] {
					continue // it takes the time of all others
				}
				lineReturns(t, r, counts, n, away)
			}
		}
	}
}

// lineReturns has the second line of gateway n, of those with so many lines, be away.
func lineReturns(t *testing.T, r *mathrand.Rand, counts [2]int, n int, away time.Duration) {
	var uses [2][]dataplane.Use
	var all []string
	var lines [2][]*simulatedLine
	for end, count := range counts {
		uses[end] = make([]dataplane.Use, count)
		for i := range count {
			all, lines[end] = append(all, fmt.Sprintf("%c%d", 'a'+end, i)), append(lines[end], drawLine(r))
		}
	}
	s := simulate(t, uses)
	s.lines = lines
	s.run(20 * time.Second)
	s.cut[[2]int{n, 1}] = true
	s.run(away)
	delete(s.cut, [2]int{n, 1})
	meet := func() string {
		for end := range 2 {
			var used []string
			for _, l := range s.planes[end].Status().Peers[0].Links {
				if l.State == "up" {
					used = append(used, l.Line, l.Meets)
				}
			}
			slices.Sort(used)
			if !slices.Equal(slices.Compact(used), all) {
				return fmt.Sprintf("gateway %d uses %v", end, used)
			}
		}
		return ""
	}
	begun := s.now
	for meet() != "" && s.now-begun < time.Minute {
		s.run(100 * time.Millisecond)
	}
	if took := s.now - begun; took > 5*time.Second {
		t.Errorf("line 1 of gateway %d of %v was away for %v: all lines are used %v after its return, %s", n, counts, away, took, meet())
	}
}

// TestOneLineMeetsAll: the line of a gateway with one meets all of the other one, and has no more
// than its rate for all.
func TestOneLineMeetsAll(t *testing.T) {
	t.Parallel()
	a, b := mesh(t, [2]int{1, 3})
	a.run()
	b.run()
	meet(t, a, b, "the line meets all", 3, "a0", "b0", "b1", "b2")
	eventually(t, "the rate is shared", func() bool {
		for _, g := range []*gateway{a, b} {
			sum := unit.Bandwidth(0)
			for _, l := range g.plane.Status().Peers[0].Links {
				sum += l.Rate
			}
			if sum > unit.GbitPerSecond || sum < unit.GbitPerSecond-10 {
				return false
			}
		}
		return true
	})
}

func sysctl(t testing.TB, namespace, key, value string) {
	t.Helper()
	if err := netns.Do(namespace, func() error { return netns.Sysctl(key, value) }); err != nil {
		t.Fatal(err)
	}
}

// TestRatesOfSharedLines: what was estimated while paths shared a line, of either gateway, is
// forgotten when one of them leaves it, and that of other paths stays.
func TestRatesOfSharedLines(t *testing.T) {
	const low = 900 * unit.KbitPerSecond
	one, two, three, four := new(line), new(line), new(line), new(line)
	at := func(n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 4790)
	}
	for name, leaves := range map[string]struct {
		paths [3]place
		to    place   // of the first path
		again [3]bool // the estimate begins again
	}{
		"a line of the peer":           {[3]place{{one, at(1)}, {two, at(1)}, {three, at(3)}}, place{one, at(4)}, [3]bool{true, true, false}},
		"a line of its own":            {[3]place{{one, at(1)}, {one, at(2)}, {three, at(3)}}, place{four, at(1)}, [3]bool{true, true, false}},
		"no shared line":               {[3]place{{one, at(1)}, {two, at(2)}, {three, at(3)}}, place{four, at(4)}, [3]bool{}},
		"an address, not its own line": {[3]place{{one, at(1)}, {one, at(2)}, {one, at(3)}}, place{one, at(4)}, [3]bool{}},
		"its own line, not the peer's": {[3]place{{one, at(1)}, {two, at(1)}, {three, at(1)}}, place{four, at(1)}, [3]bool{}},
	} {
		r := &peer{}
		for i, p := range leaves.paths {
			l := &r.links[i]
			l.line, l.address.remote = p.line, p.from
			l.rates.capacity.Update(quality.CapacitySample{Interval: 200 * time.Millisecond, Sent: low.SizeIn(200 * time.Millisecond), Arrived: low.SizeIn(200 * time.Millisecond), Busy: true})
		}
		before := r.links[2].rates.capacity.Value()
		(&proving{r}).part(0, leaves.to)
		for i, again := range leaves.again {
			if got := r.links[i].rates.capacity.Capacity == (quality.Capacity{}); got != again {
				t.Errorf("%s: the estimate of path %d begins again: %t, want %t", name, i, got, again)
			}
		}
		if after := r.links[2].rates.capacity.Value(); after != before {
			t.Errorf("%s: a path that shares nothing has %v, had %v", name, after, before)
		}
	}
}
