package forward

import (
	"math/rand/v2"
	"testing"

	"github.com/tabane/tabane/internal/plane"
)

// TestTranslatedMarks: what is counted as lost is never more than what was, and in the end, when a mark finds all that has arrived, as
// much, also after the program or the peer has begun to count again.
func TestTranslatedMarks(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 9))
	for range 200 {
		var counts [plane.MaxPaths]plane.Count
		p := translated{read: func(int) ([plane.MaxPaths]plane.Count, error) { return counts, nil }}
		p.number(map[string]int{"hq": 3})
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
	p := translated{}
	p.mark("nobody", 1, 5)
	if _, ok := p.arrived("nobody"); ok {
		t.Error("a peer without NAT has counts")
	}
}
