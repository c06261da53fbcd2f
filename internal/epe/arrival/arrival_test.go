package arrival

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const segment = 1400

// TestFirstConnection: a path that nothing is known of carries nothing in the first bytes, nor while
// home has no queue, and then a single packet until that is acknowledged.
func TestFirstConnection(t *testing.T) {
	var n Network
	c := New(&n, 2, 0, 0)
	now, sequence := time.Duration(0), uint32(0)
	// send sends segments, each acknowledged after a round trip, until one takes the other path.
	send := func(until uint32, roundTrip time.Duration) (other bool) {
		for ; sequence < until && !other; sequence += segment {
			if other = c.Choose(now, sequence, segment) == 1; !other {
				now += roundTrip
				c.Acknowledged(now, sequence+segment, nil)
			}
		}
		return other
	}
	if send(segment, 10*time.Millisecond) || send(careful/2, 30*time.Millisecond) || send(careful-2*segment, 10*time.Millisecond) {
		t.Errorf("byte %d takes a path that nothing is known of", sequence)
	}
	if send(careful+200*segment, 10*time.Millisecond) {
		t.Errorf("byte %d takes another path although home has no queue", sequence)
	}
	if !send(careful+220*segment, 30*time.Millisecond) {
		t.Fatal("no packet takes the other path although home has a queue")
	}
	for range 5 {
		if c.Choose(now, sequence, segment) == 1 {
			t.Error("a second packet takes a path of which nothing is known")
		}
		sequence += segment
	}
}

// TestLate: what seems to be lost and arrives after all, as the only packet of a longer path does, is
// no reason to leave the path, and says how long it is; what does not arrive is.
func TestLate(t *testing.T) {
	for _, arrives := range []bool{true, false} {
		n := remembers([2]uint32{1000, 0}, [2]uint32{10_000, 0})
		n.paths[1].measured = false
		c := New(n, 2, 0, 0)
		now, sequence, lost := time.Duration(0), uint32(0), 0
		for sequence < careful+1000*segment && lost < 3 {
			other := c.Choose(now, sequence, segment) == 1
			sequence += segment
			now += 30 * time.Millisecond
			if other {
				lost++
				c.Choose(now, sequence-segment, segment)
				now += 15 * time.Millisecond
			}
			c.Acknowledged(now, sequence, nil)
			if other && arrives {
				c.Acknowledged(now, sequence, []Block{{sequence - segment, sequence}})
			}
		}
		c.Choose(now, sequence, segment)
		if left := n.paths[1].until > 0; left == arrives {
			t.Errorf("arrives %v: %+v, %+v", arrives, c.path[1], n.paths[1])
		}
		if arrives != (c.path[1].shortest() == 45_000) {
			t.Errorf("arrives %v: the path is %d us long", arrives, c.path[1].shortest())
		}
	}
}

// TestOvertakenHome: where data on home is overtaken too often, the path that has brought most is home,
// and the others are left; a path that was dead is not home again for that.
func TestOvertakenHome(t *testing.T) {
	for _, tt := range []struct {
		brought  [3]uint32
		shortest uint32 // of path 2
		home     int
		left     [3]bool
	}{
		{[3]uint32{5e6, 1e6, 4e6}, 10_000, 0, [3]bool{1: true, 2: true}},
		{[3]uint32{1e6, 1e5, 4e6}, 10_000, 2, [3]bool{1: true}},
		{[3]uint32{1e6, 1e5, 4e6}, 0, 0, [3]bool{1: true, 2: true}},
	} {
		var n Network
		c := New(&n, 3, 0, 0)
		for i, bytes := range tt.brought {
			c.path[i] = Path{Sent: bytes, Gone: bytes, Packets: bytes / segment, Rate: bytes / 1000, Shortest: 10_000, Smooth: 12_000, Window: 1 << 20}
		}
		c.path[2].Shortest = tt.shortest
		c.bytes, c.next, c.path[0].Late = 10e6, 10e6, mayBeLate+1+c.path[0].Packets/256
		c.Choose(time.Second, 10e6, segment)
		if c.home != tt.home || (c.first != 0) != (tt.home != 0) {
			t.Errorf("paths that brought %d bytes: %d is home, the first one has %d", tt.brought, c.home, c.first)
		}
		for i, want := range tt.left {
			if left := n.paths[i].until > 0; left != want {
				t.Errorf("paths that brought %d bytes: path %d is left: %t", tt.brought, i, left)
			}
		}
	}
}

