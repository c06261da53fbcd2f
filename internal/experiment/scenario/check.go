package scenario

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
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

// named checks a list of names of links.
func (c *checker) named(path string, links []string) {
	for i, link := range links {
		where := index(path, i)
		if _, ok := c.spec.Links[link]; !ok {
			c.Add(where, "link %q is not in links", link)
		}
		if slices.Index(links, link) < i {
			c.Add(where, "link %q is named twice", link)
		}
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
