// Package rib holds the routes of a BGP speaker: the paths received from each neighbor, the best
// path to each destination, and, for each consumer of routes, which of them it has still to take.
//
// A consumer is a neighbor that routes are advertised to, or a reader of events. Nothing is queued
// for it: it has two bits for each destination, whether the destination has changed and whether the
// consumer has a route to it, and takes the current state of changed destinations when it is ready.
// A consumer that is slow therefore skips intermediate states, and costs no memory.
//
// The package does no I/O, starts no goroutine and reads no clock. A RIB is not safe for concurrent
// use. Paths, consumers and sources refer to each other by small numbers, so that the garbage
// collector does not scan the tables.
package rib

import (
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp/message"
)

// Source identifies where paths come from: a session with a neighbor, or the speaker itself.
type Source uint16

// Local is the source of the routes that the speaker originates.
const Local Source = 0

// Peer is what the route selection needs to know about a source.
type Peer struct {
	External bool // a neighbor of another AS
	RouterID netip.Addr
	Address  netip.Addr
}

type source struct {
	Peer
	used bool
}

// families is the size of arrays that are indexed by a message.Family.
const families = message.VPNv6 + 1

// RIB holds the routes of all families.
type RIB struct {
	attributes attributes
	sources    []source
	tables     [families]table
}

// New returns an empty RIB with the source Local.
func New() *RIB {
	r := &RIB{attributes: newAttributes(), sources: []source{{used: true}}}
	for f := range r.tables {
		t := &r.tables[f]
		t.rib = r
		t.from = make([]received, 1)
		t.reset()
	}
	return r
}

// AddSource returns a source without paths.
func (r *RIB) AddSource(p Peer) Source {
	for i := range r.sources {
		if !r.sources[i].used {
			r.sources[i] = source{p, true}
			return Source(i)
		}
	}
	r.sources = append(r.sources, source{p, true})
	for f := range r.tables {
		r.tables[f].from = append(r.tables[f].from, received{})
	}
	return Source(len(r.sources) - 1)
}

// RemoveSource frees a source, which must have no paths.
func (r *RIB) RemoveSource(s Source) {
	for f := range r.tables {
		if r.tables[f].from[s].in.n > 0 {
			panic("BUG: source has paths")
		}
		r.tables[f].from[s] = received{}
	}
	r.sources[s] = source{}
}

// Peer returns the description of a source.
func (r *RIB) Peer(s Source) Peer { return r.sources[s].Peer }

// SetPeer changes the description of a source, before the selection of paths that it affects.
func (r *RIB) SetPeer(s Source, p Peer) { r.sources[s].Peer = p }

// Hold returns the ID of a set of attributes, which is valid until Release.
func (r *RIB) Hold(a *message.Attributes) ID { return r.attributes.hold(a) }

// Release ends the validity of an ID that Hold returned.
func (r *RIB) Release(id ID) { r.attributes.release(id) }

// Attributes returns the set of attributes with the ID; nil for 0.
func (r *RIB) Attributes(id ID) *message.Attributes {
	if id == 0 {
		return nil
	}
	return r.attributes.at(id).set
}

// Derive returns the ID of what a change makes of a set of attributes; it is valid as long as id.
// change identifies the change: apply is called once for each pair of set and change.
func (r *RIB) Derive(id ID, change Change, apply func(*message.Attributes) *message.Attributes) ID {
	return r.attributes.derive(id, change, apply)
}

// Path is a path to a destination.
type Path struct {
	// Received are the attributes as received; 0: there is no path. Accepted are those after the
	// import policy; 0: the policy rejects the path.
	Received, Accepted ID
	Label              uint32
	Source             Source
	// Reason is a number of why the policy rejects it; 0 if it does not.
	Reason uint16
}

// Announce adds the path of a source to a destination, or replaces it. Both sets of attributes of
// the path must be valid during the call. urgent reports it to consumers before other changes.
func (r *RIB) Announce(k message.Key, p Path, urgent bool) {
	r.tables[k.Family()].announce(k, p, urgent)
}

// Withdraw removes the path of a source to a destination and reports whether there was one.
func (r *RIB) Withdraw(k message.Key, s Source, urgent bool) bool {
	t := &r.tables[k.Family()]
	i, ok := t.lookup(k)
	return ok && t.withdraw(i, s, urgent)
}

// Purge removes up to n paths of a source and reports whether none is left in the family.
func (r *RIB) Purge(f message.Family, s Source, n int) (done bool) {
	t := &r.tables[f]
	for i := uint32(0); n > 0; n-- {
		next, ok := t.from[s].in.next(i)
		if !ok {
			break
		}
		t.withdraw(next, s, false)
		i = next
	}
	return t.from[s].in.n == 0
}

// MarkStale marks all paths of a source as stale: any path that is not stale is preferred, and
// removes them. A stale path that is announced again, or withdrawn, is not stale any more.
func (r *RIB) MarkStale(s Source) {
	for f := range r.tables {
		from := &r.tables[f].from[s]
		from.stale.union(&from.in)
	}
}

