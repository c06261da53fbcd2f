package scenario

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/role"
)

const (
	// minMTU is the minimum MTU of IPv6 (RFC 8200 section 5), maxMTU the maximum of the
	// kernel's veth.
	minMTU, maxMTU = 1280, 65535
	// maxInterfaceName is IFNAMSIZ without the terminating zero.
	maxInterfaceName = 15
)

var (
	// label is a DNS label in lower case that starts with a letter (RFC 1035 section 2.3.1).
	// Nodes are resolved by name, and a resolver reads "10" as an IPv4 address and "A" as "a".
	label = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	// word is a name of a case, a traffic or a transport, which is part of file names and CSV
	// cells.
	word          = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	interfaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	// sysctlKey allows net.* alone: only these belong to a network namespace, any other would
	// change the host.
	sysctlKey = regexp.MustCompile(`^net([./][A-Za-z0-9_-]+)+$`)
)

var kinds = []string{KindDelivery, KindRoutes, KindWeb}

const (
	wantLabel = "must be lower-case letters, digits and inner hyphens, start with a letter and have at most 63 characters, got %q"
	wantWord  = "must be letters, digits, dots, underscores and hyphens, start with a letter or digit and have at most 64 characters, got %q"
)

// Warnings returns what is valid and has no effect in the daemons' sections, in the order of the
// nodes' names.
func (s *Spec) Warnings() fault.List {
	var warnings fault.List
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		if n := s.Nodes[name]; n != nil {
			warnings.Merge("nodes."+name, n.Warnings())
		}
	}
	return warnings
}

// Check returns all faults of the scenario in a fixed order: those of the file, those of each
// daemon section, and conflicts between nodes (overlapping locators, a route target used twice). It
// fills in no defaults and does not access the kernel.
func (s *Spec) Check() fault.List {
	c := checker{spec: s, interfaces: map[string]map[string]bool{}, addresses: map[netip.Addr]string{}, networks: map[string][]netip.Prefix{}}
	if !label.MatchString(s.Name) {
		c.Add("name", wantLabel, s.Name)
	}
	c.sysctls("sysctls", s.Sysctls)
	if len(s.Nodes) == 0 {
		c.Add("nodes", "must name at least one node")
	}
	// Links first: they define the nodes' interfaces and addresses.
	var links fault.List
	links, c.List = c.List, nil
	for _, name := range slices.Sorted(maps.Keys(s.Links)) {
		c.link(at("links", name), name, s.Links[name])
	}
	links, c.List = c.List, links
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		c.node(at("nodes", name), name, s.Nodes[name])
	}
	c.acrossNodes()
	c.Merge("", links)
	if s.Experiment != nil {
		c.experiment(s.Experiment)
	}
	return c.List
}

// checker collects faults, and what the values checked so far define.
type checker struct {
	fault.List
	spec *Spec
	// interfaces are the interface names of each node, networks the prefixes of its interfaces.
	interfaces map[string]map[string]bool
	networks   map[string][]netip.Prefix
	// addresses is the path of each interface address.
	addresses map[netip.Addr]string
}

// at returns the path of a map's value. A key that would make the path ambiguous is quoted.
func at(prefix, key string) string {
	if !word.MatchString(key) {
		key = strconv.Quote(key)
	}
	return fault.Join(prefix, key)
}

func index(prefix string, i int) string { return prefix + "[" + strconv.Itoa(i) + "]" }

func (c *checker) sysctls(path string, m map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if !sysctlKey.MatchString(key) {
			c.Add(at(path, key), "must be a key under net.: a network namespace has no other settings of its own, got %q", key)
		}
		if v := m[key]; v == "" || strings.ContainsAny(v, "\n\x00") {
			c.Add(at(path, key), "must be a value on one line, got %q", v)
		}
	}
}

