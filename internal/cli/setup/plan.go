// Package setup sets a gateway up on this host, and undoes it.
//
// A plan is a list of steps, made from what was found on the host by a pure function. Each step can
// say what it does and how it is undone; those that were done are recorded in a file. The package
// asks nothing and prints nothing.
package setup

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/role"
)

// Step changes the host in one way. One of its fields is set.
type Step struct {
	File      *File      `json:"file,omitempty"`
	Parameter *Parameter `json:"parameter,omitempty"`
	Rule      *Rule      `json:"rule,omitempty"`
	Daemon    *Daemon    `json:"daemon,omitempty"`
}

// File is a new file.
type File struct {
	Path string `json:"path"`
	// Text is its content. A key has none: it is made.
	Text string `json:"-"`
	Key  bool   `json:"key,omitempty"`
	// Sum is the checksum of what was written, by which edits are noticed.
	Sum string `json:"sum,omitempty"`
	// MadeDir: the directory of the record did not exist before.
	MadeDir bool `json:"made_dir,omitempty"`
}

// Parameter is a kernel parameter, and its value before.
type Parameter struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Before string `json:"before"`
}

// Rule keeps packets from an address of this host to another host on the way that they take now.
type Rule struct {
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
}

// rulePriority is that of a Rule, before those of the gateway.
const rulePriority = 4000

// Daemon is the gateway, as the unit of the package or as a process.
type Daemon struct {
	Unit bool   `json:"unit,omitempty"`
	File string `json:"file"`
	PID  int    `json:"pid,omitempty"`
}

// unitName is that of the package.
const unitName = "tabane-gateway.service"

// Do says what the step does.
func (s Step) Do() string {
	switch {
	case s.File != nil && s.File.Key:
		return "make the private key " + s.File.Path
	case s.File != nil:
		return "write " + s.File.Path
	case s.Parameter != nil:
		return fmt.Sprintf("sysctl -w %s=%s (now %s)", s.Parameter.Key, s.Parameter.Value, s.Parameter.Before)
	case s.Rule != nil:
		return "ip rule add " + s.Rule.text() + ", for a connection that exists"
	case s.Daemon.Unit:
		return "systemctl enable --now " + unitName
	}
	return "start tabane gateway -c " + s.Daemon.File
}

// Undo says how the step is undone.
func (s Step) Undo() string {
	switch {
	case s.File != nil:
		return "remove " + s.File.Path
	case s.Parameter != nil:
		return fmt.Sprintf("sysctl -w %s=%s", s.Parameter.Key, s.Parameter.Before)
	case s.Rule != nil:
		return "ip rule del " + s.Rule.text()
	case s.Daemon.Unit:
		return "systemctl disable --now " + unitName
	}
	return fmt.Sprintf("stop tabane gateway (process %d)", s.Daemon.PID)
}

func (r *Rule) text() string {
	return fmt.Sprintf("from %v to %v lookup main priority %d", r.From, r.To, rulePriority)
}

// Host is what was found on this host.
type Host struct {
	Name string
	// Lines lead to the Internet, those of the best default route first. LAN are interfaces to
	// hosts.
	Lines, LAN []Link
	// HideLAN: hosts of the LAN have the gateway's address in the tunnel, for IPv4.
	HideLAN bool
	// Sessions are connections from elsewhere to this host that use a default route.
	Sessions []Rule
	// Networks are those that routes lead to, but for default routes.
	Networks []netip.Prefix
	// NoIPv6 is why this host cannot or shall not carry IPv6, empty if it can.
	NoIPv6 string
	// Unique is a prefix of IPv6 for local use that is this host's own. Routed is a public one that
	// is routed to it, and that its sites get parts of; none if it is not valid.
	Unique, Routed netip.Prefix
	// Port is the UDP port of the tunnel at a VPS, 0 for the default.
	Port uint16
	// Gateway is the configuration of a VPS that has sites; nil before the first one.
	Gateway *gateway.Config
	// Filtered: a firewall of this host would drop packets of a gateway.
	Filtered bool
	// Parameters are the values of those that a gateway needs.
	Parameters map[string]string
	// Unit: the package's unit can be started here.
	Unit bool
}