// TestFastestHome: connections and flows begin on the first path, or on one that is known to be faster
// by a quarter, and not paused.
func TestFastestHome(t *testing.T) {
	for _, c := range []struct {
		rates  [2]uint32
		paused bool
		want   int
	}{{[2]uint32{1000, 1200}, false, 0}, {[2]uint32{1000, 1300}, false, 1}, {[2]uint32{1000, 1300}, true, 0}, {[2]uint32{0, 1300}, false, 0}} {
		n := remembers(c.rates, [2]uint32{10_000, 10_000})
		n.paths[0].until = time.Second // it harmed as another path
		if c.paused {
			n.paths[1].until = time.Hour
		}
		if got := New(n, 2, 0, 0).Choose(0, 0, segment); got != c.want {
			t.Errorf("a connection over paths of %v, paused %v, begins on %d", c.rates, c.paused, got)
		}
		if got := NewFlow(n, 2, 0).Choose(0, segment); got != c.want {
			t.Errorf("a flow over paths of %v, paused %v, begins on %d", c.rates, c.paused, got)
		}
	}
}

// remembers is a network with two paths of these rates, in bytes per millisecond, and round trips.
func remembers(rates, delays [2]uint32) *Network {
	var n Network
	for i := range rates {
		n.paths[i] = Memory{measured: true, rate: rates[i], shortest: delays[i]}
	}
	return &n
}

// bulk sends datagrams at a rate until a time, and returns the shares of both paths in the last part.
func bulk(f *Flow, from, until time.Duration, rate uint32) (shares [2]float64) {
	sent := [2]float64{}
	for now := from; now < until; now += time.Duration(segment) * time.Millisecond / time.Duration(rate) {
		sent[f.Choose(now, segment)]++
		f.Heard(now)
	}
	for i := range sent {
		shares[i] = sent[i] / (sent[0] + sent[1])
	}
	return shares
}

// TestFlow: a flow is measured over home alone, then sprayed by the rates of the paths, and where that
// gains nothing it leaves, for other flows of the network too. Where it gains the next flow begins
// sprayed.
func TestFlow(t *testing.T) {
	n := remembers([2]uint32{3000, 1500}, [2]uint32{10_000, 10_000})
	f := NewFlow(n, 2, 0)
	if got := bulk(f, 0, 590*time.Millisecond, 2900); got[0] != 1 {
		t.Errorf("before home alone is measured %v", got)
	}
	if got := bulk(f, 600*time.Millisecond, 4*time.Second, 4400); got[1] < 0.28 || got[1] > 0.38 {
		t.Errorf("paths of 2 : 1 have %v", got)
	}
	if !n.datagrams.measured || n.datagrams.until != 0 {
		t.Errorf("what is remembered is %+v", n.datagrams)
	}
	next := NewFlow(n, 2, 4*time.Second)
	if got := bulk(next, 4*time.Second, 4500*time.Millisecond, 4400); got[1] < 0.2 {
		t.Errorf("the next flow has %v", got)
	}
	// Home is believed to be slow, so that both are used, and they bring less than home alone did.
	n.paths[0].rate = 2250
	bulk(next, 5*time.Second, 12*time.Second, 2700)
	if n.datagrams.until < 12*time.Second {
		t.Errorf("what gains nothing is not left: %+v", n.datagrams)
	}
	if got := bulk(NewFlow(n, 2, 12*time.Second), 12*time.Second, 13*time.Second, 4400); got[0] != 1 {
		t.Errorf("after that another flow has %v", got)
	}
}

