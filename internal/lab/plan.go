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

	"github.com/tabane/tabane/internal/asbr"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/scenario"
)

const (
	// prefix starts the name of every namespace that belongs to a lab.
	prefix = "tabane-"
	// maxNamespace is the longest name that netns accepts.
	maxNamespace = 64
)

// RoleLink is the process of an emulated link, which belongs to no node. It starts before all
// daemons.
const RoleLink = "link"

// RoleExec is a node's Exec.
const RoleExec = scenario.RoleExec

// startOrder lists the roles of all daemons, FRR's included, in the order in which they are
// started.
func startOrder() []string {
	order := []string{RoleZebra}
	for _, d := range role.All() {
		order = append(order, d.Name)
	}
	return append(order, RoleBGPD, RoleBFDD, RoleExec)
}

// A lab's name is part of namespace and file names.
var labName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,46}[a-z0-9])?$`)

// CheckName says whether a lab can have this name: 1 to 48 lower-case letters, digits, dots,
// underscores and hyphens, with a letter or digit at both ends.
func CheckName(name string) error {
	if !labName.MatchString(name) {
		return fmt.Errorf("lab name must be 1 to 48 lower-case letters, digits, dots, underscores and hyphens with a letter or digit at both ends, got %q", name)
	}
	return nil
}

// plan is a Spec in the kernel's terms. It is computed before anything is touched.
type plan struct {
	nodes []*node
	links []*link
	hosts string
	// congestion are the congestion controls that the nodes' sysctls name.
	congestion []string
}

// awaits reports whether a lab is ready only once the daemon is. The node of an emulated link's
// process is no node.
func (p *plan) awaits(d daemon) bool {
	i := slices.IndexFunc(p.nodes, func(n *node) bool { return n.name == d.node })
	return d.role == RoleLink || i < 0 || p.nodes[i].spec.Ready == nil || *p.nodes[i].spec.Ready
}

type node struct {
	name, netns string
	// early sysctls are set before there is any interface, late ones belong to an interface.
	early, late []sysctl
	routes      []scenario.StaticRoute
	mptcp       *scenario.MPTCP
	daemons     []daemon
	spec        *scenario.Node
	// sections are the daemons' configurations in force, which events may have changed.
	sections role.Sections
}

type sysctl struct{ key, value string }

// daemon is one of the product's processes on a node, or one of FRR's.
type daemon struct {
	node, netns, role string
	// program is FRR's, or the shell that runs command; empty for the product's own.
	program, command string
	// status is where the daemon serves its status; serve has none.
	status netip.AddrPort
}

func (d daemon) String() string { return d.node + " (" + d.role + ")" }

// link is one wire, or a switch with a wire to every end, or an emulator between two wires.
type link struct {
	name string
	// netns holds the switch or the emulator; empty for a wire.
	netns string
	wires []wire
	shape scenario.Shape
	mtu   int
	// relay is the emulator's process, or nil.
	relay *daemon
	seed  uint64
	// detours lead from the ends of a wire to an emulator that was put into it later.
	detours map[spot]spot
}

// wire is a veth pair. Of a switch's wires b is the port.
type wire struct{ a, b port }

type port struct {
	netns, iface string
	addresses    []netip.Prefix
}

// spot is an interface in a namespace.
type spot struct{ netns, iface string }

func (p port) spot() spot { return spot{p.netns, p.iface} }

// port finds the node's interface, the link that it is on, and what the link has at its other end.
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

// daemon finds a node's daemon of the role.
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

// bridge is a switch's device in its namespace.
const bridge = "switch"

// newPlan says what a lab of this name consists of. The Spec is checked, so only what depends on
// the lab's name can be wrong: too long a name, or a node that is called as a switch's namespace.
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
	for _, l := range slices.Sorted(maps.Keys(spec.Links)) {
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

// labImport is the import policy of a lab's border routers without one of their own: labs use
// documentation prefixes and networks of /64, which border routers reject by default.
var labImport = asbr.Import{MaxLength: 64, AllowBogons: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}

func newNode(lab, name string, spec *scenario.Spec, base []sysctl, cc map[string]bool) *node {
	s := spec.Nodes[name]
	n := &node{name: name, netns: namespaceOf(lab, name), routes: s.Routes, mptcp: s.MPTCP, spec: s, sections: s.Sections}
	if s.ASBR != nil {
		a := *s.ASBR
		if reflect.DeepEqual(a.Import, asbr.Import{}) {
			a.Import = labImport
		}
		n.sections.ASBR = &a
	}
	for _, d := range n.sections.Present() {
		// The nodes of a lab share the files of the host.
		d.SetControl(&n.sections, filepath.Join(dirOf(lab), name+"."+d.Name+".sock"))
	}
	n.early = slices.Clone(base)
	if s.Forwarding {
		n.early = append(n.early, sysctl{"net.ipv4.ip_forward", "1"}, sysctl{"net.ipv6.conf.all.forwarding", "1"})
	}
	if slices.ContainsFunc(s.Routes, func(r scenario.StaticRoute) bool { return r.Cwnd > 0 }) {
		n.early = append(n.early, sysctl{noMetrics, "0"})
	}
	for _, m := range []map[string]string{spec.Sysctls, s.Sysctls} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if perInterface(key) {
				n.late = append(n.late, sysctl{key, m[key]})
			} else {
				n.early = append(n.early, sysctl{key, m[key]})
			}
			if strings.ReplaceAll(key, "/", ".") == "net.ipv4.tcp_congestion_control" {
				cc[m[key]] = true
			}
		}
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
	l := &link{name: name, shape: s.Shape, mtu: s.MTU, seed: s.Seed}
	if l.mtu == 0 {
		l.mtu = scenario.DefaultMTU
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

// namespaces are the names of all namespaces, nodes first.
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

// noMetrics keeps the kernel from remembering what connections met; and from bounding their window,
// which it does by what it remembers.
const noMetrics = "net.ipv4.tcp_no_metrics_save"

// baseSysctls are what every node starts with; the scenario's own come after and win.
func baseSysctls() []sysctl {
	both := func(key, value string) []sysctl {
		return []sysctl{{"net.ipv6.conf.all." + key, value}, {"net.ipv6.conf.default." + key, value}}
	}
	return slices.Concat(
		both("accept_dad", "0"),        // an address is usable when it is set
		both("accept_ra", "0"),         // routes come from the scenario alone
		both("keep_addr_on_down", "1"), // a link that fails and returns still has its addresses
		[]sysctl{
			// The host's own setting is inherited, and routing over several paths is asymmetric.
			{"net.ipv4.conf.all.rp_filter", "0"},
			{"net.ipv4.conf.default.rp_filter", "0"},
			// A connection must not start from what an earlier one learned: runs are independent.
			{noMetrics, "1"},
		},
	)
}

// perInterface reports whether a sysctl belongs to one interface, so that it cannot be set before
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

// addressOf is what a node's name means: its own choice, or the first address of its interface on
// the first link by name.
func addressOf(spec *scenario.Spec, name string) netip.Addr {
	if a := spec.Nodes[name].Address; a.IsValid() {
		return a
	}
	for _, l := range slices.Sorted(maps.Keys(spec.Links)) {
		for _, e := range spec.Links[l].Ends {
			if e.Node == name && len(e.Addresses) > 0 {
				return e.Addresses[0].Addr()
			}
		}
	}
	return netip.Addr{}
}

// hostsFile is what the nodes have as /etc/hosts: every node under its name.
func hostsFile(spec *scenario.Spec) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	for _, n := range slices.Sorted(maps.Keys(spec.Nodes)) {
		if a := addressOf(spec, n); a.IsValid() {
			fmt.Fprintf(&b, "%s %s\n", a, n)
		}
	}
	return b.String()
}

// arguments are the command line of a daemon whose files are in dir.
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

// workingDirectory is where a daemon starts, empty for the caller's.
func (d daemon) workingDirectory(dir string) string {
	if d.role == RoleExec {
		return filesDir(dir, d.node)
	}
	return ""
}

// filesDir holds the files of a node's Exec.
func filesDir(dir, node string) string { return filepath.Join(dir, node+".files") }

func configFile(dir, node string) string { return filepath.Join(dir, node+".yaml") }

func logFile(dir string, d daemon) string { return filepath.Join(dir, d.node+"."+d.role+".log") }