// Link is an interface. Via is the router of a line that has no default route.
type Link struct {
	Name      string
	Via       netip.Addr
	Addresses []netip.Prefix // of IPv4
	// IPv6: it is switched on. Addresses6 are of IPv6, without those of the link alone.
	IPv6       bool
	Addresses6 []netip.Prefix
	// Internet6: a default route of IPv6 leads there.
	Internet6 bool
	// Router is that of the best default route of IPv4, Unused are those of others over the same
	// interface, which is one line.
	Router netip.Addr
	Unused []netip.Addr
}

// networks returns the networks of links, without those that hold a single address.
func networks(links []Link) []netip.Prefix {
	var list []netip.Prefix
	for _, l := range links {
		for _, a := range l.Addresses {
			if p := a.Masked(); !slices.ContainsFunc(list, p.Overlaps) {
				list = append(list, p)
			}
		}
	}
	return list
}

// passages are what a gateway of this host would carry, whether for a LAN or for a site.
func (h *Host) passages() []nft.Passage {
	c := gateway.Config{Listen: h.Port, Masquerade: true, Peers: []gateway.Peer{{Prefixes: []netip.Prefix{tunnels}}}}
	for _, l := range h.LAN {
		c.LAN.Interfaces = append(c.LAN.Interfaces, l.Name)
	}
	c.LAN.Prefixes = networks(h.LAN)
	if h.NoIPv6 == "" {
		c.Peers[0].Prefixes = append(c.Peers[0].Prefixes, h.Unique)
		c.LAN.Prefixes = append(c.LAN.Prefixes, h.lan6()...)
	}
	for _, l := range h.Lines {
		c.Paths = append(c.Paths, gateway.Path{Interface: l.Name})
	}
	return c.Passages()
}

// Public returns the addresses of the lines that others can reach, as far as they themselves show:
// at most so many, one of them of IPv6 if there is one.
func (h *Host) Public(most int) []netip.Addr {
	var four, six []netip.Addr
	for _, l := range h.Lines {
		four = append(four, public(l.Addresses)...)
		if l.Internet6 {
			six = append(six, public(l.Addresses6)...)
		}
	}
	list := append(four[:min(len(four), most-min(len(six), 1))], six...)
	return list[:min(len(list), most)]
}

// public returns the addresses that are neither private nor those of a carrier's NAT.
func public(list []netip.Prefix) (addresses []netip.Addr) {
	for _, a := range list {
		if !a.Addr().IsPrivate() && !shared.Contains(a.Addr()) {
			addresses = append(addresses, a.Addr())
		}
	}
	return addresses
}

// only6 reports whether a line has no IPv4.
func (l Link) only6() bool { return len(l.Addresses) == 0 && !l.Via.Is4() }

// Reach returns the addresses of a peer, and those that a line without IPv4 reaches it at if the
// line has NAT64, unless the peer has IPv6 itself.
func (h *Host) Reach(all []netip.Addr) []netip.Addr {
	if !slices.ContainsFunc(h.Lines, Link.only6) || slices.ContainsFunc(all, netip.Addr.Is6) {
		return all
	}
	list := slices.Clone(all)
	for _, a := range all {
		if at, ok := gateway.Translated(a); ok {
			list = append(list, at)
		}
	}
	return list
}

// reachable returns the addresses of a peer that the host's lines reach: those of IPv6 only if a
// line has no IPv4, because packets are smaller with them.
func (h *Host) reachable(all []netip.Addr) []netip.Addr {
	list := slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return a.Is6() && !slices.ContainsFunc(h.Lines, Link.only6) })
	if len(list) == 0 {
		return all
	}
	return list
}