// TestFlowWithoutMeasurements: where TCP measured nothing, or nothing of late, home carries all.
func TestFlowWithoutMeasurements(t *testing.T) {
	if got := bulk(NewFlow(&Network{}, 2, 0), 0, 6*time.Second, 4400); got[0] != 1 {
		t.Errorf("without measurements %v", got)
	}
	n := remembers([2]uint32{3000, 3000}, [2]uint32{10_000, 10_000})
	if got := bulk(NewFlow(n, 2, valid), valid, valid+6*time.Second, 4400); got[0] != 1 {
		t.Errorf("with old ones %v", got)
	}
	n = remembers([2]uint32{3000, 3000}, [2]uint32{10_000, 10_000})
	n.paths[1].until = time.Hour
	if got := bulk(NewFlow(n, 2, 0), 0, 6*time.Second, 4400); got[0] != 1 {
		t.Errorf("over a path that TCP left %v", got)
	}
}

// TestSilentHome: a flow whose client is no longer heard takes another home, one whose client never
// sends stays.
func TestSilentHome(t *testing.T) {
	f := NewFlow(&Network{}, 2, 0)
	f.Choose(0, segment)
	f.Heard(time.Millisecond)
	f.Choose(2*time.Millisecond, segment)
	if got := f.Choose(200*time.Millisecond, segment); got != 0 {
		t.Errorf("after 0.2 s path %d", got)
	}
	if got := f.Choose(400*time.Millisecond, segment); got != 1 {
		t.Errorf("after 0.4 s path %d", got)
	}
	quiet := NewFlow(&Network{}, 2, 0)
	for now := time.Duration(0); now < 5*time.Second; now += 100 * time.Millisecond {
		if got := quiet.Choose(now, segment); got != 0 {
			t.Fatalf("one whose client never sends takes path %d", got)
		}
	}
}

// TestProbes: a flow whose sender gets no acknowledgments takes another home although its client is
// heard, which probes as well while only the way to it is interrupted.
func TestProbes(t *testing.T) {
	const ms = time.Millisecond
	f := NewFlow(&Network{}, 2, 0)
	for now := time.Duration(0); now < 100*ms; now += ms {
		f.Choose(now, segment)
		f.Heard(now + ms/2)
	}
	for i, at := range []time.Duration{186 * ms, 358 * ms, 702 * ms} { // as quic-go probes
		f.Heard(at - 10*ms)
		f.Choose(at-9*ms, 40)
		f.Choose(at, segment)
		if got := f.Choose(at, segment); got != i/2 {
			t.Errorf("probe %d takes path %d", i+1, got)
		}
	}
}

// TestSilentClient: a flow whose client is not heard over any path, as while the uplink is down, begins
// again where it was before, and the next failure of that is its first one.
func TestSilentClient(t *testing.T) {
	const ms = time.Millisecond
	f := NewFlow(&Network{}, 2, 0)
	over := func(from, until time.Duration, heard bool) (last int) {
		for now := from; now < until; now += 10 * ms {
			last = f.Choose(now, segment)
			if heard {
				f.Heard(now + ms)
			}
		}
		return last
	}
	over(0, 500*ms, true)
	if got := over(500*ms, 1500*ms, false); got != 1 {
		t.Fatalf("after 1 s of silence path %d", got)
	}
	f.Heard(1500 * ms)
	if got := over(1510*ms, 2000*ms, true); got != 0 {
		t.Errorf("after that path %d", got)
	}
	if got := over(2000*ms, 2400*ms, false); got != 1 {
		t.Errorf("after 0.4 s of silence path %d", got)
	}
	if got := over(2400*ms, 12*time.Second, true); got != 1 {
		t.Errorf("heard over that, path %d", got)
	}
	if got := over(12*time.Second, 13*time.Second, true); got != 0 {
		t.Errorf("after 10 s path %d", got)
	}
}

