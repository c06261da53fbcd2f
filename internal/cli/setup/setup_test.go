package setup

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/join"
)

func at(text ...string) (list []netip.Prefix) {
	for _, t := range text {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

// site is a host with two lines, a LAN, and a login over the first line.
func site() *Host {
	return &Host{
		Name:  "büro 1",
		Lines: []Link{{Name: "eth1", Addresses: at("192.0.2.10/24")}, {Name: "ppp0", Via: netip.MustParseAddr("100.64.0.1"), Addresses: at("100.64.0.2/32")}},
		LAN:   []Link{{Name: "eth0", Addresses: at("192.168.8.1/24")}},
		Sessions: []Rule{
			{From: netip.MustParseAddr("192.0.2.10"), To: netip.MustParseAddr("198.51.100.1")},
		},
		Parameters: map[string]string{forwarding: "0", filterAll: "0", filter("eth1"): "1", filter("ppp0"): "2"},
	}
}

var peer = Peer{
	Public:  handshake.PrivateKey{8, 31: 64}.Public(),
	Request: join.Request{Name: "office", LAN: at("192.168.8.0/24")},
	Answer:  join.Answer{Name: "vps", Own: netip.MustParseAddr("10.79.0.2"), Gateway: netip.MustParseAddr("10.79.0.1")},
	At:      join.Invitation{Public: handshake.PrivateKey{16, 31: 64}.Public(), Port: 4790, Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")}},
}

func said(steps []Step) string {
	var all []string
	for _, s := range steps {
		all = append(all, s.Do()+" / "+s.Undo())
	}
	return strings.Join(all, "\n")
}

// TestPlans: the steps of both sides in their order, and files that are valid configurations.
func TestPlans(t *testing.T) {
	f := Files{Dir: "/etc/tabane", Sysctl: "/etc/sysctl.d/x.conf"}
	for name, tt := range map[string]struct {
		plan func(*Host, Files, Peer) ([]Step, error)
		want string
		has  []string
	}{
		"site": {Site, `make the private key /etc/tabane/gw.key / remove /etc/tabane/gw.key
sysctl -w net.ipv4.ip_forward=1 (now 0) / sysctl -w net.ipv4.ip_forward=0
sysctl -w net/ipv4/conf/eth1/rp_filter=2 (now 1) / sysctl -w net/ipv4/conf/eth1/rp_filter=1
write /etc/sysctl.d/x.conf / remove /etc/sysctl.d/x.conf
write /etc/tabane/gateway.yaml / remove /etc/tabane/gateway.yaml
ip rule add from 192.0.2.10 to 198.51.100.1 lookup main priority 4000, for a connection that exists / ip rule del from 192.0.2.10 to 198.51.100.1 lookup main priority 4000
start tabane gateway -c /etc/tabane/gateway.yaml / stop tabane gateway (process 0)`,
			[]string{"203.0.113.1:4790", "0.0.0.0/0", "100.64.0.1", "192.168.8.0/24"}},
		"VPS": {VPS, `make the private key /etc/tabane/gw.key / remove /etc/tabane/gw.key
sysctl -w net.ipv4.ip_forward=1 (now 0) / sysctl -w net.ipv4.ip_forward=0
sysctl -w net/ipv4/conf/eth1/rp_filter=2 (now 1) / sysctl -w net/ipv4/conf/eth1/rp_filter=1
write /etc/sysctl.d/x.conf / remove /etc/sysctl.d/x.conf
write /etc/tabane/gateway.yaml / remove /etc/tabane/gateway.yaml
start tabane gateway -c /etc/tabane/gateway.yaml / stop tabane gateway (process 0)`,
			[]string{"masquerade: true", "10.79.0.2/32", "192.168.8.0/24"}},
	} {
		steps, err := tt.plan(site(), f, peer)
		if err != nil {
			t.Fatal(err)
		}
		if got := said(steps); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tt.want)
		}
		for _, s := range steps {
			if s.File == nil || s.File.Path != f.Config() {
				continue
			}
			if _, err := (config.Reader{}).Parse("gateway.yaml", []byte(s.File.Text)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, part := range tt.has {
				if !strings.Contains(s.File.Text, part) {
					t.Errorf("%s lacks %s:\n%s", name, part, s.File.Text)
				}
			}
		}
	}
	filtered := site()
	filtered.Filtered = true
	if steps, err := VPS(filtered, f, peer); err != nil || !slices.ContainsFunc(steps, func(s Step) bool { return s.File != nil && strings.Contains(s.File.Text, "firewall: manage") }) {
		t.Errorf("behind a firewall: %v, %v", steps, err)
	}
	for port, want := range map[uint16]bool{0: false, 4790: false, 443: true} {
		other := site()
		other.Port = port
		steps, err := VPS(other, f, peer)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			if s.File != nil && s.File.Path == f.Config() && strings.Contains(s.File.Text, "listen: 443") != want {
				t.Errorf("with port %d:\n%s", port, s.File.Text)
			}
		}
	}
	none := site()
	none.Lines = nil
	if _, err := Site(none, f, peer); err == nil || !strings.Contains(err.Error(), "--line") {
		t.Errorf("without a line: %v", err)
	}
}

// TestReach: a line without IPv4 reaches a VPS without IPv6 by NAT64; nothing else is tried.
func TestReach(t *testing.T) {
	four, private, six := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("2001:db8::1")
	mobile := site()
	mobile.Lines = append(mobile.Lines, Link{Name: "wwan0", Internet6: true, Addresses6: at("2001:db8:b::2/64")})
	for _, tt := range []struct {
		h         *Host
		all, want []netip.Addr
	}{
		{site(), []netip.Addr{four}, []netip.Addr{four}},
		{mobile, []netip.Addr{four, private}, []netip.Addr{four, private, netip.MustParseAddr("64:ff9b::203.0.113.1")}},
		{mobile, []netip.Addr{four, six}, []netip.Addr{four, six}},
	} {
		all := tt.h.Reach(tt.all)
		if got := tt.h.reachable(all); !slices.Equal(all, tt.want) || !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, of which %v are endpoints, want %v", tt.all, all, got, tt.want)
		}
	}
}

