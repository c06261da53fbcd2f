package bgp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
)

// bfdReason is why a session ends that BFD took down, as FRR words it.
const bfdReason = "bfd down"

// bfdDown resets the session with a neighbor that BFD found dead (RFC 5882 section 4.1).
func (s *Speaker) bfdDown(name string) {
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
		return // the session ended already
	}
	err := s.blackhole(n.Locators, false)
	err = errors.Join(err, s.restart(context.Background(), n, bfdReason))
	if n.ASN == s.opt.ASN {
		err = errors.Join(err, s.blackhole(n.Locators, true))
	}
	if err != nil {
		s.log.Error("reset session after bfd down", "neighbor", name, "err", err)
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
