package acceptance

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// bird is the configuration of a BIRD that advertises /48 prefixes of 2001:db8:aN::/44, N being the
// peer's number.
func bird(number, prefixes int, session, export string) string {
	var routes strings.Builder
	for i := range prefixes {
		fmt.Fprintf(&routes, "route 2001:db8:a%x%x::/48 blackhole; ", number, i)
	}
	return fmt.Sprintf(`    exec: bird -f -c bird.conf -s bird.ctl
    files:
      bird.conf: |
        router id 10.1.0.%[1]d;
        protocol device {}
        protocol static few { ipv6; route 2001:db8:a%[1]xf::/48 blackhole; }
        protocol static more { ipv6; %[2]s}
        protocol bgp r {
          local 2001:db8:f%[1]x::2 as %[3]d; neighbor 2001:db8:f%[1]x::1 as 65000;
          connect retry time 1; error wait time 1,2; %[4]s
          ipv6 { import all; export filter { if source != RTS_STATIC then reject; %[5]saccept; }; };
        }
`, number, routes.String(), 65000+number, session, export)
}

// birdIPv4 is the configuration of a BIRD that advertises IPv4 routes over IPv4.
const birdIPv4 = `    exec: bird -f -c bird.conf -s bird.ctl
    files:
      bird.conf: |
        router id 10.1.0.10;
        protocol device {}
        protocol static { ipv4; route 198.18.1.0/24 blackhole; route 198.18.2.0/24 blackhole; route 198.18.3.0/25 blackhole; route 198.19.0.0/16 blackhole; }
        protocol bgp r {
          local 203.0.113.2 as 65010; neighbor 203.0.113.1 as 65000;
          connect retry time 1; error wait time 1,2;
          ipv4 { import all; export where source = RTS_STATIC; };
        }
`

// frr is the same for an FRR, with an option of the neighbor.
func frr(number, prefixes int, neighbor, option string) string {
	var options, networks strings.Builder
	for _, o := range []string{"timers connect 1", option} {
		if o != "" {
			fmt.Fprintf(&options, " neighbor %s %s\n", neighbor, o)
		}
	}
	for i := range prefixes {
		fmt.Fprintf(&networks, "  network 2001:db8:a%x%x::/48\n", number, i)
	}
	return runs("sh frr.sh bgpd.conf", map[string]string{"frr.sh": frrScript, "bgpd.conf": fmt.Sprintf(`router bgp %[1]d
 bgp router-id 10.1.0.%[2]d
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor %[3]s remote-as 65000
%[4]s address-family ipv6 unicast
  neighbor %[3]s activate
%[5]s exit-address-family
exit
`, 65000+number, number, neighbor, options.String(), networks.String())})
}

