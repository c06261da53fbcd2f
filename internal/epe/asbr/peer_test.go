package asbr

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/kernel/route"
)

// world is a fake of the kernel and of the reflectors, with a log of the calls.
type world struct {
	kernel map[route.Key]route.Object
	routes map[netip.Prefix]bgp.VPNRoute
	log    []string
	// refuses makes the kernel refuse what has this in its name.
	refuses string
}

func (w *world) Settled(k route.Key) bool {
	return w.refuses == "" || !strings.Contains(k.String(), w.refuses)
}

func (w *world) SetRoute(r route.Route) { w.Set(r) }

func (w *world) Set(o route.Object) {
	w.kernel[o.Key()] = o
	w.log = append(w.log, "set "+o.Key().String())
}

func (w *world) Delete(k route.Key) {
	delete(w.kernel, k)
	w.log = append(w.log, "delete "+k.String())
}

func (w *world) OriginateVPN(routes []bgp.VPNRoute) error {
	for _, r := range routes {
		w.routes[r.Prefix] = r
		w.log = append(w.log, "originate "+r.Prefix.String())
	}
	return nil
}

func (w *world) WithdrawVPN(keys []bgp.VPNKey) error {
	for _, k := range keys {
		delete(w.routes, k.Prefix)
		w.log = append(w.log, "withdraw "+k.Prefix.String())
	}
	return nil
}

func (w *world) SetBlackhole(lost bool, prefixes ...netip.Prefix) error {
	for _, p := range prefixes {
		w.log = append(w.log, map[bool]string{true: "lost ", false: "back "}[lost]+p.String())
	}
	return nil
}

func (w *world) lines() []string {
	var lines []string
	for o := range maps.Values(w.kernel) {
		lines = append(lines, o.String())
	}
	slices.Sort(lines)
	return lines
}

func id(s string) vpn.ID {
	parsed, err := vpn.Parse(s)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return parsed
}

func testConfig() Config {
	return Config{
		ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.1"), Address: netip.MustParseAddr("2001:db8:1::1"),
		Locator:    Locator{Prefix: netip.MustParsePrefix("fc00:1::/32"), Block: 16},
		Prefixes:   []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64")},
		Reflectors: []Reflector{{Address: netip.MustParseAddr("2001:db8:1::fe")}},
		Peers: []Peer{{
			Name: "transit-a", ASN: 65001, Address: netip.MustParseAddr("2001:db8:a::2"), Interface: "wan", ID: 1, Table: 101,
			RT: id("65000:101"),
		}},
	}
}

func newTestPeer(t *testing.T, c Config) (*peer, *world) {
	t.Helper()
	if err := c.Check().Err(); err != nil {
		t.Fatal(err)
	}
	p, err := newPeer(&c, &c.Peers[0])
	if err != nil {
		t.Fatal(err)
	}
	w := &world{kernel: map[route.Key]route.Object{}, routes: map[netip.Prefix]bgp.VPNRoute{}}
	p.kernel, p.announcer = w, w
	return p, w
}

// settle does what the daemon does after each event.
func settle(t *testing.T, p *peer) {
	t.Helper()
	if err := p.withdraw(); err != nil {
		t.Fatal(err)
	}
	for again := true; again; again = p.retire() {
		if _, err := p.announce(); err != nil {
			t.Fatal(err)
		}
	}
}

func announced(prefix string) bgp.Update {
	return bgp.Update{
		Neighbor: "transit-a", Prefix: netip.MustParsePrefix(prefix), NextHop: netip.MustParseAddr("2001:db8:a::2"),
		Attributes: bgp.Attributes{ASPath: message.MakeASPath(65001, 65003)},
	}
}

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestPeerUpInstallsSIDTableAndRoutes(t *testing.T) {
	p, w := newTestPeer(t, testConfig())
	p.session, p.link = true, true
	p.refresh()
	p.update(announced("2001:db8:c::/64"))
	settle(t, p)
	check(t, w.lines(),
		"2001:db8:c::/64 table 101 via 2001:db8:a::2 dev wan metric 20",
		"fc00:1:1::/128 table main encap seg6local action End.DT6 table 101 dev wan")
	r := w.routes[netip.MustParsePrefix("2001:db8:c::/64")]
	if r.SID != netip.MustParseAddr("fc00:1:1::") || r.RD != id("10.0.0.1:1") || !slices.Equal(r.RTs, []vpn.ID{id("65000:101")}) ||
		r.NextHop != netip.MustParseAddr("2001:db8:1::1") || r.Behavior != 18 || r.ASPath != message.MakeASPath(65001, 65003) ||
		r.Structure != (srv6.Structure{Block: 16, Node: 16, Function: 16}) {
		t.Errorf("route %+v", r)
	}
}

