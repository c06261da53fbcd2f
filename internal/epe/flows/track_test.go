package flows

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/epe/flowcount"
	"github.com/tabane/tabane/internal/mptcp"
)

// kernel is a fake of the counters: slots with a count each.
type kernel struct {
	slots   map[int]*slot
	byKey   map[flowcount.Key]int
	spare   []int
	reasons [flowcount.NumReasons]flowcount.Count
	counted flowcount.Count
	fail    error
}

type slot struct {
	key     flowcount.Key
	count   flowcount.Count
	removed bool
}

func newKernel(room int) *kernel {
	k := &kernel{slots: map[int]*slot{}, byKey: map[flowcount.Key]int{}}
	for i := range room {
		k.spare = append(k.spare, room-1-i)
	}
	return k
}

func (k *kernel) carry(key flowcount.Key, packets, size uint64) {
	n, ok := k.byKey[key]
	if !ok {
		if len(k.spare) == 0 {
			k.reasons[flowcount.Full] = plus(k.reasons[flowcount.Full], flowcount.Count{Packets: packets, Bytes: size})
			return
		}
		last := len(k.spare) - 1
		n, k.spare = k.spare[last], k.spare[:last]
		k.byKey[key] = n
		k.slots[n] = &slot{key: key}
	}
	k.carryIn(n, packets, size)
}

// carryIn counts packets in a slot, as a CPU does that looked up the slot before its flow was
// removed.
func (k *kernel) carryIn(n int, packets, size uint64) {
	c := flowcount.Count{Packets: packets, Bytes: size}
	k.slots[n].count = plus(k.slots[n].count, c)
	k.counted = plus(k.counted, c)
}

func (k *kernel) Each(f func(int, *flowcount.Key, flowcount.Count)) {
	for _, n := range slices.Sorted(maps.Keys(k.slots)) {
		f(n, &k.slots[n].key, k.slots[n].count)
	}
}

func (k *kernel) Remove(n int) error {
	if k.slots[n] == nil || k.slots[n].removed {
		return fmt.Errorf("slot %d has no flow", n)
	}
	k.slots[n].removed = true
	delete(k.byKey, k.slots[n].key)
	return nil
}

func (k *kernel) Reuse(n int) error {
	if k.slots[n] == nil || !k.slots[n].removed {
		return fmt.Errorf("the flow of slot %d was not removed", n)
	}
	delete(k.slots, n)
	k.spare = append(k.spare, n)
	return nil
}

func (k *kernel) Reasons() ([flowcount.NumReasons]flowcount.Count, error) { return k.reasons, k.fail }

// host is a fake of sock_diag.
type host struct {
	sockets     []mptcp.Socket
	connections []mptcp.Connection
	listeners   []mptcp.Listener
	asked       int
	fail        error
}

func (h *host) Listeners() ([]mptcp.Listener, error) { return h.listeners, nil }

func (h *host) Connections(family mptcp.Family, f func(mptcp.Connection)) error {
	for _, c := range h.connections {
		if family == mptcp.IPv6 {
			f(c)
		}
	}
	return nil
}

func (h *host) Sockets(family mptcp.Family, f func(*mptcp.Socket)) error {
	h.asked++
	for i := range h.sockets {
		if family == mptcp.IPv6 {
			f(&h.sockets[i])
		}
	}
	return h.fail
}

var (
	serverA = netip.MustParseAddr("2001:db8:1::a")
	serverB = netip.MustParseAddr("2001:db8:1::b")
	client  = netip.MustParseAddr("2001:db8:c::2")
	sidA    = netip.MustParseAddr("fc00:1:1::")
)

func sent(from netip.Addr, port uint16, sid netip.Addr, proto uint8) flowcount.Key {
	k := flowcount.Key{Source: from.As16(), Destination: client.As16(), SourcePort: 80, DestinationPort: port, Family: 6, Protocol: proto, Direction: 1, Ifindex: 2}
	if sid.IsValid() {
		k.Sid = sid.As16()
	}
	return k
}

