package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// leader, member and homeAgent are valid configurations.
func leader() Config {
	c := site()
	c.Role, c.Peers = RoleLeader, c.Peers[:1]
	c.Paths = append(c.Paths, Path{Name: "bob", Interface: "wlan0", Member: Member{PublicKey: publicKey(32), Endpoints: []Endpoint{"192.168.7.2:4790"}}})
	c.Paths = append(c.Paths, Path{Name: "carol", Interface: "wlan0", Member: Member{PublicKey: publicKey(40), Endpoints: []Endpoint{"192.168.7.3:4790"}}})
	return c
}

func member() Config {
	c := site()
	return Config{
		Key: c.Key, Role: RoleMember, Paths: c.Paths, ShortLinks: []string{"wlan0"},
		Leaders: []Leader{{
			Name: "alice", PublicKey: publicKey(8), HomeAgents: []Endpoint{"home.example:4790"}, Path: "lte",
			Rate: Rates{Rate(10 * unit.MbitPerSecond), Rate(2 * unit.MbitPerSecond)},
		}},
	}
}

func homeAgent() Config {
	c := site()
	c.Role, c.Registration = RoleHomeAgent, Registration{Lifetime: time.Hour, Paths: 3}
	return c
}

func TestCheckAlliance(t *testing.T) {
	for _, c := range []Config{leader(), member(), homeAgent()} {
		if err := c.Check().Err(); err != nil {
			t.Errorf("%s: %v", c.Role, err)
		}
	}
	open := func() Config {
		c := leader()
		c.Peers[0].Seal, c.Paths[1].Rate, c.Policy = "none", c.Paths[0].Rate, []Rule{{Discipline: Discipline{Name: "dq"}}}
		return c
	}
	alone := open()
	alone.LAN.Interfaces, alone.Peers[0].Prefixes = nil, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	home := homeAgent()
	home.Peers[1].Seal, home.Paths, home.Policy = "none", home.Paths[:1], alone.Policy
	for i, c := range []Config{open(), alone, home} {
		if err := c.Check().Err(); err != nil {
			t.Errorf("%s without encryption: %v", c.Role, err)
		}
		warnings := fmt.Sprint(c.Warnings())
		if !strings.Contains(warnings, ".seal: none encrypts nothing: a member, or an attacker on its short link") || strings.Contains(warnings, "effect on packets from the peer alone") != (i == 1) {
			t.Errorf("%s: %s", c.Role, warnings)
		}
		if !c.Programs() {
			t.Errorf("%s loads no program", c.Role)
		}
	}
	if c := member(); !c.Programs() || c.Open() {
		t.Error("a member loads no program to relay open messages")
	}
	for want, tt := range map[string]struct {
		of     func() Config
		change func(*Config)
	}{
		"peers[0].mode: must be tunnel in an alliance, with seal none if":                      {open, func(c *Config) { c.Peers[0].Mode, c.Peers[0].Seal = "plain", "" }},
		"peers[0].mode: must be tunnel in an alliance":                                         {open, func(c *Config) { c.Peers[0].Mode, c.Peers[0].Seal = "nat", "" }},
		"peers[0].mode: must be tunnel in a member":                                            {member, func(c *Config) { c.Peers = open().Peers }},
		"lan.interfaces: must be given":                                                        {func() Config { return home }, func(c *Config) { c.LAN.Interfaces = nil }},
		"paths[2].rate: must not be auto: peers[0] has mode tunnel, seal":                      {open, func(c *Config) { c.Paths[2].Rate = Rates{RateAuto, RateAuto} }},
		"peers[0].prefixes[0]: must not be the default route":                                  {open, func(c *Config) { c.Peers[0].Prefixes = alone.Peers[0].Prefixes }},
		`role: must be one of home-agent, leader, member, got "leeder", did you mean "leader"`: {leader, func(c *Config) { c.Role = "leeder" }},
		"paths[2].member: must be left out without role: leader":                               {leader, func(c *Config) { c.Role = "" }},
		"peers: must be one, the home agent, with role: leader, got 2":                         {leader, func(c *Config) { c.Peers = site().Peers }},
		"peers[0].endpoints: must have an address of the home agent":                           {leader, func(c *Config) { c.Peers[0].Endpoints = nil }},
		"paths[2].member.endpoints: must have an address of the member":                        {leader, func(c *Config) { c.Paths[2].Member.Endpoints = nil }},
		"paths[2].member.endpoints[0]: want HOST:PORT":                                         {leader, func(c *Config) { c.Paths[2].Member.Endpoints[0] = "bob" }},
		"paths[2].member.public_key: want a key":                                               {leader, func(c *Config) { c.Paths[2].Member.PublicKey = "" }},
		"paths[3].member.public_key: ":                                                         {leader, func(c *Config) { c.Paths[3].Member.PublicKey = c.Paths[2].Member.PublicKey }},
		"paths[2].name: hq is already peers[0].name":                                           {leader, func(c *Config) { c.Paths[2].Name = "hq" }},
		"probes.format: must be sealed in a leader":                                            {leader, func(c *Config) { c.Probes.Format = ProbesCompatible }},
		"short_links: must be left out without role: member":                                   {leader, func(c *Config) { c.ShortLinks = []string{"wlan1"} }},
		"registration.paths: must be left out without role: home-agent":                        {leader, func(c *Config) { c.Registration.Paths = 3 }},
		"registration.paths: must be 1 to 16, got 17":                                          {homeAgent, func(c *Config) { c.Registration.Paths = 17 }},
		"registration.lifetime: must be 10s to 1h0m0s, got 1s":                                 {homeAgent, func(c *Config) { c.Registration.Lifetime = time.Second }},
		"registration.lifetime: must be left out without a role":                               {homeAgent, func(c *Config) { c.Role = "" }},
		"short_links: must be 1 to 14 beside 2 paths, got 0":                                   {member, func(c *Config) { c.ShortLinks = nil }},
		`short_links[0]: "eth1" is paths[0] already`:                                           {member, func(c *Config) { c.ShortLinks[0] = "eth1" }},
		"leaders: must be 1 to 64, got 0":                                                      {member, func(c *Config) { c.Leaders = nil }},
		"leaders[0].name: must be letters":                                                     {member, func(c *Config) { c.Leaders[0].Name = "" }},
		"leaders[0].public_key: want a key":                                                    {member, func(c *Config) { c.Leaders[0].PublicKey = "" }},
		"leaders[0].home_agents[0]: want HOST:PORT":                                            {member, func(c *Config) { c.Leaders[0].HomeAgents[0] = "x" }},
		`leaders[0].path: no path has the name "dsl"`:                                          {member, func(c *Config) { c.Leaders[0].Path = "dsl" }},
		"leaders[0].rate.up: must be a bandwidth":                                              {member, func(c *Config) { c.Leaders[0].Rate.Up = RateAuto }},
		"leaders[1].name: alice is already leaders[0].name":                                    {member, func(c *Config) { c.Leaders = append(c.Leaders, c.Leaders[0]) }},
	} {
		c := tt.of()
		tt.change(&c)
		if err := c.Check().Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestAllianceOfThePlane(t *testing.T) {
	home := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	addresses := map[string][]netip.Addr{"hq.example": home, "home.example": home}
	both := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4790"), netip.MustParseAddrPort("[2001:db8::1]:4790")}
	state := func(c Config) dataplane.State {
		return planeState(&c, keys{}, 1400, map[string]bool{"wlan0": true}, addresses, nil)
	}

	s := state(leader())
	if p := s.Peers[0]; p.Alliance.Role != dataplane.HomeAgent || p.Alliance.Lifetime != time.Minute || !slices.Equal(p.Endpoints, both) {
		t.Errorf("home agent: %+v", p)
	}
	if len(s.Peers) != 3 || s.Peers[2].Name != "carol" || s.Peers[2].Alliance.Role != dataplane.Member || len(s.Peers[2].Endpoints) != 1 {
		t.Errorf("members: %+v", s.Peers[1:])
	}
	if p := s.Paths[2]; p.Member != "bob" || !p.Up.Estimated || !p.Usable || s.Paths[0].Member != "" {
		t.Errorf("path over a member: %+v", p)
	}

	s = state(member())
	if p := s.Paths[2]; !p.Short || p.Interface != "wlan0" || !p.Usable || s.Paths[0].Short {
		t.Errorf("short link: %+v", p)
	}
	a := s.Peers[0].Alliance
	if a.Role != dataplane.Leader || a.Path != "lte" || a.Up.Bandwidth != 2*unit.MbitPerSecond || !slices.Equal(a.HomeAgents, both) || len(s.Peers[0].Prefixes) > 0 {
		t.Errorf("leader of a member: %+v", s.Peers[0])
	}

	s = state(homeAgent())
	if r := s.Peers[0].Alliance.Role; r != dataplane.NoRole {
		t.Errorf("a peer with endpoints is %v", r)
	}
	if a := s.Peers[1].Alliance; a.Role != dataplane.Registrant || a.CareOf != 3 || a.Lifetime != time.Hour {
		t.Errorf("leader of a home agent: %+v", a)
	}
}

// The DNS may answer with whatever it wants: a bounded number of usable addresses is taken.
func TestFirstAddresses(t *testing.T) {
	var list []netip.Addr
	for _, a := range []string{"192.0.2.9", "224.0.0.1", "0.0.0.0", "192.0.2.1", "192.0.2.1", "::ffff:192.0.2.3", "192.0.2.8", "192.0.2.7", "192.0.2.6"} {
		list = append(list, netip.MustParseAddr(a))
	}
	var want []netip.Addr
	for _, a := range []string{"192.0.2.1", "192.0.2.3", "192.0.2.6", "192.0.2.7"} {
		want = append(want, netip.MustParseAddr(a))
	}
	if got := firstAddresses(list); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Names are looked up every minute, and sooner while a path is dead, but less and less often.
func TestLookupsArePaced(t *testing.T) {
	var l lookup
	begin := time.Unix(1000, 0)
	var at []int
	for second := range 400 {
		if l.due(begin.Add(time.Duration(second)*time.Second), second >= 100 && second < 300) {
			at = append(at, second)
		}
	}
	if want := []int{0, 60, 100, 104, 112, 128, 160, 220, 280, 340}; !slices.Equal(at, want) {
		t.Errorf("looked up at %v, want %v", at, want)
	}
}
