package result

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// SettledLosses is the number of losses of each subflow from which on a share is that of the
// congestion control, and not of its slow start.
const SettledLosses = 10

// Side is the connections of one client in a run with several, in the time in which all of them
// compete.
type Side struct {
	Client      string
	Connections int
	// Bytes are of payload.
	Bytes float64
	// Paths are the subflows of all connections.
	Paths []SidePath
	// Repairs counts the values of skipped eBPF programs that were contained.
	Repairs uint64
}

// Sides are those of a run, that of its transport first.
type Sides []Side

// Index returns the index of the side of a client, which it adds if there is none.
func (s *Sides) Index(client string) int {
	at := slices.IndexFunc(*s, func(x Side) bool { return x.Client == client })
	if at < 0 {
		at = len(*s)
		*s = append(*s, Side{Client: client})
	}
	return at
}

// SidePath is a subflow of a Side.
type SidePath struct {
	// First is set if it is over the first link of its transport.
	First bool
	// Bytes are what was acknowledged in the time.
	Bytes float64
	// Losses are the reductions of the window in the whole run, -1 if unknown.
	Losses int64
	// RoundTrip is the mean round-trip time.
	RoundTrip time.Duration
}

// NoteLosses is the note of a run with the losses of each subflow, by client.
const NoteLosses = "losses"

// PutCompetition adds the metrics of a run with several connections that competed for so long.
func PutCompetition(run *Run, lasted time.Duration, sides Sides) {
	own, total := sides[0], 0.0
	others, connections := 0.0, 0
	least, known := int64(0), true
	repairs := uint64(0)
	var notes []string
	for i, s := range sides {
		total += s.Bytes
		repairs += s.Repairs
		if i > 0 {
			others += s.Bytes
			connections += s.Connections
		}
		var losses []string
		for j, p := range s.Paths {
			known = known && p.Losses >= 0
			if i == 0 && j == 0 || p.Losses < least {
				least = p.Losses
			}
			losses = append(losses, fmt.Sprint(p.Losses))
		}
		known = known && len(s.Paths) > 0
		slices.Sort(losses)
		notes = append(notes, s.Client+" "+strings.Join(losses, " "))
	}
	rate := func(bytes float64, n int) float64 { return 8 * bytes / lasted.Seconds() / float64(n) }
	if total > 0 {
		run.Metrics[Share] = own.Bytes / total
	}
	run.Metrics[OwnRate] = rate(own.Bytes, own.Connections)
	if connections > 0 {
		run.Metrics[OthersRate] = rate(others, connections)
	}
	if known {
		run.Metrics[LeastLosses] = float64(least)
		run.Notes[NoteLosses] = strings.Join(notes, "; ")
	}
	first, all, roundTrip := 0.0, 0.0, time.Duration(0)
	for _, p := range own.Paths {
		all += p.Bytes
		roundTrip += p.RoundTrip
		if p.First {
			first += p.Bytes
		}
	}
	if all > 0 {
		run.Metrics[FirstPath] = first / all
	}
	if n := len(own.Paths); n > 0 {
		run.Metrics[RoundTrip] = (roundTrip / time.Duration(n)).Seconds()
	}
	run.Metrics[Repairs] = float64(repairs)
}
