package rib

import (
	"math/bits"

	compact "github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/bgp/message"
)

// table has the destinations of a family, which are numbered. Further paths are in pages, which are
// never moved.
type table struct {
	rib   *RIB
	dests compact.Table[message.Key, dest]

	more     [][]link
	moreSize uint32 // links in pages, including link 0, which is never used
	moreFree []uint32

	// live are destinations with a path. dead are those without a path that a consumer may still
	// have to take; they are freed when dead has reapAt members.
	live, dead set
	reapAt     int
	reaped     uint32 // index to continue with

	from      []received // by source
	consumers []*Consumer

	scratch []candidate
}

// dest are the paths to a destination; the first one is the best.
type dest struct {
	path Path
	more uint32 // link of the second path
}

// link is the second or a further path to a destination.
type link struct {
	path Path
	next uint32
}

// received are the destinations with a path of a source.
type received struct {
	in, stale set
	accepted  int            // paths that the import policy accepted
	rejected  map[uint16]int // the others, by reason
	readers   []*Consumer
}

// count counts a path that was added or, with n of -1, removed.
func (r *received) count(p *Path, n int) {
	if p.Accepted != 0 {
		r.accepted += n
		return
	}
	if r.rejected == nil {
		r.rejected = map[uint16]int{}
	}
	if r.rejected[p.Reason] += n; r.rejected[p.Reason] == 0 {
		delete(r.rejected, p.Reason)
	}
}

const (
	pageShift = 10
	pageMask  = 1<<pageShift - 1
	minReap   = 1024
)

func (t *table) at(i uint32) *dest { return t.dests.Value(compact.Ref(i)) }

func (t *table) key(i uint32) message.Key { return t.dests.Key(compact.Ref(i)) }

// lookup returns the destination with the key.
func (t *table) lookup(k message.Key) (uint32, bool) {
	i, ok := t.dests.Find(k)
	return uint32(i), ok
}

func (t *table) link(i uint32) *link { return &t.more[i>>pageShift][i&pageMask] }

// reset frees the memory of an empty table.
func (t *table) reset() {
	t.dests = compact.Table[message.Key, dest]{}
	t.more, t.moreSize, t.moreFree = nil, 1, nil
	t.reapAt, t.reaped = minReap, 0
}

func (t *table) allocLink(l link) uint32 {
	var i uint32
	if n := len(t.moreFree); n > 0 {
		i, t.moreFree = t.moreFree[n-1], t.moreFree[:n-1]
	} else {
		i = t.moreSize
		t.moreSize++
		if int(i>>pageShift) == len(t.more) {
			t.more = append(t.more, make([]link, 1<<pageShift))
		}
	}
	*t.link(i) = l
	return i
}

func (t *table) freeLink(i uint32) {
	*t.link(i) = link{}
	t.moreFree = append(t.moreFree, i)
}

// best returns the best path to a destination; Received is 0 if there is none.
func (t *table) best(i uint32) Path {
	if p := t.at(i).path; p.Accepted != 0 {
		return p
	}
	return Path{}
}

// find returns the path of a source, or nil.
func (t *table) find(i uint32, s Source) *Path {
	d := t.at(i)
	if d.path.Received == 0 {
		return nil
	}
	if d.path.Source == s {
		return &d.path
	}
	for m := d.more; m != 0; m = t.link(m).next {
		if l := t.link(m); l.path.Source == s {
			return &l.path
		}
	}
	return nil
}

// paths appends the paths to a destination.
func (t *table) paths(i uint32, paths []Path) []Path {
	d := t.at(i)
	if d.path.Received == 0 {
		return paths
	}
	paths = append(paths, d.path)
	for m := d.more; m != 0; m = t.link(m).next {
		paths = append(paths, t.link(m).path)
	}
	return paths
}

func (t *table) announce(k message.Key, p Path, urgent bool) {
	i, _ := t.dests.Add(k)
	t.from[p.Source].stale.remove(uint32(i))
	t.put(uint32(i), p, urgent)
}

