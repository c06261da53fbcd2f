package sim

import "testing"

// TestReorderingIsMeasured: tp->reordering is the number of segments by which one came late, at
// least DupThresh and at most 300 (tcp_check_sack_reordering).
func TestReorderingIsMeasured(t *testing.T) {
	for _, tt := range []struct {
		name  string
		again uint32
		top   uint32 // selectively acknowledged from 3 on
		to    uint32
		want  uint32
	}{
		{"a hole is filled 7 segments late", 0, 9, 3, 7},
		{"a hole is filled 3 segments late", 0, 5, 3, 0},
		{"a retransmission fills it", 2, 9, 3, 0},
		{"at most 300", 0, 350, 3, 300},
	} {
		b := board(400)
		b.acknowledge(2, 500*ms, 10*ms, nil)
		b.selective(&packet{blocks: 1, sack: [maxBlocks]span{{3, tt.top + 1}}}, 500*ms, 10*ms, nil)
		if tt.again > 0 {
			b.retransmitted(500*ms, tt.again, b.at(tt.again))
		}
		top := b.top()
		b.late = top
		b.acknowledge(tt.to, 510*ms, 10*ms, nil)
		var w reorderingWindow
		if w.displaced(&b, top); w.most != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, w.most, tt.want)
		}
	}
}

// TestWindowGrowsByDelivered: selective acknowledgements do not count for the window, not when they
// come and not when the hole is filled, until reordering exceeds DupThresh (tcp_may_raise_cwnd).
func TestWindowGrowsByDelivered(t *testing.T) {
	var f sender
	for _, tt := range []struct {
		most                      uint32
		segments, delivered, want int
	}{
		{0, 2, 2, 2},  // nothing was reordered
		{0, 0, 1, 0},  // above a hole
		{0, 10, 1, 1}, // fills the hole
		{4, 0, 1, 1},
		{4, 10, 1, 1},
	} {
		f.rack.reordering.most = tt.most
		if got := f.grows(&acked{segments: tt.segments, delivered: tt.delivered}); got != tt.want {
			t.Errorf("%+v: grows for %d segments", tt, got)
		}
	}
}

// TestWindowThatLimited: a window that was full counts as limiting until all that was sent until
// then is acknowledged, though less is sent since (tcp_cwnd_validate).
func TestWindowThatLimited(t *testing.T) {
	s := newStage(t, once(), func(c *Connection) { c.RACK, c.Bytes = true, 1340*25 })
	s.until("all is sent", func(f *sender) bool { return f.board.next == 26 })
	f := &s.senders[0]
	if !f.usage.limited {
		t.Error("a window that was full until the last segment does not count as limiting")
	}
	window := f.cc.Cwnd
	s.until("the end", func(f *sender) bool { return f.c.done })
	if f.cc.Cwnd < window+3 {
		t.Errorf("the window grows from %v to %v while the rest is acknowledged", window, f.cc.Cwnd)
	}

	u := usage{sent: true}
	f = &sender{c: f.c, cc: f.cc, board: board(5)}
	f.cc.Cwnd, f.cc.Ssthresh = 20, 10
	if u.validate(f); u.limited || u.most != 5 {
		t.Errorf("%+v with 5 of 20 segments outstanding", u)
	}
	f.usage = u
	if f.limited(&acked{}) {
		t.Error("a quarter of the window limits")
	}
	f.cc.Ssthresh, f.usage.most = 100, 11
	if !f.limited(&acked{}) {
		t.Error("more than half of the window does not limit in slow start")
	}
}