func received(to netip.Addr, port uint16) flowcount.Key {
	return flowcount.Key{Source: client.As16(), Destination: to.As16(), SourcePort: port, DestinationPort: 80, Family: 6, Protocol: 6, Ifindex: 2}
}

func socketOf(local netip.Addr, port uint16, token uint32) mptcp.Socket {
	return mptcp.Socket{
		Subflow: mptcp.Subflow{Token: token, Local: netip.AddrPortFrom(local, 80), Remote: netip.AddrPortFrom(client, port), RTT: 40 * time.Millisecond, Busy: 3 * time.Second, Window: 44, MinRTT: 9800 * time.Microsecond, NotSent: 950_000, SendWindow: 3 << 20},
		State:   1, Congestion: "cubic", PacingRate: math.MaxUint64,
		AppLimited: true, WindowLimited: 2 * time.Second, BufferLimited: time.Second,
	}
}

// watch is a Watcher with fakes and a simulated clock.
type watch struct {
	*Watcher
	kernel *kernel
	host   *host
	now    time.Time
}

func newWatch() *watch { return newWatchOf(1 << 15) }

// newWatchOf returns a watch with a capacity of room flows.
func newWatchOf(room int) *watch {
	w := &watch{kernel: newKernel(room), host: &host{}, now: time.Unix(1000, 0)}
	w.Watcher = &Watcher{
		options: Options{Interval: DefaultInterval, Idle: DefaultIdle, Share: DefaultShare, Log: slog.New(slog.DiscardHandler)},
		counter: w.kernel, slots: w.kernel, sockets: w.host, cost: func() time.Duration { return 0 },
		t: newTracker(map[uint32]string{2: "lan"}, map[netip.Addr]string{serverA: "transit-a"}, DefaultIdle, room),
	}
	return w
}

// next advances the clock by d and returns the snapshot.
func (w *watch) next(t testing.TB, d time.Duration) *Snapshot {
	t.Helper()
	w.now = w.now.Add(d)
	if err := w.read(w.now, d); err != nil {
		t.Fatal(err)
	}
	return &w.t.snapshot
}

func find(t testing.TB, s *Snapshot, key flowcount.Key) *Flow {
	t.Helper()
	for _, f := range s.Flows {
		if f.key == key {
			return f
		}
	}
	return nil
}

func TestDeltasAndJoin(t *testing.T) {
	w := newWatch()
	a, b, back, dns := sent(serverA, 4000, sidA, 6), sent(serverB, 4001, netip.Addr{}, 6), received(serverA, 4000), sent(serverA, 53, netip.Addr{}, 17)
	w.host.sockets = []mptcp.Socket{socketOf(serverA, 4000, 0xcafe), socketOf(serverB, 4001, 0xcafe)}
	w.kernel.carry(a, 10, 3000)
	w.kernel.carry(b, 5, 1000)
	w.kernel.carry(back, 3, 200)
	w.kernel.carry(dns, 1, 90)
	s := w.next(t, 100*time.Millisecond)
	fa, fb, fback, fdns := find(t, s, a), find(t, s, b), find(t, s, back), find(t, s, dns)
	if fa.Delta != (flowcount.Count{Packets: 10, Bytes: 3000}) || fa.BitsPerSecond(s.Elapsed) != 240000 || fa.Peer != "transit-a" || fa.SID != sidA || fa.Interface != "lan" {
		t.Errorf("flow %+v", fa)
	}
	if fa.Share() != 0.75 || fb.Share() != 0.25 || fback.Share() != 1 || fdns.Share() != 1 {
		t.Errorf("shares %v, %v, %v, %v", fa.Share(), fb.Share(), fback.Share(), fdns.Share())
	}
	if fa.Token() != 0xcafe || fback.Token() != 0xcafe || fdns.Token() != 0 {
		t.Errorf("tokens %x, %x, %x", fa.Token(), fback.Token(), fdns.Token())
	}
	if fback.Local != fa.Local || fback.Remote != fa.Remote {
		t.Errorf("what is received is %v to %v", fback.Local, fback.Remote)
	}
	if socket, at := fback.Socket(); socket == nil || socket.Window != 44 || at != w.now {
		t.Errorf("socket %+v at %v", socket, at)
	}
	if socket, _ := fdns.Socket(); socket != nil {
		t.Errorf("UDP has the socket %+v", socket)
	}

	w.kernel.carry(a, 1, 100)
	s = w.next(t, 100*time.Millisecond)
	if fa = find(t, s, a); fa.Delta.Bytes != 100 || fa.Total.Bytes != 3100 || fa.Share() != 1 {
		t.Errorf("then %+v", fa)
	}
	if fb = find(t, s, b); fb.Delta.Bytes != 0 || fb.Share() != 0 || fb.Total.Bytes != 1000 {
		t.Errorf("quiet %+v", fb)
	}
}