func TestEndDX6AndTransposition(t *testing.T) {
	c := testConfig()
	c.SIDFormat, c.Peers[0].Behavior = TransposedSID, EndDX6
	p, w := newTestPeer(t, c)
	p.session, p.link = true, true
	p.refresh()
	p.update(announced("2001:db8:c::/64"))
	settle(t, p)
	check(t, w.lines(),
		"2001:db8:c::/64 table 101 via 2001:db8:a::2 dev wan metric 20",
		"fc00:1:1::/128 table main encap seg6local action End.DX6 nh6 2001:db8:a::2 dev wan")
	r := w.routes[netip.MustParsePrefix("2001:db8:c::/64")]
	if r.Behavior != 16 || r.Structure.TransposeLen != 16 || r.Structure.TransposeOffset != 32 {
		t.Errorf("route %+v", r)
	}
}

func TestPeerWithIPv4Routes(t *testing.T) {
	for _, test := range []struct {
		address  string
		behavior Behavior
		code     uint16
		alias    string
	}{
		{"192.0.2.2", "", 19, "240.0.0.1/32 table main encap bpf in tabane-mark-e4000001 dev wan metric 20"},
		{"192.0.2.2", EndDX4, 17, "240.0.0.1/32 table main via 192.0.2.2 dev wan metric 20"},
		{"2001:db8:a::2", EndDX4, 17, "240.0.0.1/32 table main via inet6 2001:db8:a::2 dev wan metric 20"},
	} {
		c := testConfig()
		c.Prefixes = append(c.Prefixes, netip.MustParsePrefix("198.51.100.0/24"))
		c.Peers[0].Address, c.Peers[0].Family, c.Peers[0].Behavior = netip.MustParseAddr(test.address), bgp.IPv4, test.behavior
		p, w := newTestPeer(t, c)
		p.session, p.link = true, true
		p.refresh()
		p.update(bgp.Update{Neighbor: "transit-a", Prefix: netip.MustParsePrefix("203.0.113.0/24"), NextHop: p.Address})
		settle(t, p)
		via := strings.TrimSuffix("via inet6 ", strings.Repeat("inet6 ", map[bool]int{true: 1}[p.Address.Is4()]))
		check(t, w.lines(),
			"203.0.113.0/24 table 101 "+via+test.address+" dev wan metric 20",
			test.alias,
			"fc00:1:1::/128 table main encap seg6local action End.DX4 nh4 240.0.0.1 dev wan")
		if r := w.routes[netip.MustParsePrefix("203.0.113.0/24")]; r.Behavior != test.code || r.NextHop != c.Address {
			t.Errorf("route %+v", r)
		}
		p.link = false
		p.refresh()
		settle(t, p)
		if len(w.kernel) > 0 || len(w.routes) > 0 {
			t.Errorf("left: %v, %v", w.lines(), w.routes)
		}
	}
}

func TestLostPeerIsRemovedInOrder(t *testing.T) {
	for name, lose := range map[string]func(*peer){
		"session": func(p *peer) { p.session = false },
		"link":    func(p *peer) { p.link = false },
	} {
		t.Run(name, func(t *testing.T) {
			p, w := newTestPeer(t, testConfig())
			p.session, p.link = true, true
			p.refresh()
			p.update(announced("2001:db8:c::/64"))
			settle(t, p)
			w.log = nil
			lose(p)
			p.refresh()
			settle(t, p)
			check(t, w.log,
				"lost fc00:1:1::/128",
				"delete route 2001:db8:c::/64 table 101 metric 20",
				"withdraw 2001:db8:c::/64",
				"delete route fc00:1:1::/128 table main metric 1024")
			if len(w.kernel) > 0 || len(w.routes) > 0 {
				t.Errorf("left: %v, %v", w.lines(), w.routes)
			}

			p.session, p.link = true, true
			w.log = nil
			p.refresh()
			settle(t, p)
			if len(w.kernel) != 2 || len(w.routes) != 1 {
				t.Errorf("not back: %v, %v", w.lines(), w.routes)
			}
			check(t, w.log[len(w.log)-2:], "back fc00:1:1::/128", "originate 2001:db8:c::/64")
		})
	}
}

