package belief

import "github.com/tabane/tabane/internal/base/hashtable"

// maxSecondChances bounds the networks that are looked at to find one to remove.
const maxSecondChances = 8

// evict removes the oldest network, or of some of the oldest the one that brought least. Those that
// stay count for half the next time.
func (t *Table) evict() {
	var least *network
	for range maxSecondChances {
		n := t.network(t.oldest)
		if least == nil || n.bulk < least.bulk {
			least = n
		}
		n.bulk, n.tried, n.lost = n.bulk/2, n.tried/2, n.lost/2
		t.unlink(n)
		t.link(n)
	}
	t.remove(least)
	t.evicted++
}

func (t *Table) remove(n *network) {
	t.unlink(n)
	t.exchanges.forget(t.prefix(n))
	t.releaseArms(n)
	t.modes.Release(uint32(n.mode))
	t.networks.Remove(hashtable.Ref(n.at - 1))
}

// releaseArms ends the use of the modes of arms, which are to be replaced.
func (t *Table) releaseArms(n *network) {
	for _, a := range n.arms {
		t.modes.Release(uint32(a.mode))
	}
}

// link makes a network the latest.
func (t *Table) link(n *network) {
	if n.older, n.later = t.latest, 0; n.older == 0 {
		t.oldest = n.at
	} else {
		t.network(n.older).later = n.at
	}
	t.latest = n.at
}

// unlink takes a network out of the order.
func (t *Table) unlink(n *network) {
	if n.older == 0 {
		t.oldest = n.later
	} else {
		t.network(n.older).later = n.later
	}
	if n.later == 0 {
		t.latest = n.older
	} else {
		t.network(n.later).older = n.older
	}
}
