package edge

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

func TestPathManager(t *testing.T) {
	for _, tt := range []struct {
		paths Paths
		want  PathManager
		fault string
	}{
		{Paths{}, UserPathManager, ""},
		{Paths{PathManager: UserPathManager}, UserPathManager, ""},
		{Paths{PathManager: KernelPathManager}, KernelPathManager, ""},
		{Paths{MPTCP: MPTCP{Subflows: 4}}, KernelPathManager, ""},
		{Paths{PathManager: UserPathManager, MPTCP: MPTCP{Subflows: 4}}, UserPathManager, `mptcp.path_manager: "user" has no limits`},
		{Paths{PathManager: "third"}, "third", `mptcp.path_manager: must be "user" or "kernel", got "third"`},
		{Paths{BestPath: BackupBestPath}, UserPathManager, ""},
		{Paths{PathManager: KernelPathManager, BestPath: SharingBestPath}, KernelPathManager, ""},
		{Paths{MPTCP: MPTCP{Subflows: 4}, BestPath: BackupBestPath}, KernelPathManager, `mptcp.best_path: "backup" needs path_manager: "user", without limits`},
		{Paths{Use: UseOverflow}, UserPathManager, ""},
		{Paths{Use: UseOverflow, PathManager: KernelPathManager}, KernelPathManager, `mptcp.use: "overflow" needs path_manager: "user", without limits`},
		{Paths{Use: "some"}, UserPathManager, `mptcp.use: must be "all" or "overflow", got "some"`},
		{Paths{BestPath: "third"}, UserPathManager, `mptcp.best_path: must be "backup" or "share", got "third"`},
		{Paths{MPTCP: MPTCP{Subflows: 9}}, KernelPathManager, "mptcp.subflows: must be at most 8, got 9"},
	} {
		c := testConfig()
		c.MPTCP = tt.paths
		if got := c.MPTCP.manager(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.paths, got, tt.want)
		}
		err := c.Check().Err()
		if (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
			t.Errorf("%+v: %v, want %q", tt.paths, err, tt.fault)
		}
	}
}

// What MPTCP cannot mix is refused.
func TestCheckVersions(t *testing.T) {
	v4 := netip.MustParsePrefix("192.0.2.10/24")
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"dual stack", func(*Config) {}, ""},
		{"no IPv4 EPE address", func(c *Config) { c.Peers = c.Peers[:2] },
			"addresses[0].address: no peer has an ipv4 address: clients that connect to 192.0.2.20 could use no egress peer"},
		{"no IPv4 default address", func(c *Config) { c.Addresses, c.Peers = nil, c.Peers[1:3] },
			"peers[1].address: no default address is ipv4: 192.0.2.10 would be advertised to no client"},
		{"outside", func(c *Config) { c.Peers[3].Address = netip.MustParseAddr("198.51.100.1") },
			"peers[3].address: 198.51.100.1 is outside the prefix 192.0.2.0/24: no return traffic would reach it"},
		{"of another version", func(c *Config) { c.Peers[3].Prefix = netip.MustParsePrefix("2001:db8:2::/64") },
			"peers[3].prefix: 2001:db8:2::/64 does not contain the address 192.0.2.11: no return traffic would reach it"},
		{"reflector twice", func(c *Config) { c.Reflectors = append(c.Reflectors, c.Reflectors[0]) },
			"reflectors[1].address: 2001:db8:1::fe is already reflectors[0].address"},
		{"reflector here", func(c *Config) { c.Reflectors[0].Address = c.Address }, "reflectors[0].address: 2001:db8:1::10 is already address"},
		{"reflector on an EPE address", func(c *Config) { c.Reflectors[0].Address = c.Peers[0].Address }, "peers[0].address: 2001:db8:1::a is already reflectors[0].address"},
		{"same table", func(c *Config) { c.Peers[3].Table = 101 }, "peers[3].table: 101 for ipv4 is already peers[2].table"},
		{"IPv4 alone", func(c *Config) {
			c.Address, c.Prefix, c.Addresses, c.Peers = v4.Addr().Next().Next(), v4.Masked(), nil, c.Peers[2:]
		},
			"reflectors[0].address: no default address is ipv6: the session has no source"},
		{"lo", func(c *Config) { c.Interface = "lo" }, `interface: must name the NIC toward the border routers, got "lo"`},
	} {
		c := dualStack()
		test.change(&c)
		if got := strings.TrimSpace(c.Check().Error()); got != test.want {
			t.Errorf("%s: %s\nwant %s", test.name, got, test.want)
		}
	}
}