// TestFullRecords: what is in flight on home stays known when it is more than the records of a
// connection, whatever arrives first.
func TestFullRecords(t *testing.T) {
	const ms = time.Millisecond
	for _, selective := range []bool{false, true} {
		c := New(&Network{}, 2, 0, 0)
		now, sequence := time.Duration(0), uint32(0)
		for i := range 4 * uint32(records) {
			c.Choose(now, sequence, segment)
			sequence += segment
			now += ms
			if left := uint32(segment); selective && i%100 == 99 {
				c.Acknowledged(now, 0, []Block{{left, sequence}})
			}
		}
		if sent := c.Sent(); sent[0]+sent[1] != sequence {
			t.Errorf("selective %v: %d of %d bytes count as sent", selective, sent, sequence)
		}
		for c.tail != c.head {
			now += ms
			c.Acknowledged(now, sequence, nil)
		}
		if gone := c.path[0].Gone + c.path[1].Gone; gone != sequence {
			t.Errorf("selective %v: %d of %d bytes have arrived", selective, gone, sequence)
		}
	}
}

// TestAnything: whatever arrives, in whatever order, nothing panics, and a path is one of those that
// there are.
func TestAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.IntRange(1, MaxPaths).Draw(t, "paths")
		var n Network
		c, f := New(&n, paths, 0, 0), NewFlow(&n, paths, 0)
		now := time.Duration(0)
		for range rapid.IntRange(1, 300).Draw(t, "events") {
			now += time.Duration(rapid.Uint32().Draw(t, "later")) * time.Microsecond / 100
			number := rapid.Uint32()
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0:
				if got := c.Choose(now, number.Draw(t, "sequence"), uint32(rapid.Uint16().Draw(t, "size"))); got < 0 || got >= paths {
					t.Fatalf("path %d", got)
				}
			case 1:
				c.Acknowledged(now, number.Draw(t, "ack"), []Block{{number.Draw(t, "left"), number.Draw(t, "right")}})
			case 2:
				if got := f.Choose(now, uint32(rapid.Uint16().Draw(t, "size"))); got < 0 || got >= paths {
					t.Fatalf("path %d", got)
				}
			default:
				f.Heard(now)
			}
		}
	})
}

// TestFlowShare: rates are those of a time when others sent more or less. Where home alone brings much
// less now, both paths carry their part of it; where it brings much more, the others are not used. One
// that brings hardly anything is limited by its application.
func TestFlowShare(t *testing.T) {
	for _, c := range []struct{ alone, then, least, most uint32 }{
		{1500, 1900, 20, 38},
		{4200, 6000, 0, 3},
		{300, 300, 0, 0},
	} {
		n := remembers([2]uint32{3000, 1500}, [2]uint32{10_000, 10_000})
		f := NewFlow(n, 2, 0)
		bulk(f, 0, 600*time.Millisecond, c.alone)
		if got := bulk(f, 600*time.Millisecond, 2*time.Second, c.then); got[1] < float64(c.least)/100 || got[1] > float64(c.most)/100 {
			t.Errorf("after %d over home alone %v", c.alone, got)
		}
	}
}

// TestFlowRepeats: home alone is measured once more before spraying ends, since others may have begun
// to send meanwhile.
func TestFlowRepeats(t *testing.T) {
	n := remembers([2]uint32{2500, 1500}, [2]uint32{10_000, 10_000})
	f := NewFlow(n, 2, 0)
	bulk(f, 0, 600*time.Millisecond, 2900)
	bulk(f, 600*time.Millisecond, 4*time.Second, 2800)
	if n.datagrams.until == 0 {
		t.Fatal("what gains nothing is not left")
	}
	n = remembers([2]uint32{3000, 1500}, [2]uint32{10_000, 10_000})
	f = NewFlow(n, 2, 0)
	bulk(f, 0, 600*time.Millisecond, 3900)
	for now := 600 * time.Millisecond; now < 4*time.Second; now += 10 * time.Millisecond {
		rate := uint32(3800) // sprayed, others send too
		if n.flows.turns.State == alone {
			rate = 2600
		}
		bulk(f, now, now+10*time.Millisecond, rate)
	}
	if n.datagrams.until != 0 {
		t.Error("what gains is left, since home alone brought more before")
	}
}