func TestConnectionEnds(t *testing.T) {
	w := newWatch()
	a, dns := sent(serverA, 4000, sidA, 6), sent(serverA, 53, netip.Addr{}, 17)
	w.host.sockets = []mptcp.Socket{socketOf(serverA, 4000, 0xcafe)}
	w.kernel.carry(a, 10, 3000)
	w.kernel.carry(dns, 1, 90)
	w.next(t, 0)
	w.next(t, time.Hour)
	if s := w.next(t, late); find(t, s, a).Ended || !find(t, s, dns).Ended {
		t.Error("an open socket has no end, a quiet flow without one has")
	}
	w.host.sockets = nil
	w.next(t, time.Second)
	s := w.next(t, late)
	if f := find(t, s, a); !f.Ended || f.Total.Bytes != 3000 {
		t.Errorf("after its socket is gone: %+v", f)
	}
	if s := w.next(t, time.Second); len(s.Flows) != 0 || len(w.kernel.slots) != 0 {
		t.Errorf("left are %d flows and %v", len(s.Flows), w.kernel.slots)
	}
	if len(w.t.flows)+len(w.t.pairs)+len(w.t.connections)+len(w.t.leaving) != 0 {
		t.Errorf("kept: %v, %v, %v, %v", w.t.flows, w.t.pairs, w.t.connections, w.t.leaving)
	}
	// The same addresses in a later flow are a new flow, even in the same slot.
	w.kernel.carry(a, 1, 50)
	if f := find(t, w.next(t, time.Second), a); f == nil || f.ID != 3 || f.Total.Bytes != 50 || f.Ended {
		t.Errorf("again: %+v", f)
	}
}

// TestFinalDelta counts packets while their flow is removed, and after the flow was added again.
func TestFinalDelta(t *testing.T) {
	w := newWatch()
	dns := sent(serverA, 53, netip.Addr{}, 17)
	w.kernel.carry(dns, 1, 90)
	first := find(t, w.next(t, 0), dns)
	w.next(t, time.Hour)
	if first.Ended || len(w.kernel.byKey) != 0 {
		t.Fatalf("flow %+v, the kernel has %v", first, w.kernel.byKey)
	}
	w.kernel.carryIn(0, 1, 70)
	w.kernel.carry(dns, 1, 1000)
	s := w.next(t, late)
	if !first.Ended || first.Delta.Bytes != 70 || first.Total.Bytes != 160 {
		t.Errorf("flow %+v", first)
	}
	if len(s.Flows) != 2 || s.Flows[1].ID != 2 || s.Flows[1].Total.Bytes != 1000 || s.Flows[1].Ended {
		t.Errorf("flows %+v", s.Flows)
	}
	// Its slot belongs to another flow now.
	other := sent(serverB, 53, netip.Addr{}, 17)
	w.kernel.carry(other, 1, 5)
	if f := find(t, w.next(t, 0), other); f.slot != first.slot || f.Total.Bytes != 5 || first.Total.Bytes != 160 {
		t.Errorf("flow %+v in the slot of %+v", f, first)
	}
}

