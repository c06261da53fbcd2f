package lab

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/epe/reflector"
	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

// Implementations of a lab's routers and reflectors.
const (
	RoutersEmbedded = scenario.RoutersEmbedded
	RoutersFRR      = scenario.RoutersFRR
)

// ErrNoFRR is wrapped by errors about labs that need FRR when it is not installed.
var ErrNoFRR = errors.New("FRR is not installed (apt-get install frr)")

// The roles of FRR's daemons. bgpd starts after zebra, because it retries a failed connection to
// zebra only after a long time. bfdd, on nodes with BFD, starts last; bgpd then registers its
// sessions with it.
const (
	RoleZebra = "zebra"
	RoleBGPD  = "bgpd"
	RoleBFDD  = "bfdd"
)

// frrDirs are the directories in which distributions install FRR's daemons.
var frrDirs = []string{"/usr/lib/frr", "/usr/libexec/frr", "/usr/sbin", "/usr/local/sbin"}

// frrCrashDir has a directory of each FRR daemon, which some of them cannot remove when they exit.
const frrCrashDir = "/var/tmp/frr"

// maxSocketPath is the maximum length of a Unix socket's path: sun_path without its terminating
// zero byte.
const maxSocketPath = 107

// frrPrograms finds FRR's daemons; its error wraps ErrNoFRR.
func frrPrograms() (zebra, bgpd string, err error) {
	for _, dir := range frrDirs {
		zebra, bgpd = filepath.Join(dir, RoleZebra), filepath.Join(dir, RoleBGPD)
		if executable(zebra) && executable(bgpd) {
			return zebra, bgpd, nil
		}
	}
	return "", "", fmt.Errorf("find zebra and bgpd in %s: %w", strings.Join(frrDirs, ", "), ErrNoFRR)
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// FRRInstalled returns an error that wraps ErrNoFRR if FRR is not installed.
func FRRInstalled() error {
	_, _, err := frrPrograms()
	return err
}

// useFRR replaces routers and reflectors by FRR. zebra and bgpd may be empty for a lab that is
// already running.
func (p *plan) useFRR(dir, zebra, bgpd string) error {
	for _, n := range p.nodes {
		replaced := slices.DeleteFunc(slices.Clone(n.daemons), func(d daemon) bool { return d.role == role.Router || d.role == role.Reflector })
		switch len(n.daemons) - len(replaced) {
		case 0:
			continue
		case 1:
		default:
			return fmt.Errorf("run FRR on node %q: it has both a router and a reflector, and one bgpd cannot be both", n.name)
		}
		if n.spec.Router != nil && n.spec.Router.Generate != (router.Generate{}) {
			return fmt.Errorf("run FRR on node %q: it cannot generate a table", n.name)
		}
		if path := frrSocket(dir, n.name, "zserv.api"); len(path) > maxSocketPath {
			return fmt.Errorf("run FRR on node %q: its socket %q has %d bytes, more than %d: choose a shorter lab or node name", n.name, path, len(path), maxSocketPath)
		}
		n.daemons = append(replaced,
			daemon{node: n.name, netns: n.netns, role: RoleZebra, program: zebra},
			daemon{node: n.name, netns: n.netns, role: RoleBGPD, program: bgpd})
		if !n.frrBFD() {
			continue
		}
		bfdd := ""
		if bgpd != "" {
			if bfdd = filepath.Join(filepath.Dir(bgpd), RoleBFDD); !executable(bfdd) {
				return fmt.Errorf("run BFD of FRR on node %q: find %s: %w", n.name, bfdd, ErrNoFRR)
			}
		}
		n.daemons = append(n.daemons, daemon{node: n.name, netns: n.netns, role: RoleBFDD, program: bfdd})
	}
	return nil
}

// frrBFD reports whether any neighbor of the node's FRR is configured with BFD.
func (n *node) frrBFD() bool {
	if n.spec.Reflector != nil {
		return slices.ContainsFunc(n.spec.Reflector.Clients, func(c reflector.Client) bool { return c.BFD.Enabled() })
	}
	return slices.ContainsFunc(n.spec.Router.Neighbors, func(n router.Neighbor) bool { return n.BFD.Enabled() })
}

// frrDir is the directory of a node's FRR files.
func frrDir(dir, node string) string { return filepath.Join(dir, node+".frr") }

func frrSocket(dir, node, name string) string { return filepath.Join(frrDir(dir, node), name) }

// frrArguments returns the command line of one of FRR's daemons: in the foreground, with all files
// in the lab's directory.
func (d daemon) frrArguments(dir string) []string {
	at := func(name string) string { return frrSocket(dir, d.node, name) }
	args := []string{
		"--config_file", at(d.role + ".conf"), "--pid_file", at(d.role + ".pid"), "--socket", at("zserv.api"),
		"--vty_socket", frrDir(dir, d.node), "--vty_port", "0", "--log", "stdout", "--log-level", "notifications",
	}
	switch d.role {
	case RoleBGPD:
		return append(args, "--skip_runas")
	case RoleBFDD:
		args = append(args, "--bfdctl", at("bfdctl"))
	}
	// zebra and bfdd have no such option and require their group.
	return append(args, "--user", "root", "--group", "frrvty")
}

// writeFRR writes the FRR configuration of a node that runs FRR.
func (n *node) writeFRR(dir string) error {
	if !slices.ContainsFunc(n.daemons, func(d daemon) bool { return d.role == RoleBGPD }) {
		return nil
	}
	var (
		bgpd string
		err  error
	)
	if n.spec.Reflector != nil {
		bgpd, err = frrReflector(n.name, n.spec.Reflector)
	} else {
		bgpd, err = frrRouter(n.name, n.sections.Router)
	}
	if err != nil {
		return fmt.Errorf("write FRR configuration of node %q: %w", n.name, err)
	}
	if err := os.MkdirAll(frrDir(dir, n.name), 0o700); err != nil {
		return err
	}
	return errors.Join(
		writeFile(frrSocket(dir, n.name, RoleZebra+".conf"), []byte("hostname "+n.name+"\n")),
		writeFile(frrSocket(dir, n.name, RoleBGPD+".conf"), []byte(bgpd)),
		writeFile(frrSocket(dir, n.name, RoleBFDD+".conf"), []byte("hostname "+n.name+"\n")),
	)
}

// frrConnectRetry is the connect retry timer in seconds. With FRR's default of 120, a lab could
// take two minutes to start. All timers that affect how fast a change propagates have FRR's
// defaults, in particular the advertisement interval of 0.
const frrConnectRetry = 2

// frrMinBFD is the shortest BFD interval that bgpd accepts, in milliseconds.
const frrMinBFD = 50

// frrRouter returns bgpd's configuration for a router section.
func frrRouter(node string, c *router.Config) (string, error) {
	var b strings.Builder
	// As with the embedded router, eBGP needs no policy, and networks are advertised without a
	// route in the kernel.
	fmt.Fprintf(&b, "hostname %s\nrouter bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n no bgp network import-check\n",
		node, c.ASN, c.RouterID)
	for _, n := range c.Neighbors {
		if !reflect.DeepEqual(n.Keys, bgp.Keys{}) {
			return "", fmt.Errorf("neighbor %q: only the embedded router has rules, limits and options of sessions", n.Name)
		}
		if err := frrNeighbor(&b, n.Address, n.ASN, n.Name, n.Password, n.BFD); err != nil {
			return "", err
		}
	}
	for _, n := range c.Neighbors {
		if n.Version() == bgp.IPv4 && n.Address.Is6() {
			fmt.Fprintf(&b, " neighbor %s capability extended-nexthop\n", n.Address)
		}
	}
	for _, v := range []bgp.IP{bgp.IPv6, bgp.IPv4} {
		b.WriteString(frrFamily(c, v))
	}
	b.WriteString("exit\n")
	for _, leak := range c.Leaks {
		b.WriteString(strings.Join(frrLeakMap(leak.ASPath), "\n") + "\n")
	}
	for _, n := range c.Neighbors {
		for _, command := range frrPermit(n.Address, n.Version(), n.Deny) {
			b.WriteString(command + "\n")
		}
		if n.LocalPref > 0 {
			fmt.Fprintf(&b, "route-map %s permit 10\n set local-preference %d\nexit\n", frrImport(n.Address), n.LocalPref)
		}
	}
	return b.String(), nil
}

// frrFamily returns the routes and neighbors of an IP version, empty if there are none.
func frrFamily(c *router.Config, v bgp.IP) string {
	var b strings.Builder
	for _, p := range c.Networks {
		if bgp.IPOf(p.Addr()) == v {
			fmt.Fprintf(&b, "  network %s\n", p)
		}
	}
	for _, leak := range c.Leaks {
		if bgp.IPOf(leak.Prefix.Addr()) == v {
			fmt.Fprintf(&b, "  network %s route-map %s\n", leak.Prefix, frrLeak(leak.ASPath))
		}
	}
	for _, n := range c.Neighbors {
		if n.Version() != v {
			continue
		}
		fmt.Fprintf(&b, "  neighbor %s activate\n  neighbor %s prefix-list %s out\n", n.Address, n.Address, frrExport(n.Address))
		if n.LocalPref > 0 {
			fmt.Fprintf(&b, "  neighbor %s route-map %s in\n", n.Address, frrImport(n.Address))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return fmt.Sprintf(" address-family %s unicast\n%s exit-address-family\n", v, b.String())
}

// frrReflector returns bgpd's configuration for a reflector section.
func frrReflector(node string, c *reflector.Config) (string, error) {
	if len(c.Listen) > 0 {
		return "", errors.New("listen: only the embedded reflector accepts clients by prefix")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "hostname %s\nrouter bgp %d\n bgp router-id %s\n no bgp default ipv4-unicast\n", node, c.ASN, c.RouterID)
	for _, n := range c.Clients {
		if err := frrNeighbor(&b, n.Address, c.ASN, n.Name, n.Password, n.BFD); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, " neighbor %s update-source %s\n neighbor %s passive\n", n.Address, c.Address, n.Address)
		if n.Address.Is6() {
			fmt.Fprintf(&b, " neighbor %s capability extended-nexthop\n", n.Address)
		}
	}
	for _, family := range []string{"ipv6 unicast", "ipv6 vpn", "ipv4 unicast", "ipv4 vpn"} {
		fmt.Fprintf(&b, " address-family %s\n", family)
		for _, n := range c.Clients {
			fmt.Fprintf(&b, "  neighbor %s activate\n  neighbor %s route-reflector-client\n", n.Address, n.Address)
		}
		b.WriteString(" exit-address-family\n")
	}
	b.WriteString("exit\n")
	return b.String(), nil
}

func frrNeighbor(b *strings.Builder, address netip.Addr, asn uint32, name, password string, detect bfd.Config) error {
	for _, text := range []string{name, password} {
		if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("neighbor %q: FRR accepts no control characters in names and passwords", name)
		}
	}
	ms := detect.Interval.Milliseconds()
	if detect.Enabled() && (detect.Interval != time.Duration(ms)*time.Millisecond || ms < frrMinBFD) {
		return fmt.Errorf("neighbor %q: BFD with FRR needs an interval of whole milliseconds from %d ms, got %s", name, frrMinBFD, detect.Interval)
	}
	fmt.Fprintf(b, " neighbor %s remote-as %d\n neighbor %s description %s\n neighbor %s timers connect %d\n",
		address, asn, address, name, address, frrConnectRetry)
	if password != "" {
		fmt.Fprintf(b, " neighbor %s password %s\n", address, password)
	}
	if detect.Enabled() {
		fmt.Fprintf(b, " neighbor %s bfd %d %d %d\n", address, cmp.Or(detect.Multiplier, bfd.DefaultMultiplier), ms, ms)
	}
	return nil
}

func frrExport(neighbor netip.Addr) string { return "out-" + neighbor.String() }
func frrImport(neighbor netip.Addr) string { return "in-" + neighbor.String() }

// frrList is the keyword of prefix lists of an IP version.
func frrList(v bgp.IP) string {
	if v == bgp.IPv4 {
		return "ip"
	}
	return "ipv6"
}

// frrPermit returns the commands that create a neighbor's export prefix list.
func frrPermit(neighbor netip.Addr, v bgp.IP, deny []netip.Prefix) []string {
	var commands []string
	for i, p := range deny {
		if bgp.IPOf(p.Addr()) != v {
			continue
		}
		rule := fmt.Sprintf("%s prefix-list %s seq %d deny %s", frrList(v), frrExport(neighbor), i+1, p)
		if p.Bits() < p.Addr().BitLen() {
			rule += fmt.Sprintf(" le %d", p.Addr().BitLen())
		}
		commands = append(commands, rule)
	}
	return append(commands, fmt.Sprintf("%s prefix-list %s seq %d permit any", frrList(v), frrExport(neighbor), uint32(math.MaxUint32)))
}

// frrLeak is the name of the route map that sets the AS path of leaks.
func frrLeak(path []uint32) string { return "leak-" + joined(path, "-") }

// frrLeakMap returns the commands that create the route map of leaks with this AS path.
func frrLeakMap(path []uint32) []string {
	return []string{"route-map " + frrLeak(path) + " permit 10", " set as-path prepend " + joined(path, " "), "exit"}
}

func joined(path []uint32, separator string) string {
	text := make([]string, len(path))
	for i, as := range path {
		text[i] = strconv.FormatUint(uint64(as), 10)
	}
	return strings.Join(text, separator)
}

// frrOriginate returns the commands that make a running FRR originate the prefixes of an event, or
// withdraw them. Withdrawing a prefix that is not originated is no error.
func frrOriginate(asn uint32, e scenario.Advertise, on bool) []string {
	commands := []string{"configure terminal"}
	command, path := "no network %s", ""
	if on {
		command = "network %s"
		if len(e.ASPath) > 0 {
			commands = append(commands, frrLeakMap(e.ASPath)...)
			path = " route-map " + frrLeak(e.ASPath)
		}
	}
	commands = append(commands, fmt.Sprintf("router bgp %d", asn))
	for _, v := range []bgp.IP{bgp.IPv6, bgp.IPv4} {
		var list []string
		for _, p := range e.Prefixes {
			if bgp.IPOf(p.Addr()) == v {
				list = append(list, fmt.Sprintf(command, p)+path)
			}
		}
		if len(list) > 0 {
			commands = append(append(commands, fmt.Sprintf("address-family %s unicast", v)), append(list, "exit-address-family")...)
		}
	}
	return append(commands, "end")
}

// frrChange returns the commands that change what a running FRR advertises to a neighbor. The
// prefix list is never empty in between: an empty list permits all prefixes.
func frrChange(neighbor netip.Addr, v bgp.IP, old, now []netip.Prefix) []string {
	commands := []string{"configure terminal"}
	for i := len(now); i < len(old); i++ {
		commands = append(commands, fmt.Sprintf("no %s prefix-list %s seq %d", frrList(v), frrExport(neighbor), i+1))
	}
	permit := frrPermit(neighbor, v, now)
	commands = append(commands, permit[:len(permit)-1]...)
	return append(commands, "end", fmt.Sprintf("clear bgp %s unicast %s soft out", v, neighbor))
}

// awaitZebra waits until a node's zebra accepts connections.
func awaitZebra(dir, node string) error {
	for end := time.Now().Add(patience); ; time.Sleep(look) {
		c, err := net.Dial("unix", frrSocket(dir, node, "zserv.api"))
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("wait for zebra on node %q: %w", node, err)
		}
	}
}

