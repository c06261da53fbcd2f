package rib

import "github.com/tabane/tabane/internal/bgp/message"

// ID identifies a set of path attributes within a RIB; 0 is none. The tables store IDs instead of
// pointers, so that the garbage collector does not scan them.
type ID uint32

// attributes are the sets of path attributes in use, with reference counts.
type attributes struct {
	pages [][]entry
	size  uint32 // entries in pages, including entry 0, which is never used
	free  []ID
	ids   map[*message.Attributes]ID
}

type entry struct {
	set  *message.Attributes
	refs uint32
	// derived are the sets that an import policy made of this one; each counts as a reference to
	// the derived set.
	derived *derivation
}

// Change identifies a change of attributes.
type Change [2]uint64

// derivation is the result of a change to a set of attributes.
type derivation struct {
	change Change
	id     ID
	next   *derivation
}

const attributePage = 1024

func newAttributes() attributes {
	return attributes{pages: [][]entry{make([]entry, attributePage)}, size: 1, ids: map[*message.Attributes]ID{}}
}

func (a *attributes) at(id ID) *entry { return &a.pages[id/attributePage][id%attributePage] }

// hold returns the ID of a set and adds a reference.
func (a *attributes) hold(set *message.Attributes) ID {
	if id, ok := a.ids[set]; ok {
		a.at(id).refs++
		return id
	}
	var id ID
	if n := len(a.free); n > 0 {
		id, a.free = a.free[n-1], a.free[:n-1]
	} else {
		id = ID(a.size)
		a.size++
		if int(id/attributePage) == len(a.pages) {
			a.pages = append(a.pages, make([]entry, attributePage))
		}
	}
	*a.at(id) = entry{set: set, refs: 1}
	a.ids[set] = id
	return id
}

func (a *attributes) retain(id ID) {
	if id != 0 {
		a.at(id).refs++
	}
}

func (a *attributes) release(id ID) {
	if id == 0 {
		return
	}
	e := a.at(id)
	if e.refs--; e.refs > 0 {
		return
	}
	derived := e.derived
	delete(a.ids, e.set)
	*e = entry{}
	a.free = append(a.free, id)
	for ; derived != nil; derived = derived.next {
		a.release(derived.id)
	}
}

// derive returns what a change makes of a set. The result exists as long as the set.
func (a *attributes) derive(id ID, change Change, apply func(*message.Attributes) *message.Attributes) ID {
	e := a.at(id)
	for d := e.derived; d != nil; d = d.next {
		if d.change == change {
			return d.id
		}
	}
	set := apply(e.set)
	if set == e.set {
		return id
	}
	d := &derivation{change: change, id: a.hold(set), next: e.derived}
	e.derived = d
	return d.id
}
