package sim

import (
	"testing"
	"time"
)

// board returns a scoreboard with n segments outstanding, sent a millisecond apart.
func board(n int) scoreboard {
	b := newScoreboard()
	for i := range n {
		if b.full() {
			b.grow()
		}
		_, e := b.push(uint64(i), 1340)
		e.sent = time.Duration(i) * ms
	}
	return b
}

// TestSamples: an acknowledgement gives the round-trip time of the first segment that it
// acknowledges, and of the last one; selective ones count, retransmissions do not
// (tcp_clean_rtx_queue, tcp_sacktag_one).
func TestSamples(t *testing.T) {
	for _, tt := range []struct {
		name        string
		again       uint32 // retransmitted before
		to          uint32
		sacks       []span
		rtt, latest time.Duration
	}{
		{"two segments", 0, 3, nil, 100 * ms, 99 * ms},
		{"a selective one", 0, 1, []span{{4, 5}}, 97 * ms, 97 * ms},
		{"three selective ones", 0, 1, []span{{4, 7}}, 97 * ms, 95 * ms},
		{"both", 0, 2, []span{{4, 5}}, 100 * ms, 97 * ms},
		{"a retransmission", 1, 3, nil, 0, 0},
		{"a retransmission and a selective one", 1, 2, []span{{4, 5}}, 97 * ms, 97 * ms},
		{"a selective retransmission", 4, 1, []span{{4, 5}}, 0, 0},
	} {
		b := board(10)
		if tt.again > 0 {
			b.retransmitted(50*ms, tt.again, b.at(tt.again))
		}
		r := new(rack)
		b.acknowledge(tt.to, 100*ms, 10*ms, r)
		p := &packet{blocks: uint8(len(tt.sacks))}
		copy(p.sack[:], tt.sacks)
		b.selective(p, 100*ms, 10*ms, r)
		if rtt, latest := b.timed.sample(); rtt != tt.rtt || latest != tt.latest {
			t.Errorf("%s: %v and %v, want %v and %v", tt.name, rtt, latest, tt.rtt, tt.latest)
		}
	}
}