// TestFlowFalls: a flow that brings much less than home alone did right before is left at once: its
// sender takes reordering for losses. One that only does as much less as senders do while other paths
// begin is not.
func TestFlowFalls(t *testing.T) {
	for _, c := range []struct {
		then uint32
		left bool
	}{{1900, true}, {2500, false}} {
		n := remembers([2]uint32{3000, 3000}, [2]uint32{10_000, 10_000})
		f := NewFlow(n, 2, 0)
		bulk(f, 0, 600*time.Millisecond, 2900)
		if got := bulk(f, 600*time.Millisecond, 720*time.Millisecond, c.then); got[1] == 0 {
			t.Errorf("is not sprayed: %v", got)
		}
		if left := n.datagrams.until != 0; left != c.left {
			t.Errorf("with %d of 2900 after 0.12 s: left %t", c.then, left)
		}
	}
}

// TestFailedPath: where half of what a sprayed flow sends is lost it uses home alone after 0.1 s, for
// a moment. If home is the one that failed it takes another one after 0.1 s of silence, and returns
// after 10 s.
func TestFailedPath(t *testing.T) {
	const second = time.Second
	n := remembers([2]uint32{3000, 3000}, [2]uint32{10_000, 10_000})
	f := NewFlow(n, 2, 0)
	bulk(f, 0, 600*time.Millisecond, 2900)
	if got := bulk(f, 600*time.Millisecond, 3*second, 5800); got[1] < 0.4 {
		t.Fatalf("equal paths have %v", got)
	}
	bulk(f, 3*second, 3100*time.Millisecond, 2500)
	if got := bulk(f, 3100*time.Millisecond, 3200*time.Millisecond, 2500); got[0] != 1 {
		t.Errorf("after losses %v", got)
	}
	if got := bulk(f, 3200*time.Millisecond, 3600*time.Millisecond, 5800); got[1] < 0.2 {
		t.Errorf("after what was no failure %v", got)
	}
	bulk(f, 4*second, 6*second, 5800)
	bulk(f, 6*second, 6100*time.Millisecond, 2500)
	if f.Choose(6100*time.Millisecond, segment); f.Choose(6210*time.Millisecond, segment) != 1 {
		t.Error("after 0.1 s of silence it is at home")
	}
	f.Heard(6220 * time.Millisecond)
	if got := bulk(f, 7*second, 16*second, 1000); got[1] != 1 {
		t.Errorf("after home failed %v", got)
	}
	if got := bulk(f, 16500*time.Millisecond, 17*second, 1000); got[0] != 1 {
		t.Errorf("after 10 s %v", got)
	}
	f.Choose(17010*time.Millisecond, segment)
	if got := f.Choose(17120*time.Millisecond, segment); got != 1 {
		t.Errorf("when home is silent again path %d", got)
	}
}

// TestTrial: a path that packets arrive over, and whose rate is not known, is home of a connection until
// its first packets have arrived. It stays home if they did so faster than over home by a quarter. Each
// path is tried once in a while.
func TestTrial(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name string
		gap  time.Duration // between packets that arrive
		lost bool
		want int
	}{{"fast", ms / 2, false, 1}, {"no faster", 2 * ms, false, 0}, {"all at once", 0, false, 1}, {"lost", ms / 2, true, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			n := remembers([2]uint32{1000, 0}, [2]uint32{10_000, 0})
			n.paths[1] = Memory{seen: time.Second}
			c := New(n, 2, 0, time.Second)
			now, sequence := time.Second, uint32(0)
			for range 10 {
				if got := c.Choose(now, sequence, segment); got != 1 {
					t.Fatalf("packet %d takes path %d", sequence/segment, got)
				}
				sequence += segment
			}
			now += 50 * ms
			if tt.lost {
				if got := c.Choose(now, 0, segment); got != 0 {
					t.Errorf("what is sent again takes path %d", got)
				}
			}
			for at := uint32(segment); at <= sequence; at += segment {
				c.Acknowledged(now, at, nil)
				now += tt.gap
			}
			if got := c.Choose(now, sequence, segment); got != tt.want {
				t.Errorf("after the trial path %d, want %d", got, tt.want)
			}
			if got := New(n, 2, 0, now).Choose(now, 0, segment); got != 0 {
				t.Errorf("the next connection begins on path %d", got)
			}
		})
	}
	for name, tt := range map[string]struct {
		rate uint32
		m    Memory
	}{"nothing ever arrived over it": {1000, Memory{}}, "it is paused": {1000, Memory{seen: time.Second, until: time.Hour}}, "home is fast": {mostTried + 1, Memory{seen: time.Second}}} {
		n := remembers([2]uint32{tt.rate, 0}, [2]uint32{10_000, 0})
		n.paths[1] = tt.m
		if got := New(n, 2, 0, time.Second).Choose(time.Second, 0, segment); got != 0 {
			t.Errorf("%s: tried", name)
		}
	}
}

