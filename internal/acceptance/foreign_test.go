package acceptance

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/programs"
)

// Sections of epe-steady that other implementations replace.
const (
	ownTransit = `  transit-a:
    forwarding: true
    router:
      asn: 65001
      router_id: 10.1.0.1
      neighbors:
        - {name: asbr1, asn: 65000, address: "2001:db8:a::1", interface: csp}
        - {name: client-isp, asn: 65003, address: "2001:db8:ca::2", interface: link-a}
`
	ownReflector = `  reflector:
    reflector:
      asn: 65000
      router_id: 10.0.0.254
      address: 2001:db8:1::fe
      clients:
        - {name: server, address: "2001:db8:1::10"}
        - {name: asbr1, address: "2001:db8:1::1"}
        - {name: asbr2, address: "2001:db8:1::2"}
`
	ownISP = `  client-isp:
    forwarding: true
    router:
      asn: 65003
      router_id: 10.3.0.1
      networks: [2001:db8:c::/64]
      neighbors:
        - {name: transit-a, asn: 65001, address: "2001:db8:ca::1", interface: link-a, local_pref: 200}
        - {name: transit-b, asn: 65002, address: "2001:db8:cb::1", interface: link-b}
`
)

const birdTransit = `  transit-a:
    forwarding: true
    exec: bird -f -c bird.conf -s bird.ctl
    files:
      bird.conf: |
        router id 10.1.0.1;
        protocol device {}
        protocol kernel { ipv6 { import none; export all; }; }
        template bgp transit {
          local as 65001;
          connect retry time 1;
          ipv6 { import all; export all; };
        }
        protocol bgp asbr1 from transit { neighbor 2001:db8:a::1 as 65000; }
        protocol bgp isp from transit { neighbor 2001:db8:ca::2 as 65003; }
`

const birdISP = `  client-isp:
    forwarding: true
    exec: bird -f -c bird.conf -s bird.ctl
    files:
      bird.conf: |
        router id 10.3.0.1;
        protocol device {}
        protocol direct { ipv6; interface "access"; }
        protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; }
        template bgp isp {
          local as 65003;
          connect retry time 1;
          ipv6 { import all; export where source != RTS_BGP; };
        }
        protocol bgp a from isp { neighbor 2001:db8:ca::1 as 65001; default bgp_local_pref 200; }
        protocol bgp b from isp { neighbor 2001:db8:cb::1 as 65002; }
`

// birdReflector reflects IPv6 unicast and VPN-IPv6 routes. BIRD passes on the attribute with the
// SIDs, which it does not know.
const birdReflector = `  reflector:
    exec: bird -f -c bird.conf -s bird.ctl
    files:
      bird.conf: |
        router id 10.0.0.254;
        protocol device {}
        vpn6 table services;
        template bgp session {
          local 2001:db8:1::fe as 65000;
          connect retry time 1;
          rr client;
          ipv6 { import all; export all; };
          vpn6 mpls { table services; import all; export all; };
        }
        protocol bgp server from session { neighbor 2001:db8:1::10 as 65000; }
        protocol bgp asbr1 from session { neighbor 2001:db8:1::1 as 65000; }
        protocol bgp asbr2 from session { neighbor 2001:db8:1::2 as 65000; }
`

// frrScript starts zebra and bgpd of FRR in the foreground, with all their files in the directory
// of the node.
const frrScript = `      frr.sh: |
        for dir in /usr/lib/frr /usr/libexec/frr /usr/sbin; do [ -x $dir/bgpd ] && break; done
        options="--socket $PWD/zserv.api --vty_socket $PWD --vty_port 0 --log stdout"
        $dir/zebra --config_file $PWD/zebra.conf --pid_file $PWD/zebra.pid $options --user root --group frrvty &
        until [ -S zserv.api ]; do sleep 0.05; done
        exec $dir/bgpd --config_file $PWD/bgpd.conf --pid_file $PWD/bgpd.pid $options --skip_runas
      zebra.conf: ""
      bgpd.conf: |
`