// TestDecide: a site is refused if packets to its LAN would be lost, and gets addresses that are
// free.
func TestDecide(t *testing.T) {
	vps := &Host{Lines: []Link{{Name: "eth0", Addresses: at("10.79.0.5/25")}}, Sessions: []Rule{{To: netip.MustParseAddr("10.9.9.9")}}}
	for lan, want := range map[string]string{
		"10.79.0.0/26": "overlaps", "10.9.0.0/16": "connected to the VPS now", "203.0.113.0/24": "not a private network", "192.168.0.0/15": "not a private network",
	} {
		if got := vps.Decide(join.Request{LAN: at(lan)}); !strings.Contains(got.Refused, want) {
			t.Errorf("%s: %+v, want %s", lan, got, want)
		}
	}
	routed := *vps
	routed.Networks = at("172.17.0.0/16")
	if got := routed.Decide(join.Request{LAN: at("172.16.0.0/12")}); !strings.Contains(got.Refused, "overlaps the network 172.17.0.0/16 of the VPS") {
		t.Errorf("beside another network: %+v", got)
	}
	got := vps.Decide(join.Request{LAN: at("192.168.8.0/24"), Connected: at("10.79.1.0/24")})
	if got.Refused != "" || got.Gateway.String() != "10.79.2.1" || got.Own.String() != "10.79.2.2" {
		t.Errorf("got %+v", got)
	}
	if got := vps.Decide(join.Request{LAN: at("10.0.0.0/10")}); got.Refused == "" {
		t.Errorf("got %+v", got)
	}
	if q := site().Request(); q.Name != "b-ro-1" || len(q.LAN) != 1 || len(q.Connected) != 2 {
		t.Errorf("request %+v", q)
	}
}

// dual is a host whose first line and LAN have IPv6, the LAN without addresses.
func dual() *Host {
	h := site()
	h.Unique = unique([]byte{2, 0, 0, 0, 0, 1})
	h.Lines[0].Internet6, h.Lines[0].Addresses6 = true, at("2001:db8::10/64")
	for _, list := range [][]Link{h.Lines, h.LAN} {
		for i := range list {
			list[i].IPv6 = true
		}
	}
	h.Sessions = append(h.Sessions, Rule{From: netip.MustParseAddr("2001:db8::10"), To: netip.MustParseAddr("2001:db8:9::1")})
	h.Parameters[forwarding6], h.Parameters[acceptRA("eth1")], h.Parameters[acceptRA("ppp0")] = "0", "1", "0"
	return h
}