// Reselect selects the best path again for destinations from the given index with a path of the
// source, up to n of them. It returns the index to continue with, or 0 after the last one. Paths
// with attributes that drop, if given, accepts are withdrawn.
func (r *RIB) Reselect(f message.Family, s Source, from uint32, n int, drop func(*message.Attributes) bool) (next uint32) {
	t := &r.tables[f]
	for ; n > 0; n-- {
		i, ok := t.from[s].in.next(from)
		if !ok {
			return 0
		}
		if drop != nil && drop(r.Attributes(t.find(i, s).Received)) {
			t.withdraw(i, s, true)
		} else {
			t.reselect(i, t.best(i), false)
		}
		from = i + 1
	}
	return from
}

// PurgeStale removes the stale paths of a source whose attributes which accepts, from the given
// index, up to n of them. It returns the index to continue with, or 0 after the last one.
func (r *RIB) PurgeStale(f message.Family, s Source, from uint32, n int, which func(*message.Attributes) bool) (next uint32) {
	t := &r.tables[f]
	for ; n > 0; n-- {
		i, ok := t.from[s].stale.next(from)
		if !ok {
			return 0
		}
		if which(r.Attributes(t.find(i, s).Received)) {
			t.withdraw(i, s, false)
		}
		from = i + 1
	}
	return from
}

// Stale returns the number of stale paths of a source.
func (r *RIB) Stale(s Source) (n int) {
	for f := range r.tables {
		n += r.tables[f].from[s].stale.n
	}
	return n
}

// Received returns the number of paths of a source, and how many of them the import policy
// accepted.
func (r *RIB) Received(f message.Family, s Source) (all, accepted int) {
	from := &r.tables[f].from[s]
	return from.in.n, from.accepted
}

// Rejected returns the number of paths of a source that the import policy rejects, by reason. The
// caller must not change it.
func (r *RIB) Rejected(f message.Family, s Source) map[uint16]int {
	return r.tables[f].from[s].rejected
}

// Reimport calls decide for the paths of a source from the given index, up to n of them, and
// replaces their accepted attributes and the reason by the result. It returns the index to continue
// with, or 0 after the last one.
func (r *RIB) Reimport(f message.Family, s Source, from uint32, n int, decide func(message.Key, Path) (ID, uint16)) (next uint32) {
	t := &r.tables[f]
	for ; n > 0; n-- {
		i, ok := t.from[s].in.next(from)
		if !ok {
			return 0
		}
		p := *t.find(i, s)
		if accepted, reason := decide(t.key(i), p); accepted != p.Accepted || reason != p.Reason {
			p.Accepted, p.Reason = accepted, reason
			t.put(i, p, false)
		}
		from = i + 1
	}
	return from
}

// Has reports whether a source has a path to a destination.
func (r *RIB) Has(k message.Key, s Source) bool {
	t := &r.tables[k.Family()]
	i, ok := t.lookup(k)
	return ok && t.find(i, s) != nil
}

// Len returns the number of destinations with a path.
func (r *RIB) Len(f message.Family) int { return r.tables[f].live.n }

// Paths returns the paths to a destination, the best one first.
func (r *RIB) Paths(k message.Key) []Path {
	t := &r.tables[k.Family()]
	i, ok := t.lookup(k)
	if !ok {
		return nil
	}
	paths := t.paths(i, nil)
	slices.SortStableFunc(paths[min(1, len(paths)):], func(a, b Path) int {
		n, _ := r.Compare(a, b)
		return n
	})
	return paths
}

// Best calls f for the best path to each destination from the given index, up to n of them. It
// returns the index to continue with, or 0 after the last one.
func (r *RIB) Best(fam message.Family, from uint32, n int, f func(message.Key, Path)) (next uint32) {
	t := &r.tables[fam]
	for ; n > 0; n-- {
		i, ok := t.live.next(from)
		if !ok {
			return 0
		}
		if p := t.best(i); p.Received != 0 {
			f(t.key(i), p)
		}
		from = i + 1
	}
	return from
}

// Route is a path with its destination and its state.
type Route struct {
	Key message.Key
	Path
	Best, Stale bool
}

// Each calls f for each path of a source from the given index, up to n of them. It returns the
// index to continue with, or 0 after the last one.
func (r *RIB) Each(fam message.Family, s Source, from uint32, n int, f func(Route)) (next uint32) {
	t := &r.tables[fam]
	for ; n > 0; n-- {
		i, ok := t.from[s].in.next(from)
		if !ok {
			return 0
		}
		p := *t.find(i, s)
		f(Route{Key: t.key(i), Path: p, Best: p.Accepted != 0 && t.at(i).path == p, Stale: t.stale(i, s)})
		from = i + 1
	}
	return from
}