// put adds or replaces the path of a source.
func (t *table) put(i uint32, p Path, urgent bool) {
	from := &t.from[p.Source]
	before := t.best(i)
	old := t.find(i, p.Source)
	if old != nil && *old == p {
		t.reselect(i, before, urgent) // it may have been stale
		return
	}
	a := &t.rib.attributes
	a.retain(p.Received)
	a.retain(p.Accepted)
	from.count(&p, 1)
	d := t.at(i)
	switch {
	case old != nil:
		from.count(old, -1)
		a.release(old.Received)
		a.release(old.Accepted)
		*old = p
	case d.path.Received == 0:
		d.path = p
		t.live.add(i)
		t.dead.remove(i)
	default:
		d.more = t.allocLink(link{p, d.more})
	}
	from.in.add(i)
	for _, c := range from.readers {
		c.mark(i, urgent)
	}
	t.reselect(i, before, urgent)
}

// reselect selects the best path, and marks the destination for the consumers if it differs from
// the one before in more than the attributes as received.
func (t *table) reselect(i uint32, before Path, urgent bool) {
	t.selectBest(i)
	now := t.best(i)
	if now.Accepted != before.Accepted || now.Label != before.Label || now.Source != before.Source {
		for _, c := range t.consumers {
			c.mark(i, urgent)
		}
	}
	t.reapIfDue()
}

// withdraw removes the path of a source.
func (t *table) withdraw(i uint32, s Source, urgent bool) bool {
	before := t.best(i)
	if !t.remove(i, s, urgent) {
		return false
	}
	t.reselect(i, before, urgent)
	return true
}

// remove removes the path of a source without selecting another one.
func (t *table) remove(i uint32, s Source, urgent bool) bool {
	p := t.find(i, s)
	if p == nil {
		return false
	}
	from := &t.from[s]
	from.in.remove(i)
	from.stale.remove(i)
	from.count(p, -1)
	t.rib.attributes.release(p.Received)
	t.rib.attributes.release(p.Accepted)
	d := t.at(i)
	if p != &d.path {
		for at := &d.more; ; at = &t.link(*at).next {
			if l := t.link(*at); &l.path == p {
				unused := *at
				*at = l.next
				t.freeLink(unused)
				break
			}
		}
	} else if d.more != 0 {
		unused := d.more
		l := t.link(unused)
		d.path, d.more = l.path, l.next
		t.freeLink(unused)
	} else {
		d.path = Path{}
		t.live.remove(i)
		t.dead.add(i)
	}
	for _, c := range from.readers {
		c.mark(i, urgent)
	}
	return true
}

// reapStep is the number of destinations that are freed at a time.
const reapStep = 4

// reapIfDue frees some destinations if there are many to free.
func (t *table) reapIfDue() {
	if t.dead.n >= t.reapAt && t.reap(reapStep) {
		t.reapAt = max(minReap, 2*t.dead.n)
	}
}

// reap frees up to n destinations without paths that no consumer has to take; one that has a route
// to such a destination has to take it too. It looks at no more than n words of them, each of which
// costs a look at every consumer: while one consumer has them all to take, none can be freed. It
// continues where the last call ended, and reports whether it reached the end of the table.
func (t *table) reap(n int) (end bool) {
	for words := n; n > 0 && words > 0; words-- {
		i, ok := t.dead.next(t.reaped)
		if !ok {
			t.reaped = 0
			if t.live.n == 0 && t.dead.n == 0 {
				t.reset()
			}
			return true
		}
		w := int(i >> wordShift)
		pending := uint64(0)
		for _, c := range t.consumers {
			pending |= c.pending.word(w)
		}
		for s := range t.from {
			for _, c := range t.from[s].readers {
				pending |= c.pending.word(w)
			}
		}
		free := t.dead.word(w) &^ pending
		for ; free != 0 && n > 0; free &= free - 1 {
			j := uint32(w)<<wordShift | uint32(bits.TrailingZeros64(free))
			t.dead.remove(j)
			t.dests.Remove(compact.Ref(j))
			n--
		}
		if free == 0 {
			t.reaped = uint32(w+1) << wordShift
		}
	}
	return false
}