// TestSlotsAreKeptForLatePackets: the slot of a removed flow is not reused before the time late has
// elapsed.
func TestSlotsAreKeptForLatePackets(t *testing.T) {
	w := newWatchOf(1)
	a, b := sent(serverA, 53, netip.Addr{}, 17), sent(serverB, 53, netip.Addr{}, 17)
	w.kernel.carry(a, 1, 90)
	w.next(t, 0)
	w.next(t, time.Hour)
	w.kernel.carry(b, 1, 50)
	w.next(t, late-1)
	w.kernel.carry(b, 1, 50)
	if s := w.next(t, 1); !find(t, s, a).Ended || s.Unparsed[flowcount.Full].Packets != 2 {
		t.Errorf("flow %+v, without a flow are %+v", find(t, s, a), s.Unparsed[flowcount.Full])
	}
	w.kernel.carry(b, 1, 50)
	if f := find(t, w.next(t, 0), b); f == nil || f.Total.Bytes != 50 {
		t.Errorf("then %+v", f)
	}
}

// TestOldestFlowsAreEvicted: with more flows than three quarters of the capacity, those idle for
// longest are evicted, even if their sockets are open.
func TestOldestFlowsAreEvicted(t *testing.T) {
	w := newWatchOf(16)
	for port := range uint16(13) {
		w.host.sockets = append(w.host.sockets, socketOf(serverA, port, 1))
		w.kernel.carry(sent(serverA, port, sidA, 6), 1, 100)
		w.next(t, 10*time.Millisecond)
	}
	w.next(t, grace-time.Millisecond)
	s := w.next(t, late)
	for port := range uint16(13) {
		if f := find(t, s, sent(serverA, port, sidA, 6)); f.Ended != (port < 2) {
			t.Errorf("flow %d ended: %v", port, f.Ended)
		}
	}
	if n := len(w.t.leaving); n != 0 {
		t.Errorf("%d flows more are leaving", n)
	}
}

// TestNothingIsLost applies random kernel operations and finds every byte in the flows.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWatchOf(8)
		sums := map[uint64]uint64{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			key := sent(serverA, rapid.Uint16Range(1, 6).Draw(rt, "port"), sidA, rapid.SampledFrom([]uint8{6, 17}).Draw(rt, "protocol"))
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0, 1:
				w.kernel.carry(key, 1, rapid.Uint64Range(1, 1000).Draw(rt, "bytes"))
			case 2:
				for n, s := range w.kernel.slots {
					if s.removed {
						w.kernel.carryIn(n, 1, 100)
					}
				}
			case 3:
				w.host.sockets = nil
				if rapid.Bool().Draw(rt, "socket") {
					w.host.sockets = []mptcp.Socket{socketOf(serverA, key.DestinationPort, rapid.Uint32Range(0, 2).Draw(rt, "token"))}
				}
			default:
				elapsed := rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, time.Minute}).Draw(rt, "elapsed")
				s := w.next(t, elapsed)
				shares := map[uint32]float64{}
				for _, f := range s.Flows {
					sums[f.ID] += f.Delta.Bytes
					if sums[f.ID] != f.Total.Bytes {
						rt.Fatalf("flow %d: deltas %d, total %d", f.ID, sums[f.ID], f.Total.Bytes)
					}
					if f.Token() != 0 {
						shares[f.Token()] += f.Share()
					}
				}
				for token, sum := range shares {
					if sum > 1.0001 {
						rt.Fatalf("shares of %x add up to %v", token, sum)
					}
				}
				var all uint64
				for _, sum := range sums {
					all += sum
				}
				if want := w.kernel.counted.Bytes; all != want {
					rt.Fatalf("%d in flows, want %d", all, want)
				}
			}
		}
	})
}

