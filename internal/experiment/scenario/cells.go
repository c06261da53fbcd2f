package scenario

import (
	"maps"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
)

// Cells returns the keys of all cells in the order of results: cases as written, then traffic by
// name, then transports in the order of TransportNames.
func (e *Experiment) Cells() []result.CellKey {
	var keys []result.CellKey
	for _, c := range e.Cases {
		for _, traffic := range e.TrafficNames() {
			for _, transport := range e.TransportNames() {
				keys = append(keys, result.CellKey{Case: c.Name, Traffic: traffic, Transport: transport})
			}
		}
	}
	return keys
}

// has reports whether the key is one of Cells.
func (e *Experiment) has(k result.CellKey) bool {
	return e.Traffic[k.Traffic] != nil && e.Transports[k.Transport] != nil && slices.ContainsFunc(e.Cases, func(c Case) bool { return c.Name == k.Case })
}

// TrafficNames returns the names of the traffic, sorted.
func (e *Experiment) TrafficNames() []string { return slices.Sorted(maps.Keys(e.Traffic)) }

// TransportNames returns the names of the transports: the baseline first, the others sorted.
func (e *Experiment) TransportNames() []string {
	names := slices.Sorted(maps.Keys(e.Transports))
	if i := slices.Index(names, e.Baseline); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, e.Baseline)
	}
	return names
}

// TimeLimit returns the longest time that a delivery may take: its duration, or the bound of a
// quick pass. 0 means that only the last byte ends it.
func (t *Traffic) TimeLimit(quick bool) time.Duration {
	if quick && t.Quick > 0 && (t.Duration == 0 || t.Quick < t.Duration) {
		return t.Quick
	}
	return t.Duration
}
