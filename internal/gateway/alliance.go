package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// The roles of an alliance (paper D section 2.1).
const (
	RoleHomeAgent = "home-agent"
	RoleLeader    = "leader"
	RoleMember    = "member"
)

// Registration bounds registrations.
type Registration struct {
	// Lifetime is how long a registration lasts without being refreshed, 10s to 1h: what a leader
	// asks for, and the longest that a home agent or member grants. Default: 1m
	Lifetime time.Duration `yaml:"lifetime,omitempty"`
	// Paths is the number of paths that a leader may register with a home agent, 1 to 16. Default:
	// 8
	Paths int `yaml:"paths,omitempty"`
}

// Member is a host on a link of a leader that relays its messages.
type Member struct {
	// PublicKey is the member's public key.
	// Example: GoEAuaZcCGOJ45LYmZdBBB0EKvBgqhUvZ+zlSI6PC2I=
	PublicKey string `yaml:"public_key"`
	// PresharedKey is a file with a secret that both have besides their keys. Example: bob.psk
	PresharedKey string `yaml:"preshared_key,omitempty"`
	// Endpoints are where the member listens on the link. Example: ["192.168.7.2:4790"]
	Endpoints []Endpoint `yaml:"endpoints"`
}

// Leader is a host that a member relays messages for, between a short link and its home agent.
type Leader struct {
	// Name identifies the leader in logs, status and metrics. Example: alice
	Name string `yaml:"name"`
	// PublicKey is the leader's public key.
	// Example: ygNu9dVxYYMqIj11gtQL8C/9jKT0kk3BTM0JGe48Xik=
	PublicKey string `yaml:"public_key"`
	// PresharedKey is a file with a secret that both have besides their keys. Example: alice.psk
	PresharedKey string `yaml:"preshared_key,omitempty"`
	// HomeAgents are the only addresses that messages are relayed to. Default: the public or
	// private unicast address that the leader names. Example: ["home.example:4790"]
	HomeAgents []Endpoint `yaml:"home_agents,omitempty"`
	// Path is the one that messages are relayed over. Default: the first one. Example: lte
	Path string `yaml:"path,omitempty"`
	// Rate bounds what is relayed, down to the leader and up from it; what exceeds it is dropped.
	// Example: {down: 10Mbit/s, up: 2Mbit/s}
	Rate Rates `yaml:"rate"`
}

// The bounds and defaults of registrations.
const (
	minLifetime, defaultLifetime, maxLifetime = 10 * time.Second, time.Minute, time.Hour
	defaultCareOf                             = 8
	// maxLeaders bounds the leaders of a member, each of which has a socket.
	maxLeaders = 64
)

// overMember reports whether the path leads over a member.
func (p *Path) overMember() bool { return p.Member.PublicKey != "" || len(p.Member.Endpoints) > 0 }

func (c *Config) checkAlliance(faults *fault.List) {
	if roles := []string{RoleHomeAgent, RoleLeader, RoleMember}; c.Role != "" && !slices.Contains(roles, c.Role) {
		faults.Add("role", "must be one of home-agent, leader, member, got %q%s", c.Role, fault.Suggest(c.Role, roles))
	}
	// only adds a fault for a key that has no meaning with the role.
	only := func(given bool, key, role string) {
		if given && c.Role != role {
			faults.Add(key, "must be left out without role: %s", role)
		}
	}
	only(len(c.ShortLinks) > 0, "short_links", RoleMember)
	only(len(c.Leaders) > 0, "leaders", RoleMember)
	only(c.Registration.Paths != 0, "registration.paths", RoleHomeAgent)
	if d := c.Registration.Lifetime; d != 0 && (d < minLifetime || d > maxLifetime) {
		faults.Add("registration.lifetime", "must be %s to %s, got %s", minLifetime, maxLifetime, d)
	}
	if d := c.Registration.Lifetime; d != 0 && c.Role == "" {
		faults.Add("registration.lifetime", "must be left out without a role")
	}
	if n := c.Registration.Paths; n < 0 || n > dataplane.MaxPaths {
		faults.Add("registration.paths", "must be 1 to %d, got %d", dataplane.MaxPaths, n)
	}
	for i := range c.Paths {
		only(c.Paths[i].overMember(), fmt.Sprintf("paths[%d].member", i), RoleLeader)
	}
	switch c.Role {
	case RoleLeader:
		c.checkLeader(faults)
	case RoleMember:
		c.checkMember(faults)
	}
}

// checkLeader adds the faults of a leader.
func (c *Config) checkLeader(faults *fault.List) {
	if len(c.Peers) != 1 {
		faults.Add("peers", "must be one, the home agent, with role: leader, got %d", len(c.Peers))
	}
	for i, p := range c.Peers {
		if len(p.Endpoints) == 0 {
			faults.Add(fmt.Sprintf("peers[%d].endpoints", i), "must have an address of the home agent")
		}
	}
	if c.Probes.Format == ProbesCompatible {
		faults.Add("probes.format", "must be sealed in a leader: members do not relay compatible probes")
	}
	seen := fault.Seen{}
	for i, p := range c.Peers {
		seen.Check(faults, fmt.Sprintf("peers[%d]", i), "name", p.Name)
		seen.Check(faults, fmt.Sprintf("peers[%d]", i), "public_key", p.PublicKey)
	}
	for i, p := range c.Paths {
		if !p.overMember() {
			continue
		}
		at := fmt.Sprintf("paths[%d]", i)
		seen.Check(faults, at, "name", p.Name)
		at += ".member"
		if _, err := handshake.ParsePublicKey(p.Member.PublicKey); err != nil {
			faults.Add(at+".public_key", "%v", err)
		} else {
			seen.Check(faults, at, "public_key", p.Member.PublicKey)
		}
		if len(p.Member.Endpoints) == 0 {
			faults.Add(at+".endpoints", "must have an address of the member")
		}
		checkEndpoints(faults, at+".endpoints", p.Member.Endpoints)
	}
}

