package pathmanager

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/mptcp"
)

const segment = 1428 // bytes

// simPath is a sender over a path with a bottleneck, under virtual time: slow start, congestion
// avoidance, selective acknowledgements, one halving per round trip, and a retransmission timeout,
// as in TCP.
type simPath struct {
	rate    float64 // segments per second
	delay   time.Duration
	queue   time.Duration // what the bottleneck's queue holds
	loss    float64
	hole    bool // swallows everything from now on
	offered float64
	random  *rand.Rand

	busyUntil   time.Duration
	cwnd, limit float64
	flight      map[int]time.Duration // segment -> sent
	lost        int                   // known to be lost, to be sent again
	next        int
	recovered   int // segments below do not halve any more
	highest     int
	oldest      int // in flight or later
	delivered   uint32
	acked       uint64
	srtt, dev   time.Duration
	quietSince  time.Duration
	backoff     int
	credit      float64
	acks        ackHeap
}

type ack struct {
	at, sent time.Duration
	segment  int
}

type ackHeap []ack

func (h ackHeap) Len() int           { return len(h) }
func (h ackHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h ackHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *ackHeap) Push(x any)        { *h = append(*h, x.(ack)) }
func (h *ackHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func newSimPath(seed uint64, mbit float64, delay, queue time.Duration, loss float64) *simPath {
	return &simPath{
		rate: mbit * 1e6 / 8 / segment, delay: delay, queue: queue, loss: loss, offered: -1, random: rand.New(rand.NewPCG(seed, 1)),
		cwnd: 10, limit: 1e9, flight: map[int]time.Duration{}, srtt: 2 * delay, dev: delay,
	}
}

// tick is a step of the simulation.
const simTick = time.Millisecond

// step takes what was acknowledged until now and sends what may be sent.
func (p *simPath) step(now time.Duration) {
	// What is acknowledged lets twice as much go, so that a lost burst does not follow another (RFC
	// 6937).
	burst := 0
	for len(p.acks) > 0 && p.acks[0].at <= now {
		p.take(heap.Pop(&p.acks).(ack))
		burst += 2
	}
	rto := max(200*time.Millisecond, p.srtt+4*p.dev) << p.backoff
	if len(p.flight) > 0 && now-p.quietSince > rto {
		p.lost += len(p.flight)
		clear(p.flight)
		p.limit, p.cwnd = max(2, p.cwnd/2), 1
		p.recovered, p.quietSince = p.next, now
		p.backoff = min(p.backoff+1, 6)
	}
	p.credit += max(p.offered, 0) * simTick.Seconds()
	if len(p.flight) == 0 || p.offered >= 0 {
		burst += 10
	}
	for ; burst > 0 && float64(len(p.flight)) < p.cwnd && (p.lost > 0 || p.offered < 0 || p.credit >= 1); burst-- {
		if p.lost > 0 {
			p.lost--
		} else if p.offered >= 0 {
			p.credit--
		}
		p.send(now)
	}
}

func (p *simPath) send(now time.Duration) {
	if len(p.flight) == 0 {
		p.quietSince = now
	}
	p.flight[p.next] = now
	p.next++
	free := max(p.busyUntil, now)
	if p.hole || free-now > p.queue || p.random.Float64() < p.loss {
		return
	}
	p.busyUntil = free + time.Duration(float64(time.Second)/p.rate)
	heap.Push(&p.acks, ack{p.busyUntil + 2*p.delay, now, p.next - 1})
}

func (p *simPath) take(a ack) {
	p.quietSince = a.at
	p.backoff = 0
	p.delivered++
	rtt := a.at - a.sent
	p.dev += (max(rtt-p.srtt, p.srtt-rtt) - p.dev) / 4
	p.srtt += (rtt - p.srtt) / 8
	if _, ok := p.flight[a.segment]; ok {
		delete(p.flight, a.segment)
		p.acked += segment
	}
	p.highest = max(p.highest, a.segment)
	for ; p.oldest < p.highest-3; p.oldest++ {
		if _, ok := p.flight[p.oldest]; !ok {
			continue
		}
		delete(p.flight, p.oldest)
		p.lost++
		if p.oldest >= p.recovered {
			p.recovered = p.next
			p.cwnd = max(2, p.cwnd/2)
			p.limit = p.cwnd
		}
	}
	if p.cwnd < p.limit {
		p.cwnd++
	} else {
		p.cwnd += 1 / p.cwnd
	}
}

func (p *simPath) sample(local netip.AddrPort) mptcp.Subflow {
	return mptcp.Subflow{
		Token: 1, Local: local, Remote: clientAt, InFlight: uint32(len(p.flight) + p.lost),
		Acked: p.acked, Delivered: p.delivered, RTT: p.srtt, Deviation: p.dev,
	}
}

// watchPaths lets paths send from begin to end, looking every sampleBusy, and returns the first
// stall with its time.
func watchPaths(w *stallDetector, begin, end time.Duration, paths map[netip.AddrPort]*simPath) (time.Duration, stall) {
	for now := begin; now < end; now += simTick {
		for _, p := range paths {
			p.step(now)
		}
		if now%sampleBusy != 0 {
			continue
		}
		w.begin()
		for local, p := range paths {
			w.sample(start.Add(now), p.sample(local))
		}
		for _, s := range w.end(start.Add(now)) {
			if len(s.stalled) > 0 {
				return now, s
			}
		}
	}
	return 0, stall{}
}

// A path with a queue of up to 400 ms, losses and a change of rate is slow, not dead.
func TestCongestionIsNoStall(t *testing.T) {
	for _, queue := range []time.Duration{50, 100, 200, 400} {
		for _, mbit := range []float64{2, 5, 15, 30} {
			for _, loss := range []float64{0, 0.001, 0.01} {
				t.Run(fmt.Sprintf("%dms/%gMbit/%g", queue, mbit, loss), func(t *testing.T) {
					a := newSimPath(1, mbit, 2*time.Millisecond, queue*time.Millisecond, loss)
					b := newSimPath(2, 30, 5*time.Millisecond, 50*time.Millisecond, 0)
					paths := map[netip.AddrPort]*simPath{onA: a, onB: b}
					w := newStallDetector()
					if at, s := watchPaths(w, 0, 20*time.Second, paths); len(s.stalled) > 0 {
						t.Errorf("alarm at %v: %+v", at, s)
					}
					a.rate /= 2
					if at, s := watchPaths(w, 20*time.Second, 40*time.Second, paths); len(s.stalled) > 0 {
						t.Errorf("alarm at %v after the rate fell: %+v", at, s)
					}
				})
			}
		}
	}
}

// A hole is found within the path's patience and two looks after the last arrival.
func TestStallIsDetected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		queue := time.Duration(rapid.IntRange(20, 400).Draw(t, "queue ms")) * time.Millisecond
		a := newSimPath(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(2, 30).Draw(t, "Mbit/s"),
			time.Duration(rapid.IntRange(1, 20).Draw(t, "delay ms"))*time.Millisecond, queue, 0)
		b := newSimPath(2, 30, 5*time.Millisecond, 50*time.Millisecond, 0)
		if rapid.Bool().Draw(t, "constant rate") {
			a.offered = a.rate / 2
		}
		paths := map[netip.AddrPort]*simPath{onA: a, onB: b}
		w := newStallDetector()
		begin := time.Duration(rapid.IntRange(2000, 6000).Draw(t, "hole ms")) * time.Millisecond
		if at, s := watchPaths(w, 0, begin, paths); len(s.stalled) > 0 {
			t.Fatalf("alarm at %v before there was a hole", at)
		}
		a.hole = true
		last := max(begin, a.busyUntil+2*a.delay)
		most := max(selection.StallMinShort, 3*(2*a.delay+queue)+4*(queue+2*a.delay)) + 3*sampleBusy
		at, s := watchPaths(w, begin, begin+5*time.Second, paths)
		if len(s.stalled) != 1 || s.stalled[0].Local != onA {
			t.Fatalf("found %+v", s)
		}
		if at > last+most {
			t.Errorf("found %v after the last arrival, want at most %v", at-last, most)
		}
	})
}

