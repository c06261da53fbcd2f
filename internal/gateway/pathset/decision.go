package pathset

import (
	"fmt"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Reason is why a set of paths is used.
type Reason uint8

const (
	// Begin: all paths are used at the start.
	Begin Reason = iota
	// NoPath: no path is usable.
	NoPath
	// Changed: a path became usable or unusable, or its quality differs much.
	Changed
	// Below: the paths in use carry less than the expected rate of the set that is now tried.
	Below
	// Again: the time without trials is over, and a larger set is tried.
	Again
	// Better: the set was tried and is used from now on.
	Better
	// Worse: another set was tried and carried too little.
	Worse
	// Collapsed: another set was tried, and its rate collapsed.
	Collapsed
	// Idle: there was nothing to send while another set was tried.
	Idle
)

// Decision is which paths to use, and why.
type Decision struct {
	// Use is the paths on which packets are sent. The other usable ones rest.
	Use Set
	// At is when it was decided.
	At     time.Duration
	Reason Reason
	// Tried is the set that is or was tried. Rate is what was measured: that of the set in use
	// before (Below, Again) or of Tried (Better, Worse, Collapsed, Idle). Against is what it was
	// compared with.
	Tried         Set
	Rate, Against unit.Bandwidth
}

// Explain returns the reason in words. names has the names of the paths.
func (d Decision) Explain(names []string) string {
	tried := d.Tried.List(names)
	switch d.Reason {
	case Begin:
		return "all paths, as at the start"
	case NoPath:
		return "no path is usable"
	case Changed:
		return "the state or quality of a path changed"
	case Below:
		return fmt.Sprintf("trying %s: the paths in use carried %s, less than 95 %% of its expected %s", tried, round(d.Rate), round(d.Against))
	case Again:
		return fmt.Sprintf("trying %s again: the paths in use carried %s", tried, round(d.Rate))
	case Better:
		return fmt.Sprintf("%s carried %s, the paths before %s", tried, round(d.Rate), round(d.Against))
	case Worse:
		return fmt.Sprintf("%s was tried and carried %s, these paths %s", tried, round(d.Rate), round(d.Against))
	case Collapsed:
		return fmt.Sprintf("%s was tried and fell to %s, these paths carried %s", tried, round(d.Rate), round(d.Against))
	case Idle:
		return fmt.Sprintf("nothing to send while %s was tried", tried)
	}
	return fmt.Sprintf("reason %d", uint8(d.Reason))
}

// List returns the names of the paths of a set, joined by "+". A path without a name is named by
// its number.
func (s Set) List(names []string) string {
	var in []string
	for i := range MaxPaths {
		if s.Has(i) {
			if i < len(names) && names[i] != "" {
				in = append(in, names[i])
			} else {
				in = append(in, fmt.Sprintf("path %d", i))
			}
		}
	}
	return strings.Join(in, "+")
}

// round leaves three significant digits.
func round(b unit.Bandwidth) unit.Bandwidth {
	scale := unit.Bandwidth(1)
	for b/scale >= 1000 {
		scale *= 10
	}
	return (b + scale/2) / scale * scale
}
