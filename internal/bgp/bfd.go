package bgp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"

	"github.com/tabane/tabane/internal/fault"
)

// BFD ends a session when nothing was heard from the neighbor for Multiplier times Interval, and withdraws what was
// learned there (RFC 5880 section 6.8.4, RFC 5882 section 4.1): the neighbor died, or the way to it lost every packet.
// Both sides must ask for it, and be neighbors on a link (RFC 5881). The zero value is none; then the hold time decides.
//
// GoBGP has BFD too. It is not used: it takes its own pauses for the neighbor's silence, and the resets that it asks for
// hit the sessions that follow.
type BFD struct {
	// Interval is how often we send, and how often the neighbor may send at most.
	Interval time.Duration `yaml:"interval"`
	// Multiplier is how many packets in a row may be lost; 0 is DefaultBFDMultiplier.
	Multiplier uint8 `yaml:"multiplier,omitempty"`
}

// DefaultBFDMultiplier is what operators use: one lost packet is noise, three are not.
const DefaultBFDMultiplier = 3

// Limits of what BFD may be asked for. A shorter interval would measure this process's scheduling; a multiplier of one
// would end a session for a single lost packet.
const (
	minBFDInterval   = 10 * time.Millisecond
	maxBFDInterval   = 10 * time.Second
	minBFDMultiplier = 2
)

// CheckBFD says what is wrong with b.
func CheckBFD(b BFD) fault.List {
	var faults fault.List
	if b == (BFD{}) {
		return nil
	}
	if b.Interval < minBFDInterval || b.Interval > maxBFDInterval || b.Interval%time.Microsecond != 0 {
		faults.Add("bfd.interval", "must be whole microseconds from %s to %s, got %s", minBFDInterval, maxBFDInterval, b.Interval)
	}
	if b.Multiplier != 0 && b.Multiplier < minBFDMultiplier {
		faults.Add("bfd.multiplier", "must be at least %d, got %d", minBFDMultiplier, b.Multiplier)
	}
	return faults
}

// bfdReason is why BFD ends a session.
const bfdReason = "nothing heard within the time of BFD"

// bfdLost ends the session with a neighbor that is silent, and waits for it to come back.
func (s *Speaker) bfdLost(name string) {
	s.calls.Lock()
	defer s.calls.Unlock()
	n := s.neighbors[name]
	if n == nil || s.usable() != nil || n.disabled {
		return
	}
	s.mu.Lock()
	up := n.up
	s.mu.Unlock()
	if !up {
		return // found out otherwise
	}
	err := s.blackhole(n.Locators, false)
	err = errors.Join(err, s.restart(context.Background(), n, bfdReason))
	if n.ASN == s.opt.ASN {
		err = errors.Join(err, s.blackhole(n.Locators, true))
	}
	if err != nil {
		s.log.Error("cannot end the session with a silent neighbor", "neighbor", name, "err", err)
	}
}

// endPatience is how long a session's end waits until its locators are told lost. It takes a fraction of that unless the speaker
// is busy, and then the end itself is not held up.
const endPatience = 100 * time.Millisecond

// sessionEnds is called when the session with a neighbor is over and nothing of that has been done yet. With a neighbor of
// another AS, what is lost with it is told first: to drop a full table takes seconds, in which nothing else can be told.
func (s *Speaker) sessionEnds(key netip.Addr) {
	s.mu.Lock()
	n := s.byAddr[key]
	unexpected := n != nil && n.up && !n.deleting
	s.mu.Unlock()
	if !unexpected || n.ASN == s.opt.ASN || len(n.Locators) == 0 {
		return
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		if err := s.locatorsLost(n); err != nil {
			s.log.Error("cannot tell what is lost with a neighbor", "neighbor", n.Name, "err", err)
		}
	}()
	patience := time.NewTimer(endPatience)
	defer patience.Stop()
	select {
	case <-told:
	case <-patience.C: // whoever holds calls may wait for this session
	case <-s.done:
	}
}

// locatorsLost tells that a neighbor's locators lead nowhere if its session is still the one that ends.
func (s *Speaker) locatorsLost(n *neighbor) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	ending := n.up && !n.deleting
	s.mu.Unlock()
	if s.usable() != nil || s.neighbors[n.Name] != n || !ending {
		return nil
	}
	return s.blackhole(n.Locators, false)
}

// SetLost tells everybody in our AS that prefixes lead nowhere, ahead of what else there is to be withdrawn, or takes that
// back.
func (s *Speaker) SetLost(lost bool, prefixes ...netip.Prefix) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	return s.blackhole(prefixes, !lost)
}

// blackhole tells everybody that locators lead nowhere, or takes that back. Callers hold calls.
func (s *Speaker) blackhole(locators []netip.Prefix, withdraw bool) error {
	if len(locators) == 0 {
		return nil
	}
	paths := make([]*apiutil.Path, len(locators))
	for i, l := range locators {
		p, err := UnicastRoute{Prefix: l, Attributes: Attributes{
			LocalPref: math.MaxUint32, Communities: []uint32{Blackhole, NoExport},
		}}.path()
		if err != nil {
			return fmt.Errorf("announce lost locator %s: %w", l, err)
		}
		p.Withdrawal = withdraw
		paths[i] = p
	}
	var err error
	if withdraw {
		err = s.server.DeletePath(apiutil.DeletePathRequest{Paths: paths})
	} else {
		_, err = s.server.AddPath(apiutil.AddPathRequest{Paths: paths})
	}
	if err != nil {
		return fmt.Errorf("announce lost locators: %w", err)
	}
	return nil
}