func TestSocketIntervalIsBounded(t *testing.T) {
	w := newWatch()
	cost := time.Duration(0)
	w.cost = func() time.Duration { cost += time.Millisecond; return cost }
	w.next(t, 100*time.Millisecond)
	if w.host.asked != 0 {
		t.Error("sockets are read without a flow of TCP")
	}
	w.kernel.carry(sent(serverA, 4000, sidA, 6), 1, 100)
	for range 21 {
		w.next(t, 100*time.Millisecond)
	}
	// Each read takes 1 ms; 0.5 % of the time is one read every 200 ms.
	if w.host.asked != 11 {
		t.Errorf("sockets were read %d times in 2.1 s, want 11", w.host.asked)
	}
}

func TestReadIntervalIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatch()
		cost := time.Duration(0)
		// cost is called four times per read, for two measurements of 2 ms each.
		w.cost = func() time.Duration { cost += 2 * time.Millisecond; return cost }
		var lengths []time.Duration
		w.options.Sink = func(s *Snapshot) error {
			lengths = append(lengths, s.Elapsed)
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 950*time.Millisecond)
		defer cancel()
		if err := w.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		// 4 ms are 1.5 % of 267 ms; the last interval is the remaining time.
		want := []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond, 250 * time.Millisecond}
		if !slices.Equal(lengths, want) {
			t.Errorf("intervals %v, want %v", lengths, want)
		}
	})
}

func TestCountingGoesOnWithoutSockets(t *testing.T) {
	w := newWatch()
	w.host.fail = unix.ENOENT
	a := sent(serverA, 4000, sidA, 6)
	w.kernel.carry(a, 1, 100)
	w.next(t, 100*time.Millisecond)
	if f := find(t, w.next(t, 100*time.Millisecond), a); f.Total.Bytes != 100 || w.host.asked != 1 {
		t.Errorf("flow %+v, asked %d times", f, w.host.asked)
	}
	if s := w.Status().(Status); s.Sockets != unix.ENOENT.Error() {
		t.Errorf("status %+v", s)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatch()
		w.kernel.carry(sent(serverA, 53, sidA, 17), 1, 100)
		var at []time.Duration
		start := time.Now()
		w.options.Sink = func(s *Snapshot) error {
			at = append(at, time.Since(start))
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		if err := w.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		want := []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 250 * time.Millisecond}
		if !slices.Equal(at, want) {
			t.Errorf("read at %v, want %v", at, want)
		}
		broken := errors.New("broken")
		w.kernel.fail = broken
		if err := w.Run(t.Context()); !errors.Is(err, broken) {
			t.Errorf("a failed read: %v", err)
		}
		w.kernel.fail, w.options.Sink = nil, func(*Snapshot) error { return broken }
		if err := w.Run(t.Context()); !errors.Is(err, broken) {
			t.Errorf("a failed sink: %v", err)
		}
	})
}

func TestMetrics(t *testing.T) {
	w := newWatch()
	a := sent(serverA, 4000, sidA, 6)
	w.host.sockets = []mptcp.Socket{socketOf(serverA, 4000, 0xcafe)}
	w.kernel.carry(a, 10, 3000)
	w.kernel.reasons[flowcount.Fragment] = flowcount.Count{Packets: 7}
	w.next(t, 100*time.Millisecond)
	w.host.sockets[0].Retransmitted = 4
	w.next(t, 100*time.Millisecond)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"tabane_flows_bytes_total sent lan transit-a fc00:1:1::":                  3000,
		"tabane_flows_packets_total sent lan transit-a fc00:1:1::":                10,
		"tabane_flows sent lan transit-a fc00:1:1::":                              1,
		"tabane_flows_retransmitted_segments_total sent lan transit-a fc00:1:1::": 4,
		"tabane_flows_srtt_seconds sent lan transit-a fc00:1:1::":                 0.04,
		"tabane_flows_mptcp_connections":                                          1,
		"tabane_flows_unparsed_packets_total fragment":                            7,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: %v, %t; want %v of %v", name, v, ok, want, got)
		}
	}
}