func (c *checker) link(path, name string, l *Link) {
	if !label.MatchString(name) {
		c.Add(path, "name "+wantLabel, name)
	}
	if l == nil {
		c.Add(path, "is empty: must have ends")
		return
	}
	c.shape(path, l.Shape)
	if l.MTU != 0 && (l.MTU < minMTU || l.MTU > maxMTU) {
		c.Add(fault.Join(path, "mtu"), "must be %d to %d bytes, got %d", minMTU, maxMTU, l.MTU)
	}
	if len(l.Ends) < 2 {
		c.Add(fault.Join(path, "ends"), "must be at least 2, got %d", len(l.Ends))
	}
	if len(l.Ends) > 2 && c.spec.Emulated(name) {
		c.Add(fault.Join(path, "ends"), "must be 2 on a link with more than a rate and a queue, got %d", len(l.Ends))
	}
	if l.Seed != 0 && !c.spec.Emulated(name) {
		c.Add(fault.Join(path, "seed"), "has no effect: nothing is random on this link")
	}
	c.schedule(path, name, l)
	c.wire(path, name, l)
	for i, e := range l.Ends {
		c.end(index(fault.Join(path, "ends"), i), e)
	}
}

func (c *checker) wire(path, name string, l *Link) {
	switch l.Wire {
	case "", WireEthernet, WireVeth:
	default:
		c.Add(fault.Join(path, "wire"), "must be %s or %s, got %q", WireEthernet, WireVeth, l.Wire)
	}
	if l.Trailer < 0 || l.Trailer > MaxTrailer {
		c.Add(fault.Join(path, "trailer"), "must be 0 to %d bytes, got %d", MaxTrailer, l.Trailer)
	}
	if l.Wire == WireVeth && l.Trailer != 0 {
		c.Add(fault.Join(path, "trailer"), "has no effect with wire: %s", WireVeth)
	}
	if l.Wire == WireVeth && l.Tagged {
		c.Add(fault.Join(path, "tagged"), "has no effect with wire: %s", WireVeth)
	}
	if l.Offloads != nil && *l.Offloads && c.spec.Emulated(name) {
		c.Add(fault.Join(path, "offloads"), "must not be true on an emulated link: it carries frames")
	}
}

func (c *checker) shape(path string, s Shape) { c.Merge(path, s.Check()) }

func (c *checker) end(path string, e End) {
	c.knownNode(fault.Join(path, "node"), e.Node)
	where := fault.Join(path, "interface")
	switch name := e.Interface; {
	case len(name) > maxInterfaceName:
		c.Add(where, "must have at most %d bytes, got %q (%d)", maxInterfaceName, name, len(name))
	case !interfaceName.MatchString(name):
		c.Add(where, "must be letters, digits, dots, underscores and hyphens and start with a letter or digit, got %q", name)
	case name == "lo" || name == "all" || name == "default":
		c.Add(where, "must not be %q, which exists on every node", name)
	case c.interfaces[e.Node][name]:
		c.Add(where, "is the second %q of node %q", name, e.Node)
	}
	if c.interfaces[e.Node] == nil {
		c.interfaces[e.Node] = map[string]bool{}
	}
	c.interfaces[e.Node][e.Interface] = true
	for i, p := range e.Addresses {
		where := index(fault.Join(path, "addresses"), i)
		if !c.usable(where, p.Addr()) {
			continue
		}
		if p.Bits() < 1 {
			c.Add(where, "must have a prefix length, got %q", p)
			continue
		}
		if first, twice := c.addresses[p.Addr()]; twice {
			c.Add(where, "%s is already given in %s", p.Addr(), first)
			continue
		}
		c.addresses[p.Addr()] = where
		c.networks[e.Node] = append(c.networks[e.Node], p)
	}
}

// usable reports whether a is a unicast address that an interface can have, and adds a fault if
// not.
func (c *checker) usable(path string, a netip.Addr) bool {
	switch {
	case !a.IsValid():
		c.Add(path, "must be an address")
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a.Is4In6(), a.Zone() != "":
		c.Add(path, "must be a unicast address of one host, got %s", a)
	default:
		return true
	}
	return false
}

func (c *checker) knownNode(path, name string) bool {
	if name == "" {
		c.Add(path, "must name a node")
		return false
	}
	if _, ok := c.spec.Nodes[name]; !ok {
		c.Add(path, "node %q is not in nodes", name)
		return false
	}
	return true
}