// policed is a border router whose egress peers run BIRD and FRR and that uses an RPKI cache of
// stayrtr. It is a client of its reflector by its prefix alone.
func policed(t *testing.T) string {
	t.Helper()
	peers := []struct{ name, keys, node string }{
		{"ttl", `gtsm: true
          import_rules:
            - {name: leaks, communities: ["65001:666"], action: reject}
            - {name: preferred, prefix_list: preferred, set: {local_pref: 250, add_communities: ["65000:7"]}}
          export_rules:
            - {name: longer, set: {prepend: 2, med: 5, add_communities: ["65001:70", "65001:1:2"]}}`,
			bird(1, 3, "ttl security on;", "if net = 2001:db8:a11::/48 then bgp_community.add((65001, 666)); ")},
		// Without gtsm here, it does not even see us close a connection, and refuses others
		// meanwhile.
		{"strict", "connect_retry: 1s", bird(2, 1, "ttl security on; startup hold time 5; connect retry time 5; connect delay time 1; error wait time 1, 2;", "")},
		{"down", "max_prefixes: {limit: 3, action: down, restart: 2s}", bird(3, 4, "", "")},
		{"discard", "max_prefixes: {limit: 3, action: discard}", bird(4, 4, "", "")},
		{"warn", `max_prefixes: {limit: 3}
          gtsm: true`, frr(5, 5, "2001:db8:f5::1", "ttl-security hops 1")},
		{"origin", "hold_time: 30s", bird(6, 2, "passive on;", "")},
		{"local", "", frr(7, 1, "fe80::1", "interface r")},
		{"far", `multihop: 2
          local_address: 2001:db8:f8::1
          third_party: true`, strings.Replace(bird(8, 1, "multihop 2;", "bgp_next_hop = 2001:db8:f8::2; "), "local 2001:db8:f8::2", "local 2001:db8:f8f::2", 1) +
			"    routes: [{dst: \"2001:db8:f8::/64\", via: \"2001:db8:f8f::1\"}]\n"},
		{"waiting", "passive: true", bird(9, 1, "", "")},
		{"four", `import_rules:
            - {name: own, prefix_list: four, set: {local_pref: 130}, action: accept}
            - {name: rest, action: reject}
          export_rules:
            - {name: ours, prefix_list: ours, set: {prepend: 1}}`, birdIPv4},
	}
	var text, nodes, links strings.Builder
	text.WriteString(`name: policed
nodes:
  rr:
    reflector:
      asn: 65000
      router_id: 10.0.0.254
      address: 2001:db8:1::fe
      listen: [{name: core, prefix: "2001:db8:1::/64", password: secret}]
  cache:
    exec: sh run.sh
    files:
      vrps.json: '{"metadata":{},"roas":[{"prefix":"2001:db8:a60::/44","maxLength":48,"asn":"AS65099"}]}'
      run.sh: exec stayrtr -bind "[2001:db8:1::5]:8282" -cache vrps.json -checktime=false -refresh 1 -metrics.addr ""
  middle:
    forwarding: true
  r:
    ready: false
    forwarding: true
    routes: [{dst: "2001:db8:f8f::/64", via: "2001:db8:f8::2"}]
    asbr:
      asn: 65000
      router_id: 10.0.0.1
      address: 2001:db8:1::1
      locator: {prefix: "fc00:0:1::/48"}
      prefixes: [2001:db8:1::/48, 192.0.2.0/24]
      reflectors: [{address: "2001:db8:1::fe", password: secret}]
      import: {allow_bogons: ["2001:db8::/32", 198.18.0.0/15]}
      rpki: {caches: [{address: "[2001:db8:1::5]:8282"}], retry: 1s}
      prefix_lists:
        preferred: ["reject 2001:db8:a12::/48", "accept 2001:db8:a10::/44 ge 48 le 48"]
        four: ["reject 198.18.2.0/24", "accept 198.18.0.0/16 ge 24 le 24"]
        ours: [accept 192.0.2.0/24]
      peers:
`)
	links.WriteString(`links:
  core:
    ends:
      - {node: r, interface: lan, addresses: ["2001:db8:1::1/64"]}
      - {node: rr, interface: lan, addresses: ["2001:db8:1::fe/64"]}
      - {node: cache, interface: lan, addresses: ["2001:db8:1::5/64"]}
`)
	for i, p := range peers {
		n := i + 1
		address, theirs := fmt.Sprintf("2001:db8:f%x::2", n), ""
		switch p.name {
		case "local":
			address, theirs = "fe80::2", `, "fe80::2/64"`
			p.keys = "local_address: fe80::1"
		case "far":
			address = "2001:db8:f8f::2"
		case "four":
			address, theirs = "203.0.113.2", `, 203.0.113.2/24`
		}
		fmt.Fprintf(&text, `        - name: %[1]s
          asn: %[2]d
          address: %[3]q
          interface: to-%[1]s
          id: %[4]d
          table: %[5]d
          rt: "65000:%[5]d"
          %[6]s
`, p.name, 65000+n, address, n, 100+n, p.keys)
		fmt.Fprintf(&nodes, "  %s:\n    ready: false\n%s", p.name, p.node)
		ours := strings.NewReplacer("::2", "::1", "113.2/", "113.1/").Replace(theirs)
		if p.name == "far" {
			links.WriteString("  to-far:\n    ends:\n      - {node: r, interface: to-far, addresses: [\"2001:db8:f8::1/64\"]}\n" +
				"      - {node: middle, interface: r, addresses: [\"2001:db8:f8::2/64\"]}\n" +
				"  beyond:\n    ends:\n      - {node: middle, interface: far, addresses: [\"2001:db8:f8f::1/64\"]}\n" +
				"      - {node: far, interface: r, addresses: [\"2001:db8:f8f::2/64\"]}\n")
			continue
		}
		fmt.Fprintf(&links, "  to-%[1]s:\n    ends:\n      - {node: r, interface: to-%[1]s, addresses: [\"2001:db8:f%[2]x::1/64\"%[3]s]}\n"+
			"      - {node: %[1]s, interface: r, addresses: [\"2001:db8:f%[2]x::2/64\"%[4]s]}\n", p.name, n, ours, theirs)
	}
	file := filepath.Join(t.TempDir(), "policed.yaml")
	if err := os.WriteFile(file, []byte(text.String()+nodes.String()+links.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// asbrStatus is a part of the status of tabane asbr.
type asbrStatus struct {
	Sessions []struct {
		Neighbor, Reason string
		Up               bool
		Flaps, Uptime    int
		Prefixes         int
		Discarded        int
		Sent             string `json:"notification_sent"`
	}
	Peers []struct {
		Name     string
		Session  bool
		Routes   int
		Rejected map[string]int
	}
}

// eventuallyPeer waits until the status of a session and of its egress peer is as wanted.
func (l *lab) eventuallyPeer(name, what string, within time.Duration, ok func(s asbrStatus, session, peer int) bool) {
	l.t.Helper()
	l.eventually(name+": "+what, within, func() (bool, string) {
		var s asbrStatus
		out, _ := l.try("r", program, "status", "--json", "asbr") // fails while degraded
		if json.Unmarshal([]byte(out), &s) != nil {
			return false, out
		}
		session, peer := -1, -1
		for i := range s.Sessions {
			if s.Sessions[i].Neighbor == name {
				session = i
			}
		}
		for i := range s.Peers {
			if s.Peers[i].Name == name {
				peer = i
			}
		}
		return session >= 0 && peer >= 0 && ok(s, session, peer), out
	})
}

// TestPolicy: the policy of egress peers, with BIRD, FRR and stayrtr as the other ends.
func TestPolicy(t *testing.T) {
	t.Parallel()
	programs.Need(t, "bird", "vtysh", "stayrtr")
	birdc := programs.Need(t, "birdc")
	l := up(t, policed(t), "r.asbr.log", "rr.reflector.log", "cache.exec.log", "ttl.exec.log", "local.exec.log")
	files := func(node string) string { return filepath.Join("/run/tabane/lab", l.name, node+".files") }
	inBIRD := func(node string, command ...string) string {
		t.Helper()
		return l.must(node, append([]string{birdc, "-s", filepath.Join(files(node), "bird.ctl")}, command...)...)
	}
	routes := func(name string, n int) {
		t.Helper()
		l.eventuallyPeer(name, fmt.Sprint(n, " routes"), 40*time.Second, func(s asbrStatus, _, peer int) bool { return s.Peers[peer].Session && s.Peers[peer].Routes == n })
	}

	t.Run("GTSM", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		routes("ttl", 3)
		// It drops what we send; if our OPEN slipped through, the hold timer ends the session.
		l.eventuallyPeer("strict", "no routes and down without gtsm", 40*time.Second, func(s asbrStatus, session, peer int) bool {
			return !s.Sessions[session].Up && s.Peers[peer].Routes == 0
		})
		l.edit("r", "asbr", func(s section) {
			for _, p := range s["peers"].([]any) {
				if p := p.(map[string]any); p["name"] == "strict" {
					p["gtsm"] = true
				}
			}
		})
		l.must("r", program, "reload", "asbr")
		routes("strict", 2)
	})
	t.Run("Rules", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		l.eventuallyPeer("ttl", "a rejected route", time.Second, func(s asbrStatus, _, peer int) bool { return s.Peers[peer].Rejected["rule leaks"] == 1 })
		for dst, want := range map[string]string{
			"2001:db8:a10::/48": "preferred: local_pref 250, community 65000:7 added",
			"2001:db8:a11::1":   "rejected: rule leaks: 2001:db8:a11::/48",
		} {
			l.eventually(dst, time.Second, l.contains(true, want, "r", program, "status", "routes", dst, "asbr", "--json"))
		}
		l.eventually("no rule for 2001:db8:a12::/48", time.Second, l.contains(false, "preferred", "r", program, "status", "routes", "2001:db8:a12::/48", "asbr", "--json"))
		// Other rules apply while the session stays up.
		restore := l.edit("r", "asbr", func(s section) {
			p := s["peers"].([]any)[0].(map[string]any)
			p["import_rules"] = p["import_rules"].([]any)[1:]
		})
		l.reloaded("r", "asbr", `policy of session "ttl" changed`)
		routes("ttl", 4)
		restore()
		l.reloaded("r", "asbr", `policy of session "ttl" changed`)
		routes("ttl", 3)
		l.eventuallyPeer("ttl", "its session stayed up", time.Second, func(s asbrStatus, session, _ int) bool { return s.Sessions[session].Flaps == 0 })
		l.eventually("the exported route", 10*time.Second, func() (bool, string) {
			out := inBIRD("ttl", "show", "route", "protocol", "r", "all")
			return strings.Contains(out, "BGP.as_path: 65000 65000 65000\n") && strings.Contains(out, "BGP.med: 5\n") && strings.Contains(out, "BGP.community: (65001,70)") &&
				strings.Contains(out, "BGP.large_community: (65001, 1, 2)"), out
		})
	})
	t.Run("MaxPrefixes", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		routes("warn", 5)
		l.eventuallyPeer("discard", "three routes", 40*time.Second, func(s asbrStatus, session, peer int) bool {
			return s.Sessions[session].Up && s.Peers[peer].Routes == 3 && s.Sessions[session].Prefixes == 3 && s.Sessions[session].Discarded == 2
		})
		// With room again, what was discarded is asked for.
		inBIRD("discard", "disable", "few")
		routes("discard", 3)
		inBIRD("discard", "disable", "more")
		routes("discard", 0)
		inBIRD("discard", "enable", "few")
		routes("discard", 1)
		isDown := func(s asbrStatus, session, _ int) bool {
			return !s.Sessions[session].Up && strings.Contains(s.Sessions[session].Reason, "more than 3 ipv6-unicast prefixes; opens again 2s after") &&
				strings.Contains(s.Sessions[session].Sent, "Maximum Number of Prefixes Reached (6/1)")
		}
		// Between two pauses it is up for milliseconds only: its flaps are counted.
		flaps := 0
		again := func(s asbrStatus, session, peer int) bool {
			if n := s.Sessions[session].Flaps; n == flaps || !isDown(s, session, peer) {
				return false
			}
			flaps = s.Sessions[session].Flaps
			return true
		}
		l.eventuallyPeer("down", "down", 40*time.Second, again)
		l.eventuallyPeer("down", "down for the second time", 40*time.Second, again)
		start := time.Now()
		l.eventuallyPeer("down", "down for the third time", 40*time.Second, again)
		if d := time.Since(start); d < 1500*time.Millisecond || d > 30*time.Second {
			t.Errorf("opened again after %s, want 2s", d)
		}
		inBIRD("down", "disable", "more")
		routes("down", 1)
		log, err := os.ReadFile(filepath.Join("/run/tabane/lab", l.name, "r.asbr.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"warn", "discard", "down"} {
			if want := fmt.Sprintf("neighbor=%s family=ipv6-unicast limit=3 action=%s", name, name); !strings.Contains(string(log), want) {
				t.Errorf("the log has no %q", want)
			}
		}
	})
	t.Run("LinkLocal", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		routes("local", 1)
		l.eventually("the route", time.Second, l.shows(true, "via fe80::2 dev to-local", "r", "route show table 107"))
	})
	t.Run("Multihop", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		routes("far", 2)
		l.eventually("the route by the router on the link", time.Second, l.shows(true, "via 2001:db8:f8::2 dev to-far", "r", "route show table 108"))
	})
	t.Run("Passive", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		routes("waiting", 2)
		if ours, sockets := l.socket("r", netnstest.Established, "[2001:db8:f9::1]:179")(); !ours {
			t.Errorf("we connected to the neighbor that we wait for: %s", sockets)
		}
		// The neighbor waits, so we connected.
		l.eventuallyPeer("origin", "session", 40*time.Second, func(s asbrStatus, session, _ int) bool { return s.Sessions[session].Up })
		if theirs, sockets := l.socket("r", netnstest.Established, "[2001:db8:f6::1]:179")(); theirs {
			t.Errorf("the neighbor that waits has connected: %s", sockets)
		}
	})
	t.Run("IPv4", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		routes("four", 1)
		l.eventuallyPeer("four", "what is rejected", time.Second, func(s asbrStatus, _, peer int) bool {
			r := s.Peers[peer].Rejected
			return r["rule rest"] == 2 && r["too-long"] == 1
		})
		for dst, want := range map[string]string{
			"198.18.1.7":    "own: local_pref 130",
			"198.18.2.0/24": "rejected: rule rest: 198.18.2.0/24",
			"198.18.3.1":    "rejected: too-long",
			"198.19.0.1":    "rejected: rule rest: 198.19.0.0/16",
		} {
			l.eventually(dst, time.Second, l.contains(true, want, "r", program, "status", "routes", dst, "asbr", "--json"))
		}
		l.eventually("the exported route", 10*time.Second, func() (bool, string) {
			out := inBIRD("four", "show", "route", "protocol", "r", "all")
			return strings.Contains(out, "192.0.2.0/24") && strings.Contains(out, "BGP.as_path: 65000 65000\n"), out
		})
	})
	t.Run("RPKI", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		l.eventuallyPeer("origin", "invalid routes", 40*time.Second, func(s asbrStatus, session, peer int) bool {
			return s.Sessions[session].Up && s.Peers[peer].Routes == 0 && s.Peers[peer].Rejected["rule rpki-invalid"] >= 3
		})
		l.eventually("the rule", time.Second, l.contains(true, "rejected: rule rpki-invalid: 2001:db8:a60::/48", "r", program, "status", "routes", "2001:db8:a60::/48", "asbr"))
		file := filepath.Join(files("cache"), "vrps.json")
		roas := func(text string) {
			t.Helper()
			if err := os.WriteFile(file+".new", []byte(`{"metadata":{},"roas":[`+text+`]}`), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		roas(`{"prefix":"2001:db8:a60::/44","maxLength":48,"asn":"AS65006"}`)
		routes("origin", 3)
		roas(`{"prefix":"2001:db8:a60::/44","maxLength":48,"asn":"AS65006"},{"prefix":"2001:db8:a6f::/48","maxLength":48,"asn":"AS65007"},{"prefix":"2001:db8:a61::/48","maxLength":48,"asn":"AS0"}`)
		time.Sleep(2 * time.Second)
		routes("origin", 3) // still covered by the valid one
		roas(`{"prefix":"2001:db8:a61::/48","maxLength":48,"asn":"AS0"}`)
		routes("origin", 2)
		l.eventuallyPeer("origin", "its session stayed up", time.Second, func(s asbrStatus, session, _ int) bool { return s.Sessions[session].Flaps == 0 })
	})
	t.Run("Listen", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		l.eventually("the client", 10*time.Second, func() (bool, string) {
			out, err := l.try("rr", program, "status", "--json", "reflector")
			var s struct{ Sessions []struct{ Neighbor string } }
			return err == nil && json.Unmarshal([]byte(out), &s) == nil && len(s.Sessions) == 1 && s.Sessions[0].Neighbor == "core/2001:db8:1::1", out
		})
	})
	// After all others: an interface without a peer stays filtered.
	t.Run("Removed", func(t *testing.T) {
		l := &lab{t: t, name: l.name}
		l.edit("r", "asbr", func(s section) {
			s["peers"] = slices.DeleteFunc(s["peers"].([]any), func(p any) bool { return p.(map[string]any)["name"] == "waiting" })
		})
		if out := l.must("r", program, "reload", "asbr"); !strings.Contains(out, `interface "to-waiting" stays filtered until a restart`) {
			t.Errorf("reload prints:\n%s", out)
		}
		l.eventually("the filter", time.Second, l.shows(true, "901:\tfrom all iif to-waiting unreachable", "r", "rule"))
		l.eventually("the status", time.Second, l.contains(true, `"filtered":["to-waiting"]`, "r", program, "status", "--json", "asbr"))
		l.edit("r", "asbr", func(s section) { s["import"] = map[string]any{"allow_bogons": []string{"2001:db8::/32"}} })
		l.must("r", program, "reload", "asbr")
		l.eventually("the filter after another reload", time.Second, l.shows(true, "901:\tfrom all iif to-waiting unreachable", "r", "rule"))
	})
}