// TestLossyHome: a connection that began on another path than the first one leaves it if losses make it
// slower than that was, and does not if it is faster nevertheless.
func TestLossyHome(t *testing.T) {
	for _, faster := range []bool{false, true} {
		n := remembers([2]uint32{1000, 3000}, [2]uint32{10_000, 10_000})
		c := New(n, 2, 0, 0)
		// A segment in 2 ms is 700 bytes/ms, one in 1 ms twice that.
		now, sequence, step := time.Duration(0), uint32(0), 2*time.Millisecond
		if faster {
			step = time.Millisecond
		}
		chosen := 0
		for i := range 2000 {
			chosen = c.Choose(now, sequence, segment)
			sequence += segment
			if i%100 == 99 {
				c.Choose(now+5*time.Millisecond, sequence-segment, segment)
				c.Acknowledged(now+16*time.Millisecond, sequence, nil)
			} else {
				c.Acknowledged(now+10*time.Millisecond, sequence, nil)
			}
			now += step
		}
		if want := map[bool]int{false: 0, true: 1}[faster]; chosen != want {
			t.Errorf("faster %v: path %d, want %d", faster, chosen, want)
		}
		if left := n.paths[1].until > 0; left == faster {
			t.Errorf("faster %v: left %v", faster, left)
		}
	}
}

// carried returns a connection whose home has carried 40 segments, each in 30 ms, of two paths with as
// much, the time and the next sequence number.
func carried() (c *Connection, now time.Duration, sequence uint32) {
	c = New(remembers([2]uint32{1000, 1000}, [2]uint32{30_000, 30_000}), 2, 0, 0)
	for range 40 {
		c.Choose(now, sequence, segment)
		sequence += segment
		now += 30 * time.Millisecond
		c.Acknowledged(now, sequence, nil)
	}
	return c, now, sequence
}

// TestDeadHome: home is left with the first segment that is sent again after nothing of it arrived for
// longer than TCP waits, or when what others carry arrives and what home carries does not. New data
// avoids it before. While it is only lost in part, it stays.
func TestDeadHome(t *testing.T) {
	const ms = time.Millisecond
	c, now, sequence := carried()
	c.Choose(now, sequence, segment)
	if got := c.Choose(now+150*ms, sequence, segment); got != 0 {
		t.Errorf("sent again after 150 ms it takes path %d", got)
	}
	if got := c.Choose(now+200*ms, sequence, segment); got != 1 {
		t.Errorf("sent again after 200 ms it takes path %d", got)
	}

	c, now, sequence = carried()
	lost := sequence
	c.Choose(now, sequence, segment) // home
	sequence += segment
	// Another path carries something, and it arrives.
	send := func(arrives bool) {
		sequence = c.sendOver(1, now, sequence)
		now += 30 * ms
		if arrives {
			c.Acknowledged(now, lost, []Block{{sequence - segment, sequence}})
		}
	}
	send(true)
	if got := c.Choose(now, lost, segment); got != 0 {
		t.Errorf("when another path is not yet ahead it takes path %d", got)
	}
	send(true)
	if got := c.Choose(now, sequence, segment); got != 1 {
		t.Errorf("new data takes path %d while home is silent", got)
	}
	if got := c.Choose(now, lost, segment); got != 1 {
		t.Errorf("sent again it takes path %d", got)
	}
}