// rounds feeds a watch with samples, one round each sampleBusy.
type rounds struct {
	t   *testing.T
	w   *stallDetector
	now time.Time
}

func (r *rounds) round(samples ...mptcp.Subflow) []stall {
	r.now = r.now.Add(sampleBusy)
	r.w.begin()
	for _, s := range samples {
		s.Token, s.Remote = 1, clientAt
		r.w.sample(r.now, s)
	}
	return r.w.end(r.now)
}

func TestStallVerdicts(t *testing.T) {
	const rtt = 20 * time.Millisecond
	still := func(local netip.AddrPort, inFlight uint32) func(int) mptcp.Subflow {
		return func(int) mptcp.Subflow { return mptcp.Subflow{Local: local, InFlight: inFlight, Acked: 1, RTT: rtt} }
	}
	moving := func(local netip.AddrPort) func(int) mptcp.Subflow {
		return func(n int) mptcp.Subflow {
			return mptcp.Subflow{Local: local, InFlight: 20, Acked: uint64(n), Delivered: uint32(n), RTT: rtt}
		}
	}
	selective := func(n int) mptcp.Subflow {
		return mptcp.Subflow{Local: onA, InFlight: 20, Acked: 1, Delivered: uint32(n), RTT: rtt}
	}
	long := func(n int) mptcp.Subflow {
		return mptcp.Subflow{Local: onA, InFlight: 20, Acked: 1, RTT: 2 * time.Second}
	}
	until := func(n int, f, g func(int) mptcp.Subflow) func(int) mptcp.Subflow {
		return func(i int) mptcp.Subflow {
			if i < n {
				return f(i)
			}
			return g(i)
		}
	}
	for _, tt := range []struct {
		name    string
		paths   []func(n int) mptcp.Subflow
		stalled []netip.AddrPort
	}{
		{"one stalls, the other goes on", []func(int) mptcp.Subflow{still(onA, 20), moving(onB)}, []netip.AddrPort{onA}},
		{"two stall at the same hole", []func(int) mptcp.Subflow{still(onA, 20), until(3, moving(defaultAt), still(defaultAt, 20)), moving(onB)}, []netip.AddrPort{onA, defaultAt}},
		{"all stall", []func(int) mptcp.Subflow{still(onA, 20), still(onB, 20)}, nil},
		{"all stop at about the same time", []func(int) mptcp.Subflow{until(4, moving(onA), still(onA, 20)), until(5, moving(onB), still(onB, 20))}, nil},
		{"nothing in flight", []func(int) mptcp.Subflow{still(onA, 0), moving(onB)}, nil},
		{"selective acknowledgements", []func(int) mptcp.Subflow{selective, moving(onB)}, nil},
		{"alone", []func(int) mptcp.Subflow{still(onA, 20)}, nil},
		{"the other is idle", []func(int) mptcp.Subflow{still(onA, 20), still(onB, 0)}, nil},
		{"the other went on for a while and has nothing more to send", []func(int) mptcp.Subflow{still(onA, 20), until(5, moving(onB), still(onB, 0))}, []netip.AddrPort{onA}},
		{"a round trip of two seconds", []func(int) mptcp.Subflow{long, moving(onB)}, nil},
		{"few segments wait for their timeout", []func(int) mptcp.Subflow{still(onA, 10), moving(onB)}, nil},
	} {
		r := &rounds{t: t, w: newStallDetector(), now: start}
		var found []stall
		for n := 1; n <= 12; n++ {
			var samples []mptcp.Subflow
			for _, f := range tt.paths {
				samples = append(samples, f(n))
			}
			found = append(found, r.round(samples...)...)
		}
		var got []netip.AddrPort
		for _, s := range found {
			for _, ends := range s.stalled {
				got = append(got, ends.Local)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.stalled) {
			t.Errorf("%s: stalled %v, want %v", tt.name, got, tt.stalled)
		}
	}
}

func TestStalledSubflowRecovers(t *testing.T) {
	r := &rounds{t: t, w: newStallDetector(), now: start}
	other := func(n int) mptcp.Subflow {
		return mptcp.Subflow{Local: onB, InFlight: 9, Acked: uint64(n), RTT: time.Millisecond}
	}
	a := mptcp.Subflow{Local: onA, InFlight: 9, Acked: 1, RTT: time.Millisecond}
	alarms, moves := 0, 0
	for n := range 60 {
		if n == 40 {
			a.Acked = 2
		}
		for _, s := range r.round(a, other(n)) {
			alarms += len(s.stalled)
			moves += len(s.recovered)
		}
		if n < 40 && moves > 0 {
			t.Fatal("moves while it stalls")
		}
	}
	// Once, then it moved, and stalled again.
	if alarms != 2 || moves != 1 {
		t.Errorf("%d alarms, %d moves, want 2 and 1", alarms, moves)
	}
	r.round(other(60))
	if len(r.w.subflows) != 1 {
		t.Errorf("remembers %d subflows, there is 1", len(r.w.subflows))
	}
}

// Another connection of the same client over the same address shows that the path works.
func TestProgressElsewhereExoneratesThePath(t *testing.T) {
	for _, vouching := range []bool{true, false} {
		w, now, alarms := newStallDetector(), start, 0
		for n := range 12 {
			now = now.Add(sampleBusy)
			other := uint64(0)
			if vouching {
				other = uint64(n)
			}
			w.begin()
			w.sample(now, mptcp.Subflow{Token: 1, Local: onA, Remote: clientAt, InFlight: 20})
			w.sample(now, mptcp.Subflow{Token: 1, Local: onB, Remote: clientAt, InFlight: 20, Acked: uint64(n)})
			w.sample(now, mptcp.Subflow{Token: 2, Local: onA, Remote: netip.AddrPortFrom(clientAt.Addr(), 5), InFlight: 20, Acked: other})
			alarms += len(w.end(now))
		}
		if want := map[bool]int{true: 0, false: 1}[vouching]; alarms != want {
			t.Errorf("vouching %t: %d alarms, want %d", vouching, alarms, want)
		}
	}
}