func (c *checker) node(path, name string, n *Node) {
	switch {
	case !label.MatchString(name):
		c.Add(path, "name "+wantLabel, name)
	case name == "localhost":
		c.Add(path, "name must not be %q, which resolves to the loopback address on every node", name)
	}
	if n == nil {
		c.Add(path, "is empty: write {} for a host without settings")
		return
	}
	if len(c.interfaces[name]) == 0 {
		c.Add(path, "is not connected to a link")
	}
	if n.Address.IsValid() && !c.has(name, n.Address) && !n.onTunnel(n.Address) {
		c.Add(fault.Join(path, "address"), "%s is not on an interface of this node", n.Address)
	}
	if n.Masquerade != "" {
		where := fault.Join(path, "masquerade")
		c.onInterface(where, name, n.Masquerade)
		if !n.Forwarding {
			c.Add(where, "needs forwarding: true")
		}
	}
	c.sysctls(fault.Join(path, "sysctls"), n.Sysctls)
	c.routes(fault.Join(path, "routes"), name, n.Routes)
	if n.MPTCP != nil {
		c.mptcp(fault.Join(path, "mptcp"), name, n)
	}
	c.exec(path, n)
	if n.Gateway != nil {
		c.site(fault.Join(path, role.Gateway), n)
	}
	sections := c.spec.SectionsIn(Case{}, name)
	c.Merge(path, sections.Check())
	for _, d := range n.Sections.Present() {
		for _, u := range d.Host(&n.Sections).Uses {
			path := fault.Join(fault.Join(path, d.Name), u.Path)
			c.ownAddress(path, name, u.Address)
			c.onInterface(path, name, u.Interface)
		}
	}
}

// maxFile is the largest file of a node, in bytes.
const maxFile = 1 << 20

var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// exec checks a node's exec, files and ready.
func (c *checker) exec(path string, n *Node) {
	if strings.ContainsAny(n.Exec, "\n\x00") || n.Exec != "" && strings.TrimSpace(n.Exec) == "" {
		c.Add(fault.Join(path, "exec"), "must be a command on one line, got %q", n.Exec)
	}
	if n.Exec == "" && len(n.Files) > 0 {
		c.Add(fault.Join(path, "files"), "has no effect without exec")
	}
	for _, name := range slices.Sorted(maps.Keys(n.Files)) {
		switch {
		case !fileName.MatchString(name):
			c.Add(at(fault.Join(path, "files"), name), "name must be 1 to 64 letters, digits, dots, underscores and hyphens and start with a letter or digit, got %q", name)
		case len(n.Files[name]) > maxFile:
			c.Add(at(fault.Join(path, "files"), name), "must have at most %d bytes, got %d", maxFile, len(n.Files[name]))
		}
	}
	if n.Ready != nil && !*n.Ready && n.Exec == "" && len(n.Sections.Present()) == 0 {
		c.Add(fault.Join(path, "ready"), "has no effect: the node runs nothing that a lab waits for")
	}
}