// askFRR returns nil if a node's FRR is ready, and the reason otherwise.
func askFRR(dir string, n *node) error {
	v, err := dialVTY(frrSocket(dir, n.name, RoleBGPD+".vty"))
	if err != nil {
		return err
	}
	defer v.close()
	for version, neighbors := range n.frrNeighbors() {
		answer, err := v.do(fmt.Sprintf("show bgp %s unicast summary json", version))
		if err != nil {
			return err
		}
		if err := frrReadiness([]byte(answer), neighbors); err != nil {
			return err
		}
	}
	return nil
}

// frrNeighbors returns the neighbors whose sessions must be established before the node's FRR is
// ready, by the IP version of a family that they have.
func (n *node) frrNeighbors() map[bgp.IP][]netip.Addr {
	all := map[bgp.IP][]netip.Addr{}
	if n.spec.Reflector != nil {
		for _, c := range n.spec.Reflector.Clients {
			all[bgp.IPv6] = append(all[bgp.IPv6], c.Address)
		}
		return all
	}
	for _, c := range n.spec.Router.Neighbors {
		all[c.Version()] = append(all[c.Version()], c.Address)
	}
	return all
}

// frrReadiness checks in bgpd's summary that the sessions with the neighbors are established.
func frrReadiness(summary []byte, neighbors []netip.Addr) error {
	var s struct {
		Peers map[netip.Addr]struct {
			State string `json:"state"`
		} `json:"peers"`
	}
	if err := json.Unmarshal(summary, &s); err != nil {
		return fmt.Errorf("summary of bgpd not understood: %w", err)
	}
	for _, a := range neighbors {
		if state := s.Peers[a].State; state != "Established" {
			return fmt.Errorf("session with %s is %q", a, state)
		}
	}
	return nil
}

// removeFRRCrashDir removes the directory that an FRR daemon may have left in frrCrashDir.
func removeFRRCrashDir(p process) error {
	if p.Role != RoleZebra && p.Role != RoleBGPD && p.Role != RoleBFDD {
		return nil
	}
	return os.RemoveAll(filepath.Join(frrCrashDir, fmt.Sprintf("%s.%d", p.Role, p.PID)))
}