// TestLargePeer: a peer with many routes goes down, comes up, is hidden and loses routes in the
// middle of the steps in which the previous change is applied.
func TestLargePeer(t *testing.T) {
	p, w := newTestPeer(t, testConfig())
	const routes = 2*daemon.Step + 7
	prefix := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x2a, byte(i >> 16), byte(i >> 8), byte(i)}), 48)
	}
	up := func(on bool) func() {
		return func() { p.session, p.link = on, on; p.refresh() }
	}
	hide := func(on bool) func() { return func() { p.hide(on) } }
	round := func() (more bool) {
		t.Helper()
		more = p.step()
		if err := p.withdraw(); err != nil {
			t.Fatal(err)
		}
		again, err := p.announce()
		if err != nil {
			t.Fatal(err)
		}
		return p.retire() || again || more
	}
	up(true)()
	for i := range routes {
		p.update(bgp.Update{Prefix: prefix(i), NextHop: p.Address})
	}
	left := routes
	for i, change := range []func(){
		up(true), up(false), up(true), hide(true), up(false), hide(false), up(true), hide(true), hide(false), up(false),
	} {
		change()
		round() // one of several
		left--
		p.update(bgp.Update{Prefix: prefix(left), Withdrawn: true})
		if i%2 == 0 {
			continue // the next change comes in the middle of the steps
		}
		for round() {
		}
		kernel, advertised := 0, 0
		if p.up {
			if kernel = left + 1; !p.hidden { // and the SID
				advertised = left
			}
		}
		if len(w.kernel) != kernel || len(w.routes) != advertised || p.routes.Len() != left {
			t.Errorf("after change %d: %d objects in the kernel and %d advertised routes, want %d and %d", i, len(w.kernel), len(w.routes), kernel, advertised)
		}
	}
}

func TestRouteRefusedByTheKernelDelaysNoOther(t *testing.T) {
	p, w := newTestPeer(t, testConfig())
	w.refuses = "2001:db8:d::/64"
	p.session, p.link = true, true
	p.refresh()
	p.update(announced("2001:db8:c::/64"))
	p.update(announced("2001:db8:d::/64"))
	settle(t, p)
	if len(w.routes) != 1 || w.routes[netip.MustParsePrefix("2001:db8:c::/64")].RD != id("10.0.0.1:1") {
		t.Errorf("announced %v", w.routes)
	}
	w.refuses = ""
	settle(t, p)
	if len(w.routes) != 2 {
		t.Errorf("announced %v once the kernel has both", w.routes)
	}
}

func TestSIDRefusedByTheKernelIsNotAdvertised(t *testing.T) {
	p, w := newTestPeer(t, testConfig())
	w.refuses = "fc00:1:1::/128"
	p.session, p.link = true, true
	p.refresh()
	p.update(announced("2001:db8:c::/64"))
	settle(t, p)
	if len(w.routes) != 0 {
		t.Errorf("announced %v", w.routes)
	}
}

func TestNothingIsAdvertisedBeforeThePeerIsUp(t *testing.T) {
	p, w := newTestPeer(t, testConfig())
	p.session = true // the link is still down
	p.refresh()
	p.update(announced("2001:db8:c::/64"))
	settle(t, p)
	if len(w.log) > 0 {
		t.Errorf("calls %q", w.log)
	}
}

func TestWithdrawnOrRejectedRouteIsRemoved(t *testing.T) {
	gone := announced("2001:db8:c::/64")
	gone.Withdrawn = true
	rejected := announced("2001:db8:c::/64")
	rejected.Rejected = &bgp.RejectedError{Reason: bgp.RejectNextHop}
	for name, u := range map[string]bgp.Update{"withdrawn": gone, "rejected": rejected} {
		t.Run(name, func(t *testing.T) {
			p, w := newTestPeer(t, testConfig())
			p.session, p.link = true, true
			p.refresh()
			p.update(announced("2001:db8:c::/64"))
			settle(t, p)
			p.update(u)
			settle(t, p)
			if len(w.routes) > 0 || len(w.kernel) != 1 {
				t.Errorf("left: %v, %v", w.lines(), w.routes)
			}
			if counted := p.rejected[bgp.RejectNextHop] == 1; counted != (u.Rejected != nil) {
				t.Errorf("rejected %v", p.rejected)
			}
		})
	}
}