// The kernel's path manager announces every address to every client, of which none joins more than
// eight.
func TestPeersOfTheKernelsPathManager(t *testing.T) {
	for _, tt := range []struct {
		manager PathManager
		peers   int
		valid   bool
	}{{KernelPathManager, 8, true}, {KernelPathManager, 9, false}, {UserPathManager, 9, true}} {
		c := testConfig()
		c.MPTCP.PathManager, c.Peers = tt.manager, nil
		for i := range tt.peers {
			a := c.Address.As16()
			a[14] = byte(i + 1)
			c.Peers = append(c.Peers, Peer{
				Name: fmt.Sprint("p", i), RT: id(fmt.Sprint("65000:", 100+i)), Address: netip.AddrFrom16(a), Table: uint32(100 + i),
			})
		}
		warnings := c.Warnings()
		warned := tt.manager == UserPathManager && tt.peers > 8
		if warned != (len(warnings) == 1) || warned && !strings.HasPrefix(warnings.Error(), "peers: 9 have ipv6 addresses: a connection uses at most 8") {
			t.Errorf("%d peers with %q: warnings %q", tt.peers, tt.manager, warnings)
		}
		err := c.Check().Err()
		if (err == nil) != tt.valid || err != nil && !strings.Contains(err.Error(), "peers: must be at most 8 with the kernel's path manager") {
			t.Errorf("%d peers with %q: %v", tt.peers, tt.manager, err)
		}
	}
}

// TestRouteSource: what has no effect with the routes of another program is refused.
func TestRouteSource(t *testing.T) {
	for _, tt := range []struct {
		change func(*Config)
		want   string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Reflectors = testConfig().Reflectors }, "reflectors: has no effect with routes: kernel"},
		{func(c *Config) { c.Locators = testConfig().Locators }, "locators: has no effect with routes: kernel"},
		{func(c *Config) { c.Encap = EncapRed }, "encap: has no effect with routes: kernel"},
		{func(c *Config) { c.BestPaths = LeaveBestPaths }, "best_paths: has no effect with routes: kernel"},
		{func(c *Config) { c.MPTCP.PathManager = KernelPathManager }, `mptcp.path_manager: "kernel" follows no routes`},
		{func(c *Config) { c.Routes = "frr" }, `routes: must be "bgp" or "kernel", got "frr"`},
		{func(c *Config) { c.Routes = BGPRoutes }, "reflectors: must name at least one route reflector"},
	} {
		c := testConfig()
		c.Routes, c.Reflectors, c.Locators, c.Encap = KernelRoutes, nil, nil, ""
		for i := range c.Peers {
			c.Peers[i].RT = vpn.ID{}
		}
		tt.change(&c)
		err := c.Check().Err()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}

// TestBestPaths: with leave, only the routes to the locators are installed.
func TestBestPaths(t *testing.T) {
	c := testConfig()
	for _, tt := range []struct {
		mode   BestPaths
		prefix string
		want   bool
	}{
		{"", "2001:db8:c::/64", true}, {InstallBestPaths, "::/0", true}, {InstallBestPaths, "fc00:1::/32", true},
		{LeaveBestPaths, "2001:db8:c::/64", false}, {LeaveBestPaths, "::/0", false}, {LeaveBestPaths, "192.0.2.0/24", false},
		{LeaveBestPaths, "fc00:1::/32", true}, {LeaveBestPaths, "fc00:1:1::/128", true},
	} {
		c.BestPaths = tt.mode
		if err := c.Check().Err(); err != nil {
			t.Error(err)
		}
		if got := c.installs(netip.MustParsePrefix(tt.prefix)); got != tt.want {
			t.Errorf("best_paths %q installs %s: %t", tt.mode, tt.prefix, got)
		}
	}
	now := c
	now.BestPaths = ""
	if _, faults := difference(&c, &now); !strings.HasPrefix(fmt.Sprint(faults.Err()), "best_paths: cannot change from leave to install") {
		t.Errorf("a change: %v", faults.Err())
	}
	c.BestPaths = "never"
	if err := c.Check().Err(); err == nil || !strings.HasPrefix(err.Error(), "best_paths: must be") {
		t.Errorf("got %v", err)
	}
}
