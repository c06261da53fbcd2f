package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
)

// Changes is the difference between two lists of neighbors, which can be applied to a running
// speaker.
type Changes struct {
	// Remove are the names of neighbors to delete, including those in Reset.
	Remove []string
	// Add are new neighbors, Reset those that differ in more than policy: their session is
	// reset.
	Add, Reset []Neighbor
	// Policy are neighbors that differ in import or export policy only: their session stays up.
	Policy []Neighbor
}

// Compare returns the changes from old to now. Neighbors are identified by name; their order does
// not matter.
func Compare(old, now []Neighbor) Changes {
	var c Changes
	before := make(map[string]Neighbor, len(old))
	for _, n := range old {
		before[n.Name] = n
	}
	for _, n := range now {
		was, known := before[n.Name]
		delete(before, n.Name)
		switch {
		case !known:
			c.Add = append(c.Add, n)
		case !was.sameSession(n):
			c.Remove, c.Reset = append(c.Remove, n.Name), append(c.Reset, n)
		case !was.Import.equal(n.Import) || !was.Export.equal(n.Export):
			c.Policy = append(c.Policy, n)
		}
	}
	for _, n := range old {
		if _, gone := before[n.Name]; gone {
			c.Remove = append(c.Remove, n.Name)
		}
	}
	return c
}

// sameSession reports whether the neighbors differ in policy at most.
func (n Neighbor) sameSession(m Neighbor) bool {
	n.Import, n.Export = ImportPolicy{}, ExportPolicy{}
	m.Import, m.Export = ImportPolicy{}, ExportPolicy{}
	return reflect.DeepEqual(n, m)
}

// CheckRenamed adds a fault for each neighbor with the address of a previous neighbor of another
// name, whose session must be closed first. Faults refer to the neighbor's index in the list at
// path.
func CheckRenamed(faults *fault.List, path string, old, now []Neighbor) {
	owner := map[netip.Addr]string{}
	for _, n := range old {
		owner[n.Address.WithZone(n.Interface)] = n.Name
	}
	for i, n := range now {
		if name, taken := owner[n.Address.WithZone(n.Interface)]; taken && name != n.Name {
			faults.Add(fmt.Sprintf("%s[%d].name", path, i),
				"%q takes the address of %q, whose session has to close first: reload once without it", n.Name, name)
		}
	}
}

// CheckNeighbors returns an error if a speaker of this AS cannot have these neighbors.
func CheckNeighbors(own uint32, list []Neighbor) error {
	for _, n := range list {
		if err := n.check(own); err != nil {
			return fmt.Errorf("neighbor %q: %w", n.Name, err)
		}
	}
	return nil
}

// Change replaces the neighbors of old by those of now. Sessions of unchanged neighbors stay up. On
// an error, it restores the neighbors of old.
func (s *Speaker) Change(old, now []Neighbor) error {
	err := s.applyChanges(Compare(old, now))
	if err != nil {
		// Errors here concern changes that were never applied, which need no revert.
		_ = s.applyChanges(Compare(now, old))
	}
	return err
}

func (s *Speaker) applyChanges(c Changes) error {
	var errs []error
	for _, name := range c.Remove {
		errs = append(errs, s.DeleteNeighbor(name))
	}
	for _, n := range slices.Concat(c.Reset, c.Add) {
		errs = append(errs, s.AddNeighbor(n))
	}
	for _, n := range c.Policy {
		errs = append(errs, s.SetImport(n.Name, n.Import), s.SetExport(n.Name, n.Export))
	}
	return errors.Join(errs...)
}

// Lines describes each change in a line.
func (c Changes) Lines() []string {
	var lines []string
	reset := map[string]bool{}
	for _, n := range c.Reset {
		reset[n.Name] = true
		lines = append(lines, fmt.Sprintf("session %q reset", n.Name))
	}
	for _, name := range c.Remove {
		if !reset[name] {
			lines = append(lines, fmt.Sprintf("session %q removed", name))
		}
	}
	for _, n := range c.Add {
		lines = append(lines, fmt.Sprintf("session %q added", n.Name))
	}
	for _, n := range c.Policy {
		lines = append(lines, fmt.Sprintf("policy of session %q changed", n.Name))
	}
	return lines
}