func TestMetricsAreBounded(t *testing.T) {
	w := newWatch()
	for i := range 3 * maxAggregates {
		w.kernel.carry(sent(serverA, 80, netip.AddrFrom16([16]byte{0xfc, 14: byte(i >> 8), 15: byte(i)}), 17), 1, 100)
	}
	w.next(t, 100*time.Millisecond)
	if n := len(w.t.aggregates); n > maxAggregates+1 {
		t.Errorf("%d sums, want at most %d", n, maxAggregates+1)
	}
	var all uint64
	for _, a := range w.t.aggregates {
		all += a.Bytes
	}
	if all != 300*maxAggregates {
		t.Errorf("%d bytes in sums, want %d", all, 300*maxAggregates)
	}
}

// busy returns a watch with a connection of two subflows, its received flows, and a UDP flow.
func busy(t *testing.T) (*watch, *Snapshot) {
	w := newWatch()
	w.host.sockets = []mptcp.Socket{socketOf(serverA, 4000, 0xcafe), socketOf(serverB, 4001, 0xcafe)}
	w.host.sockets[1].BackupThere = true
	w.host.sockets[1].Congestion = "a\"b,\x1b[c"
	w.t.peers[serverA] = `transit "a", ü`
	w.kernel.carry(sent(serverA, 4000, sidA, 6), 10, 250000)
	w.kernel.carry(sent(serverB, 4001, netip.Addr{}, 6), 10, 125000)
	w.kernel.carry(received(serverA, 4000), 10, 12500)
	w.kernel.carry(sent(serverB, 53, netip.Addr{}, 17), 1, 100)
	return w, w.next(t, 100*time.Millisecond)
}

func TestJSON(t *testing.T) {
	w, s := busy(t)
	var out bytes.Buffer
	j := NewJSON(&out, 0)
	if err := j.Write(s); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines: %s", len(lines), out.String())
	}
	var all []map[string]any
	for _, l := range lines {
		var v map[string]any
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		all = append(all, v)
	}
	if v := all[0]; v["peer"] != `transit "a", ü` || v["sid"] != "fc00:1:1::" || v["token"] != "0000cafe" || v["bits_per_second"] != 20e6 ||
		v["share"] != 0.6667 || v["direction"] != "sent" || v["local"] != "[2001:db8:1::a]:80" || v["tcp"].(map[string]any)["srtt_ms"] != 40.0 || v["tcp"].(map[string]any)["not_sent"] != 950000.0 || v["tcp"].(map[string]any)["app_limited"] != true {
		t.Errorf("%v", v)
	}
	if v := all[1]; v["backup"] != true || v["sid"] != nil || v["tcp"].(map[string]any)["congestion"] != "a?b??[c" {
		t.Errorf("%v", v)
	}
	if v := all[3]; v["tcp"] != nil || v["token"] != nil {
		t.Errorf("%v", v)
	}
	out.Reset()
	if err := j.Write(w.next(t, 100*time.Millisecond)); err != nil || out.Len() > 0 {
		t.Errorf("a quiet interval: %v, %s", err, out.String())
	}
	w.kernel.carry(sent(serverB, 53, netip.Addr{}, 17), 1, 100)
	w.kernel.carry(sent(serverB, 4001, netip.Addr{}, 6), 10, 5000)
	if err := NewJSON(&out, 1).Write(w.next(t, 100*time.Millisecond)); err != nil || strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), `"bytes":5000,`) {
		t.Errorf("the busiest: %v, %s", err, out.String())
	}
}

