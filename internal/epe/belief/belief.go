// Package belief holds what is believed of client networks: how much better or worse each mode of
// delivery is for each of them, and decides which mode a network has and which one is tried.
//
// It decides by values alone and knows neither routes nor sockets. A mode that cannot be used, or
// that made no progress, is left at once, whatever is believed of it. Times are those of the wall
// clock, which may step.
package belief

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"
	"unique"

	"github.com/tabane/tabane/internal/base/hashtable"
)

// Mode is a mode of delivery as in a configuration, such as "single transit-a".
type Mode string

// Best is the mode that all others are compared with.
const Best Mode = "best"

// Options are the parameters of a Table.
type Options struct {
	// Start is the mode of networks that nothing is known of, if it can be used.
	Start Mode
	// Explore is the share of a network's bulk bytes that may be carried in other modes than its
	// own to compare them; 0: none.
	Explore float64
	// Networks is the number of networks that are kept.
	Networks int
}

// Table is what is believed of all networks. It is not safe for concurrent use.
type Table struct {
	options  Options
	networks hashtable.Prefixes[network]
	// oldest and latest are the ends of the list of networks in the order in which they were seen.
	oldest, latest place
	modes          hashtable.Interner[Mode]
	origins        map[uint32]*peers
	all            peers
	changed        bool // since the last call of ClearChanged
	evicted        uint64
	// exchanges are with other servers.
	exchanges exchanges
	history   history
}

// A place is that of a network in the table, plus 1; 0: none.
type place uint32

// A modeID is the number of a mode in the table.
type modeID uint32

// bestID is that of Best, the first one.
const bestID modeID = 1

// New returns a table without networks.
func New(o Options) *Table {
	t := &Table{options: o, origins: map[uint32]*peers{}}
	t.modes.Use(Best)
	return t
}

// find returns a network; nil if nothing is known of it.
func (t *Table) find(prefix netip.Prefix) *network {
	if r, ok := t.networks.Find(prefix); ok {
		return t.networks.Value(r)
	}
	return nil
}

func (t *Table) network(at place) *network { return t.networks.Value(hashtable.Ref(at - 1)) }

func (t *Table) prefix(n *network) netip.Prefix {
	return t.networks.Key(hashtable.Ref(n.at - 1)).Netip()
}

func (t *Table) mode(m modeID) Mode { return t.modes.Value(uint32(m)) }

// setMode replaces a mode, whose number is in use as long as it is anywhere.
func (t *Table) setMode(at *modeID, m Mode) {
	old := *at
	*at = modeID(t.modes.Use(m))
	t.modes.Release(uint32(old))
}

// Len is the number of networks, Evicted how many were removed for want of room.
func (t *Table) Len() int { return t.networks.Len() }

// Evicted is documented with Len.
func (t *Table) Evicted() uint64 { return t.evicted }

// Explore is Options.Explore.
func (t *Table) Explore() float64 { return t.options.Explore }

// SetExplore replaces Options.Explore.
func (t *Table) SetExplore(share float64) { t.options.Explore = share }

// at returns a network, which it adds.
func (t *Table) at(now time.Time, prefix netip.Prefix, origin uint32, mode Mode) *network {
	n := t.find(prefix)
	if n == nil {
		if t.Len() >= max(t.options.Networks, 1) {
			t.evict()
		}
		r, _ := t.networks.Add(prefix)
		n = t.networks.Value(r)
		*n = network{at: place(r + 1), origin: origin, since: instantOf(now), noise: startNoise, apartNoise: startApartNoise, sinceChange: dwellConnections}
		t.setMode(&n.mode, mode)
		_, why := t.start(origin, []Mode{mode})
		n.reason = unique.Make(why)
		t.link(n)
	}
	t.see(n, now)
	return n
}

// see records that a network has connections.
func (t *Table) see(n *network, now time.Time) {
	if n.at != t.latest {
		t.unlink(n)
		t.link(n)
	}
	t.age(n, now)
	t.ask(n, now)
	n.seen = instantOf(now)
	t.touch()
}

func (t *Table) touch() { t.changed = true }

// Forget removes what is known of a network.
func (t *Table) Forget(prefix netip.Prefix) {
	if n := t.find(prefix); n != nil {
		t.remove(n)
	}
}

// Info is what is known of a network.
type Info struct {
	Prefix netip.Prefix
	Origin uint32
	Mode   Mode
	Why    string
	Since  time.Time
	// Bulk are the bytes of bulk connections, Tried those in other modes than the network's.
	Bulk, Tried float64
	// Modes are the best first.
	Modes []ModeInfo
}

// ModeInfo is what is known of a mode in a network.
type ModeInfo struct {
	Mode Mode
	// Gain is how much more it is believed to bring than Best, as a fraction; SD is the standard
	// deviation of its logarithm, and Trials the number of measurements.
	Gain, SD float64
	Trials   int
	// Rest is for how long the mode is not used, because it made no progress.
	Rest time.Duration
	Brought
}

// Network returns what is known of a network, false if nothing is.
func (t *Table) Network(now time.Time, prefix netip.Prefix) (Info, bool) {
	n := t.find(prefix)
	if n == nil {
		return Info{}, false
	}
	i := Info{Prefix: prefix, Origin: n.origin, Mode: t.mode(n.mode), Why: n.reason.Value(), Since: n.since.time(), Bulk: n.bulk, Tried: n.tried}
	for k, a := range n.arms {
		m := ModeInfo{Mode: t.mode(a.mode), Gain: math.Expm1(float64(a.mean)), SD: math.Sqrt(n.covarianceOf(k, k)), Trials: int(a.trials), Brought: n.total(k)}
		if a.rests(now) {
			m.Rest = a.left(now)
		}
		i.Modes = append(i.Modes, m)
	}
	slices.SortStableFunc(i.Modes, func(a, b ModeInfo) int { return cmp.Compare(b.Gain, a.Gain) })
	return i, true
}
