package study

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

const (
	// keepPlace is how long a place is kept for a participant who has not rated a task, if the
	// study is full.
	keepPlace = 30 * time.Minute
	// A network may have 1/shareOfPlaces of the places without a rating, but at least minShare.
	shareOfPlaces = 4
	minShare      = 4
	// sitePrefix is the length of the IPv6 prefix of one site (RFC 6177).
	sitePrefix = 56
)

// places are the participants who have not rated a task yet: whoever takes places without taking
// part keeps them for keepPlace, and gets a share of them only. It is in memory alone, with a hash
// of the network by a random seed, until the first rating. Safe for concurrent use.
type places struct {
	share int
	seed  maphash.Seed
	// start is the time of the server's start: what began before has no other time.
	start time.Duration

	mu      sync.Mutex
	waiting map[[idBytes]byte]place
}

// place is that of a participant without a rating.
type place struct {
	network uint64
	taken   time.Duration
}

func newPlaces(most int, now time.Duration) *places {
	return &places{share: max(most/shareOfPlaces, minShare), seed: maphash.MakeSeed(), start: now, waiting: map[[idBytes]byte]place{}}
}

// network returns a hash of the network of a client.
func (p *places) network(remote string) uint64 {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return 0
	}
	a := at.Addr().Unmap().WithZone("")
	if a.Is6() {
		a = netip.PrefixFrom(a, sitePrefix).Masked().Addr()
	}
	return maphash.Comparable(p.seed, a)
}

// reserve takes a place for a participant unless the network has its share. It forgets expired
// places, which are as those from before the start.
func (p *places) reserve(id [idBytes]byte, network uint64, now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for id, w := range p.waiting {
		switch {
		case now-w.taken > keepPlace:
			delete(p.waiting, id)
		case w.network == network:
			n++
		}
	}
	if n >= p.share {
		return false
	}
	p.waiting[id] = place{network, now}
	return true
}

// settle forgets a participant who has rated a task, or who has no session or no longer one.
func (p *places) settle(id [idBytes]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, id)
}

// expired reports whether the place of a participant without a rating can be given to another one.
func (p *places) expired(id [idBytes]byte, now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.start
	if w, known := p.waiting[id]; known {
		taken = w.taken
	}
	return now-taken > keepPlace
}
