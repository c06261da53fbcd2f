package edge

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/spray"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Delivery is how packets from the default addresses reach each client network.
type Delivery struct {
	// Default is the mode of the networks that no entry of networks is for. Default: best.
	// Example: {spread: {transit-a: 80, transit-b: 20}}
	Default Mode `yaml:"default,omitempty"`
	// Networks are the modes of client networks. The longest prefix that has a network applies to
	// it, else the AS that originates its route, else the default.
	Networks []Network `yaml:"networks,omitempty"`
	// Explore is the share of the bytes of a network's long connections that mode auto may send in
	// other modes than the best one to compare them, from 0% for never to 50%. Default: 10%.
	// Example: 5%
	Explore string `yaml:"explore,omitempty"`
	// DryRun changes no route: tabane status networks shows what would be done. Example: true
	DryRun bool `yaml:"dry_run,omitempty"`
	// Store is where what mode auto measured is kept: file is a file of this server, edge.networks
	// beside the control socket; the URL of a Valkey or Redis server shares it with the servers of
	// a site as well. Default: file. Example: "valkey://store.example:6379"
	Store Store `yaml:"store,omitempty"`
}

// Network is a client network with its mode.
type Network struct {
	// Prefix has the addresses of the clients. Default: none; required unless asn is given.
	// Example: 2001:db8:100::/40
	Prefix netip.Prefix `yaml:"prefix,omitempty"`
	// ASN is the AS that originates the routes to the clients. Example: 64500
	ASN uint32 `yaml:"asn,omitempty"`
	// Mode is how packets reach the clients. Example: {single: transit-b}
	Mode Mode `yaml:"mode"`
}

// Mode is how packets reach a client network. The short forms are best, for BGP's best path, which
// is also where packets go that no egress peer of the mode has a route for; multipath, which is the
// same with the subflows of MPTCP clients over EPE addresses; and auto, for what measured best.
type Mode struct {
	// Single is the name of the egress peer that all packets leave through. Example: transit-b
	Single string `yaml:"single,omitempty"`
	// Spread are the egress peers that flows are spread over, each with its share of the flows
	// relative to the others'. Example: {transit-a: 80, transit-b: 20}
	Spread map[string]uint32 `yaml:"spread,omitempty"`
	// Spray are the egress peers that the packets of each connection are sent through, at most 4.
	// The first one carries a connection as single does, the others what arrives no later through
	// them, as long as they lose, delay and reorder nothing. Example: [transit-a, transit-b]
	Spray []string `yaml:"spray,omitempty"`

	// best: the mode was given as such, and not left out.
	best bool
	// named is multipath or auto if that was given.
	named string
}

// The names of the modes: the short forms first.
const (
	modeBest      = "best"
	modeMultipath = "multipath"
	modeAuto      = "auto"
	modeSingle    = "single"
	modeSpread    = "spread"
	modeSpray     = "spray"
)

// singlePrefix and the name of an egress peer are the mode single of that peer, for belief.
const singlePrefix = modeSingle + " "

// singlePeer returns the egress peer of a mode that is single.
func singlePeer(m belief.Mode) (name string, ok bool) {
	return strings.CutPrefix(string(m), singlePrefix)
}

// modeForms are all forms of a mode.
const modeForms = modeBest + ", " + modeMultipath + ", " + modeAuto + ", {single: PEER}, {spread: {PEER: WEIGHT}} or {spray: [PEER, PEER]}"

// ParseShort implements field.Short.
func (m *Mode) ParseShort(text string) error {
	switch text {
	case modeBest:
		*m = Mode{best: true}
	case modeMultipath, modeAuto:
		*m = Mode{named: text}
	default:
		return fmt.Errorf("want %s, got %q", modeForms, text)
	}
	return nil
}

// Short implements field.Short.
func (m *Mode) Short() (string, bool) {
	if m.named != "" {
		return m.named, true
	}
	return modeBest, m.best || m.Single == "" && len(m.Spread) == 0 && len(m.Spray) == 0
}

// IsZero reports whether no mode was given.
func (m Mode) IsZero() bool { return reflect.DeepEqual(m, Mode{}) }

