package role

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/epe/reflector"
	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/kernel/privilege"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/proxy"
	"github.com/tabane/tabane/internal/study/httpd"
)

// Sections are the daemons' sections of a configuration file or of a scenario's node. A daemon
// whose section is nil does not run there. Each key is the name of a Descriptor.
type Sections struct {
	// ASBR configures tabane asbr, the border router's daemon.
	ASBR *asbr.Config `yaml:"asbr,omitempty"`
	// Edge configures tabane edge, the content server's daemon.
	Edge *edge.Config `yaml:"edge,omitempty"`
	// Gateway configures tabane gateway, the daemon of a site with several lines.
	Gateway *gateway.Config `yaml:"gateway,omitempty"`
	// Proxy configures tabane proxy, which carries TCP connections over MPTCP and back.
	Proxy *proxy.Config `yaml:"proxy,omitempty"`
	// Reflector configures tabane reflector, a BGP route reflector.
	Reflector *reflector.Config `yaml:"reflector,omitempty"`
	// Router configures tabane router, a plain BGP router.
	Router *router.Config `yaml:"router,omitempty"`
	// Serve configures tabane serve, the content server.
	Serve *traffic.Config `yaml:"serve,omitempty"`
	// Site configures tabane site, the server of two web services, a map and a shop.
	Site *httpd.Config `yaml:"site,omitempty"`
}

// The names of the daemons, for code that needs one in particular.
const (
	ASBR      = "asbr"
	Edge      = "edge"
	Gateway   = "gateway"
	Proxy     = "proxy"
	Reflector = "reflector"
	Router    = "router"
	Serve     = "serve"
	Site      = "site"
)

