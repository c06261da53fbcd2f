// Package reflector is a route reflector for IPv6 unicast and VPNv6 routes between the ASBRs and
// the servers of one AS (RFC 4456). It keeps next hops and SIDs as they are.
//
// It does not change the kernel and has no external neighbors.
package reflector

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp"
)

// Options describe a Reflector.
type Options struct {
	Config Config
	Log    *slog.Logger
}

// Reflector is a running route reflector.
type Reflector struct {
	config  Config
	log     *slog.Logger
	speaker *bgp.Speaker
}

// New listens for the clients, so that a port in use is reported at once.
func New(ctx context.Context, o Options) (*Reflector, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	speaker, err := bgp.New(bgp.Options{
		ASN: o.Config.ASN, RouterID: o.Config.RouterID, Listen: []netip.Addr{o.Config.Address}, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := speaker.Start(ctx); err != nil {
		return nil, err
	}
	return &Reflector{config: o.Config, log: o.Log, speaker: speaker}, nil
}

// Run reflects until ctx ends. Sessions stay open when ctx ends, so that they close with the
// process, all at once: closed one after the other, each would withdraw the routes of its client,
// which still work, from the remaining clients. Stop closes them where the process continues.
func (r *Reflector) Run(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			r.Stop()
		}
	}()
	for _, c := range r.config.Clients {
		var locators []netip.Prefix
		if c.Locator.IsValid() {
			locators = []netip.Prefix{c.Locator}
		}
		err := r.speaker.AddNeighbor(ctx, bgp.Neighbor{
			Name: c.Name, Address: c.Address, LocalAddress: r.config.Address, ASN: r.config.ASN,
			Families: []bgp.Family{bgp.IPv6Unicast, bgp.VPNv6}, Password: c.Password, ReflectorClient: true, Passive: true, BFD: c.BFD,
			Locators: locators,
		})
		if err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case events, ok := <-r.speaker.Events():
			if !ok {
				return errors.New("bgp speaker stopped by itself")
			}
			bgp.LogSessions(r.log, events)
		}
	}
}

// Stop closes the sessions and ends Run.
func (r *Reflector) Stop() { r.speaker.Stop() }

// Status is what /status shows.
type Status struct {
	Role     string              `json:"role"`
	Ready    bool                `json:"ready"`
	ASN      uint32              `json:"asn"`
	Sessions []bgp.SessionStatus `json:"sessions"`
}

// Status returns the state of the reflector. It is ready when the sessions with all clients are up.
func (r *Reflector) Status() any {
	s := Status{Role: "reflector", Ready: true, ASN: r.config.ASN, Sessions: r.speaker.Sessions()}
	for _, session := range s.Sessions {
		s.Ready = s.Ready && session.Up
	}
	s.Ready = s.Ready && len(s.Sessions) == len(r.config.Clients)
	return s
}
