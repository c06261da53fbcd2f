package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/experiment/scenario"
	ethernet "github.com/tabane/tabane/internal/lab/wire"
	"github.com/tabane/tabane/internal/role"
)

const (
	// prefix is the prefix of the names of all namespaces of labs.
	prefix = "tabane-"
	// maxNamespace is the maximum length of a name that netns accepts.
	maxNamespace = 64
)

// RoleLink is the role of the process of an emulated link, which belongs to no node. It starts
// before all daemons.
const RoleLink = "link"

// RoleExec is the role of a node's Exec.
const RoleExec = scenario.RoleExec

// startOrder returns the roles of all daemons, including FRR's, in start order.
func startOrder() []string {
	order := []string{RoleZebra}
	for _, d := range role.All() {
		order = append(order, d.Name)
	}
	return append(order, RoleBGPD, RoleBFDD, RoleExec)
}

// A lab's name is part of namespace and file names.
var labName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,46}[a-z0-9])?$`)

// CheckName returns an error unless name is a valid lab name: 1 to 48 lower-case letters, digits,
// dots, underscores and hyphens, with a letter or digit at both ends.
func CheckName(name string) error {
	if !labName.MatchString(name) {
		return fmt.Errorf("lab name must be 1 to 48 lower-case letters, digits, dots, underscores and hyphens with a letter or digit at both ends, got %q", name)
	}
	return nil
}

// plan is a Spec as namespaces, interfaces, routes and sysctls. It is computed before the kernel is
// changed.
type plan struct {
	nodes []*node
	links []*link
	hosts string
	// congestion lists the congestion controls that the nodes' sysctls name.
	congestion []string
}

// awaits reports whether the lab is ready only when the daemon is. The process of an emulated link
// belongs to no node and is always awaited.
func (p *plan) awaits(d daemon) bool {
	i := slices.IndexFunc(p.nodes, func(n *node) bool { return n.name == d.node })
	return d.role == RoleLink || i < 0 || p.nodes[i].spec.Ready == nil || *p.nodes[i].spec.Ready
}

type node struct {
	name, netns string
	// early sysctls are set before any interface exists; late sysctls belong to an interface.
	early, late []sysctl
	routes      []scenario.StaticRoute
	// substitutes are routes in place of a stopped gateway.
	substitutes []scenario.StaticRoute
	mptcp       *scenario.MPTCP
	daemons     []daemon
	spec        *scenario.Node
	// sections are the daemons' current configurations, including changes by events.
	sections role.Sections
}

type sysctl struct{ key, value string }

// daemon is a process of a node: one of tabane's daemons, one of FRR's, or the node's Exec.
type daemon struct {
	node, netns, role string
	// program is FRR's daemon, or the shell that runs command; empty for tabane's own daemons.
	program, command string
	// status is the address of the daemon's status; serve has none.
	status netip.AddrPort
}

func (d daemon) String() string { return d.node + " (" + d.role + ")" }

// link is a single wire, a switch with a wire to each end, or an emulator between two wires.
type link struct {
	name string
	// netns is the namespace of the switch or the emulator; empty for a wire.
	netns string
	wires []wire
	shape scenario.Shape
	mtu   int
	// frames are what the nodes' interfaces send; nil: what the kernel makes.
	frames   *ethernet.Options
	offloads bool
	// relay is the emulator's process, or nil.
	relay *daemon
	seed  uint64
	// detours maps the ends of a wire to their detours, if an emulator was put into the wire
	// later.
	detours map[spot]spot
}

// wire is a veth pair. In a switch's wires b is the port of the switch.
type wire struct{ a, b port }

type port struct {
	netns, iface string
	addresses    []netip.Prefix
}

// spot is an interface in a namespace.
type spot struct{ netns, iface string }

func (p port) spot() spot { return spot{p.netns, p.iface} }

// port returns the link of a node's interface, the interface itself and the other end of the link.
func (p *plan) port(at scenario.Port) (l *link, near, far port, err error) {
	n, err := p.node(at.Node)
	if err != nil {
		return nil, port{}, port{}, err
	}
	want := spot{n.netns, at.Interface}
	for _, l := range p.links {
		for i, w := range l.wires {
			switch want {
			case w.a.spot():
				if l.relay != nil && l.detours == nil {
					return l, w.a, l.wires[1-i].a, nil
				}
				return l, w.a, w.b, nil
			case w.b.spot():
				return l, w.b, w.a, nil
			}
		}
	}
	return nil, port{}, port{}, fmt.Errorf("node %q has no interface %q", at.Node, at.Interface)
}

// daemon returns the node's daemon with that role.
func (p *plan) daemon(at scenario.Daemon) (daemon, error) {
	n, err := p.node(at.Node)
	if err != nil {
		return daemon{}, err
	}
	i := slices.IndexFunc(n.daemons, func(d daemon) bool { return d.role == at.Role })
	if i < 0 {
		return daemon{}, fmt.Errorf("node %q runs no daemon %q", at.Node, at.Role)
	}
	return n.daemons[i], nil
}

// bridge is the name of a switch's bridge device in its namespace.
const bridge = "switch"

// newPlan computes the plan of a lab. The Spec has passed its check, so only faults that depend on
// the lab's name remain: a name that is too long, or a node whose namespace has the name of a
// switch's.
func newPlan(name string, spec *scenario.Spec) (*plan, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := spec.Check().Err(); err != nil {
		return nil, fmt.Errorf("check scenario %q: %w", spec.Name, err)
	}
	p := &plan{}
	base := baseSysctls()
	cc := map[string]bool{}
	for _, n := range slices.Sorted(maps.Keys(spec.Nodes)) {
		p.nodes = append(p.nodes, newNode(name, n, spec, base, cc))
	}
	p.congestion = slices.Sorted(maps.Keys(cc))
	for _, l := range spec.LinkNames() {
		p.links = append(p.links, newLink(name, l, spec.Links[l], spec.Emulated(l)))
	}
	p.hosts = hostsFile(spec)

	seen := map[string]bool{}
	var errs []error
	for _, ns := range p.namespaces() {
		if len(ns) > maxNamespace {
			errs = append(errs, fmt.Errorf("namespace name %q has %d bytes, more than %d: choose a shorter lab, node or link name", ns, len(ns), maxNamespace))
		}
		if seen[ns] {
			errs = append(errs, fmt.Errorf("two parts of the scenario need the namespace %q: rename a node", ns))
		}
		seen[ns] = true
	}
	return p, errors.Join(errs...)
}

// labImport is the import policy of border routers that configure none: labs use documentation
// prefixes and /64 networks, which border routers reject by default.
var labImport = asbr.Import{MaxLength: 64, AllowBogons: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("10.0.0.0/8")}}

func newNode(lab, name string, spec *scenario.Spec, base []sysctl, cc map[string]bool) *node {
	s := spec.Nodes[name]
	n := &node{name: name, netns: namespaceOf(lab, name), routes: s.Routes, mptcp: s.MPTCP, spec: s, sections: spec.SectionsIn(scenario.Case{}, name)}
	if s.ASBR != nil {
		a := *s.ASBR
		if reflect.DeepEqual(a.Import, asbr.Import{}) {
			a.Import = labImport
		}
		n.sections.ASBR = &a
	}
	if g := n.sections.Gateway; g != nil {
		g.Key = keyFile(dirOf(lab), name)
	}
	for _, d := range n.sections.Present() {
		d.SetControl(&n.sections, socketFile(dirOf(lab), name, d.Name))
	}
	n.early = slices.Clone(base)
	if s.Forwarding {
		n.early = append(n.early, sysctl{"net.ipv4.ip_forward", "1"}, sysctl{"net.ipv6.conf.all.forwarding", "1"})
	}
	if slices.ContainsFunc(s.Routes, func(r scenario.StaticRoute) bool { return r.Cwnd > 0 }) {
		n.early = append(n.early, sysctl{noMetrics, "0"})
	}
	named := false
	for _, m := range []map[string]string{spec.Sysctls, s.Sysctls} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if perInterface(key) {
				n.late = append(n.late, sysctl{key, m[key]})
			} else {
				n.early = append(n.early, sysctl{key, m[key]})
			}
			if strings.ReplaceAll(key, "/", ".") == congestionSysctl {
				cc[m[key]], named = true, true
			}
		}
	}
	if !named {
		n.early = append(n.early, sysctl{congestionSysctl, defaultCongestion})
		cc[defaultCongestion] = true
	}
	for _, d := range s.Sections.Present() {
		n.daemons = append(n.daemons, daemon{node: name, netns: n.netns, role: d.Name, status: d.Status(&s.Sections)})
	}
	if s.Exec != "" {
		n.daemons = append(n.daemons, daemon{node: name, netns: n.netns, role: RoleExec, program: "sh", command: "exec " + s.Exec})
	}
	return n
}

func newLink(lab, name string, s *scenario.Link, emulated bool) *link {
	l := &link{name: name, shape: s.Shape, mtu: s.MTU, seed: s.Seed, offloads: s.HasOffloads() && !emulated}
	if l.mtu == 0 {
		l.mtu = scenario.DefaultMTU
	}
	if s.Wire != scenario.WireVeth {
		l.frames = &ethernet.Options{MTU: l.mtu, Trailer: s.Trailer, Tagged: s.Tagged}
	}
	ports := make([]port, len(s.Ends))
	for i, e := range s.Ends {
		ports[i] = port{netns: namespaceOf(lab, e.Node), iface: e.Interface, addresses: e.Addresses}
	}
	if emulated {
		l.netns = namespaceOf(lab, "link-"+name)
		l.relay = &daemon{node: name, netns: l.netns, role: RoleLink, status: relayStatus}
		for i, p := range ports {
			l.wires = append(l.wires, wire{p, port{netns: l.netns, iface: relayEnds[i]}})
		}
		return l
	}
	if len(ports) == 2 {
		l.wires = []wire{{ports[0], ports[1]}}
		return l
	}
	l.netns = namespaceOf(lab, "sw-"+name)
	for i, p := range ports {
		l.wires = append(l.wires, wire{p, port{netns: l.netns, iface: "port" + strconv.Itoa(i)}})
	}
	return l
}

func namespaceOf(lab, part string) string { return prefix + lab + "-" + part }

// namespaces returns the names of all namespaces, nodes first.
func (p *plan) namespaces() []string {
	var names []string
	for _, n := range p.nodes {
		names = append(names, n.netns)
	}
	for _, l := range p.links {
		if l.netns != "" {
			names = append(names, l.netns)
		}
	}
	return names
}

func (p *plan) node(name string) (*node, error) {
	i := slices.IndexFunc(p.nodes, func(n *node) bool { return n.name == name })
	if i < 0 {
		names := make([]string, len(p.nodes))
		for i, n := range p.nodes {
			names[i] = n.name
		}
		return nil, fmt.Errorf("no node %q; there are %s", name, strings.Join(names, ", "))
	}
	return p.nodes[i], nil
}

func (p *plan) link(name string) (*link, error) {
	i := slices.IndexFunc(p.links, func(l *link) bool { return l.name == name })
	if i < 0 {
		names := make([]string, len(p.links))
		for i, l := range p.links {
			names[i] = l.name
		}
		return nil, fmt.Errorf("no link %q; there are %s", name, strings.Join(names, ", "))
	}
	return p.links[i], nil
}

func (p *plan) daemons() []daemon {
	var all []daemon
	for _, l := range p.links {
		if l.relay != nil {
			all = append(all, *l.relay)
		}
	}
	for _, role := range startOrder() {
		for _, n := range p.nodes {
			for _, d := range n.daemons {
				if d.role == role {
					all = append(all, d)
				}
			}
		}
	}
	return all
}

// noMetrics disables saved TCP metrics: the kernel neither saves metrics of closed connections nor
// applies saved ones, including the bound of the congestion window.
const noMetrics = "net.ipv4.tcp_no_metrics_save"

// congestionSysctl is the congestion control of a node, defaultCongestion what it is where the
// scenario names none: Linux' default. That of the host would be inherited, and results of two
// hosts could not be compared.
const (
	congestionSysctl  = "net.ipv4.tcp_congestion_control"
	defaultCongestion = "cubic"
)

// baseSysctls returns the initial sysctls of every node; the scenario's sysctls override them.
func baseSysctls() []sysctl {
	both := func(key, value string) []sysctl {
		return []sysctl{{"net.ipv6.conf.all." + key, value}, {"net.ipv6.conf.default." + key, value}}
	}
	return slices.Concat(
		both("accept_dad", "0"),        // no duplicate address detection: an address is usable at once
		both("accept_ra", "0"),         // routes come only from the scenario
		both("keep_addr_on_down", "1"), // a link that goes down and up keeps its addresses
		[]sysctl{
			// The host's setting is inherited, and routing over several paths is
			// asymmetric.
			{"net.ipv4.conf.all.rp_filter", "0"},
			{"net.ipv4.conf.default.rp_filter", "0"},
			// Runs must be independent: no connection may start with metrics of an
			// earlier one.
			{noMetrics, "1"},
		},
	)
}

// perInterface reports whether a sysctl belongs to an interface, so that it can be set only once
// that exists.
func perInterface(key string) bool {
	sep := "."
	if i := strings.IndexAny(key, "./"); i >= 0 {
		sep = key[i : i+1]
	}
	parts := strings.Split(key, sep)
	return len(parts) >= 5 && parts[0] == "net" && (parts[2] == "conf" || parts[2] == "neigh") &&
		parts[3] != "all" && parts[3] != "default" && parts[3] != "lo"
}

// hostsFile returns the /etc/hosts of the nodes, with the name of every node.
func hostsFile(spec *scenario.Spec) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	for _, n := range slices.Sorted(maps.Keys(spec.Nodes)) {
		if a := spec.AddressOf(n); a.IsValid() {
			fmt.Fprintf(&b, "%s %s\n", a, n)
		}
	}
	return b.String()
}

// arguments returns the command line of a daemon whose files are in dir.
func (d daemon) arguments(dir string) []string {
	switch d.role {
	case RoleZebra, RoleBGPD, RoleBFDD:
		return d.frrArguments(dir)
	case RoleLink:
		return []string{RelayVerb, relayFile(dir, d.node)}
	case RoleExec:
		return []string{"-c", d.command}
	}
	return []string{d.role, "-c", configFile(dir, d.node)}
}

// workingDirectory returns the working directory of a daemon, empty for the caller's.
func (d daemon) workingDirectory(dir string) string {
	if d.role == RoleExec {
		return filesDir(dir, d.node)
	}
	return ""
}

// filesDir is the directory of the files for a node's Exec.
func filesDir(dir, node string) string { return filepath.Join(dir, node+".files") }

func configFile(dir, node string) string { return filepath.Join(dir, node+".yaml") }

func logFile(dir string, d daemon) string { return filepath.Join(dir, d.node+"."+d.role+".log") }