// onTunnel reports whether an address is that of the node's gateway on its tunnel.
func (n *Node) onTunnel(a netip.Addr) bool {
	return n.Gateway != nil && slices.ContainsFunc(n.Gateway.Tunnel.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

func (c *checker) has(node string, a netip.Addr) bool {
	return slices.ContainsFunc(c.networks[node], func(p netip.Prefix) bool { return p.Addr() == a })
}

// ownAddress adds a fault if a daemon's address is not on its node. A missing address is left to
// the check of the daemon's section.
func (c *checker) ownAddress(path, node string, a netip.Addr) {
	if a.IsValid() && !c.has(node, a) {
		c.Add(path, "%s is not on an interface of node %q", a, node)
	}
}

// onInterface adds a fault if a daemon's interface is not on its node. A missing name is left to
// the check of the daemon's section.
func (c *checker) onInterface(path, node, name string) {
	if name != "" && name != "lo" && !c.interfaces[node][name] {
		c.Add(path, "node %q has no link at interface %q", node, name)
	}
}

func (c *checker) routes(path, node string, routes []StaticRoute) {
	unique := fault.Seen{}
	for i, r := range routes {
		path := index(path, i)
		switch {
		case !r.Dst.IsValid():
			c.Add(fault.Join(path, "dst"), "must be a prefix")
		case r.Dst != r.Dst.Masked():
			c.Add(fault.Join(path, "dst"), "has host bits set: write %s for %s", r.Dst.Masked(), r.Dst)
		default:
			unique.Check(&c.List, path, "dst", r.Dst)
		}
		c.Merge(path, r.RouteMetrics.check())
		via := fault.Join(path, "via")
		if !c.usable(via, r.Via) {
			continue
		}
		switch {
		case r.Dst.Addr().Is6() && r.Via.Is4():
			c.Add(via, "must be IPv6 for %s, got %s", r.Dst, r.Via)
		case !slices.ContainsFunc(c.networks[node], func(p netip.Prefix) bool { return p.Masked().Contains(r.Via) }):
			c.Add(via, "%s is on no network of this node", r.Via)
		case c.has(node, r.Via):
			c.Add(via, "%s is this node itself", r.Via)
		}
	}
}

// speaker is a BGP identifier and its AS, which together must be unique (RFC 6286).
type speaker struct {
	asn uint32
	id  netip.Addr
}

func (s speaker) String() string { return fmt.Sprintf("%s in AS %d", s.id, s.asn) }

// locator is an ASBR's locator and its path in the file.
type locator struct {
	path   string
	prefix netip.Prefix
}

// firstUse is the node and the path of the first use of a value.
type firstUse struct{ node, path string }

// acrossNodes checks for conflicts between nodes. Those within one node's section are left to that
// section's check.
func (c *checker) acrossNodes() {
	speakers := fault.Seen{}
	targets, distinguishers := map[vpn.ID]firstUse{}, map[vpn.ID]firstUse{}
	epe := map[netip.Addr]firstUse{}
	var locators []locator
	hosts := map[string]host{} // by node

	checkSpeaker := func(path string, asn uint32, id netip.Addr) {
		if asn != 0 && id.IsValid() {
			speakers.Check(&c.List, path, "router_id", speaker{asn, id})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.spec.Nodes)) {
		n := c.spec.Nodes[name]
		if n == nil {
			continue
		}
		path := at("nodes", name)
		for _, d := range n.Sections.Present() {
			h := d.Host(&n.Sections)
			checkSpeaker(fault.Join(path, d.Name), h.ASN, h.RouterID)
			if h.ASN != 0 {
				hosts[name] = host{fault.Join(path, d.Name), h}
			}
		}
		if a := n.ASBR; a != nil {
			path := fault.Join(path, role.ASBR)
			if p := a.Locator.Prefix; p.IsValid() {
				where := fault.Join(path, "locator.prefix")
				for _, l := range locators {
					if l.prefix.Overlaps(p) {
						c.Add(where, "%s overlaps %s of %s", p, l.prefix, l.path)
					}
				}
				locators = append(locators, locator{where, p})
			}
			for i, p := range a.Peers {
				path := index(fault.Join(path, "peers"), i)
				c.oneNode(targets, name, fault.Join(path, "rt"), p.RT, "servers could not distinguish the peers")
				c.oneNode(distinguishers, name, fault.Join(path, "rd"), distinguisher(a, p), "reflectors would keep one peer's routes only")
			}
		}
		if e := n.Edge; e != nil {
			path := fault.Join(path, role.Edge)
			for i, p := range e.Peers {
				c.epeAddress(epe, name, index(fault.Join(path, "peers"), i), p)
			}
		}
	}
	c.sessions(hosts)
}

// host is a node's BGP speaker and the path of its section.
type host struct {
	path string
	role.Host
}

// sessions adds a fault for each session whose remote AS number differs from that of the node with
// the address: it would never be established (RFC 4271 section 6.2, Bad Peer AS).
func (c *checker) sessions(hosts map[string]host) {
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		for _, s := range hosts[name].Sessions {
			for _, other := range slices.Sorted(maps.Keys(hosts)) {
				h := hosts[other]
				if other != name && h.ASN != s.ASN && s.ASN != 0 && c.has(other, s.Address) {
					c.Add(fault.Join(hosts[name].path, s.Path), "node %q with address %s is in AS %d (%s), not in AS %d",
						other, s.Address, h.ASN, fault.Join(h.path, "asn"), s.ASN)
				}
			}
		}
	}
}

// distinguisher returns the peer's RD, "<router_id>:<id>" unless given; no ID where the check of
// the asbr section finds a fault.
func distinguisher(a *asbr.Config, p asbr.Peer) vpn.ID {
	if p.RD.IsValid() || p.ID > math.MaxUint16 {
		return p.RD
	}
	rd, err := vpn.FromAddress(a.RouterID, uint16(p.ID))
	if err != nil {
		return vpn.ID{}
	}
	return rd
}

// oneNode adds a fault if another node uses id too. otherwise is what would go wrong.
func (c *checker) oneNode(m map[vpn.ID]firstUse, node, path string, id vpn.ID, otherwise string) {
	first, twice := m[id]
	switch {
	case !id.IsValid():
	case !twice:
		m[id] = firstUse{node, path}
	case first.node != node:
		c.Add(path, "%s is already used in %s: %s", id, first.path, otherwise)
	}
}

func (c *checker) epeAddress(m map[netip.Addr]firstUse, node, path string, p edge.Peer) {
	if !p.Address.IsValid() {
		return
	}
	path = fault.Join(path, "address")
	if where, taken := c.addresses[p.Address]; taken {
		c.Add(path, "%s is already given in %s: an EPE address belongs to edge alone", p.Address, where)
		return
	}
	first, twice := m[p.Address]
	switch {
	case !twice:
		m[p.Address] = firstUse{node, path}
	case first.node != node:
		c.Add(path, "%s is already used in %s", p.Address, first.path)
	}
}

func (c *checker) experiment(e *Experiment) {
	const path = "experiment"
	if e.Kind != "" && !slices.Contains(kinds, e.Kind) {
		c.Add(path+".kind", "must be one of %s, got %q", strings.Join(kinds, ", "), e.Kind)
		return // the other rules depend on the kind
	}
	if c.knownNode(path+".server", e.Server) {
		if n := c.spec.Nodes[e.Server]; n != nil && n.Ready != nil && !*n.Ready {
			c.Add(path+".server", "node %q has ready: false, but the experiment has to wait for it", e.Server)
		}
		switch n := c.spec.Nodes[e.Server]; {
		case n == nil:
		case e.Kind == KindWeb && n.Site == nil:
			c.Add(path+".server", "node %q serves no pages: give it site", e.Server)
		case e.Kind != KindWeb && n.Serve == nil:
			c.Add(path+".server", "node %q serves nothing: give it serve", e.Server)
		}
	}
	if c.knownNode(path+".client", e.Client) && e.Client == e.Server {
		c.Add(path+".client", "must be another node than the server, got %q", e.Client)
	}
	if e.Trials < 1 {
		c.Add(path+".trials", "must be at least 1, got %d", e.Trials)
	}
	if e.LabTrials < 0 {
		c.Add(path+".lab_trials", "must not be negative, got %d", e.LabTrials)
	}
	c.delivery(path, e)
	c.quick(path+".quick", e)
	if e.Kind == KindRoutes {
		c.routesExperiment(path, e)
	} else {
		c.routesOnly(path, e)
	}
	if e.Kind == KindWeb {
		c.webExperiment(path, e)
	} else {
		c.webOnly(path, e)
	}
}

// delivery checks the cases, traffic, transports, figures and expectations.
func (c *checker) delivery(path string, e *Experiment) {
	c.cases(path+".cases", e.Cases)
	if len(e.Traffic) == 0 {
		c.Add(path+".traffic", "must name at least one kind of traffic")
	}
	for _, name := range slices.Sorted(maps.Keys(e.Traffic)) {
		c.traffic(at(path+".traffic", name), name, e.Traffic[name])
	}
	if len(e.Transports) == 0 {
		c.Add(path+".transports", "must name at least one transport")
	}
	for _, name := range slices.Sorted(maps.Keys(e.Transports)) {
		c.transport(at(path+".transports", name), name, e.Transports[name])
	}
	c.transportSettings(path, e)
	c.eventTimes(path, e)
	c.figures(path, e)
	c.bestOf(path, e)
	if _, ok := e.Transports[e.Baseline]; e.Baseline != "" && !ok {
		c.Add(path+".baseline", "transport %q is not in transports", e.Baseline)
	}
	unique := fault.Seen{}
	for i, x := range e.Expect {
		path := index(path+".expect", i)
		if x.Name == "" {
			c.Add(path+".name", "must say what is expected")
		}
		unique.Check(&c.List, path, "name", x.Name)
		c.expectation(path, e, x)
	}
}

func (c *checker) cases(path string, cases []Case) {
	if len(cases) == 0 {
		c.Add(path, "must have at least one case")
	}
	unique := fault.Seen{}
	for i, k := range cases {
		path := index(path, i)
		if !word.MatchString(k.Name) {
			c.Add(path+".name", wantWord, k.Name)
		}
		unique.Check(&c.List, path, "name", k.Name)
		c.published(path, k)
		for _, link := range slices.Sorted(maps.Keys(k.Links)) {
			where := at(path+".links", link)
			if _, ok := c.spec.Links[link]; !ok {
				c.Add(where, "link %q is not in links", link)
			}
			c.shape(where, k.Links[link])
		}
		if k.Duration < 0 {
			c.Add(path+".duration", "must not be negative, got %s", k.Duration)
		}
		if k.Trials < 0 {
			c.Add(path+".trials", "must not be negative, got %d", k.Trials)
		}
		c.rates(path+".rates", k)
		c.caseRatio(path+".ratio", k.Ratio)
		c.connections(path, k)
		c.parameters(path, k)
		c.events(path, k)
	}
}

// rates checks the rates of a case.
func (c *checker) rates(path string, k Case) {
	for _, name := range slices.Sorted(maps.Keys(k.Rates)) {
		switch t := c.spec.Experiment.Traffic[name]; {
		case t == nil:
			c.Add(at(path, name), "traffic %q is not in traffic", name)
		case t.Rate == 0:
			c.Add(at(path, name), "traffic %q has no rate that it could replace", name)
		case k.Rates[name] <= 0:
			c.Add(at(path, name), "must be > 0, got %s", k.Rates[name])
		}
	}
}

func (c *checker) traffic(path, name string, t *Traffic) {
	if !word.MatchString(name) {
		c.Add(path, "name "+wantWord, name)
	}
	if t == nil {
		c.Add(path, "is empty: must have bytes, or rate and duration")
		return
	}
	if c.spec.Experiment.Kind == KindWeb {
		return // webExperiment checks it
	}
	if t.Bytes < 0 {
		c.Add(path+".bytes", "must not be negative, got %s", t.Bytes)
	}
	if t.Rate < 0 {
		c.Add(path+".rate", "must not be negative, got %s", t.Rate)
	}
	if t.Duration < 0 {
		c.Add(path+".duration", "must not be negative, got %s", t.Duration)
	}
	switch {
	case t.Bytes == 0 && t.Rate == 0 && t.Duration == 0:
		c.Add(path, "must have bytes, or rate and duration")
	case t.Bytes != 0 && t.Rate != 0:
		c.Add(path, "must have either bytes or rate, got both")
	case t.Bytes == 0 && t.Rate == 0:
		c.Add(path+".rate", "must be given with duration, or bytes")
	case t.Rate != 0 && t.Duration == 0:
		c.Add(path+".duration", "must be given with rate")
	}
	c.datagrams(path, t)
	c.objects(path, t)
	if t.Quick <= 0 {
		c.Add(path+".quick", "must be > 0, got %s", t.Quick)
	}
}

func (c *checker) transport(path, name string, t *Transport) {
	if !word.MatchString(name) {
		c.Add(path, "name "+wantWord, name)
	}
	if t == nil {
		c.Add(path, "is empty: must have links")
		return
	}
	if len(t.Links) == 0 {
		c.Add(path+".links", "must name at least one link that a connection can use: no nodes with forwarding lead from server to client, so that none is chosen")
	}
	for i, link := range t.Links {
		where := index(path+".links", i)
		if _, ok := c.spec.Links[link]; !ok {
			c.Add(where, "link %q is not in links", link)
		}
		if slices.Index(t.Links, link) < i {
			c.Add(where, "link %q is named twice", link)
		}
	}
	if t.Gateway != nil {
		c.gateway(path+".gateway", t)
	}
	if t.Proxies && (t.MPTCP || t.Gateway != nil || t.Via != "") {
		c.Add(path+".proxies", "is for transports without mptcp, gateway and via")
	}
	if t.HTTP3 && (t.MPTCP || t.Proxies || t.Port != 0) {
		c.Add(path+".http3", "is for transports without mptcp, proxies and port")
	}
	if t.Chromium && !t.HTTP3 {
		c.Add(path+".chromium", "is for transports with http3")
	}
	for name, traffic := range c.spec.Experiment.Traffic {
		if t.HTTP3 && traffic != nil && (traffic.Upload || traffic.Datagram != 0) {
			c.Add(path+".http3", "traffic %q is no download", name)
		}
	}
	c.via(path+".via", t)
	c.delivered(path+".delivery", t)
	c.port(path+".port", t)
}

func (c *checker) expectation(path string, e *Experiment, x Expectation) {
	c.expectedMetric(path+".metric", e, x, x.Metric)
	if x.Case != "" && !slices.ContainsFunc(e.Cases, func(k Case) bool { return x.selectsCase(k.Name) }) {
		c.Add(path+".case", "case %q is not in cases", x.Case)
	}
	if _, ok := e.Traffic[x.Traffic]; x.Traffic != "" && !ok {
		c.Add(path+".traffic", "traffic %q is not in traffic", x.Traffic)
	}
	if _, ok := e.Transports[x.Transport]; x.Transport != "" && !ok {
		c.Add(path+".transport", "transport %q is not in transports", x.Transport)
	}
	if x.Stat != "" && !slices.Contains(statNames, x.Stat) {
		c.Add(path+".stat", "must be one of %s, got %q", strings.Join(statNames, ", "), x.Stat)
	}
	if x.Backend != "" && x.Backend != result.BackendLab && x.Backend != result.BackendSim {
		c.Add(path+".backend", "must be %s or %s, got %q", result.BackendLab, result.BackendSim, x.Backend)
	}
	c.relative(path+".relative", e, x)
	if x.published() {
		c.publishedDifference(path, x)
	}
	for _, b := range []struct {
		name  string
		bound *float64
	}{{"at_least", x.AtLeast}, {"at_most", x.AtMost}} {
		if b.bound != nil && (math.IsNaN(*b.bound) || math.IsInf(*b.bound, 0)) {
			c.Add(path+"."+b.name, "must be a finite number, got %v", *b.bound)
		}
	}
	switch {
	case x.AtLeast == nil && x.AtMost == nil:
		c.Add(path, "must have at_least or at_most")
	case x.AtLeast != nil && x.AtMost != nil && *x.AtLeast > *x.AtMost:
		c.Add(path+".at_most", "must be at least at_least (%v), got %v", *x.AtLeast, *x.AtMost)
	}
}

// publishedDifference checks an expectation with a source.
func (c *checker) publishedDifference(path string, x Expectation) {
	if !x.againstCell() {
		c.Add(path+".relative", "must be %sNAME or %sNAME with source, got %q", relativeTransport, relativeCase, x.Relative)
	}
	if x.Stat != "" {
		c.Add(path+".stat", "must not be given with source")
	}
	if m, _ := result.MetricNamed(x.Metric); m.Model {
		c.Add(path+".metric", "%s is an estimate of a model, which is no sample of a test", x.Metric)
	}
	if (x.AtLeast == nil) == (x.AtMost == nil) {
		c.Add(path, "must have either at_least or at_most with source")
	} else if at, _ := x.bound(); !(at > 0) {
		c.Add(path, "must have a bound > 0 with source, got %v", at)
	}
}

func (c *checker) relative(path string, e *Experiment, x Expectation) {
	if x.Relative == "" {
		return
	}
	if other, ok := strings.CutPrefix(x.Relative, relativeTransport); ok {
		if _, known := e.Transports[other]; !known {
			c.Add(path, "transport %q is not in transports", other)
		} else if other == x.Transport {
			c.Add(path, "must be another transport than the expectation's own, got %q", other)
		}
		return
	}
	if other, ok := strings.CutPrefix(x.Relative, relativeCase); ok {
		if !slices.ContainsFunc(e.Cases, func(k Case) bool { return k.Name == other }) {
			c.Add(path, "case %q is not in cases", other)
		} else if other == x.Case {
			c.Add(path, "must be another case than the expectation's own, got %q", other)
		}
		return
	}
	if _, ok := result.MetricNamed(x.Relative); !ok {
		names := result.Select(func(result.Metric) bool { return true })
		c.Add(path, "must be %sNAME, %sNAME or one of %s, got %q%s", relativeTransport, relativeCase, strings.Join(names, ", "), x.Relative,
			fault.Suggest(x.Relative, names))
		return
	}
	if x.Relative == x.Metric {
		c.Add(path, "must be another metric than the expectation's own, got %q", x.Relative)
		return
	}
	c.expectedMetric(path, e, x, x.Relative)
}

// expectedMetric adds a fault for a metric that a selected cell cannot have, because the
// expectation could not hold.
func (c *checker) expectedMetric(path string, e *Experiment, x Expectation, name string) {
	if !result.CheckMetric(&c.List, path, name) {
		return
	}
	m, _ := result.MetricNamed(name)
	if t := e.Transports[x.Transport]; m.MPTCP && t != nil && !t.MPTCP {
		c.Add(path, "%s is for transports with mptcp, and %q has none", name, x.Transport)
	}
	if m.Competition && slices.ContainsFunc(e.Cases, func(k Case) bool { return x.selectsCase(k.Name) && len(k.Connections) == 0 }) {
		c.Add(path, "%s needs connections in each case that is selected", name)
	}
	if slices.Contains(sharesOfOthers, name) && len(e.BestOf) == 0 {
		c.Add(path, "%s needs best_of", name)
	}
	switch {
	case e.Kind == KindRoutes && m.On(result.OnRouteChange), e.Kind == KindWeb && m.On(result.OnPage):
	case !e.Delivers() || !m.On(result.OnDelivery|result.OnChange):
		c.Add(path, "%s is for experiments of kind %s", name, kindOf(m))
	case !m.On(result.OnDelivery) && len(c.spec.Scheduled()) == 0:
		for _, k := range e.Cases {
			if x.selectsCase(k.Name) && len(k.Events) == 0 {
				c.Add(path, "%s needs events, and case %q has none", name, k.Name)
				break
			}
		}
	}
}

// kindOf returns the kind of experiments that measure a metric.
func kindOf(m result.Metric) string {
	switch {
	case m.On(result.OnDelivery | result.OnChange):
		return KindDelivery
	case m.On(result.OnPage):
		return KindWeb
	}
	return KindRoutes
}

func (c *checker) published(path string, k Case) {
	e := c.spec.Experiment
	for i, p := range k.Published {
		where := index(path+".published", i)
		result.CheckMetric(&c.List, where+".metric", p.Metric)
		if _, ok := e.Traffic[p.Traffic]; p.Traffic != "" && !ok {
			c.Add(where+".traffic", "traffic %q is not in traffic", p.Traffic)
		}
		if _, ok := e.Transports[p.Transport]; p.Transport != "" && !ok {
			c.Add(where+".transport", "transport %q is not in transports", p.Transport)
		}
		if !(p.Value > 0) || math.IsInf(p.Value, 0) {
			c.Add(where+".value", "must be > 0, got %v", p.Value)
		}
		if p.Source == "" {
			c.Add(where+".source", "must name the publication")
		}
		for j, other := range k.Published[:i] {
			if p.Metric == other.Metric && (p.Traffic == other.Traffic || p.Traffic == "" || other.Traffic == "") && (p.Transport == other.Transport || p.Transport == "" || other.Transport == "") {
				c.Add(where, "is about the same as %s", index("published", j))
			}
		}
	}
}