// sendOver sends a segment over a path, whatever would be chosen, and returns the next sequence
// number.
func (c *Connection) sendOver(path int, now time.Duration, sequence uint32) uint32 {
	p := &c.path[path]
	p.send(micro(now), segment)
	c.next = sequence + segment
	*c.record(c.head) = record{end: c.next, length: segment, sent: micro(now), acknowledged: p.Gone, path: path}
	c.head++
	return c.next
}

// TestRoundTripAfterOutage: a dead home is measured again by what it carries afterwards, not by what
// it had in flight.
func TestRoundTripAfterOutage(t *testing.T) {
	const ms = time.Millisecond
	c, now, sequence := carried()
	choose := func() int {
		sequence += segment
		return c.Choose(now, sequence-segment, segment)
	}
	lost := sequence
	for range 10 {
		choose()
	}
	now += time.Second
	if got := c.Choose(now, lost, segment); got != 1 {
		t.Fatalf("sent again it takes path %d", got)
	}
	now += 30 * ms
	if c.Acknowledged(now, sequence, nil); c.path[0].shortest() != 0 {
		t.Errorf("the round trip of the dead path is %d", c.path[0].shortest())
	}
	// What was sent again arrives twice.
	now += 30 * ms
	if c.Acknowledged(now, sequence, []Block{{lost, lost + segment}}); c.path[0].shortest() != 0 || c.path[0].Late != 1 {
		t.Errorf("the round trip of the dead path is %d, and %d packets were late", c.path[0].shortest(), c.path[0].Late)
	}
	for range 40 {
		choose()
		sequence = c.sendOver(0, now, sequence)
		now += 30 * ms
		c.Acknowledged(now, sequence, nil)
	}
	if got := c.path[0].shortest(); got != 30_000 {
		t.Errorf("the round trip measured again is %d", got)
	}
}

// TestHomeAfterOutage: a home that died is home again where what was sent again over another path did
// not arrive either, and is not where that did.
func TestHomeAfterOutage(t *testing.T) {
	const ms = time.Millisecond
	for want, retransmissions := range [][]time.Duration{{250 * ms, 600 * ms}, {250 * ms}} {
		c, now, sequence := carried()
		lost := sequence
		c.Choose(now, sequence, segment)
		sequence += segment
		for _, at := range retransmissions {
			if got := c.Choose(now+at, lost, segment); got != 1 {
				t.Fatalf("sent again after %v it takes path %d", at, got)
			}
		}
		now += time.Second
		c.Acknowledged(now, sequence, nil)
		for range 20 {
			if got := c.Choose(now, sequence, segment); got != want {
				t.Fatalf("after %d retransmissions it takes path %d", len(retransmissions), got)
			}
			sequence += segment
			now += 30 * ms
			c.Acknowledged(now, sequence, nil)
		}
		if p := c.path[0]; want == 0 && (p.Lost != 0 || p.shortest() != 30_000) {
			t.Errorf("the home: %+v", p)
		}
	}
}

// TestPauses: an application that sends a little at a time, on a connection that is kept, says
// nothing of the rate of a path, whatever is known of it.
func TestPauses(t *testing.T) {
	for _, rate := range []uint32{0, 2400} {
		n := remembers([2]uint32{rate, rate}, [2]uint32{10_000, 10_000})
		c := New(n, 2, 0, 0)
		now, sequence := time.Second, uint32(0)
		for range 100 {
			for range 10 {
				c.Choose(now, sequence, segment)
				sequence += segment
			}
			// The last acknowledgment is delayed.
			for i := range uint32(9) {
				c.Acknowledged(now+10*time.Millisecond+time.Duration(i)*500*time.Microsecond, sequence-(9-i)*segment, nil)
			}
			now += 100 * time.Millisecond
		}
		for i := range n.paths {
			if got := n.paths[i].rate; i < 2 && got != rate {
				t.Errorf("of path %d a rate of %d bytes/ms is remembered, after %d", i, got, rate)
			}
		}
	}
}

