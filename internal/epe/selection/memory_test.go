package selection

import (
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

var (
	wall  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	peerA = netip.MustParseAddr("2001:db8:1::a")
	keyA  = KeyOf(peerA, netip.MustParseAddr("2001:db8:c::10"))
)

func TestKey(t *testing.T) {
	for _, tt := range []struct{ client, want string }{
		{"2001:db8:c:1::10", "2001:db8:c::/48"}, {"198.51.100.7", "198.51.100.0/24"}, {"::ffff:198.51.100.7", "198.51.100.0/24"}, {"fe80::1%eth0", "fe80::/48"},
	} {
		if got := KeyOf(peerA, netip.MustParseAddr(tt.client)).Client.String(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.client, got, tt.want)
		}
	}
}

func TestMemory(t *testing.T) {
	var m Memory
	learned := Past{Rate: 1e6, Burst: 2e6, MinRTT: 10 * time.Millisecond, RTT: 12 * time.Millisecond, Verdict: NoGain, Rests: 3, Rest: 40 * time.Second}
	m.Learn(wall, keyA, learned)
	for after, want := range map[time.Duration]Past{
		0:                {1e6, 2e6, 10 * time.Millisecond, 12 * time.Millisecond, NoGain, 3, 40 * time.Second, 10 * time.Minute},
		time.Minute:      {1e6, 2e6, 10 * time.Millisecond, 12 * time.Millisecond, NoGain, 3, 0, 9 * time.Minute},
		10 * time.Minute: {},
		-time.Hour:       {}, // the clock was set back
	} {
		if got := m.Recall(wall.Add(after), keyA); got != want {
			t.Errorf("after %s: %+v, want %+v", after, got, want)
		}
	}
	// A stall outweighs the rate that was measured.
	m.Stalled(wall, keyA)
	if got, want := m.Recall(wall, keyA), (Past{MinRTT: 10 * time.Millisecond, RTT: 12 * time.Millisecond, Verdict: Stalled, Rests: 4, Rest: 8 * time.Second, Left: rememberFor}); got != want {
		t.Errorf("after a stall: %+v, want %+v", got, want)
	}
	if m.Learn(wall, keyA, Past{Rate: math.Inf(1)}); m.Recall(wall, keyA).Verdict != Stalled {
		t.Error("an impossible rate was learned")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var m Memory
	client := func(i int) netip.Addr { return netip.AddrFrom16([16]byte{0x20, 1, 0, 0, byte(i >> 8), byte(i)}) }
	for i := range MaxEntries + 10 {
		m.Learn(wall.Add(time.Duration(i)), KeyOf(peerA, client(i)), Past{Rate: 1e6, Burst: 1e6, MinRTT: mostRTT, RTT: mostRTT, Verdict: NoGain, Rests: 8, Rest: time.Minute})
	}
	if got := m.Recall(wall, KeyOf(peerA, client(9))); m.Len() != MaxEntries || got != (Past{}) {
		t.Errorf("%d entries, the oldest %+v", m.Len(), got)
	}
	text, err := Encode(m.Entries(wall.Add(time.Second)))
	if err != nil || len(text) > MaxMemorySize {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	var next Memory
	if err := next.Load(wall.Add(time.Second), text); err != nil || !reflect.DeepEqual(next.Entries(wall), m.Entries(wall)) {
		t.Errorf("%d entries after a restart, %v", next.Len(), err)
	}
	if m.Learn(wall.Add(time.Hour), keyA, Past{Rate: 1e6}); m.Len() != 1 {
		t.Errorf("%d entries after an hour", m.Len())
	}
}

// TestLoad leaves out entries that cannot have been learned, and keeps the others.
func TestLoad(t *testing.T) {
	now := wall.Add(time.Minute)
	good := map[string]any{"peer": "2001:db8:1::a", "client": "2001:db8:c::/48", "learned": wall, "rate_bytes_per_second": 1e6, "verdict": "unused"}
	for name, tt := range map[string]struct {
		key   string
		value any
		err   string
	}{
		"good":                  {"min_rtt_ns", 1000, ""},
		"host bits":             {"client", "2001:db8:c::1/48", "ignored 1 of 2 paths"},
		"another length":        {"client", "2001:db8::/32", "invalid path"},
		"no client":             {"client", "", "invalid path"},
		"mapped client":         {"client", "::ffff:198.51.100.0/120", "invalid path"},
		"no peer":               {"peer", "", "invalid path"},
		"the future":            {"learned", now.Add(time.Second), "in the future"},
		"negative rate":         {"rate_bytes_per_second", -1, "invalid rate"},
		"huge rate":             {"rate_bytes_per_second", 1e300, "invalid rate"},
		"rate not a number":     {"rate_bytes_per_second", "NaN", "cannot unmarshal"},
		"negative RTT":          {"min_rtt_ns", -1, "invalid round-trip"},
		"an hour of RTT":        {"min_rtt_ns", time.Hour, "invalid round-trip"},
		"an open path":          {"verdict", "first", "invalid verdict"},
		"unknown verdict":       {"verdict", "x", "unknown reason"},
		"negative rests":        {"rests", -1, "invalid rest"},
		"more rests than bits":  {"rests", 1 << 30, "invalid rest"},
		"rests for ever":        {"rest_until", wall.Add(time.Hour), "invalid rest"},
		"path of another shape": {"peer", []int{1}, "unmarshal"},
	} {
		bad := map[string]any{}
		for k, v := range good {
			bad[k] = v
		}
		bad["client"] = "2001:db8:d::/48"
		bad[tt.key] = tt.value
		text, err := json.Marshal(map[string]any{"version": 1, "paths": []any{bad, good}})
		if err != nil {
			t.Fatal(err)
		}
		var m Memory
		err = m.Load(now, text)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
		want := 1
		switch {
		case tt.err == "":
			want = 2
		case strings.Contains(tt.err, "unmarshal") || strings.Contains(tt.err, "unknown reason") || tt.value == "":
			want = m.Len() // of what is no path at all, the file may be refused
		}
		if m.Len() != want {
			t.Errorf("%s: %d entries, want %d", name, m.Len(), want)
		}
	}
	for _, text := range []string{"", "x", "{}", `{"version":2}`, `{"version":1,"paths":[null]}`, strings.Repeat(" ", MaxMemorySize+1)} {
		var m Memory
		if err := m.Load(now, []byte(text)); err == nil || m.Len() > 0 {
			t.Errorf("%.40q: %v, %d entries", text, err, m.Len())
		}
	}
}

func FuzzLoad(f *testing.F) {
	text, err := Encode([]Entry{{Key: keyA, Learned: wall, Rate: 1e6, MinRTT: 1e7, Verdict: NoGain, Rests: 1, RestUntil: wall.Add(time.Second)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		var m Memory
		_ = m.Load(wall, text)
		for _, e := range m.Entries(wall) {
			p := m.Recall(wall, e.Key)
			accessor.Call(t, e, p)
			if p.Left <= 0 || p.Left > rememberFor || p.Rest > restMost || !(p.Rate >= 0 && p.Rate <= mostRate) || p.Verdict.Open() {
				t.Fatalf("%+v of %+v", p, e)
			}
		}
		if m.Len() > MaxEntries {
			t.Fatalf("%d entries", m.Len())
		}
	})
}

// next returns the next connection over the same paths, which recalls what the present one learned.
func (m *model) next() *model {
	past := map[int]Past{}
	for i := range m.roads {
		p, _ := m.c.Learned(m.now, i)
		past[i] = p
	}
	return m.recalling(past)
}

// recalling returns a connection over the same paths that recalls something of them.
func (m *model) recalling(past map[int]Past) *model {
	n := newModel(m.window, m.roads...)
	n.c.Recall = func(i int) Past {
		p := past[i]
		p.Left = rememberFor
		return p
	}
	return n
}

// TestNextConnection: what one connection learned, the next one does not try again.
func TestNextConnection(t *testing.T) {
	const ms = time.Millisecond
	for name, m := range map[string]*model{
		"slow":               newModel(16e6, road{100 * mbit, 10 * ms}, road{mbit, 10 * ms}),
		"slow, small window": newModel(1e6, road{100 * mbit, 10 * ms}, road{mbit, 10 * ms}),
	} {
		m.run(1e12, 5*time.Second)
		if m.open[1] == 0 {
			t.Fatalf("%s: the other path was not tried", name)
		}
		n := m.next()
		if n.run(1e12, 5*time.Second); n.open[1] > 0 {
			t.Errorf("%s: the next connection tried it for %s", name, n.open[1])
		}
	}
	// The first path is the right one at the first sample, with small objects too.
	m := newModel(16e6, road{5 * mbit, 10 * ms}, road{50 * mbit, 10 * ms})
	m.run(1e12, 5*time.Second)
	n := m.next()
	if n.run(mbit, 2*Interval); n.c.Reason(1) != First {
		t.Errorf("the faster path is %s", n.c.Reason(1))
	}
	if n.run(mbit, 5*time.Second); n.c.Reason(1) != First {
		t.Errorf("the faster path is %s, later", n.c.Reason(1))
	}
	// What helped is used.
	m = newModel(16e6, road{50 * mbit, 10 * ms}, road{50 * mbit, 10 * ms})
	m.run(1e12, 5*time.Second)
	if got := m.next().run(1e12, 5*time.Second); got < 95*mbit {
		t.Errorf("the next connection carries %.1f Mbit/s", got/mbit)
	}
}

// TestRecallJoined: a path that has just joined has no round-trip time yet, and counts with the one
// that is remembered. Without one it is not first, whatever its rate.
func TestRecallJoined(t *testing.T) {
	for _, remembered := range []time.Duration{200 * time.Millisecond, 0} {
		past := map[int]Past{0: {Rate: 50 * mbit, MinRTT: 10 * time.Millisecond, Left: time.Minute}, 1: {Rate: 50 * mbit, MinRTT: remembered, Left: time.Minute}}
		c := Connection[int]{Recall: func(i int) Past { return past[i] }}
		first := Sample[int]{Path: 0, Segment: 1400, Cwnd: 20, InFlight: 10, Window: 16e6, SRTT: 15 * time.Millisecond, MinRTT: 10 * time.Millisecond}
		for now := time.Duration(0); now < time.Second; now += Interval {
			first.Delivered += 100
			c.Update(now, []Sample[int]{first, {Path: 1}})
			if c.Reason(0) != First || c.Reason(1).Open() {
				t.Fatalf("remembered %s: after %s the path is %s, the one that joined %s", remembered, now, c.Reason(0), c.Reason(1))
			}
		}
	}
}

// TestPoisonedMemory recalls the opposite of what is true: a connection finds out.
func TestPoisonedMemory(t *testing.T) {
	m := newModel(16e6, road{100 * mbit, 10 * time.Millisecond}, road{mbit, 10 * time.Millisecond})
	for name, past := range map[string]map[int]Past{
		"slow path is the fastest": {0: {Rate: leastRate}, 1: {Rate: mostRate, MinRTT: 1}},
		"fast path rests":          {0: {Rate: leastRate, Verdict: NoGain, Rests: mostRests, Rest: restMost}},
		"fast path stalls":         {0: {Verdict: Stalled, Rests: mostRests, Rest: restMost}, 1: {Rate: mostRate}},
	} {
		n := m.recalling(past)
		if n.run(mbit/2, 2*time.Second); n.c.Reason(0) != First && n.c.Reason(1) != First {
			t.Fatalf("%s: none is first", name)
		}
		n.run(1e12, rememberFor)
		if got := n.run(1e12, time.Second); got < 90*mbit {
			t.Errorf("%s: carries %.1f Mbit/s after %s, %s and %s", name, got/mbit, n.now, n.c.Reason(0), n.c.Reason(1))
		}
	}
	// A dead path is first only until it is silent.
	n := m.recalling(map[int]Past{0: {Rate: mostRate}, 1: {Verdict: NoGain, Rests: mostRests, Rest: restMost}})
	n.run(mbit, time.Second)
	s := []Sample[int]{{Path: 0, Segment: 1400, Cwnd: 10, InFlight: 10, SRTT: 10 * time.Millisecond, Silence: 200 * time.Millisecond}, {Path: 1, Segment: 1400, Cwnd: 10, SRTT: 10 * time.Millisecond}}
	if n.c.Update(n.now, s); n.c.Reason(1) != Failover {
		t.Errorf("the other path is %s", n.c.Reason(1))
	}
}

// TestUnknownBesideFast: a path of which nothing is known becomes first beside a fast one of
// remembered rate only if it is shorter by more than what its first data takes at the rate that is
// expected of it.
func TestUnknownBesideFast(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		rate   float64 // of the first path
		rtts   [2]time.Duration
		second Reason
	}{
		"fast, a little longer": {300 * mbit, [2]time.Duration{8 * ms, 5 * ms}, Unused},
		"fast, much longer":     {300 * mbit, [2]time.Duration{60 * ms, 5 * ms}, First},
		"typical":               {10 * mbit, [2]time.Duration{80 * ms, 5 * ms}, First},
		"slow":                  {2 * mbit, [2]time.Duration{80 * ms, 5 * ms}, First},
	} {
		c := Connection[int]{Recall: func(path int) Past {
			if path == 0 {
				return Past{Rate: tt.rate, MinRTT: tt.rtts[0], Left: rememberFor}
			}
			return Past{}
		}}
		c.Update(0, []Sample[int]{{Path: 0, Segment: 1400, Cwnd: 10, InFlight: 5, SRTT: tt.rtts[0], MinRTT: tt.rtts[0]}})
		c.Update(Interval, []Sample[int]{
			{Path: 0, Segment: 1400, Cwnd: 10, InFlight: 5, SRTT: tt.rtts[0], MinRTT: tt.rtts[0]},
			{Path: 1, Segment: 1400, Cwnd: 10, SRTT: tt.rtts[1], MinRTT: tt.rtts[1]},
		})
		if got := c.Reason(1); got != tt.second {
			t.Errorf("%s: the unknown path is %s, want %s", name, got, tt.second)
		}
	}
}

// TestStalledPath: a path that stalled in an earlier connection is not first, and does not open;
// when it is the only one and carries data, it no longer counts as stalled.
func TestStalledPath(t *testing.T) {
	past := map[int]Past{0: {Verdict: Stalled, Rests: 1, Rest: restFirst}}
	n := newModel(16e6, road{50 * mbit, 10 * time.Millisecond}, road{50 * mbit, 10 * time.Millisecond}).recalling(past)
	n.run(1e12, restFirst/2)
	if a, b := n.c.Reason(0), n.c.Reason(1); a != Stalled || b != First {
		t.Errorf("the path that stalled is %s, the other %s", a, b)
	}
	if n.run(1e12, restFirst); n.c.Reason(0) != Overflow {
		t.Errorf("the path that stalled is %s after its rest", n.c.Reason(0))
	}
	n = newModel(16e6, road{50 * mbit, 10 * time.Millisecond}).recalling(past)
	n.run(1e12, time.Second)
	if got, ok := n.c.Learned(n.now, 0); !ok || got.Verdict != Unused || got.Rest != 0 || got.Rate < 45*mbit {
		t.Errorf("learned %+v, %v", got, ok)
	}
}

// TestBrokenMemory: a path that carries no data rests for an hour, also after a restart, unless a
// rate is measured.
func TestBrokenMemory(t *testing.T) {
	began := time.Unix(1e9, 0)
	key := KeyOf(netip.MustParseAddr("2001:db8:1::b"), netip.MustParseAddr("2001:db8:c::1"))
	var m Memory
	m.Broken(began, key)
	m.Learn(began.Add(time.Minute), key, Past{MinRTT: time.Millisecond})
	for at := range 60 {
		for range 2 { // entries that no longer count do not outlive it
			m.Learn(began.Add(time.Duration(at)*time.Minute), KeyOf(key.Peer, netip.AddrFrom4([4]byte{10, byte(at)})), Past{MinRTT: time.Millisecond})
		}
	}
	later := began.Add(59 * time.Minute)
	entries := m.Entries(later)
	if len(entries) != 11 || entries[0].Key != key {
		t.Fatalf("%d entries, %+v first", len(entries), entries[0])
	}
	text, err := Encode(entries)
	if err != nil {
		t.Fatal(err)
	}
	var next Memory
	if err := next.Load(later, text); err != nil {
		t.Fatal(err)
	}
	if p := next.Recall(later, key); p.Verdict != Broken || p.Rest != time.Minute || p.Left != time.Minute {
		t.Errorf("it is %+v", p)
	}
	if p := next.Recall(began.Add(time.Hour), key); p != (Past{}) {
		t.Errorf("after an hour it is %+v", p)
	}
	next.Learn(later, key, Past{Rate: 1e6})
	if p := next.Recall(later, key); p.Verdict != Unused || p.Rest != 0 {
		t.Errorf("with a rate it is %+v", p)
	}
}

// TestForget: the path of a subflow that stalled rests in the connection that found it, too, when
// it has another subflow, for longer each time.
func TestForget(t *testing.T) {
	var m Memory
	key := func(path int) Key {
		return KeyOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(path)}), netip.AddrFrom4([4]byte{10, 1, 0, 0}))
	}
	began := time.Unix(1e9, 0)
	now := time.Duration(0)
	c := Connection[int]{Recall: func(path int) Past { return m.Recall(began.Add(now), key(path)) }}
	subflow := uint64(0)
	var closed time.Duration
	var rested []time.Duration
	for ; len(rested) < 3 && now < 2*time.Minute; now += Interval {
		delivered := uint32(now.Seconds() * 40 * mbit / 1400)
		c.Update(now, []Sample[int]{
			{Path: 0, Delivered: delivered, Segment: 1400, Cwnd: 36, InFlight: 36, NotSent: 1 << 16, SRTT: 10 * time.Millisecond, MinRTT: 10 * time.Millisecond},
			{Path: 1, Source: subflow, Segment: 1400, Cwnd: 10, SRTT: 10 * time.Millisecond, MinRTT: 10 * time.Millisecond, SlowStart: true},
		})
		if c.Reason(1).Open() {
			rested = append(rested, now-closed)
			m.Stalled(began.Add(now), key(1))
			c.Forget(1)
			subflow++
			closed = now
		}
	}
	if len(rested) < 3 || rested[0] > time.Second || rested[1] < stallRest || rested[2] < 2*stallRest {
		t.Errorf("it carried data after %s", rested)
	}
}