// shared is the address space of carriers' NATs (RFC 6598).
var shared = netip.MustParsePrefix("100.64.0.0/10")

// DefaultDir is the directory of the package's unit.
const DefaultDir = "/etc/tabane"

// Files are where the files of a gateway are.
type Files struct {
	// Dir is the directory of the key, the configuration and the record.
	Dir string
	// Sysctl is the file that sets parameters at boot; empty without one.
	Sysctl string
}

// Key, Config and Record are files in the directory.
func (f Files) Key() string    { return filepath.Join(f.Dir, "gw.key") }
func (f Files) Config() string { return filepath.Join(f.Dir, "gateway.yaml") }
func (f Files) Record() string { return filepath.Join(f.Dir, "setup.json") }

// Control is the socket of a gateway for commands, empty if it is the default.
func (f Files) Control() string {
	if f.Dir == DefaultDir {
		return ""
	}
	return filepath.Join(f.Dir, "gateway.sock")
}

// Quota is where a gateway in another directory than DefaultDir keeps what lines have carried.
func (f Files) Quota() string { return filepath.Join(f.Dir, "gateway.quota") }

// Request returns what a site says of itself.
func (h *Host) Request() join.Request {
	name := strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			return r
		}
		return '-'
	}, h.Name)
	if name = strings.Trim(name, "-"); len(name) > 32 || name == "" {
		name = "site"
	}
	r := join.Request{Name: name, LAN: networks(h.LAN), Connected: networks(h.Lines), IPv6: h.KeepsIPv6() == ""}
	if h.HideLAN {
		r.LAN, r.Connected = nil, slices.Concat(r.Connected, r.LAN)
	}
	if r.IPv6 {
		r.LAN = append(r.LAN, h.lan6()...)
	}
	return r
}

// tunnels are where the addresses of the tunnel are taken from.
var tunnels = netip.MustParsePrefix("10.79.0.0/16")

// hideLAN is what a site can do where its LAN is refused.
const hideLAN = ", or join with --hide-lan: its hosts then have the site's address in the tunnel, and nobody connects to them"

// Decide answers the request of a site.
func (h *Host) Decide(r join.Request) join.Answer {
	a := join.Answer{Name: "vps"}
	own := slices.Concat(networks(h.Lines), networks(h.LAN), h.Networks)
	if at := h.gateway6(); r.IPv6 && at.IsValid() {
		a.Gateway6, a.Own6 = at, h.free(at)
		own = append(own, h.Unique)
	}
	for _, p := range carried(r, a) {
		if !private(p) {
			return join.Answer{Refused: fmt.Sprintf("the LAN %v is not a private network: give it one"+hideLAN, p)}
		}
		if i := slices.IndexFunc(own, p.Overlaps); i >= 0 {
			return join.Answer{Refused: fmt.Sprintf("the LAN %v overlaps the network %v of the VPS: give one of them other addresses, or name the right interfaces by --lan"+hideLAN, p, own[i])}
		}
		if site, at := h.siteWith(p); site != "" {
			return join.Answer{Refused: fmt.Sprintf("the LAN %v overlaps %v of the site %q: give one of them other addresses"+hideLAN+". If it is that site again: tabane gateway invite --replace %s", p, at, site, site)}
		}
		if slices.ContainsFunc(h.Sessions, func(s Rule) bool { return p.Contains(s.To) }) {
			return join.Answer{Refused: fmt.Sprintf("the LAN %v contains an address that is connected to the VPS now: packets to it would go into the tunnel"+hideLAN, p)}
		}
	}
	used := slices.Concat(own, r.LAN, r.Connected)
	if a.Gateway = h.gateway4(used); !a.Gateway.IsValid() {
		return join.Answer{Refused: fmt.Sprintf("no network of %v is free for the tunnel", tunnels)}
	}
	if a.Own = h.free(a.Gateway); slices.ContainsFunc(slices.Concat(r.LAN, r.Connected), func(p netip.Prefix) bool { return p.Contains(a.Own) || p.Contains(a.Gateway) }) {
		return join.Answer{Refused: fmt.Sprintf("a network of the site contains %v or %v, the addresses of the tunnel", a.Gateway, a.Own)}
	}
	if a.Own6.IsValid() && slices.ContainsFunc(r.LAN, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		a.Prefix6 = h.part()
	}
	return a
}

