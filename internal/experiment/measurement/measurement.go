// Package measurement compares the ways in which a server can deliver to a client: it orders trials
// of modes in random blocks, stores each as soon as it is made, continues after a break, and says
// which mode is better than the first one.
//
// It makes no trials itself (package measure does) and draws no figures (package report does).
package measurement

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/measure"
)

// Plan is what a measurement compares.
type Plan struct {
	// Name is that of the client's network, for figures.
	Name string `json:"name"`
	// Server is its URL.
	Server string `json:"server"`
	// Modes are compared with the first one.
	Modes []string `json:"modes"`
	// Trials is the number of blocks, or of pairs with Paired. Each block has a trial of each mode.
	Trials int          `json:"trials"`
	Load   measure.Load `json:"load"`
	// Paired switches connections between two modes, Pairs times to each, for the load's time.
	Paired bool `json:"paired,omitempty"`
	// Whole makes all trials, also if fewer decide.
	Whole bool `json:"whole,omitempty"`
	// Seed determines the order of modes in each block.
	Seed uint64 `json:"seed"`
}

const (
	// MaxTrials bounds the blocks of a measurement, maxModes the modes.
	MaxTrials, maxModes = 1000, 32
	// connectionTime bounds the time of a connection that is switched, unless one pair takes
	// longer.
	connectionTime = 104 * time.Second
	// maxTime bounds the time of one trial.
	maxTime = time.Hour
)

// Check returns the first fault of the plan.
func (p Plan) Check() error {
	l := p.Load
	switch {
	case len(p.Modes) < 2 || len(p.Modes) > maxModes:
		return fmt.Errorf("want 2 to %d modes to compare, got %q", maxModes, p.Modes)
	case p.Trials < 1 || p.Trials > MaxTrials:
		return fmt.Errorf("want 1 to %d trials, got %d", MaxTrials, p.Trials)
	case l.Bytes < 0 || l.Objects < 0 || l.Rate < 0 || l.Time < 0 || l.Time > maxTime:
		return fmt.Errorf("the load must be above 0 and take up to %s", maxTime)
	case l.Bytes == 0 && l.Time == 0, l.Objects > 0 && l.Bytes == 0, l.Rate > 0 && (l.Time == 0 || l.Bytes > 0):
		return errors.New("the load has neither bytes nor a time")
	case p.Paired && len(p.Modes) != 2:
		return fmt.Errorf("a pair has two modes, got %d", len(p.Modes))
	case p.Paired && l.Time < measure.LeastPhase:
		return fmt.Errorf("each mode of a pair takes at least %s, got %s", measure.LeastPhase, l.Time)
	case p.Paired && (l.Bytes > 0 || l.Rate > 0):
		return errors.New("a paired measurement has bulk, for the time that its pairs take")
	}
	for i, name := range p.Modes {
		if slices.Contains(p.Modes[:i], name) {
			return fmt.Errorf("mode %q is given twice", name)
		}
		m, err := measure.ParseMode(name)
		if err != nil {
			return err
		}
		if l.Objects > 0 && m.Connections > 1 {
			return fmt.Errorf("objects are got one after the other, so that %q is not possible", name)
		}
	}
	return nil
}

// Order returns the indexes of the modes in the order of a block's trials: random, and the same for
// the same seed and block, so that a measurement continues as it was. Every second pair has the
// reverse order of that before it, so that a drift cancels.
func (p Plan) Order(block int) []int {
	if p.Paired && block%2 == 1 {
		order := p.Order(block - 1)
		slices.Reverse(order)
		return order
	}
	return rand.New(rand.NewPCG(p.Seed, uint64(block))).Perm(len(p.Modes))
}

// Pairs is how often a connection is switched to each of its two modes: as often as the time of a
// connection allows.
func (p Plan) Pairs() int {
	n := 1
	for n < p.Trials && measure.PairedTime(n+1, p.Load.Time) <= connectionTime {
		n++
	}
	return n
}

// Traffic names the kind of load.
func (p Plan) Traffic() string {
	switch {
	case p.Load.Rate > 0:
		return "stream"
	case p.Load.Objects > 0:
		return "objects"
	}
	return "bulk"
}

// Row is one trial in the store.
type Row struct {
	// Block counts from 0; Position is the place in it. A pair is a block.
	Block, Position int
	Mode            string
	// Started is the time of the wall clock. All durations are of the monotonic one.
	Started time.Time
	// Failed is why there is no result, if there is none.
	Failed string
	measure.Trial
	Conditions
}

// Conditions are what one needs to repeat a trial or to understand it.
type Conditions struct {
	ClientVersion string `json:"client_version"`
	ServerVersion string `json:"server_version"`
	ClientKernel  string `json:"client_kernel"`
	ServerKernel  string `json:"server_kernel"`
	// Congestion is the congestion control of the server, which sends.
	Congestion string `json:"congestion"`
	// Client and Server are the prefixes of the addresses, not the addresses: /24 and /48.
	Client netip.Prefix `json:"client"`
	Server netip.Prefix `json:"server"`
	// ClockStep is by how much the wall clock was set during the trial.
	ClockStep time.Duration `json:"clock_step_ns,omitempty"`
}

// PrefixOf returns the prefix of an address that is stored: /24 of IPv4, /48 of IPv6.
func PrefixOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 48
	if a.Is4() {
		bits = 24
	}
	p, _ := a.Prefix(bits) // an invalid address has an invalid prefix
	return p
}

// Complete returns the blocks that have a result of each mode, in which the client's network is the
// same, in their order.
func (p Plan) Complete(rows []Row) [][]Row {
	blocks := map[int][]Row{}
	for _, r := range rows {
		if r.Failed == "" && slices.Contains(p.Modes, r.Mode) {
			blocks[r.Block] = append(blocks[r.Block], r)
		}
	}
	var all [][]Row
	for i := range p.Trials {
		if b := blocks[i]; p.isComplete(b) {
			slices.SortFunc(b, func(x, y Row) int { return slices.Index(p.Modes, x.Mode) - slices.Index(p.Modes, y.Mode) })
			all = append(all, b)
		}
	}
	return all
}

func (p Plan) isComplete(block []Row) bool {
	if len(block) != len(p.Modes) {
		return false
	}
	for i, r := range block {
		if r.Client != block[0].Client || slices.ContainsFunc(block[:i], func(o Row) bool { return o.Mode == r.Mode }) {
			return false
		}
	}
	return true
}