// TestHomeReturns: a home that died is home again once something that it carries arrives.
func TestHomeReturns(t *testing.T) {
	const ms = time.Millisecond
	c, now, sequence := carried()
	pass := func() (path int) {
		path = c.Choose(now, sequence, segment)
		sequence += segment
		now += 30 * ms
		c.Acknowledged(now, sequence, nil)
		return path
	}
	lost := sequence
	c.Choose(now, sequence, segment)
	sequence += segment
	now += 250 * ms
	if got := c.Choose(now, lost, segment); got != 1 {
		t.Fatalf("sent again it takes path %d", got)
	}
	now += 30 * ms
	c.Acknowledged(now, sequence, nil)
	if got := pass(); got != 1 {
		t.Fatalf("after that path %d", got)
	}
	sequence = c.sendOver(0, now, sequence)
	now += 30 * ms
	c.Acknowledged(now, sequence, nil)
	if got := pass(); got != 0 {
		t.Errorf("after an arrival over the first path, path %d", got)
	}
}

// TestOutageOfAllPaths: where nothing arrives over any path for a while, as when the uplink or the
// client's access is down, no path is left for it.
func TestOutageOfAllPaths(t *testing.T) {
	const ms = time.Millisecond
	c := New(remembers([2]uint32{1000, 1000}, [2]uint32{30_000, 30_000}), 2, 0, 0)
	now, sequence := time.Duration(0), uint32(0)
	both := func() {
		c.Choose(now, sequence, segment)
		sequence = c.sendOver(1, now, sequence+segment)
	}
	for range 40 {
		both()
		now += 30 * ms
		c.Acknowledged(now, sequence, nil)
	}
	lost := sequence
	for range 20 {
		both()
	}
	now += time.Second
	for ; lost != sequence; lost += segment {
		c.Choose(now, lost, segment)
		now += 31 * ms
		c.Acknowledged(now, lost+segment, nil)
	}
	for range 10 {
		both()
		now += 30 * ms
		c.Acknowledged(now, sequence, nil)
	}
	for i := range 2 {
		if p := &c.path[i]; p.Paused != 0 || p.Lost != 0 || p.Late != 0 {
			t.Errorf("path %d is left, or lost something: %+v", i, *p)
		}
	}
}

// TestLossyFirstPath: where the first path loses so many packets that it has no queue, the other one
// never carries anything. The next connection tries it.
func TestLossyFirstPath(t *testing.T) {
	for _, loses := range []bool{false, true} {
		n := &Network{}
		now, sequence, inFlight := time.Duration(0), uint32(2*segment), uint32(2*segment)
		if loses {
			inFlight = 0 // what is lost holds up the connection until nothing is
		}
		c := New(n, 2, sequence, 0)
		for i := range 2000 {
			if got := c.Choose(now, sequence, segment); got != 0 {
				t.Fatalf("segment %d takes path %d", i, got)
			}
			sequence += segment
			if loses && i%100 == 99 {
				c.Choose(now+5*time.Millisecond, sequence-segment, segment)
				c.Acknowledged(now+16*time.Millisecond, sequence, nil)
			} else {
				c.Acknowledged(now+10*time.Millisecond, sequence-inFlight, nil)
			}
			now += 20 * time.Millisecond
		}
		if got := New(n, 2, 0, now).Choose(now, 0, segment) == 1; got != loses {
			t.Errorf("losses %v: the next connection tries the other path: %v", loses, got)
		}
		// A segment in 20 ms is 70 bytes/ms, though each round trip of 10 ms brings 140.
		if rate := n.paths[0].known(now); loses && rate > 80 || rate == 0 {
			t.Errorf("losses %v: a rate of %d bytes/ms is remembered", loses, rate)
		}
		// What it brings beside another home is no reason to return.
		c.home, c.path[0].Packets, c.path[0].Rate = 1, learned, 3000
		c.remember(now)
		if rate := n.paths[0].known(now); (rate == 3000) == loses {
			t.Errorf("losses %v: beside another home a rate of %d bytes/ms is remembered", loses, rate)
		}
	}
}