// table has one row for each daemon, in the order in which a network starts them. Status ports are
// next to each other so that one host can run all daemons.
var table = []Descriptor{
	describe(Descriptor{
		Name: Reflector, Program: Product, StatusPort: 9119, Keeps: []privilege.Capability{privilege.BindPort},
		Short: "Reflect routes between border routers and servers",
		Long:  `Reflector is a BGP route reflector for unicast and VPN routes. It changes no next hop and no kernel state.`,
	}, typed[reflector.Config]{
		field:   func(s *Sections) **reflector.Config { return &s.Reflector },
		status:  func(c *reflector.Config) *netip.AddrPort { return &c.Status },
		control: func(c *reflector.Config) *string { return &c.Control },
		host: func(c *reflector.Config) Host {
			h := Host{ASN: c.ASN, RouterID: c.RouterID, Uses: []Use{{Path: "address", Address: c.Address}}}
			for i, client := range c.Clients {
				h.Sessions = append(h.Sessions, Session{fmt.Sprintf("clients[%d].address", i), client.Address, c.ASN})
			}
			return h
		},
		summary: func(c *reflector.Config) string {
			return fmt.Sprintf("AS %d, %s", c.ASN, quantity(len(c.Clients), "client"))
		},
		start: func(ctx context.Context, c reflector.Config, o Options) (Machine, error) {
			return reflector.New(ctx, reflector.Options{Config: c, Log: o.Log})
		},
		reload: func(m Machine, c reflector.Config) ([]string, error) { return m.(*reflector.Reflector).Reload(c) },
	}),
	describe(Descriptor{
		Name: Router, Program: Product, StatusPort: 9118, Needs: []Need{NetAdmin}, Protocol: route.Router, Keeps: []privilege.Capability{privilege.NetAdmin, privilege.NetRaw, privilege.BindPort},
		Short: "Run a plain BGP router, such as a transit provider in a lab",
		Long: `Router speaks eBGP with its neighbors and forwards along the best paths, as a transit provider or an access network does.
SIGHUP reloads its file: networks, neighbors, and the routes that each of them is sent. An invalid file is rejected and the
running configuration stays.`,
	}, typed[router.Config]{
		field:   func(s *Sections) **router.Config { return &s.Router },
		status:  func(c *router.Config) *netip.AddrPort { return &c.Status },
		control: func(c *router.Config) *string { return &c.Control },
		host: func(c *router.Config) Host {
			h := Host{ASN: c.ASN, RouterID: c.RouterID}
			for i, n := range c.Neighbors {
				h.Uses = append(h.Uses, Use{Path: fmt.Sprintf("neighbors[%d].interface", i), Interface: n.Interface})
				h.Sessions = append(h.Sessions, Session{fmt.Sprintf("neighbors[%d].asn", i), n.Address, n.ASN})
			}
			return h
		},
		summary: func(c *router.Config) string {
			return fmt.Sprintf("AS %d, %s", c.ASN, quantity(len(c.Neighbors), "neighbor"))
		},
		start: func(ctx context.Context, c router.Config, o Options) (Machine, error) {
			return router.New(ctx, router.Options{Config: c, Keep: o.Keep, Log: o.Log})
		},
		reload: func(m Machine, c router.Config) ([]string, error) { return m.(*router.Router).Reload(c) },
	}),
	describe(Descriptor{
		Name: ASBR, Program: Product, StatusPort: 9116, Needs: []Need{NetAdmin, SRv6}, Protocol: route.ASBR, Drains: true,
		Keeps: []privilege.Capability{privilege.NetAdmin, privilege.NetRaw, privilege.BindPort, privilege.BPF},
		Short: "Give each egress peer of a border router its own SID",
		Long: `Asbr runs on a border router. It speaks BGP with the egress peers and the route reflectors, gives each peer an SRv6 SID and a
table with exactly the routes that the peer advertised, and advertises these routes with that SID to the servers.`,
	}, typed[asbr.Config]{
		field:   func(s *Sections) **asbr.Config { return &s.ASBR },
		status:  func(c *asbr.Config) *netip.AddrPort { return &c.Status },
		control: func(c *asbr.Config) *string { return &c.Control },
		host: func(c *asbr.Config) Host {
			h := Host{ASN: c.ASN, RouterID: c.RouterID, Uses: []Use{{Path: "address", Address: c.Address}}}
			for i, p := range c.Peers {
				h.Uses = append(h.Uses, Use{Path: fmt.Sprintf("peers[%d].interface", i), Interface: p.Interface})
				h.Sessions = append(h.Sessions, Session{fmt.Sprintf("peers[%d].asn", i), p.Address, p.ASN})
			}
			for i, r := range c.Reflectors {
				h.Sessions = append(h.Sessions, Session{reflectorKey(i), r.Address, c.ASN})
			}
			return h
		},
		summary: func(c *asbr.Config) string {
			return fmt.Sprintf("AS %d, %s", c.ASN, quantity(len(c.Peers), "egress peer"))
		},
		start: func(ctx context.Context, c asbr.Config, o Options) (Machine, error) {
			return asbr.New(ctx, asbr.Options{Config: c, Keep: o.Keep, Log: o.Log})
		},
		reload: func(m Machine, c asbr.Config) ([]string, error) { return m.(*asbr.ASBR).Reload(c) },
	}),
	describe(Descriptor{
		Name: Edge, Program: Product, StatusPort: 9117, Needs: []Need{NetAdmin, MPTCP, SRv6}, Protocol: route.Edge, Endpoints: true,
		Keeps: []privilege.Capability{privilege.NetAdmin, privilege.NetRaw, privilege.BPF, privilege.Perfmon},
		Short: "Deliver a server's content over every egress path",
		Long: `Edge runs on a content server. It learns from the route reflectors which egress peers have a route to each client, gives each
peer an address on this server, and has MPTCP use these addresses.`,
	}, typed[edge.Config]{
		field:   func(s *Sections) **edge.Config { return &s.Edge },
		status:  func(c *edge.Config) *netip.AddrPort { return &c.Status },
		control: func(c *edge.Config) *string { return &c.Control },
		host: func(c *edge.Config) Host {
			h := Host{ASN: c.ASN, RouterID: c.RouterID, Uses: []Use{{Path: "interface", Interface: c.Interface}}}
			for i, a := range c.Addresses {
				h.Uses = append(h.Uses, Use{Path: fmt.Sprintf("addresses[%d].interface", i), Interface: a.Interface})
			}
			for i, p := range c.Peers {
				h.Uses = append(h.Uses, Use{Path: fmt.Sprintf("peers[%d].interface", i), Interface: p.Interface})
			}
			for i, r := range c.Reflectors {
				h.Sessions = append(h.Sessions, Session{reflectorKey(i), r.Address, c.ASN})
			}
			return h
		},
		summary: func(c *edge.Config) string {
			text := fmt.Sprintf("AS %d, %s", c.ASN, quantity(len(c.Peers), "egress peer"))
			ipv4 := 0
			for _, p := range c.Peers {
				if p.Address.Is4() {
					ipv4++
				}
			}
			if max(ipv4, len(c.Peers)-ipv4) > pathmanager.MaxSlots {
				text += fmt.Sprintf(", of which a connection uses the best %d", pathmanager.MaxSlots)
			}
			return text
		},
		start: func(ctx context.Context, c edge.Config, o Options) (Machine, error) {
			return edge.New(ctx, edge.Options{Config: c, Keep: o.Keep, Log: o.Log})
		},
		reload: func(m Machine, c edge.Config) ([]string, error) { return m.(*edge.Edge).Reload(c) },
	}),
	describe(Descriptor{
		Name: Gateway, Program: Product, StatusPort: 9115, Needs: []Need{NetAdmin, TUN}, Protocol: route.Gateway, Keeps: []privilege.Capability{privilege.NetAdmin, privilege.NetRaw},
		Short: "Send a site's packets over all of its lines",
		Long: `Gateway runs at a site with several lines. It sends packets to the prefixes of other gateways over all lines, each packet on
the path where it arrives first, and the receiving gateway restores their order. Packets are encrypted unless "mode" or
"seal" of the peer says otherwise. Hosts need no change. SIGHUP reloads its file: paths, peers and policy. An invalid file is
rejected and the running configuration stays. SIGUSR1 stops it as SIGTERM does with --keep.`,
	}, typed[gateway.Config]{
		field:   func(s *Sections) **gateway.Config { return &s.Gateway },
		status:  func(c *gateway.Config) *netip.AddrPort { return &c.Status },
		control: func(c *gateway.Config) *string { return &c.Control },
		host: func(c *gateway.Config) Host {
			var h Host
			for i, name := range c.LAN.Interfaces {
				h.Uses = append(h.Uses, Use{Path: fmt.Sprintf("lan.interfaces[%d]", i), Interface: name})
			}
			for i, p := range c.Paths {
				h.Uses = append(h.Uses, Use{Path: fmt.Sprintf("paths[%d].interface", i), Interface: p.Interface})
			}
			for i, name := range c.ShortLinks {
				h.Uses = append(h.Uses, Use{Path: fmt.Sprintf("short_links[%d]", i), Interface: name})
			}
			return h
		},
		summary: func(c *gateway.Config) string {
			return fmt.Sprintf("%s, %s", quantity(len(c.Paths), "path"), quantity(len(c.Peers), "peer"))
		},
		programs: (*gateway.Config).Programs,
		lowPort:  (*gateway.Config).LowPort,
		start: func(_ context.Context, c gateway.Config, o Options) (Machine, error) {
			return gateway.New(gateway.Options{Config: c, Keep: o.Keep, Log: o.Log})
		},
		reload: func(m Machine, c gateway.Config) ([]string, error) { return m.(*gateway.Gateway).Reload(c) },
	}),
	describe(Descriptor{
		Name: Proxy, Program: Product, StatusPort: 9113, Some: []Need{NetAdmin, MPTCP}, Protocol: route.Proxy, HandsOver: true, Keeps: []privilege.Capability{privilege.NetAdmin, privilege.BindPort},
		Short: "Carry TCP connections of hosts without MPTCP over MPTCP, and back",
		Long: `Proxy accepts TCP or MPTCP connections and carries each over another one, with MPTCP where the other end has it: to fixed
upstreams, to what clients request by SOCKS5 or HTTP CONNECT, or, transparently, to where hosts of a LAN connect to.
SIGHUP reloads its file; connections go on. SIGUSR2 starts the program again, with the listening sockets: nothing is refused, and
the connections of the old process go on in it.`,
	}, typed[proxy.Config]{
		field:   func(s *Sections) **proxy.Config { return &s.Proxy },
		status:  func(c *proxy.Config) *netip.AddrPort { return &c.Status },
		control: func(c *proxy.Config) *string { return &c.Control },
		host: func(c *proxy.Config) Host {
			var h Host
			for i, l := range c.Listeners {
				if l.Listen.Interface != "" {
					h.Uses = append(h.Uses, Use{Path: fmt.Sprintf("listeners[%d].listen", i), Interface: l.Listen.Interface})
				}
			}
			return h
		},
		summary: (*proxy.Config).Summary,
		start: func(_ context.Context, c proxy.Config, o Options) (Machine, error) {
			return proxy.New(proxy.Options{Config: c, Keep: o.Keep, Inherited: o.Inherited, Log: o.Log})
		},
		reload: func(m Machine, c proxy.Config) ([]string, error) { return m.(*proxy.Proxy).Reload(c) },
	}),
	describe(Descriptor{
		Name: Site, Program: Laboratory, StatusPort: 9114,
		Short: "Serve two web services, a map and a shop, for studies of web pages",
		Long: `Site serves a map at /map/ and a shop at /shop/, and with images for high-resolution displays at /heavy/map/ and /heavy/shop/. All
content is generated from a seed. It serves HTTP/1.1, and HTTP/2 where a listener has a certificate, over MPTCP where the client
supports it.`,
	}, typed[httpd.Config]{
		field:  func(s *Sections) **httpd.Config { return &s.Site },
		status: func(c *httpd.Config) *netip.AddrPort { return &c.Status },
		host:   func(*httpd.Config) Host { return Host{} },
		summary: func(c *httpd.Config) string {
			return fmt.Sprintf("seed %d, %s", c.Seed, quantity(len(c.Listen), "listener"))
		},
	}),
	// The content server is a verb of its own with flags, because it runs without a file as
	// well.
	describe(Descriptor{Name: Serve, Program: Product}, typed[traffic.Config]{
		field:   func(s *Sections) **traffic.Config { return &s.Serve },
		host:    func(*traffic.Config) Host { return Host{} },
		summary: func(c *traffic.Config) string { return fmt.Sprintf("port %d", c.Port) },
	}),
}

// reflectorKey returns the path of the address of a section's i-th reflector.
func reflectorKey(i int) string { return fmt.Sprintf("reflectors[%d].address", i) }

func quantity(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