func TestCSV(t *testing.T) {
	_, s := busy(t)
	var out bytes.Buffer
	c := NewCSV(&out, 0)
	for range 2 {
		if err := c.Write(s); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := csv.NewReader(&out).ReadAll() // checks that all rows have equal length
	if err != nil || len(rows) != 9 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	column := func(row int, name string) string { return rows[row][slices.Index(rows[0], name)] }
	for name, want := range map[string]string{
		"peer": `transit "a", ü`, "sid": "fc00:1:1::", "token": "0000cafe", "bytes": "250000", "cwnd": "44", "ended": "false", "age_ms": "0.000", "state": "established",
		"min_rtt_ms": "9.800", "not_sent": "950000", "send_window": "3145728", "pacing_bits_per_second": "0", "app_limited": "true", "busy_ms": "3000.000",
		"window_limited_ms": "2000.000", "buffer_limited_ms": "1000.000",
	} {
		if got := column(1, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := column(4, "age_ms") + column(4, "token"); got != "" {
		t.Errorf("UDP has %q", got)
	}
}

// TestReset: where this host resets subflows, the table names its listening sockets and not the
// client's limits.
func TestReset(t *testing.T) {
	for want, listeners := range map[string][]mptcp.Listener{
		"  client has 1 of 2 addresses: nothing on this host listens on port 80 any more, and subflows are reset\n":  {{At: netip.MustParseAddrPort("[::]:81"), Multipath: true}},
		"  client has 1 of 2 addresses: port 80 of this host is listened to with TCP only, and subflows are reset\n": {{At: netip.MustParseAddrPort("[::]:80")}},
		"  client took 1 of 2 addresses; see ip mptcp limits there\n":                                                {{At: netip.MustParseAddrPort("[::]:80"), Multipath: true}},
	} {
		w, _ := busy(t)
		w.host.connections = []mptcp.Connection{{Token: 0xcafe, Subflows: 1, Announced: 2}}
		w.host.listeners = listeners
		for range 2 {
			w.next(t, joinTimeout)
		}
		w.kernel.carry(sent(serverA, 4000, sidA, 6), 10, 250000)
		if got := NewTable(nil, TableOptions{Addresses: 2}).draw(w.next(t, 100*time.Millisecond)); !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q", got, want)
		}
	}
}

func TestTable(t *testing.T) {
	w, _ := busy(t)
	w.kernel.carry(sent(serverB, 179, netip.Addr{}, 6), 1, 80)
	w.host.connections = []mptcp.Connection{{Token: 0xcafe, Subflows: 1, Announced: 2}}
	for range 2 {
		w.next(t, joinTimeout)
	}
	w.kernel.carry(sent(serverA, 4000, sidA, 6), 10, 250000)
	w.kernel.carry(sent(serverB, 179, netip.Addr{}, 6), 1, 80)
	s := w.next(t, 100*time.Millisecond)
	w.t.snapshot.Unparsed[flowcount.Fragment] = flowcount.Count{Packets: 7}
	for _, f := range s.Flows {
		f.drawn = f.Total.Bytes - f.Delta.Bytes
	}
	draw := func(columns int) string {
		table := NewTable(nil, TableOptions{Addresses: 2, Hint: "q: quit"})
		if columns > 0 {
			table.size = func() (int, int) { return columns, 24 }
		}
		table.since = s.Elapsed
		table.sum[1].Bytes = 250080
		text := regexp.MustCompile("\x1b\\[[0-9]*[A-Z]").ReplaceAllString(table.draw(s), "")
		_, text, _ = strings.Cut(text, "  ")
		return strings.TrimSpace(text)
	}
	for columns, want := range map[int]string{
		80: `
2 connections, 5 flows  out 20.01 Mbit/s  in 0.00 Mbit/s  q: quit
packets of no flow: fragment 7
Mbit/s  SHARE  PATH              REMOTE                SRTT ms  IN Mbit/s
 20.00         mptcp 0000cafe    [2001:db8:c::2]:4000                0.00
 20.00  100 %    transit "a", ü  [2001:db8:c::2]:4000     40.0       0.00
  0.00    0 %    lan, backup     [2001:db8:c::2]:4001     40.0       0.00
  client took 1 of 2 addresses; see ip mptcp limits there
  0.00      -  udp lan           [2001:db8:c::2]:53          -       0.00
routing sessions:
  0.01  100 %  tcp lan           [2001:db8:c::2]:179         -       0.00
`,
		0: `
2 connections, 5 flows  out 20.01 Mbit/s  in 0.00 Mbit/s  q: quit
packets of no flow: fragment 7
Mbit/s  SHARE  PATH              REMOTE                SRTT ms  IN Mbit/s  RETRANS  CWND  LOCAL               SID         CC       NOTE
 20.00         mptcp 0000cafe    [2001:db8:c::2]:4000                0.00
 20.00  100 %    transit "a", ü  [2001:db8:c::2]:4000     40.0       0.00        0    44  [2001:db8:1::a]:80  fc00:1:1::  cubic
  0.00    0 %    lan, backup     [2001:db8:c::2]:4001     40.0       0.00        0    44  [2001:db8:1::b]:80  -           a?b??[c
  client took 1 of 2 addresses; see ip mptcp limits there
  0.00      -  udp lan           [2001:db8:c::2]:53          -       0.00        -     -  [2001:db8:1::b]:80  -
routing sessions:
  0.01  100 %  tcp lan           [2001:db8:c::2]:179         -       0.00        -     -  [2001:db8:1::b]:80  -
`,
	} {
		if got := draw(columns); got != strings.TrimSpace(want) {
			t.Errorf("on %d columns got\n%s\nwant\n%s", columns, got, want)
		}
	}
}

// TestTableFits draws on small terminals: the table must fit, and each table must overwrite exactly
// the previous one.
func TestTableFits(t *testing.T) {
	w, s := busy(t)
	controls := regexp.MustCompile("\x1b\\[[0-9]*[A-Z]")
	for _, size := range [][2]int{{80, 24}, {20, 5}, {1, 1}, {0, 0}} {
		var out bytes.Buffer
		table := NewTable(&out, TableOptions{Size: func() (int, int) { return size[0], size[1] }})
		for range 2 {
			if err := table.Write(s, false); err != nil {
				t.Fatal(err)
			}
		}
		for l := range strings.SplitSeq(out.String(), "\n") {
			if n := len([]rune(controls.ReplaceAllString(l, ""))); size[0] > 0 && n > size[0] {
				t.Errorf("a line of %d columns on %v: %q", n, size, l)
			}
		}
		if lines := strings.Count(out.String(), "\n"); size[1] > 1 && lines > 2*(size[1]-1) {
			t.Errorf("%d lines in two tables on %v", lines, size)
		}
		if !strings.Contains(out.String(), "\x1b[") {
			t.Errorf("nothing is written over on %v", size)
		}
	}
	// Rates are means since the previous table.
	var out bytes.Buffer
	table := NewTable(&out, TableOptions{Top: 1, Every: time.Second})
	for range 10 {
		w.kernel.carry(sent(serverA, 4000, sidA, 6), 10, 125000)
		if err := table.Write(w.next(t, 100*time.Millisecond), false); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(out.String(), "REMOTE") != 1 || !strings.Contains(out.String(), "out 10.00 Mbit/s") || !strings.Contains(out.String(), "and 1 more") {
		t.Errorf("got\n%s", out.String())
	}
}

func TestOptions(t *testing.T) {
	good := Options{Interfaces: []string{"lan"}, Interval: DefaultInterval, Idle: DefaultIdle, Share: DefaultShare}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Options){
		"no interface":    func(o *Options) { o.Interfaces = nil },
		"interface twice": func(o *Options) { o.Interfaces = []string{"lan", "lan"} },
		"too often":       func(o *Options) { o.Interval = time.Millisecond },
		"too seldom":      func(o *Options) { o.Interval = 2 * time.Hour },
		"no share":        func(o *Options) { o.Share = -0.1 },
		"too much":        func(o *Options) { o.Share = 1.1 },
		"share not said":  func(o *Options) { o.Share = math.NaN() },
		"never idle":      func(o *Options) { o.Idle = time.Millisecond },
	} {
		o := good
		change(&o)
		if o.check() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