const frrTransit = `  transit-a:
    forwarding: true
    exec: sh frr.sh
    files:
` + frrScript + `        router bgp 65001
         bgp router-id 10.1.0.1
         no bgp ebgp-requires-policy
         no bgp default ipv4-unicast
         neighbor 2001:db8:a::1 remote-as 65000
         neighbor 2001:db8:a::1 timers connect 1
         neighbor 2001:db8:ca::2 remote-as 65003
         neighbor 2001:db8:ca::2 timers connect 1
         address-family ipv6 unicast
          neighbor 2001:db8:a::1 activate
          neighbor 2001:db8:ca::2 activate
         exit-address-family
        exit
`

const frrReflector = `  reflector:
    exec: sh frr.sh
    files:
` + frrScript + `        router bgp 65000
         bgp router-id 10.0.0.254
         no bgp default ipv4-unicast
         neighbor clients peer-group
         neighbor clients remote-as 65000
         neighbor clients update-source 2001:db8:1::fe
         neighbor clients timers connect 1
         neighbor 2001:db8:1::10 peer-group clients
         neighbor 2001:db8:1::1 peer-group clients
         neighbor 2001:db8:1::2 peer-group clients
         address-family ipv6 unicast
          neighbor clients activate
          neighbor clients route-reflector-client
         exit-address-family
         address-family ipv6 vpn
          neighbor clients activate
          neighbor clients route-reflector-client
         exit-address-family
        exit
`

// TestForeignRouters: content leaves over both egress paths where a neighbor, the reflector or the
// client's provider is another implementation, and a withdrawn route is no longer used.
func TestForeignRouters(t *testing.T) {
	const client = "2001:db8:c::/64"
	for _, c := range []struct {
		name, own, foreign string
		// node and link go down to withdraw the routes in the tables.
		node, link string
		tables     []string
	}{
		{"BIRDTransit", ownTransit, birdTransit, "transit-a", "link-a", []string{"101"}},
		{"FRRTransit", ownTransit, frrTransit, "transit-a", "link-a", []string{"101"}},
		{"BIRDISP", ownISP, birdISP, "client-isp", "access", []string{"101", "102"}},
		{"BIRDReflector", ownReflector, birdReflector, "transit-a", "link-a", []string{"101"}},
		{"FRRReflector", ownReflector, frrReflector, "transit-a", "link-a", []string{"101"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			programs.Need(t, "bird", "vtysh")
			l := epe(t, c.own, c.foreign)
			for _, table := range []string{"101", "102"} {
				l.eventually("a route in table "+table, 10*time.Second, l.shows(true, client, "server", "route show table "+table))
			}
			r := l.fetch("--mptcp", "--limit", "3s", "http://server/bytes/100000000")
			if !r.UsedMPTCP || r.Bytes == 0 {
				t.Errorf("report %+v", r)
			}
			for _, path := range []string{"a", "b"} {
				sent := strings.TrimSpace(l.must("transit-"+path, "cat", "/sys/class/net/link-"+path+"/statistics/tx_bytes"))
				if n, err := strconv.Atoi(sent); err != nil || n < 1e6 {
					t.Errorf("link %s carried %s bytes, %v", path, sent, err)
				}
			}
			l.link(t, c.node, c.link, false)
			for _, table := range c.tables {
				l.eventually("the route in table "+table+" is withdrawn", 10*time.Second, l.shows(false, client, "server", "route show table "+table))
			}
			if len(c.tables) == 2 {
				return
			}
			if out := l.ip("server", "route show table 102"); !strings.Contains(out, client) {
				t.Errorf("the other path is gone, too: %s", out)
			}
			if r := l.fetch("--mptcp", "http://server/bytes/1000000"); r.Bytes != 1e6 {
				t.Errorf("over the other path: %+v", r)
			}
		})
	}
}
