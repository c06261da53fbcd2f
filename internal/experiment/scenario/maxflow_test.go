package scenario

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
)

// The maximum flow is the minimum cut (Ford and Fulkerson): here over all cuts.
func TestMaxFlowEqualsMinCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const nodes = 6
		type edge struct {
			from, to int
			capacity float64
		}
		edges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) edge {
			capacity := float64(rapid.IntRange(0, 9).Draw(t, "capacity"))
			if rapid.IntRange(0, 9).Draw(t, "limit") == 0 {
				capacity = math.Inf(1)
			}
			return edge{rapid.IntRange(0, nodes-1).Draw(t, "from"), rapid.IntRange(0, nodes-1).Draw(t, "to"), capacity}
		}), 0, 15).Draw(t, "edges")
		var n network
		for _, e := range edges {
			if e.from != e.to {
				n.connect(fmt.Sprint(e.from), fmt.Sprint(e.to), e.capacity)
			}
		}
		least := math.Inf(1)
		for cut := range 1 << nodes { // the nodes on the side of the source
			if cut&1 == 0 || cut&(1<<(nodes-1)) != 0 {
				continue
			}
			across := 0.0
			for _, e := range edges {
				if cut&(1<<e.from) != 0 && cut&(1<<e.to) == 0 {
					across += e.capacity
				}
			}
			least = min(least, across)
		}
		if got := n.maxFlow("0", fmt.Sprint(nodes-1)); got != least {
			t.Fatalf("flow %v, minimum cut %v", got, least)
		}
	})
}

func TestLimitSharedAccessLink(t *testing.T) {
	mptcp := func(rate unit.Bandwidth) float64 { return float64(rate) * 1400 / 1514 }
	key := result.CellKey{Case: "1.1", Traffic: "bi", Transport: "mptcp-epe"}
	s := steady(t)
	access := s.Links["access"] // from the ISP, its first end, to the client
	access.Rate = 40 * unit.MbitPerSecond
	check := func(what string, want float64) {
		t.Helper()
		if got, err := limit(s, key); err != nil || math.Abs(got.Links-want) > 1 {
			t.Errorf("%s: limit %v, %v, want %v", what, got.Links, err, want)
		}
	}
	check("the line carries less than both links", mptcp(40*unit.MbitPerSecond))
	access.Rate = 70 * unit.MbitPerSecond
	check("the line carries more", mptcp(60*unit.MbitPerSecond))
	slow := unit.MbitPerSecond
	access.Backward = &linkmodel.Change{Rate: &slow}
	check("what it carries from the client does not count", mptcp(60*unit.MbitPerSecond))
	access.Backward, access.Forward = nil, &linkmodel.Change{Rate: &slow}
	check("what it carries to the client does", mptcp(unit.MbitPerSecond))
	access.Forward, access.Rate = nil, 0
	s.Links["csp"].Rate = 50 * unit.MbitPerSecond
	check("a switch that the server is on", mptcp(50*unit.MbitPerSecond))

	// TCP does not pass the link that only the other transport names.
	s = steady(t)
	key.Transport = "tcp"
	s.Links["peering-a"].Rate = 20 * unit.MbitPerSecond
	if got, err := limit(s, key); err != nil || math.Abs(got.Links-20e6*1428/1514) > 1 {
		t.Errorf("tcp: %v, %v", got, err)
	}
	// Without a rate on the links themselves the line is the limit.
	s = steady(t)
	s.Links["access"].Rate = 40 * unit.MbitPerSecond
	s.Experiment.Cases[0].Links = map[string]Shape{"a": {}, "b": {}}
	key.Transport = "mptcp-epe"
	check("links without a rate", mptcp(40*unit.MbitPerSecond))
}

func TestLimitSharedLinkScheduleAndEvents(t *testing.T) {
	s := steady(t)
	s.Links["access"].Rate = 100 * unit.MbitPerSecond
	s.Links["access"].Schedule = linkmodel.Schedule{{At: 4 * time.Second, Change: rate(40)}}
	s.Experiment.Cases[0].Events = []Event{{Set: &LinkSet{Link: "peering-b", Shape: Shape{Rate: 5 * unit.MbitPerSecond}}}}
	s.Experiment.Traffic["bi"].EventAt = 6 * time.Second
	phases, err := s.Phases(result.CellKey{Case: "1.1", Traffic: "bi", Transport: "mptcp-epe"})
	if err != nil || len(phases) != 3 {
		t.Fatalf("phases %+v, %v", phases, err)
	}
	for i, want := range []float64{60e6, 40e6, 35e6} {
		if got := phases[i].Links; math.Abs(got-want*1400/1514) > 1 {
			t.Errorf("phase %d: limit %v, want %v", i, got, want*1400/1514)
		}
	}
}
