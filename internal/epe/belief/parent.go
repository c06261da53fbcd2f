package belief

import (
	"cmp"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tabane/tabane/internal/base/hashtable"
)

// What networks of the same origin AS, and all networks, believe of a mode is where others begin.
// It is the median of one vote for each of a few networks, so that no single network, whatever its
// clients do, moves it beyond what the others believe.

const (
	// maxVotes bounds the networks that are asked, and minVotes is how many it takes.
	maxVotes, minVotes = 15, 3
	// maxOrigins bounds the ASes.
	maxOrigins = 20_000
)

// peers are the votes of some networks, at most maxVotes on each mode.
type peers struct{ votes []vote }

// vote is what a network believes of a mode.
type vote struct {
	network uint64 // hash
	mode    modeID
	mean    float32
}

// prior is a belief from others.
type prior struct{ mean, sd float64 }

// prior returns what is believed of a mode in a network of an AS before it is measured there, and
// whose votes that is from, "" if nobody's.
func (t *Table) prior(origin uint32, m Mode) (prior, string) {
	if m == Best {
		return prior{}, ""
	}
	id, known := t.modes.Find(m)
	if !known {
		return prior{0, priorSD}, "" // it has no vote
	}
	if p := t.origins[origin]; p != nil && origin != 0 {
		if mean, spread, ok := p.median(modeID(id)); ok {
			return prior{mean, min(max(spread, originSD), mostSD)}, "AS " + strconv.FormatUint(uint64(origin), 10)
		}
	}
	if mean, spread, ok := t.all.median(modeID(id)); ok {
		return prior{mean, min(max(spread, allSD), mostSD)}, "other networks"
	}
	return prior{0, priorSD}, ""
}

// vote records what a network believes of a mode.
func (t *Table) vote(n *network, a *arm) {
	if a.mode == bestID {
		return
	}
	v := vote{voter(t.prefix(n)), a.mode, a.mean}
	t.all.set(v, &t.modes)
	if n.origin == 0 {
		return
	}
	p := t.origins[n.origin]
	if p == nil {
		if len(t.origins) >= maxOrigins {
			for origin, p := range t.origins { // any
				p.forget(&t.modes, func(vote) bool { return true })
				delete(t.origins, origin)
				break
			}
		}
		p = &peers{}
		t.origins[n.origin] = p
	}
	p.set(v, &t.modes)
}

// voteAll records what a network believes of all modes that were measured there.
func (t *Table) voteAll(n *network) {
	for i := range n.arms {
		if n.arms[i].trials > 0 {
			t.vote(n, &n.arms[i])
		}
	}
}

// move makes another AS the origin of a network, and takes its votes there.
func (t *Table) move(n *network, origin uint32) {
	if p := t.origins[n.origin]; p != nil {
		id := voter(t.prefix(n))
		p.forget(&t.modes, func(v vote) bool { return v.network == id })
	}
	n.origin = origin
	t.voteAll(n)
}

// forget removes votes, and ends their use of modes.
func (p *peers) forget(modes *hashtable.Interner[Mode], which func(vote) bool) {
	p.votes = slices.DeleteFunc(p.votes, func(v vote) bool {
		gone := which(v)
		if gone {
			modes.Release(uint32(v.mode))
		}
		return gone
	})
}

// voter returns the identity of a network.
func voter(network netip.Prefix) uint64 {
	h := fnv.New64a()
	b, _ := network.MarshalBinary()
	_, _ = h.Write(b)
	return h.Sum64()
}

// votesGrow is how many more votes there is room for at a time: of an AS there are as many as its
// networks have modes, and there are many ASes.
const votesGrow = 4

// set replaces the vote of a network on a mode. A new one takes the place of another by its hash
// where there are as many as count.
func (p *peers) set(v vote, modes *hashtable.Interner[Mode]) {
	var places [maxVotes]int
	n := 0
	for i, other := range p.votes {
		if other.mode != v.mode {
			continue
		}
		if other.network == v.network {
			p.votes[i] = v
			return
		}
		places[n] = i
		n++
	}
	switch {
	case n == maxVotes:
		p.votes[places[v.network%maxVotes]] = v
	case len(p.votes) < MaxModes*maxVotes:
		if len(p.votes) == cap(p.votes) {
			p.votes = append(make([]vote, 0, len(p.votes)+votesGrow), p.votes...)
		}
		modes.UseAgain(uint32(v.mode))
		p.votes = append(p.votes, v)
	}
}

// median returns the median of the votes on a mode, and their spread as a standard deviation.
func (p *peers) median(m modeID) (mean, spread float64, ok bool) {
	var list []float64
	for _, v := range p.votes {
		if v.mode == m {
			list = append(list, float64(v.mean))
		}
	}
	if len(list) < minVotes {
		return 0, 0, false
	}
	mean, spread = medianOf(list)
	return mean, spread, true
}

// medianOf returns the median of values, which are not none, and their spread as a standard
// deviation. It changes their order and content.
func medianOf(list []float64) (median, spread float64) {
	middle := func() float64 {
		slices.SortFunc(list, cmp.Compare)
		return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
	}
	median = middle()
	for i := range list {
		list[i] = math.Abs(list[i] - median)
	}
	// The factor makes it the standard deviation where the values are normal.
	return median, 1.4826 * middle()
}
