package openplane

import (
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// TestCountedMarks: what is counted as lost is never more than what was, and in the end, when a
// mark finds all that has arrived, as much, also after the program or the peer has begun to count
// again.
func TestCountedMarks(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 9))
	for range 200 {
		var counts [dataplane.MaxPaths]dataplane.Count
		p := counted{read: func(int) ([dataplane.MaxPaths]dataplane.Count, error) { return counts, nil }}
		p.number(map[string]int{"hq": 3}, nil)
		var sent, arrived, total uint64
		mark := func(later uint64) {
			// Packets that are sent after the mark, and arrive before it is processed.
			before := sent
			sent, arrived = sent+later, arrived+later
			counts[2].Packets = arrived
			p.mark("hq", 2, before)
		}
		mark(0)
		for range r.IntN(300) {
			sent++
			if r.IntN(3) == 0 {
				total++
			} else {
				arrived++
			}
			switch r.IntN(40) {
			case 0, 1, 2, 3:
				mark(uint64(r.IntN(4)))
			case 4:
				mark(0)
				sent = 0
				mark(0)
			case 5:
				mark(0)
				arrived = 0
				for i := range uint64(settle) {
					mark(i % 4)
				}
				mark(0)
			}
			if got, ok := p.arrived("hq"); !ok || got[2].Lost > total {
				t.Fatalf("%d are counted as lost, %d are", got[2].Lost, total)
			}
		}
		mark(0)
		if got, _ := p.arrived("hq"); got[2].Lost != total || got[1].Lost != 0 {
			t.Fatalf("%d are counted as lost in the end, %d are", got[2].Lost, total)
		}
	}
	p := counted{}
	p.mark("nobody", 1, 5)
	if _, ok := p.arrived("nobody"); ok {
		t.Error("a peer without NAT has counts")
	}
}

// TestPlainMarks: with mode plain, a line where packets of another one arrive ends the counting of
// losses; a few copies, and packets that arrive before their mark is processed, do not.
func TestPlainMarks(t *testing.T) {
	for name, tt := range map[string]struct {
		arrive [2]uint64 // of 100 packets over each path between two marks, on its line
		lost   [2]uint64 // of 20,000, at most
		least  uint64
	}{
		"all arrive":     {arrive: [2]uint64{100, 100}},
		"one line loses": {arrive: [2]uint64{90, 100}, lost: [2]uint64{2000, 0}, least: 2000},
		"copies":         {arrive: [2]uint64{101, 100}},
		"mixed":          {arrive: [2]uint64{50, 150}, lost: [2]uint64{300, 0}},
	} {
		var counts [dataplane.MaxPaths]dataplane.Count
		p := counted{read: func(int) ([dataplane.MaxPaths]dataplane.Count, error) { return counts, nil }, log: slog.New(slog.DiscardHandler)}
		p.number(map[string]int{"hq": 0}, map[string]bool{"hq": true})
		p.lines("hq", [dataplane.MaxPaths]int{1, 2})
		for round := range uint64(201) {
			early := uint64(30) // packets that arrive before the mark is processed
			if round == 0 || round == 200 {
				early = 0
			}
			for i, n := range tt.arrive {
				counts[i].Packets = n*round + early
				p.mark("hq", i, 100*round)
			}
		}
		all, _ := p.arrived("hq")
		if got := [2]uint64{all[0].Lost, all[1].Lost}; got[0] > tt.lost[0] || got[1] > tt.lost[1] || got[0] < tt.least {
			t.Errorf("%s: %d packets are counted as lost, want at most %d", name, got, tt.lost)
		}
	}
}