// gateway4 returns the address of the VPS in the tunnel: that of now, or one in a network that is
// not used. It is not valid if there is none.
func (h *Host) gateway4(used []netip.Prefix) netip.Addr {
	if h.Gateway != nil {
		return h.tunnelAddress(netip.Addr.Is4)
	}
	for n := range 256 {
		b := tunnels.Addr().As4()
		b[2] = byte(n)
		p := netip.PrefixFrom(netip.AddrFrom4(b), 24)
		if !slices.ContainsFunc(used, p.Overlaps) {
			return p.Addr().Next()
		}
	}
	return netip.Addr{}
}

// tunnelAddress returns the first private address of a kind that the gateway has in the tunnel.
func (h *Host) tunnelAddress(is func(netip.Addr) bool) netip.Addr {
	for _, p := range h.Gateway.Tunnel.Addresses {
		if is(p.Addr()) && p.Addr().IsPrivate() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// free returns the first address after that of the VPS which no site has.
func (h *Host) free(after netip.Addr) netip.Addr {
	a := after.Next()
	for {
		if site, _ := h.siteWith(single(a)); site == "" {
			return a
		}
		a = a.Next() // a file has far fewer prefixes than there are addresses
	}
}

// siteWith returns the site that has a part of a network, and its prefix; empty without one.
func (h *Host) siteWith(p netip.Prefix) (name string, of netip.Prefix) {
	if h.Gateway == nil {
		return "", of
	}
	for _, peer := range h.Gateway.Peers {
		for _, have := range peer.Prefixes {
			if have.Overlaps(p) {
				return peer.Name, have
			}
		}
	}
	return "", of
}

// maxReason bounds a reason in bytes, so that the answer fits a message.
const maxReason = 512

// Accept answers the request of a site as Decide does, but refuses one whose configuration would
// have faults: once a site was accepted, the line is void.
func (h *Host) Accept(f Files, public handshake.PublicKey, r join.Request) Peer {
	p := Peer{Public: public, Request: r, Answer: h.Decide(r)}
	if p.Answer.Refused != "" {
		return p
	}
	var err error
	if h.Gateway != nil {
		p.Request.Name = h.unusedName(r.Name)
		c := *h.Gateway
		c.Peers = append(slices.Clone(c.Peers), p.site())
		err = c.Check().Err()
	} else {
		var steps []Step
		steps, err = VPS(h, f, p)
		for _, s := range steps {
			if s.File != nil && s.File.Path == f.Config() {
				_, err = config.Reader{}.Parse(f.Config(), []byte(s.File.Text))
			}
		}
	}
	if err != nil {
		text := err.Error()
		p.Answer = join.Answer{Refused: text[:min(len(text), maxReason)]}
	}
	return p
}

// Peer is the other gateway. The zero value is one that is not known yet.
type Peer struct {
	Public  handshake.PublicKey
	Request join.Request // of a site
	Answer  join.Answer  // to a site
	At      join.Invitation
}

// unusedName returns a name, or the first one after it that no site has.
func (h *Host) unusedName(name string) string {
	unused := name
	for n := 2; slices.ContainsFunc(h.Gateway.Peers, func(p gateway.Peer) bool { return p.Name == unused }); n++ {
		unused = fmt.Sprintf("%s-%d", name, n)
	}
	return unused
}

// site returns the peer of the VPS that a site is.
func (p *Peer) site() gateway.Peer {
	g := gateway.Peer{
		Name: p.Request.Name, PublicKey: p.Public.String(),
		Prefixes: append([]netip.Prefix{single(p.Answer.Own)}, carried(p.Request, p.Answer)...),
	}
	if p.Answer.Own6.IsValid() {
		g.Prefixes = append(g.Prefixes, single(p.Answer.Own6))
	}
	if p.Answer.Prefix6.IsValid() {
		g.Prefixes = append(g.Prefixes, p.Answer.Prefix6)
	}
	return g
}

// VPS returns the steps that make the host the VPS of a first site. Where it has IPv6, it is ready
// to carry that also of later ones.
func VPS(h *Host, f Files, peer Peer) ([]Step, error) {
	c := gateway.Config{Masquerade: true, Peers: []gateway.Peer{peer.site()}}
	if h.Port != c.Port() {
		c.Listen = h.Port
	}
	c.Tunnel.Addresses = []netip.Prefix{single(peer.Answer.Gateway)}
	if at := h.gateway6(); at.IsValid() {
		c.Tunnel.Addresses = append(c.Tunnel.Addresses, single(at))
		if h.Routed.IsValid() {
			c.Routed = []netip.Prefix{h.Routed}
		}
	}
	return steps(h, f, c, "tabane gateway init --vps")
}

// Add returns the text of the VPS's configuration with one more site, from that of now: comments
// and the form of the rest stay. A site that replaces another one has the place and the name of
// that.
func Add(h *Host, f Files, text []byte, peer Peer, replaces string) ([]byte, error) {
	want := *h.Gateway
	site, at := peer.site(), len(want.Peers)
	if replaces != "" {
		at = slices.IndexFunc(want.Peers, func(p gateway.Peer) bool { return p.Name == replaces })
		site.Name = replaces
	}
	want.Peers = append(append(slices.Clone(want.Peers[:at]), site), want.Peers[min(at+1, len(want.Peers)):]...)
	changed, err := config.PutItem(text, "gateway.peers", at, site)
	if err != nil {
		return nil, err
	}
	read, err := config.Reader{}.Parse(f.Config(), changed)
	if err == nil && (read.Gateway == nil || !reflect.DeepEqual(*read.Gateway, want)) {
		err = errors.New("its form is not understood")
	}
	if err != nil {
		item, _ := config.Encode(struct {
			Peers []gateway.Peer `yaml:"peers"`
		}{[]gateway.Peer{site}})
		return nil, fmt.Errorf("edit %q: %w; add the peer by hand, and reload:\n%s", f.Config(), err, item)
	}
	return changed, nil
}

// Site returns the steps that have a site reach the Internet through its peer.
func Site(h *Host, f Files, peer Peer) ([]Step, error) {
	c := gateway.Config{Peers: []gateway.Peer{{
		Name: peer.Answer.Name, PublicKey: peer.At.Public.String(), Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
	}}}
	for _, a := range h.reachable(peer.At.Addresses) {
		c.Peers[0].Endpoints = append(c.Peers[0].Endpoints, gateway.Endpoint(netip.AddrPortFrom(a, peer.At.Port).String()))
	}
	c.Tunnel.Addresses = []netip.Prefix{single(peer.Answer.Own)}
	for _, l := range h.LAN {
		c.LAN.Interfaces = append(c.LAN.Interfaces, l.Name)
	}
	c.LAN.Prefixes, c.LAN.Masquerade = networks(h.LAN), h.HideLAN && len(h.LAN) > 0
	if peer.Answer.Own6.IsValid() && h.KeepsIPv6() == "" {
		c.Peers[0].Prefixes = append(c.Peers[0].Prefixes, netip.MustParsePrefix("::/0"))
		c.Tunnel.Addresses = append(c.Tunnel.Addresses, single(peer.Answer.Own6))
		c.LAN.Prefixes = append(c.LAN.Prefixes, h.lan6()...)
		if p := peer.Answer.Prefix6; p.IsValid() && len(h.LAN) > 0 {
			c.LAN.Prefixes = append(c.LAN.Prefixes, p)
		}
	}
	return steps(h, f, c, "tabane gateway join")
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func last(p netip.Prefix) netip.Addr { return netipx.RangeOfPrefix(p).To() }

// steps completes the configuration and returns the steps, in the order in which they are done.
func steps(h *Host, f Files, c gateway.Config, by string) ([]Step, error) {
	if len(h.Lines) == 0 {
		return nil, errors.New("no line was found: no interface has a default route; name the lines by --line INTERFACE or --line INTERFACE=ROUTER")
	}
	c.Key = f.Key()
	if h.Filtered {
		c.Firewall = gateway.FirewallManage
	}
	if f.Dir != DefaultDir { // it is one of several gateways, in network namespaces
		c.Control, c.QuotaFile = f.Control(), f.Quota()
	}
	for _, l := range h.Lines {
		p := gateway.Path{Name: l.Name, Interface: l.Name, Rate: gateway.Rates{Down: gateway.RateAuto, Up: gateway.RateAuto}}
		if l.Via.IsValid() {
			p.Via = []netip.Addr{l.Via}
		}
		c.Paths = append(c.Paths, p)
	}
	text, err := config.Encode(role.Sections{Gateway: &c})
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	list := []Step{{File: &File{Path: f.Key(), Key: true}}}
	var boot strings.Builder
	six := slices.ContainsFunc(c.Tunnel.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
	for _, p := range h.parameters(six) {
		list = append(list, Step{Parameter: &p})
		fmt.Fprintf(&boot, "%s = %s\n", p.Key, p.Value)
	}
	if boot.Len() > 0 && f.Sysctl != "" {
		list = append(list, Step{File: &File{Path: f.Sysctl, Text: "# Written by " + by + ".\n" + boot.String()}})
	}
	header := "# Written by " + by + "; tabane gateway leave removes it. All keys: tabane help config gateway\n"
	list = append(list, Step{File: &File{Path: f.Config(), Text: header + string(text)}})
	for _, s := range h.Sessions {
		if slices.ContainsFunc(c.Peers[0].Prefixes, func(p netip.Prefix) bool { return p.Bits() == 0 && p.Contains(s.To) }) {
			list = append(list, Step{Rule: &s})
		}
	}
	return append(list, Step{Daemon: &Daemon{Unit: h.Unit, File: f.Config()}}), nil
}

const (
	forwarding = "net.ipv4.ip_forward"
	filterAll  = "net/ipv4/conf/all/rp_filter"
)

// filter is the parameter of a link's reverse path filter, with slashes: a name may have a dot.
func filter(link string) string { return "net/ipv4/conf/" + link + "/rp_filter" }

// parameters returns those that have to change: forwarding, and no strict reverse path filter on a
// line. The larger one of a line's and that of all applies. With IPv6, lines go on to take routers
// from advertisements: the kernel forgets these when it begins to forward, unless it is set
// before.
func (h *Host) parameters(six bool) []Parameter {
	var list []Parameter
	if before := h.Parameters[forwarding6]; six && before != "1" {
		for _, l := range h.Lines {
			if h.Parameters[acceptRA(l.Name)] == "1" {
				list = append(list, Parameter{acceptRA(l.Name), "2", "1"})
			}
		}
		list = append(list, Parameter{forwarding6, "1", before})
	}
	if before := h.Parameters[forwarding]; before != "1" {
		list = append(list, Parameter{forwarding, "1", before})
	}
	for _, l := range h.Lines {
		if before := h.Parameters[filter(l.Name)]; max(before, h.Parameters[filterAll]) == "1" {
			list = append(list, Parameter{filter(l.Name), "2", before})
		}
	}
	return list
}