// Delivers reports whether networks with the mode have a delivery of their own: best and multipath
// are BGP's best path.
func (m Mode) Delivers() bool {
	return m.named == modeAuto || m.Single != "" || len(m.Spread) > 0 || len(m.Spray) > 0
}

// Learns reports whether the mode follows from what is measured.
func (m Mode) Learns() bool { return m.named == modeAuto }

// name is the name of the mode alone.
func (m *Mode) name() string {
	name, _, _ := strings.Cut(m.String(), " ")
	return name
}

// String is the mode as in a configuration file.
func (m *Mode) String() string {
	switch {
	case m.named != "":
		return m.named
	case m.Single != "":
		return singlePrefix + m.Single
	case len(m.Spread) > 0:
		text := modeSpread
		for i, name := range slices.Sorted(maps.Keys(m.Spread)) {
			if i > 0 {
				text += ","
			}
			text += fmt.Sprintf(" %s %d", name, m.Spread[name])
		}
		return text
	case len(m.Spray) > 0:
		return modeSpray + " " + strings.Join(m.Spray, ", ")
	}
	return modeBest
}

// maxNetworks bounds the list, which is checked as a whole.
const maxNetworks = 100_000

// checkDelivery adds the faults of the delivery.
func (c *Config) checkDelivery(faults *fault.List) {
	d := &c.Delivery
	if reflect.DeepEqual(*d, Delivery{}) {
		return
	}
	if c.Routes == KernelRoutes {
		faults.Add("delivery", "needs the SIDs of egress peers, which another program has with routes: %s", KernelRoutes)
	}
	if len(d.Networks) > maxNetworks {
		faults.Add("delivery.networks", "must be at most %d, got %d", maxNetworks, len(d.Networks))
		return
	}
	peers := map[string]*Peer{}
	for i := range c.Peers {
		peers[c.Peers[i].Name] = &c.Peers[i]
	}
	if _, err := parseShare(d.Explore); err != nil {
		faults.Add("delivery.explore", "%v", err)
	}
	d.Store.check(faults, "delivery.store")
	c.checkMode(faults, "delivery.default", &d.Default, peers, nil)
	prefixes, asns := map[netip.Prefix]int{}, map[uint32]int{}
	for i := range d.Networks {
		n := &d.Networks[i]
		at := fmt.Sprintf("delivery.networks[%d]", i)
		var version *bgp.IP
		switch given := n.Prefix != (netip.Prefix{}); {
		case given == (n.ASN != 0):
			faults.Add(at, "must have either a prefix or an asn")
		case !given:
			if j, there := asns[n.ASN]; there {
				faults.Add(at+".asn", "%d is already that of networks[%d]", n.ASN, j)
			}
			asns[n.ASN] = i
		case c.checkNetwork(faults, at+".prefix", n.Prefix):
			if j, there := prefixes[n.Prefix]; there {
				faults.Add(at+".prefix", "%v is already that of networks[%d]", n.Prefix, j)
			}
			prefixes[n.Prefix] = i
			v := bgp.IPOf(n.Prefix.Addr())
			version = &v
		}
		if n.Mode.IsZero() {
			faults.Add(at+".mode", "must be %s", modeForms)
			continue
		}
		c.checkMode(faults, at+".mode", &n.Mode, peers, version)
	}
}

// checkNetwork adds the faults of the prefix of a network.
func (c *Config) checkNetwork(faults *fault.List, at string, prefix netip.Prefix) bool {
	if !bgp.CheckPrefix(faults, at, prefix) {
		return false
	}
	for _, own := range c.onLink() {
		if own.Bits() <= prefix.Bits() && own.Contains(prefix.Addr()) {
			faults.Add(at, "%v is inside our own %v, which is on the link", prefix, own)
			return false
		}
	}
	for i, l := range c.Locators {
		if l.IsValid() && l.Bits() <= prefix.Bits() && l.Contains(prefix.Addr()) {
			faults.Add(at, "%v is inside locators[%d] %v: packets to SIDs have no clients", prefix, i, l)
			return false
		}
	}
	return true
}

