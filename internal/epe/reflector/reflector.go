// Package reflector is a route reflector for unicast and VPN routes of IPv4 and IPv6 between the
// ASBRs and the servers of one AS (RFC 4456). It keeps next hops and SIDs as they are.
//
// It does not change the kernel and has no external neighbors.
package reflector

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// families are those of all sessions; a client has those that it offers.
var families = []bgp.Family{bgp.IPv6Unicast, bgp.VPNv6, bgp.IPv4Unicast, bgp.VPNv4}

// Options describe a Reflector.
type Options struct {
	Config Config
	Log    *slog.Logger
}

// Reflector is a running route reflector.
type Reflector struct {
	log     *slog.Logger
	speaker *bgp.Speaker

	mu      sync.Mutex // guards what follows
	config  Config
	running bool // the neighbors have been added
}

// New listens for the clients, so that a port in use is reported at once.
func New(ctx context.Context, o Options) (*Reflector, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	speaker, err := bgp.New(bgp.Options{
		ASN: o.Config.ASN, RouterID: o.Config.RouterID, Listen: []netip.Addr{o.Config.Address}, Port: o.Config.Port, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := speaker.Start(); err != nil {
		return nil, err
	}
	return &Reflector{log: o.Log, speaker: speaker, config: o.Config}, nil
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
	if err := r.addClients(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-r.speaker.Events():
			if !ok {
				return errors.New("bgp speaker stopped by itself")
			}
		}
	}
}

func (r *Reflector) addClients() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.config.neighbors() {
		if err := r.speaker.AddNeighbor(n); err != nil {
			return err
		}
	}
	for _, g := range r.config.groups() {
		if err := r.speaker.AddGroup(g); err != nil {
			return err
		}
	}
	r.running = true
	return nil
}

// client is what all clients have in common.
func (c *Config) client(password string) bgp.Neighbor {
	return bgp.Neighbor{
		LocalAddress: c.Address, ASN: c.ASN, Families: families,
		Password: password, ReflectorClient: true, Passive: true,
	}
}

// groups are the clients by prefix as the BGP speaker knows them.
func (c *Config) groups() []bgp.Group {
	var groups []bgp.Group
	for _, l := range c.Listen {
		groups = append(groups, bgp.Group{Name: l.Name, Prefix: l.Prefix, Limit: cmp.Or(l.Limit, DefaultLimit), Neighbor: c.client(l.Password)})
	}
	return groups
}

// neighbors are the clients as the BGP speaker knows them.
func (c *Config) neighbors() []bgp.Neighbor {
	var neighbors []bgp.Neighbor
	for _, client := range c.Clients {
		n := c.client(client.Password)
		n.Name, n.Address, n.BFD = client.Name, client.Address, client.BFD
		if client.Locator.IsValid() {
			n.Locators = []netip.Prefix{client.Locator}
		}
		neighbors = append(neighbors, n)
	}
	return neighbors
}

// Stop closes the sessions and ends Run.
func (r *Reflector) Stop() { r.speaker.Stop() }

// Status is what /status shows.
type Status struct {
	Role string `json:"role"`
	health.Status
	ASN uint32 `json:"asn"`
	// Control is the path of the socket for commands.
	Control  string              `json:"control"`
	Sessions []bgp.SessionStatus `json:"sessions"`
}

// Status returns the state of the reflector. It is ready when a session with a client is up, and
// degraded until all are.
func (r *Reflector) Status() any {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		Role: "reflector", ASN: r.config.ASN, Control: control.Path(r.config.Control, "reflector"),
		Sessions: r.speaker.Sessions(),
	}
	var report health.Report
	report.NeedOne(len(s.Sessions), bgp.Problems(s.Sessions))
	if missing := len(r.config.Clients) - len(s.Sessions); missing > 0 {
		report.Fail("%d clients are not configured yet", missing)
	}
	contain.Report(&report)
	s.Status = report.Status()
	return s
}

// Speaker returns the BGP speaker, for its tables and sessions. The caller changes no
// configuration.
func (r *Reflector) Speaker() *bgp.Speaker { return r.speaker }