// TestLearnJoined: of a path that joined and carried nothing the round-trip time is learned, once,
// and not where a rate is remembered, which that does not make younger.
func TestLearnJoined(t *testing.T) {
	const ms = time.Millisecond
	for _, past := range []Past{{}, {Rate: mbit, MinRTT: 25 * ms, Left: time.Minute}} {
		c := Connection[int]{Recall: func(i int) Past { return []Past{{}, past}[i] }}
		for now := time.Duration(0); now < 4*Interval; now += Interval {
			c.Update(now, []Sample[int]{
				{Path: 0, Delivered: uint32(now / ms), Segment: 1400, Cwnd: 20, InFlight: 10, SRTT: 10 * ms, MinRTT: 10 * ms},
				{Path: 1, Segment: 1400, Cwnd: 10, SRTT: 30 * ms, MinRTT: 30 * ms},
			})
			got, ok := c.Learned(now, 1)
			if want := now == 0 && past.Rate == 0; ok != want || ok && got != (Past{MinRTT: 30 * ms, RTT: 30 * ms}) {
				t.Errorf("with a remembered rate of %g, after %s: learned %+v, %v", past.Rate, now, got, ok)
			}
		}
	}
}

// TestLearnedRoundTrip: the least smoothed round-trip time is learned, and what a stall leaves in a
// queue does not replace it.
func TestLearnedRoundTrip(t *testing.T) {
	const ms = time.Millisecond
	var m Memory
	c := Connection[int]{Recall: func(int) Past { return m.Recall(wall, keyA) }}
	at := time.Duration(0)
	update := func(srtt time.Duration) Past {
		at += time.Second
		c.Update(at, []Sample[int]{{Source: 7, Delivered: uint32(at / ms), Segment: 1400, Cwnd: 20, InFlight: 10, NotSent: 1 << 16, SRTT: srtt, MinRTT: 10 * ms}})
		if p, ok := c.Learned(at, 0); ok {
			m.Learn(wall, keyA, p)
		}
		return m.Recall(wall, keyA)
	}
	for _, srtt := range []time.Duration{30 * ms, 18 * ms, 40 * ms} {
		update(srtt)
	}
	if got := update(90 * ms); got.RTT != 18*ms || got.MinRTT != 10*ms {
		t.Errorf("%+v", got)
	}
	m.Stalled(wall, keyA)
	c.Forget(0)
	for range 3 {
		update(time.Second)
	}
	if got := update(time.Second); got.RTT != 18*ms || got.Rate == 0 {
		t.Errorf("after a stall: %+v", got)
	}
}