// TestIPv6: it is carried if both sides have it and the LAN has no public network; then packets to
// no network are lost or go past the tunnel, and a line keeps its router.
func TestIPv6(t *testing.T) {
	f := Files{Dir: "/etc/tabane"}
	vps, here := dual(), dual()
	vps.LAN, vps.Unique = nil, unique([]byte{2, 0, 0, 0, 0, 2})
	q := here.Request()
	p := vps.Accept(f, peer.Public, q)
	if p.Answer.Refused != "" || !p.Answer.Own6.IsValid() || !slices.Contains(q.LAN, here.Unique) {
		t.Fatalf("request %+v, answer %+v", q, p.Answer)
	}
	p.At = peer.At
	for name, plan := range map[string]func() ([]Step, error){
		"VPS": func() ([]Step, error) { return VPS(vps, f, p) }, "site": func() ([]Step, error) { return Site(here, f, p) },
	} {
		steps, err := plan()
		if err != nil {
			t.Fatal(err)
		}
		got := said(steps)
		learned, forward := strings.Index(got, "accept_ra=2 (now 1)"), strings.Index(got, forwarding6+"=1")
		if learned < 0 || forward < learned || strings.Count(got, "accept_ra=2") != 1 || strings.Contains(got, "from 2001:db8::10 to 2001:db8:9::1") != (name == "site") {
			t.Errorf("%s:\n%s", name, got)
		}
		i := slices.IndexFunc(steps, func(s Step) bool { return s.File != nil && s.File.Path == f.Config() })
		c, err := (config.Reader{}).Parse("gateway.yaml", []byte(steps[i].File.Text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		g := c.Gateway
		want, lan := []string{p.Answer.Own6.String() + "/128", here.Unique.String()}, []string(nil)
		if name == "site" {
			want, lan = []string{"::/0"}, []string{here.Unique.String()}
		}
		for _, text := range want {
			if !slices.Contains(g.Peers[0].Prefixes, netip.MustParsePrefix(text)) {
				t.Errorf("%s: peer %v lacks %s", name, g.Peers[0].Prefixes, text)
			}
		}
		for _, text := range lan {
			if !slices.Contains(g.LAN.Prefixes, netip.MustParsePrefix(text)) {
				t.Errorf("%s: LAN %v lacks %s", name, g.LAN.Prefixes, text)
			}
		}
	}
	if list := here.Lacking(netip.Prefix{}); len(list) != 1 || !here.Unique.Contains(list[0].Addr()) || list[0].Bits() != 64 {
		t.Errorf("the LAN lacks %v", list)
	}
	local := dual()
	local.LAN[0].Addresses6 = at("fd77::1/64")
	if q := local.Request(); !slices.Contains(q.LAN, netip.MustParsePrefix("fd77::/64")) || slices.Contains(q.LAN, local.Unique) || local.Lacking(netip.Prefix{}) != nil {
		t.Errorf("a private network: %+v", q)
	}
	for name, change := range map[string]func(vps, site *Host){
		"none at the VPS":  func(vps, _ *Host) { vps.Lines[0].Internet6 = false },
		"private VPS":      func(vps, _ *Host) { vps.Lines[0].Addresses6 = at("fd77::1/64") },
		"off on a line":    func(vps, _ *Host) { vps.Lines[1].IPv6 = false },
		"off at the VPS":   func(vps, _ *Host) { vps.NoIPv6 = "off" },
		"public LAN":       func(_, site *Host) { site.LAN[0].Addresses6 = at("2001:db8:1::1/64") },
		"off in the LAN":   func(_, site *Host) { site.LAN[0].IPv6 = false },
		"off at the site":  func(_, site *Host) { site.NoIPv6 = "off" },
		"an unasked offer": func(_, site *Host) { site.NoIPv6 = "off" },
	} {
		vps, here := dual(), dual()
		vps.LAN = nil
		change(vps, here)
		p := vps.Accept(f, peer.Public, here.Request())
		if name == "an unasked offer" {
			p.Answer.Own6, p.Answer.Gateway6 = netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::1")
		} else if p.Answer.Own6.IsValid() {
			t.Errorf("%s: answered %+v", name, p.Answer)
		}
		p.At = peer.At
		steps, err := Site(here, f, p)
		if err != nil || p.Answer.Refused != "" {
			t.Fatalf("%s: %v, %+v", name, err, p.Answer)
		}
		i := slices.IndexFunc(steps, func(s Step) bool { return s.File != nil && s.File.Path == f.Config() })
		if text := steps[i].File.Text; strings.Contains(text, "::") || strings.Contains(said(steps), "ipv6") {
			t.Errorf("%s: IPv6 is half set up:\n%s\n%s", name, said(steps), text)
		}
	}
}

// TestSecondSite: a VPS that has a site accepts another one with addresses of its own, refuses one
// whose networks overlap, and its file gets one more peer and keeps the rest. A site that comes
// again takes its place.
func TestSecondSite(t *testing.T) {
	f := Files{Dir: "/etc/tabane"}
	vps, first := dual(), dual()
	vps.LAN, vps.Unique, vps.Routed = nil, unique([]byte{2, 0, 0, 0, 0, 2}), netip.MustParsePrefix("2001:db8:100::/48")
	vps.Networks = at("2001:db8:100::/48", "2001:db8:100:10::/64") // the second part is used by something else
	p := vps.Accept(f, peer.Public, first.Request())
	if got, want := p.Answer.Prefix6, netip.MustParsePrefix("2001:db8:100:20::/60"); got != want {
		t.Errorf("the first site gets %v, want %v", got, want)
	}
	steps, err := VPS(vps, f, p)
	if err != nil {
		t.Fatal(err)
	}
	text := "# mine\n" + steps[slices.IndexFunc(steps, func(s Step) bool { return s.File != nil && s.File.Path == f.Config() })].File.Text
	read := func(text []byte) {
		t.Helper()
		c, err := (config.Reader{}).Parse("gateway.yaml", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		vps.Gateway = c.Gateway
	}
	read([]byte(text))
	again := first.Request()
	if got := vps.Accept(f, peer.At.Public, again); !strings.Contains(got.Answer.Refused, "invite --replace "+p.Request.Name) {
		t.Errorf("the same networks: %+v", got.Answer)
	}
	twin := dual()
	twin.HideLAN, twin.Unique = true, unique([]byte{2, 0, 0, 0, 0, 4})
	hidden := vps.Accept(f, peer.At.Public, twin.Request())
	if hidden.Answer.Refused != "" || slices.ContainsFunc(hidden.Request.LAN, func(n netip.Prefix) bool { return n.Addr().Is4() }) {
		t.Errorf("the same networks, hidden: %+v", hidden)
	}
	hidden.At = peer.At
	steps, err = Site(twin, f, hidden)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.File == nil || s.File.Path != f.Config() {
			continue
		}
		if c, err := (config.Reader{}).Parse("gateway.yaml", []byte(s.File.Text)); err != nil || !c.Gateway.LAN.Masquerade || !slices.Contains(c.Gateway.LAN.Prefixes, netip.MustParsePrefix("192.168.8.0/24")) {
			t.Errorf("a hidden LAN: %v\n%s", err, s.File.Text)
		}
	}
	second := dual()
	second.LAN[0].Addresses, second.Unique = at("192.168.9.1/24"), unique([]byte{2, 0, 0, 0, 0, 3})
	q := vps.Accept(f, peer.At.Public, second.Request())
	a := q.Answer
	if a.Refused != "" || q.Request.Name != p.Request.Name+"-2" || a.Own != p.Answer.Own.Next() || a.Gateway != p.Answer.Gateway || a.Own6 != p.Answer.Own6.Next() || a.Gateway6 != p.Answer.Gateway6 || a.Prefix6 != netip.MustParsePrefix("2001:db8:100:30::/60") {
		t.Errorf("name %q, answer %+v", q.Request.Name, a)
	}
	changed, err := Add(vps, f, []byte(text), q, "")
	if err != nil || !strings.HasPrefix(string(changed), text[:strings.Index(text, "peers:")]) {
		t.Fatalf("%v\n%s", err, changed)
	}
	read(changed)
	if n := len(vps.Gateway.Peers); n != 2 || vps.Gateway.Peers[0].Name != p.Request.Name || !slices.Contains(vps.Gateway.Peers[1].Prefixes, netip.MustParsePrefix("192.168.9.0/24")) {
		t.Errorf("%s", changed)
	}
	if changed, err = Add(vps, f, changed, q, p.Request.Name); err == nil {
		t.Errorf("two sites have one key:\n%s", changed)
	}
	if got := vps.Decide(join.Request{LAN: at("10.79.0.0/24")}); !strings.Contains(got.Refused, "overlaps") {
		t.Errorf("the network of the tunnel: %+v", got)
	}
	if got := vps.Decide(join.Request{Connected: at("10.79.0.0/24")}); !strings.Contains(got.Refused, "addresses of the tunnel") {
		t.Errorf("connected to the network of the tunnel: %+v", got)
	}
	for from, want := range map[string]string{"2001:db8:200::/56": "2001:db8:200:10::/60", "2001:db8:200::/60": "2001:db8:200:1::/64", "2001:db8:200::/64": "2001:db8:200::/64"} {
		h := Host{Routed: netip.MustParsePrefix(from), Networks: at(from)}
		if got := h.part(); got.String() != want {
			t.Errorf("of %s a site gets %v, want %s", from, got, want)
		}
	}
	// The site has the network, beside what is private.
	p.At = peer.At
	here, err := Site(first, f, p)
	if err != nil || !slices.ContainsFunc(here, func(s Step) bool { return s.File != nil && strings.Contains(s.File.Text, "2001:db8:100:20::/60") }) {
		t.Errorf("%v", err)
	}
	if list := first.Lacking(p.Answer.Prefix6); len(list) != 1 || list[0].String() != "2001:db8:100:20::1/64" {
		t.Errorf("the LAN lacks %v", list)
	}
}

// TestAccept: no site is accepted whose configuration would have faults.
func TestAccept(t *testing.T) {
	f := Files{Dir: "/etc/tabane"}
	for want, r := range map[string]join.Request{
		"":         {Name: "office", LAN: at("192.168.8.0/24")},
		"name":     {Name: "gw-example-", LAN: at("192.168.8.0/24")},
		"overlaps": {Name: "office", LAN: at("192.168.0.0/16", "192.168.8.0/24")},
	} {
		got := site()
		got.LAN = nil
		p := got.Accept(f, peer.Public, r)
		if !strings.Contains(p.Answer.Refused, want) || (p.Answer.Refused == "") != (want == "") {
			t.Errorf("%+v: %+v, want %q", r, p.Answer, want)
		}
	}
	if q := (&Host{Name: "gw.example."}).Request(); q.Name != "gw-example" {
		t.Errorf("request %+v", q)
	}
}

// TestUndo: files that were written are removed, one that was edited is kept, and one that exists
// is not touched. Undoing twice is an error that says why.
func TestUndo(t *testing.T) {
	dir := t.TempDir()
	f := Files{Dir: dir}
	r, err := NewRecord(f.Record())
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign")
	if err := os.WriteFile(foreign, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Step{{File: &File{Path: f.Key(), Key: true}}, {File: &File{Path: f.Config(), Text: "a\n"}}, {File: &File{Path: dir + "/b", Text: "b\n"}}} {
		if err := r.Apply(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Apply(Step{File: &File{Path: foreign, Text: "ours"}}); err == nil {
		t.Error("a file was replaced")
	}
	if _, err := NewRecord(f.Record()); err == nil {
		t.Error("set up twice")
	}
	if err := os.WriteFile(dir+"/b", []byte("edited"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err = ReadRecord(f.Record()); err != nil || len(r.Steps()) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	kept, err := r.UndoAll(t.Context())
	if err != nil || len(kept) != 1 || kept[0] != dir+"/b.old" {
		t.Errorf("kept %q, %v", kept, err)
	}
	left, _ := filepath.Glob(dir + "/*")
	if strings.Join(left, " ") != dir+"/b.old "+foreign {
		t.Errorf("left %q", left)
	}
	if _, err := ReadRecord(f.Record()); err == nil || !strings.Contains(err.Error(), "was not set up") {
		t.Errorf("read again: %v", err)
	}
}