// checkMember adds the faults of a member.
func (c *Config) checkMember(faults *fault.List) {
	if len(c.ShortLinks) == 0 || len(c.Paths)+len(c.ShortLinks) > dataplane.MaxPaths {
		faults.Add("short_links", "must be 1 to %d beside %d paths, got %d", max(dataplane.MaxPaths-len(c.Paths), 1), len(c.Paths), len(c.ShortLinks))
	}
	seen := fault.Seen{}
	for i, name := range c.ShortLinks {
		at := fmt.Sprintf("short_links[%d]", i)
		checkLink(faults, at, name)
		seen.Check(faults, at, "", name)
		if j := slices.IndexFunc(c.Paths, func(p Path) bool { return p.Interface == name || p.Name == name }); j >= 0 {
			faults.Add(at, "%q is paths[%d] already", name, j)
		}
	}
	if n := len(c.Leaders); n == 0 || n > maxLeaders {
		faults.Add("leaders", "must be 1 to %d, got %d", maxLeaders, n)
	}
	keys := fault.Seen{}
	for i, p := range c.Peers {
		keys.Check(faults, fmt.Sprintf("peers[%d]", i), "name", p.Name)
		keys.Check(faults, fmt.Sprintf("peers[%d]", i), "public_key", p.PublicKey)
	}
	for i, l := range c.Leaders {
		at := fmt.Sprintf("leaders[%d]", i)
		if !tunnel.ValidName(l.Name) {
			faults.Add(at+".name", wantWord, l.Name)
		}
		keys.Check(faults, at, "name", l.Name)
		if _, err := handshake.ParsePublicKey(l.PublicKey); err != nil {
			faults.Add(at+".public_key", "%v", err)
		} else {
			keys.Check(faults, at, "public_key", l.PublicKey)
		}
		checkEndpoints(faults, at+".home_agents", l.HomeAgents)
		if l.Path != "" && !slices.ContainsFunc(c.Paths, func(p Path) bool { return p.Name == l.Path }) {
			faults.Add(at+".path", "no path has the name %q", l.Path)
		}
		for _, r := range []struct {
			key  string
			rate Rate
		}{{"down", l.Rate.Down}, {"up", l.Rate.Up}} {
			if r.rate <= 0 {
				faults.Add(at+".rate."+r.key, "must be a bandwidth")
			}
		}
	}
}

// lifetime returns how long registrations last.
func (c *Config) lifetime() time.Duration { return cmp.Or(c.Registration.Lifetime, defaultLifetime) }

// allianceOf returns what a peer of the configuration is in an alliance.
func (c *Config) allianceOf(p *Peer) dataplane.Alliance {
	switch {
	case c.Role == RoleLeader:
		return dataplane.Alliance{Role: dataplane.HomeAgent, Lifetime: c.lifetime()}
	case c.Role == RoleHomeAgent && len(p.Endpoints) == 0:
		return dataplane.Alliance{Role: dataplane.Registrant, Lifetime: c.lifetime(), CareOf: cmp.Or(c.Registration.Paths, defaultCareOf)}
	}
	return dataplane.Alliance{}
}

// allies returns the members of a leader, or the leaders of a member, as peers.
func (c *Config) allies(k keys, resolve func([]Endpoint) []netip.AddrPort) []dataplane.Peer {
	var list []dataplane.Peer
	add := func(name, key string, endpoints []netip.AddrPort, a dataplane.Alliance) {
		public, err := handshake.ParsePublicKey(key)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		a.Lifetime = c.lifetime()
		list = append(list, dataplane.Peer{Name: name, Public: public, Preshared: k.preshared[name], Endpoints: endpoints, Alliance: a})
	}
	for i := range c.Paths {
		if p := &c.Paths[i]; p.overMember() {
			add(p.Name, p.Member.PublicKey, resolve(p.Member.Endpoints), dataplane.Alliance{Role: dataplane.Member})
		}
	}
	for _, l := range c.Leaders {
		add(l.Name, l.PublicKey, nil, dataplane.Alliance{
			Role: dataplane.Leader, Path: cmp.Or(l.Path, c.Paths[0].Name), Down: l.Rate.Down.plane(), Up: l.Rate.Up.plane(), HomeAgents: resolve(l.HomeAgents),
		})
	}
	return list
}

// secret is a file with a preshared key: of whom, and where the configuration names it.
type secret struct {
	of, at string
	file   *string
}

// secrets returns the preshared keys that the configuration names.
func (c *Config) secrets() []secret {
	var list []secret
	for i := range c.Peers {
		list = append(list, secret{c.Peers[i].Name, fmt.Sprintf("peers[%d]", i), &c.Peers[i].PresharedKey})
	}
	for i := range c.Paths {
		list = append(list, secret{c.Paths[i].Name, fmt.Sprintf("paths[%d].member", i), &c.Paths[i].Member.PresharedKey})
	}
	for i := range c.Leaders {
		list = append(list, secret{c.Leaders[i].Name, fmt.Sprintf("leaders[%d]", i), &c.Leaders[i].PresharedKey})
	}
	return slices.DeleteFunc(list, func(s secret) bool { return *s.file == "" })
}

// endpoints returns all endpoints of the configuration, with where it names them.
func (c *Config) endpoints() (all []Endpoint) {
	for _, p := range c.Peers {
		all = append(all, p.Endpoints...)
	}
	for _, p := range c.Paths {
		all = append(all, p.Member.Endpoints...)
	}
	for _, l := range c.Leaders {
		all = append(all, l.HomeAgents...)
	}
	return all
}