func TestCheckFindsEveryFault(t *testing.T) {
	c := testConfig()
	c.ASN = 0
	c.RouterID = netip.Addr{}
	c.Prefixes = append(c.Prefixes, netip.MustParsePrefix("fc00::/16"))
	c.Import = Import{
		MaxLength: 129, Deny: []netip.Prefix{netip.MustParsePrefix("2a00::1/32")}, AllowBogons: []netip.Prefix{netip.MustParsePrefix("2001:db8::/33")},
	}
	c.Control = "asbr.sock"
	second := c.Peers[0]
	second.Name, second.Address, second.ASN, second.Table = "", netip.Addr{}, 0, 254
	second.ID = 1 << 16
	second.BFD.Interval = 1
	c.Reflectors[0].BFD = bfd.Config{Interval: time.Second, Multiplier: 1}
	c.Peers[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("2001:db8:1:0:a::/80"), netip.MustParsePrefix("2001:db8:1::/64")}
	second.Prefixes = []netip.Prefix{
		netip.MustParsePrefix("2001:db8:1:0:a::/96"), netip.MustParsePrefix("2001:db8:9::/64"), netip.MustParsePrefix("fc00:1::/64"),
	}
	c.Peers = append(c.Peers, second)
	got := strings.Split(c.Check().Err().Error(), "\n")
	for _, path := range []string{
		"asn", "router_id", "prefixes[1]", "peers[1].name", "peers[1].address", "peers[1].asn", "peers[1].table", "peers[1].id",
		"peers[0].prefixes[1]", "peers[1].prefixes[0]", "peers[1].prefixes[1]", "peers[1].prefixes[2]",
		"control", "import.max_length", "import.deny[0]", "import.allow_bogons[0]", "peers[1].rt", "peers[1].bfd.interval", "reflectors[0].bfd.multiplier",
	} {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, path+": ") }) {
			t.Errorf("no fault at %s in:\n%s", path, strings.Join(got, "\n"))
		}
	}
	if c := testConfig(); c.Check().Err() != nil {
		t.Error(c.Check().Err())
	}
}

// One address has one session.
func TestCheckRejectsDuplicateAddresses(t *testing.T) {
	c := testConfig()
	c.Reflectors = append(c.Reflectors, c.Reflectors[0], Reflector{Address: c.Address})
	c.Peers[0].Address = c.Reflectors[0].Address
	const want = "reflectors[1].address: 2001:db8:1::fe is already reflectors[0].address\n" +
		"reflectors[2].address: 2001:db8:1::1 is already address\npeers[0].address: 2001:db8:1::fe is already reflectors[0].address"
	if got := fmt.Sprint(c.Check().Err()); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCheckRejectsDuplicateRD(t *testing.T) {
	c := testConfig()
	c.Peers = append(c.Peers, Peer{
		Name: "transit-b", ASN: 65002, Address: netip.MustParseAddr("2001:db8:b::2"), Interface: "wan2", ID: 2, Table: 102,
		RT: id("65000:102"), RD: id("10.0.0.1:1"),
	})
	if got, want := fmt.Sprint(c.Check().Err()), "peers[1].rd: 10.0.0.1:1 is already peers[0].rd"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDrainRemovesTheSIDLast(t *testing.T) {
	p, w := newTestPeer(t, testConfig())
	p.session, p.link = true, true
	p.refresh()
	p.update(announced("2001:db8:c::/64"))
	settle(t, p)
	w.log = nil
	p.hide(true)
	settle(t, p)
	check(t, w.log, "withdraw 2001:db8:c::/64")
	if len(w.kernel) != 2 {
		t.Errorf("packets in flight find %v", w.lines())
	}
	// New routes are installed meanwhile, but not advertised.
	p.update(announced("2001:db8:d::/64"))
	settle(t, p)
	if len(w.kernel) != 3 || len(w.routes) != 0 {
		t.Errorf("kernel %v, announced %v", w.lines(), w.routes)
	}
	w.log = nil
	p.close(true)
	settle(t, p)
	if len(w.kernel) != 0 || len(w.routes) != 0 || w.log[len(w.log)-1] != "delete route fc00:1:1::/128 table main metric 1024" {
		t.Errorf("left %v, %v; calls %q", w.lines(), w.routes, w.log)
	}
	gone := announced("2001:db8:d::/64")
	gone.Withdrawn = true
	p.update(gone)
	settle(t, p)

	p.close(false)
	p.hide(false)
	settle(t, p)
	if len(w.kernel) != 2 || len(w.routes) != 1 {
		t.Errorf("back in service: %v, %v", w.lines(), w.routes)
	}
}

func TestUndoneDrainAdvertisesAgain(t *testing.T) {
	p, w := newTestPeer(t, testConfig())
	p.session, p.link = true, true
	p.refresh()
	p.update(announced("2001:db8:c::/64"))
	settle(t, p)
	p.hide(true)
	settle(t, p)
	p.hide(false)
	settle(t, p)
	if len(w.kernel) != 2 || len(w.routes) != 1 {
		t.Errorf("back in service: %v, %v", w.lines(), w.routes)
	}
}