// checkMode adds the faults of a mode of networks of an IP version; nil is both.
func (c *Config) checkMode(faults *fault.List, at string, m *Mode, peers map[string]*Peer, version *bgp.IP) {
	check := func(at, name string) {
		p := peers[name]
		switch {
		case p == nil:
			faults.Add(at, "must be the name of an egress peer, got %q%s", name, fault.Suggest(name, slices.Sorted(maps.Keys(peers))))
		case version != nil && bgp.IPOf(p.Address) != *version && !slices.ContainsFunc(c.Peers, func(other Peer) bool { return other.target() == target{p.RT, *version} }):
			faults.Add(at, "%q is an egress peer of %s, and none for %s has its route target", name, bgp.IPOf(p.Address), *version)
		}
	}
	switch {
	case m.Single != "" && len(m.Spread) > 0 || len(m.Spray) > 0 && (m.Single != "" || len(m.Spread) > 0):
		faults.Add(at, "must have one of single, spread and spray")
		return
	case m.Spray != nil && !m.best:
		for i, name := range m.Spray {
			at := fmt.Sprintf("%s.spray[%d]", at, i)
			check(at, name)
			if slices.Contains(m.Spray[:i], name) {
				faults.Add(at, "%q is given twice", name)
			}
		}
		if len(m.Spray) == 0 || len(m.Spray) > spray.MaxPaths {
			faults.Add(at+".spray", "must have 1 to %d egress peers, got %d", spray.MaxPaths, len(m.Spray))
		}
	case m.Single != "":
		check(at+".single", m.Single)
	case m.Spread != nil && !m.best:
		var sum uint64
		for _, name := range slices.Sorted(maps.Keys(m.Spread)) {
			check(fault.Join(at+".spread", name), name)
			sum += uint64(m.Spread[name])
		}
		if sum == 0 {
			faults.Add(at+".spread", "must have a weight that is not 0")
		}
		if len(m.Spread) > route.MaxMembers {
			faults.Add(at+".spread", "must have at most %d egress peers, got %d", route.MaxMembers, len(m.Spread))
		}
	}
}

// CheckMode returns the faults of a mode as the default of the delivery, with paths from there.
func (c *Config) CheckMode(m Mode) (faults fault.List) {
	peers := map[string]*Peer{}
	for i := range c.Peers {
		peers[c.Peers[i].Name] = &c.Peers[i]
	}
	if c.Routes == KernelRoutes {
		faults.Add("", "needs the SIDs of egress peers, which another program has with routes: %s", KernelRoutes)
	}
	c.checkMode(&faults, "", &m, peers, nil)
	return faults
}

// defaultExplore and mostExplore are shares of bytes.
const (
	defaultExplore = "10%"
	mostExplore    = 0.5
)

// parseShare returns a share given in percent, the default for none.
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(cmp.Or(text, defaultExplore), "%")
	share, err := strconv.ParseFloat(number, 64)
	if share /= 100; err != nil || !percent && share != 0 || !(share >= 0 && share <= mostExplore) {
		return 0, fmt.Errorf("must be a share from 0%% to 50%%, such as %s, got %q", defaultExplore, text)
	}
	return share, nil
}

// has reports whether a function is true for a mode.
func (d *Delivery) has(is func(Mode) bool) bool {
	return is(d.Default) || slices.ContainsFunc(d.Networks, func(n Network) bool { return is(n.Mode) })
}

// learns reports whether a mode is auto.
func (d *Delivery) learns() bool { return d.has(Mode.Learns) }

// observes reports whether connections are observed: to learn, or because a mode names egress
// peers, whose paths may fail.
func (d *Delivery) observes() bool {
	return d.learns() || !d.DryRun && d.has(func(m Mode) bool { return m.Single != "" || len(m.Spread)+len(m.Spray) > 0 })
}

// spreads reports whether a mode spreads flows over egress peers, and not in a dry run.
func (d *Delivery) spreads() bool {
	return !d.DryRun && (d.learns() || d.has(Mode.spreads))
}

// spreads reports whether several peers have a weight.
func (m Mode) spreads() bool {
	peers := 0
	for _, w := range m.Spread {
		if w > 0 {
			peers++
		}
	}
	return peers > 1
}
