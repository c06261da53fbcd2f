package acceptance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// newcomer is a site with a host, two lines, one of them behind a carrier's NAT, a VPS, and a
// server in the Internet. Nothing of tabane is on any of them.
type newcomer struct {
	t                       *testing.T
	site, vps, host, server string
	internet, carrier       string
	siteDir, vpsDir         string
	// siteBefore and vpsBefore are the states before the first command.
	siteBefore, vpsBefore string
}

func newNewcomer(t *testing.T) *newcomer {
	tc := programs.Need(t, "tc")
	n := &newcomer{t: t, site: netnstest.New(t), vps: netnstest.New(t), host: netnstest.New(t), server: netnstest.New(t), siteDir: t.TempDir(), vpsDir: t.TempDir()}
	internet, carrier := netnstest.New(t), netnstest.New(t)
	n.internet, n.carrier = internet, carrier
	for _, namespace := range []string{n.site, n.vps} {
		n.ip(namespace, "link set lo up")
	}
	n.ip(n.site, "link add eth1 type veth peer name fiber netns "+internet+"; link add wwan0 type veth peer name radio netns "+carrier+"; link add eth0 type veth peer name eth0 netns "+n.host)
	n.ip(carrier, "link add out type veth peer name lte netns "+internet)
	n.ip(internet, "link add dc type veth peer name eth0 netns "+n.vps+"; link add far type veth peer name eth0 netns "+n.server)
	n.ip(n.host, "link set eth0 up; addr add 192.168.8.2/24 dev eth0; route add default via 192.168.8.1")
	// As DHCP clients do, each line has a default route with a metric.
	n.ip(n.site, "link set eth0 up; link set eth1 up; link set wwan0 up; addr add 192.168.8.1/24 dev eth0; addr add 192.0.2.10/24 dev eth1; addr add 100.64.0.2/24 dev wwan0; "+
		"route add default via 192.0.2.1 dev eth1 metric 100; route add default via 100.64.0.1 dev wwan0 metric 200")
	n.ip(carrier, "link set radio up; link set out up; addr add 100.64.0.1/24 dev radio; addr add 198.18.0.2/24 dev out; route add default via 198.18.0.1")
	n.ip(internet, "link set fiber up; link set lte up; link set dc up; link set far up; addr add 192.0.2.1/24 dev fiber; addr add 198.18.0.1/24 dev lte; addr add 203.0.113.254/24 dev dc; addr add 198.51.100.254/24 dev far")
	n.ip(n.vps, "link set eth0 up; addr add 203.0.113.1/24 dev eth0; route add default via 203.0.113.254")
	n.ip(n.server, "link set eth0 up; addr add 198.51.100.1/24 dev eth0; route add default via 198.51.100.254")
	forward := func() error { return netns.Sysctl("net.ipv4.ip_forward", "1") }
	netnstest.Do(t, internet, forward)
	netnstest.Do(t, carrier, func() error { return errors.Join(forward(), nft.Masquerade("out")) })
	for _, at := range []struct{ namespace, link string }{{internet, "fiber"}, {n.site, "eth1"}, {carrier, "radio"}, {n.site, "wwan0"}} {
		n.run(at.namespace, tc, "qdisc", "add", "dev", at.link, "root", "tbf", "rate", "20mbit", "burst", "32kb", "latency", "50ms")
	}
	// The VPS has a firewall as its operator would have written it.
	n.run(n.vps, programs.Need(t, "nft"), `table inet filter {
		chain input { type filter hook input priority filter; policy drop; ct state vmap { established : accept, related : accept, invalid : drop }; iifname "lo" accept; tcp dport 22 accept; meta l4proto { icmp, ipv6-icmp } accept; }
		chain forward { type filter hook forward priority filter; policy drop; }
	}`)
	// The fiber, the VPS and the server have IPv6; the site's hosts have none.
	n.ip6(internet, "addr add 2001:db8:1::ff/64 dev fiber; addr add 2001:db8:3::ff/64 dev dc; addr add 2001:db8:5::ff/64 dev far")
	n.ip6(n.site, "addr add 2001:db8:1::10/64 dev eth1; route add default via 2001:db8:1::ff")
	n.ip6(n.vps, "addr add 2001:db8:3::1/64 dev eth0; route add default via 2001:db8:3::ff")
	n.ip6(n.server, "addr add 2001:db8:5::1/64 dev eth0; route add default via 2001:db8:5::ff")
	netnstest.Do(t, internet, func() error { return netns.Sysctl("net.ipv6.conf.all.forwarding", "1") })
	n.siteBefore, n.vpsBefore = n.state(n.site), n.state(n.vps)
	return n
}

func (n *newcomer) ip(namespace, commands string) {
	n.t.Helper()
	if _, err := netnstest.TryIP(n.t, namespace, "-4 "+strings.ReplaceAll(commands, "; ", "; -4 ")); err != nil {
		n.t.Fatalf("%s: %v", commands, err)
	}
}

// ip6 is ip of IPv6; addresses are usable at once.
func (n *newcomer) ip6(namespace, commands string) {
	n.t.Helper()
	for command := range strings.SplitSeq(commands, "; ") {
		if strings.HasPrefix(command, "addr add") {
			command += " nodad"
		}
		if _, err := netnstest.TryIP(n.t, namespace, "-6 "+command); err != nil {
			n.t.Fatalf("%s: %v", command, err)
		}
	}
}

// start starts a command in a namespace. What it prints is in the buffer.
func (n *newcomer) start(namespace string, arguments ...string) (*exec.Cmd, *printed) {
	n.t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `exec "$@"`, "sh"}, arguments...)...)
	out := &printed{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, time.Second
	if err := netns.Start(namespace, cmd); err != nil {
		n.t.Fatal(err)
	}
	return cmd, out
}

func (n *newcomer) run(namespace string, arguments ...string) string {
	n.t.Helper()
	cmd, out := n.start(namespace, arguments...)
	limit := time.AfterFunc(90*time.Second, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	if err := cmd.Wait(); err != nil {
		n.t.Fatalf("%s: %v\n%s", strings.Join(arguments[1:], " "), err, out)
	}
	return out.String()
}

// state is what a setup could leave behind.
func (n *newcomer) state(namespace string) string {
	ip := programs.Need(n.t, "ip")
	var all strings.Builder
	for _, command := range []string{"-4 rule", "-4 route show table all", "-6 rule", "-br link"} {
		all.WriteString(n.run(namespace, append([]string{ip}, strings.Fields(command)...)...))
	}
	all.WriteString(n.run(namespace, programs.Need(n.t, "nft"), "list", "ruleset"))
	netnstest.Do(n.t, namespace, func() error {
		for _, key := range []string{"net.ipv4.ip_forward", "net.ipv4.conf.all.rp_filter", "net.ipv6.conf.all.forwarding", "net.ipv6.conf.eth0.accept_ra"} {
			value, err := netns.ReadSysctl(key)
			if err != nil {
				return err
			}
			fmt.Fprintln(&all, key, value)
		}
		return nil
	})
	return strings.ReplaceAll(all.String(), " linkdown", "") // carrier is noticed a moment later
}

// login keeps a connection from the server to the site's line open, as one of SSH. The function
// that it returns has a line echoed.
func (n *newcomer) login() (echo func(text string)) {
	n.t.Helper()
	var l net.Listener
	var c net.Conn
	netnstest.Do(n.t, n.site, func() (err error) { l, err = net.Listen("tcp4", "192.0.2.10:22"); return err })
	n.t.Cleanup(func() { l.Close() })
	netnstest.Do(n.t, n.server, func() (err error) { c, err = net.Dial("tcp4", "192.0.2.10:22"); return err })
	n.t.Cleanup(func() { c.Close() })
	far, err := l.Accept()
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { far.Close() })
	go func() { _, _ = io.Copy(far, far) }()
	return func(text string) {
		n.t.Helper()
		b := make([]byte, len(text))
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, err := io.WriteString(c, text)
		if _, e := io.ReadFull(c, b); err != nil || e != nil || string(b) != text {
			n.t.Errorf("the login got %q, %v, %v", b, err, e)
		}
	}
}

// printed is what a process prints, which may be read while it runs.
type printed struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *printed) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *printed) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// TestNewcomer: on a VPS that has nothing but a firewall and on an empty site, two commands lead to
// a download over both lines, one of them behind a carrier's NAT, for a host that was not touched.
// A login at the site survives that, a second use of the line is refused, and leave undoes all of
// it at both.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	n := newNewcomer(t)
	echo := n.login()
	echo("before")
	dry := n.run(n.vps, program, "gateway", "init", "--vps", "--dry-run", "--dir", n.vpsDir)
	if !strings.Contains(dry, "masquerade: true") || !strings.Contains(dry, "firewall: manage") || strings.Contains(dry, "tabane3:") || n.state(n.vps) != n.vpsBefore || !empty(t, n.vpsDir) {
		t.Errorf("the dry run changed something, or printed:\n%s", dry)
	}
	// A login that breaks leaves nothing.
	broken, out := n.start(n.vps, program, "gateway", "init", "--vps", "--yes", "--dir", n.vpsDir)
	for end := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), "Waiting") && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
	}
	_ = broken.Process.Signal(syscall.SIGHUP)
	if err := broken.Wait(); err == nil || n.state(n.vps) != n.vpsBefore || !empty(t, n.vpsDir) {
		t.Errorf("a hangup: %v, and left %s:\n%s", err, n.state(n.vps), out)
	}
	begun := time.Now()
	joined, text, line := n.join(n.site, n.siteDir, "init", "--vps")
	t.Logf("%s after the first command:\n%s", time.Since(begun).Round(100*time.Millisecond), joined)
	if !regexp.MustCompile(`(?m)^  eth1 .*Mbit/s, up$`).MatchString(joined) || !regexp.MustCompile(`(?m)^  wwan0 .*Mbit/s, up$`).MatchString(joined) {
		t.Errorf("join shows no speed of both lines:\n%s\n%s", joined, text)
	}
	echo("after")
	n.download(6_000_000)
	n.reachIPv6(joined)

	again, out := n.start(n.server, program, "gateway", "join", "--yes", "--no-lan", "--dir", t.TempDir(), line)
	if err := again.Wait(); err == nil || !strings.Contains(out.String(), "the line works once") {
		t.Errorf("the line was used twice: %v\n%s", err, out)
	}
	elsewhere, out := n.start(n.site, program, "gateway", "join", "--yes", "--dir", t.TempDir(), line)
	if err := elsewhere.Wait(); err == nil || !strings.Contains(out.String(), "another gateway runs") {
		t.Errorf("a second gateway of the site: %v\n%s", err, out)
	}
	second, out := n.start(n.vps, program, "gateway", "init", "--vps", "--yes", "--dir", n.vpsDir)
	if err := second.Wait(); err == nil || !strings.Contains(out.String(), "was set up already") {
		t.Errorf("a second init: %v\n%s", err, out)
	}
	n.run(n.site, program, "gateway", "leave", "--yes", "--dir", n.siteDir)
	n.ip6(n.site, "addr flush dev eth0 scope global")
	n.forgetProcess()
	n.run(n.vps, program, "gateway", "leave", "--yes", "--dir", n.vpsDir)
	echo("at the end")
	for name, at := range map[string]struct{ namespace, before, dir string }{"site": {n.site, n.siteBefore, n.siteDir}, "VPS": {n.vps, n.vpsBefore, n.vpsDir}} {
		if after := n.state(at.namespace); after != at.before {
			t.Errorf("leave left at the %s:\n%s\nbefore:\n%s", name, after, at.before)
		}
		if !empty(t, at.dir) {
			files, _ := filepath.Glob(at.dir + "/*")
			t.Errorf("leave left files at the %s: %q", name, files)
		}
	}
}

// join has a site join the VPS, which runs the gateway's command with these arguments. It returns
// what is printed at both, and the line.
func (n *newcomer) join(site, dir string, command ...string) (joined string, text *printed, line string) {
	n.t.Helper()
	line, text, ended := n.invite(command...)
	// The secret is in no argument, and the answer to the question is the next line.
	input := filepath.Join(n.t.TempDir(), "input")
	if err := os.WriteFile(input, []byte(line+"\ny\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.leaveAtTheEnd(site, dir)
	joined = n.run(site, "/bin/sh", "-c", `exec "$0" gateway join --dir "$1" < "$2"`, program, dir, input)
	if err := <-ended; err != nil {
		n.t.Fatalf("%s: %v\n%s", command[0], err, text)
	}
	return joined, text, line
}

// leaveAtTheEnd has a host be as before also after a failure.
func (n *newcomer) leaveAtTheEnd(namespace, dir string) {
	n.t.Cleanup(func() {
		if !empty(n.t, dir) {
			n.run(namespace, program, "gateway", "leave", "--yes", "--dir", dir)
		}
	})
}

// invite runs a command of the VPS that prints a line, until it does.
func (n *newcomer) invite(command ...string) (line string, text *printed, ended chan error) {
	n.t.Helper()
	initiating, text := n.start(n.vps, slices.Concat([]string{program, "gateway"}, command, []string{"--yes", "--dir", n.vpsDir})...)
	ended = make(chan error, 1)
	go func() { ended <- initiating.Wait() }()
	n.t.Cleanup(func() { _ = initiating.Process.Kill() })
	n.leaveAtTheEnd(n.vps, n.vpsDir)
	pasted := regexp.MustCompile(`tabane3:[A-Za-z0-9_-]+`)
	for end := time.Now().Add(20 * time.Second); !pasted.MatchString(text.String()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("%s prints no line:\n%s", command[0], text)
		}
	}
	return pasted.FindString(text.String()), text, ended
}

// killed kills the gateway of a directory, as it is recorded.
func (n *newcomer) killed(dir string) {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "setup.json"))
	found := regexp.MustCompile(`"pid": (\d+)`).FindSubmatch(b)
	if err != nil || found == nil {
		n.t.Fatalf("no process in %s: %v", b, err)
	}
	pid, _ := strconv.Atoi(string(found[1]))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, gone := ended(pid); gone {
			return
		}
	}
	n.t.Fatalf("process %d goes on", pid)
}

// reaches reports whether a host gets an answer of a server on another one, and which address that
// sees.
func (n *newcomer) reaches(from, at, address string) (seen string, ok bool) {
	n.t.Helper()
	var l net.Listener
	netnstest.Do(n.t, at, func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(address, "81")); return err })
	defer l.Close()
	accepted := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		accepted <- c.RemoteAddr().(*net.TCPAddr).IP.String()
		_, _ = io.WriteString(c, "yes")
		_ = c.Close()
	}()
	var c net.Conn
	var err error
	netnstest.Do(n.t, from, func() error {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 3*time.Second)
		return nil
	})
	if err != nil {
		return err.Error(), false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	b, err := io.ReadAll(c)
	if err != nil || string(b) != "yes" {
		return fmt.Sprintf("%q, %v", b, err), false
	}
	return <-accepted, true
}

// TestSecondSite: a VPS to which a prefix of IPv6 is routed gets a second site by another line,
// while the first one goes on. Hosts of both reach each other, and have public addresses that
// nobody connects to from elsewhere unless the VPS permits it. Leave removes what killed gateways
// have left.
func TestSecondSite(t *testing.T) {
	t.Parallel()
	n := newNewcomer(t)
	branch, till, internet := netnstest.New(t), netnstest.New(t), n.internet
	n.ip(branch, "link set lo up; link add eth1 type veth peer name dsl netns "+internet+"; link add eth0 type veth peer name eth0 netns "+till)
	n.ip(internet, "link set dsl up; addr add 198.18.9.1/24 dev dsl")
	n.ip(branch, "link set eth0 up; link set eth1 up; addr add 192.168.9.1/24 dev eth0; addr add 198.18.9.2/24 dev eth1; route add default via 198.18.9.1 dev eth1")
	n.ip(till, "link set eth0 up; addr add 192.168.9.2/24 dev eth0; route add default via 192.168.9.1")
	// As a DHCP client of the VPS has it.
	n.ip6(internet, "route add 2001:db8:100::/48 via 2001:db8:3::1")
	n.ip6(n.vps, "route add unreachable 2001:db8:100::/48")
	vpsBefore, branchBefore, branchDir := n.state(n.vps), n.state(branch), t.TempDir()

	first, _, _ := n.join(n.site, n.siteDir, "init", "--vps")
	siteFile, err := os.ReadFile(filepath.Join(n.siteDir, "gateway.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if names := n.run(n.vps, program, "__complete", "gateway", "invite", "--replace", ""); !regexp.MustCompile(`(?m)^[a-z0-9-]+\n:4$`).MatchString(names) {
		t.Errorf("the shell completes %q", names)
	}
	second, text, _ := n.join(branch, branchDir, "invite")
	t.Logf("the second site:\n%s\nthe VPS:\n%s", second, text)
	if now, err := os.ReadFile(filepath.Join(n.siteDir, "gateway.yaml")); err != nil || !bytes.Equal(now, siteFile) {
		t.Errorf("the first site's file has changed: %v", err)
	}
	addresses := map[string]string{}
	for name, at := range map[string]struct{ site, host, printed string }{"first": {n.site, n.host, first}, "second": {branch, till, second}} {
		found := regexp.MustCompile(`give eth0 the address ((2001:db8:100:[0-9a-f:]+::)1)/64`).FindStringSubmatch(at.printed)
		if found == nil {
			t.Fatalf("the %s site gets no public network:\n%s", name, at.printed)
		}
		addresses[name] = found[2] + "2"
		n.ip6(at.site, "addr add "+found[1]+"/64 dev eth0")
		n.ip6(at.host, "addr add "+addresses[name]+"/64 dev eth0; route add default via "+found[1])
	}
	for _, tt := range []struct{ what, from, at, address, seen string }{
		{"the first site's host to the second one's", n.host, till, "192.168.9.2", "192.168.8.2"},
		{"the second site's host to the first one's", till, n.host, "192.168.8.2", "192.168.9.2"},
		{"the same by IPv6", till, n.host, addresses["first"], addresses["second"]},
		{"the second site's host to the Internet", till, n.server, "198.51.100.1", "203.0.113.1"},
		{"the second site's host to the Internet by IPv6", till, n.server, "2001:db8:5::1", addresses["second"]},
		{"the first site's host to the Internet by IPv6", n.host, n.server, "2001:db8:5::1", addresses["first"]},
	} {
		if seen, ok := n.reaches(tt.from, tt.at, tt.address); !ok || seen != tt.seen {
			t.Errorf("%s: %q, want %q", tt.what, seen, tt.seen)
		}
	}
	if seen, ok := n.reaches(n.server, n.host, addresses["first"]); ok {
		t.Errorf("the Internet connects to a host, as %s", seen)
	}
	// The firewall of the VPS, and the gateway's file, permit one host.
	n.run(n.vps, programs.Need(t, "nft"), "add rule inet filter forward iifname eth0 oifname tabane0 ip6 daddr "+addresses["first"]+" accept")
	file := filepath.Join(n.vpsDir, "gateway.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(b, "  inbound: [\""+addresses["first"]+"/128\"]\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := n.run(n.vps, program, "reload", "gateway"); !strings.Contains(out, "inbound replaced") {
		t.Errorf("reload: %s", out)
	}
	if seen, ok := n.reaches(n.server, n.host, addresses["first"]); !ok || seen != "2001:db8:5::1" {
		t.Errorf("the Internet connects to a host that is permitted: %s", seen)
	}
	if seen, ok := n.reaches(n.server, till, addresses["second"]); ok {
		t.Errorf("the Internet connects to the other host, as %s", seen)
	}
	n.run(n.vps, programs.Need(t, "nft"), "flush chain inet filter forward")

	for _, at := range []struct{ name, namespace, dir, before string }{{"second site", branch, branchDir, branchBefore}, {"first site", n.site, n.siteDir, n.siteBefore}, {"VPS", n.vps, n.vpsDir, vpsBefore}} {
		n.killed(at.dir)
		n.run(at.namespace, program, "gateway", "leave", "--yes", "--dir", at.dir)
		if at.namespace == n.vps {
			_ = os.Remove(file + ".old") // it was edited
		} else {
			n.ip6(at.namespace, "addr flush dev eth0 scope global")
		}
		if after := n.state(at.namespace); after != at.before {
			t.Errorf("leave left at the %s:\n%s\nbefore:\n%s", at.name, after, at.before)
		}
		if !empty(t, at.dir) {
			files, _ := filepath.Glob(at.dir + "/*")
			t.Errorf("leave left files at the %s: %q", at.name, files)
		}
	}
}

// TestTwinSite: a site with the LAN of another one, and a line that has IPv6 alone, is refused, and
// joins with the same line of text when it hides its LAN: hosts reach the Internet and other sites,
// and have the address of their gateway there.
func TestTwinSite(t *testing.T) {
	t.Parallel()
	n := newNewcomer(t)
	n.join(n.site, n.siteDir, "init", "--vps")
	twin, desk, dir := netnstest.New(t), netnstest.New(t), t.TempDir()
	n.ip(twin, "link set lo up; link add wwan0 type veth peer name cell netns "+n.internet+"; link add eth0 type veth peer name eth0 netns "+desk)
	n.ip(twin, "link set eth0 up; link set wwan0 up; addr add 192.168.8.1/24 dev eth0")
	n.ip(desk, "link set eth0 up; addr add 192.168.8.7/24 dev eth0; route add default via 192.168.8.1")
	n.ip(n.internet, "link set cell up")
	n.ip6(n.internet, "addr add 2001:db8:7::ff/64 dev cell")
	n.ip6(twin, "addr add 2001:db8:7::2/64 dev wwan0; route add default via 2001:db8:7::ff")
	before := n.state(twin)
	line, text, ended := n.invite("invite")
	n.leaveAtTheEnd(twin, dir)
	refused, out := n.start(twin, program, "gateway", "join", "--yes", "--dir", dir, line)
	if err := refused.Wait(); err == nil || !strings.Contains(out.String(), "--hide-lan") || !empty(t, dir) || n.state(twin) != before {
		t.Errorf("the same LAN: %v\n%s", err, out)
	}
	joined := n.run(twin, program, "gateway", "join", "--yes", "--hide-lan", "--dir", dir, line)
	if err := <-ended; err != nil {
		t.Fatalf("invite: %v\n%s", err, text)
	}
	t.Logf("the twin:\n%s", joined)
	internet := func(when string) {
		t.Helper()
		for name, from := range map[string]string{"first site": n.host, "twin": desk} {
			if seen, ok := n.reaches(from, n.server, "198.51.100.1"); !ok || seen != "203.0.113.1" {
				t.Errorf("%s: the Internet sees %q of the %s", when, seen, name)
			}
		}
	}
	internet("after join")
	n.run(n.vps, programs.Need(t, "nft"), "insert rule inet filter input iifname tabane0 accept")
	if seen, ok := n.reaches(desk, n.vps, "10.79.0.1"); !ok || seen != "10.79.0.3" {
		t.Errorf("the VPS sees %q of the twin's host", seen)
	}
	n.run(twin, program, "gateway", "leave", "--yes", "--dir", dir)
	if after := n.state(twin); after != before || !empty(t, dir) {
		t.Errorf("leave left:\n%s\nbefore:\n%s", after, before)
	}
}

// TestMeteredLine: a line that is a backup with a quota takes over when the cable of the other one
// is pulled, is used at once when it is the first to come back after both were, whatever its probes
// are, and is left again. What it carries is counted, also by a daemon that was killed.
func TestMeteredLine(t *testing.T) {
	t.Parallel()
	n := newNewcomer(t)
	n.join(n.site, n.siteDir, "init", "--vps")
	file := filepath.Join(n.siteDir, "gateway.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const line = "      interface: wwan0\n"
	if err := os.WriteFile(file, bytes.Replace(b, []byte(line), []byte(line+"      backup: true\n      probes: 1h\n      quota: 1GB/month\n"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := n.run(n.site, program, "reload", "gateway"); !strings.Contains(out, `path "wwan0" replaced`) {
		t.Errorf("reload: %s", out)
	}
	status := func() (s gatewayStatus) {
		t.Helper()
		cmd, out := n.start(n.site, program, "status", "--json", "gateway")
		_ = cmd.Wait() // degraded
		if err := json.Unmarshal([]byte(out.String()), &s); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return s
	}
	soon := func(what string, within time.Duration, states ...string) {
		t.Helper()
		var got []string
		for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
			got = nil
			for _, p := range status().Paths {
				if got = append(got, p.State); p.Resting != "" {
					got[len(got)-1] = "rests"
				}
			}
			if slices.Equal(got, states) {
				return
			}
			if time.Now().After(end) {
				t.Errorf("%s: paths are %v, want %v", what, got, states)
				return
			}
		}
	}
	pings := func(what string, least int) {
		t.Helper()
		if e, err := netnstest.Echo(n.host, netip.MustParseAddr("198.51.100.1"), 20, 500); err != nil || e.Received < least {
			t.Errorf("%s: %d of 20 pings, %v", what, e.Received, err)
		}
	}
	// The cables are those of the provider's end: the site's interfaces lose carrier.
	cable := func(namespace, link, state string) { n.ip(namespace, "link set "+link+" "+state) }
	soon("both lines work", 10*time.Second, "up", "rests")
	pings("over the fiber", 20)
	cable(n.internet, "fiber", "down")
	soon("the fiber's cable is pulled", 5*time.Second, "down", "up")
	pings("over the backup", 20)
	cable(n.carrier, "radio", "down")
	soon("both are pulled", 5*time.Second, "down", "down")
	time.Sleep(5 * time.Second)
	cable(n.carrier, "radio", "up")
	soon("the backup is back alone", 12*time.Second, "down", "up")
	pings("over the backup again", 20)
	before := status().Lines[1].Used
	if before < 20*500 {
		t.Errorf("the quota has %d bytes", before)
	}
	n.killed(n.siteDir)
	cmd, log := n.start(n.site, program, "gateway", "-c", file)
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	time.Sleep(time.Second)
	soon("the daemon is started again", 15*time.Second, "down", "up")
	if now := status().Lines[1].Used; now < before {
		t.Errorf("the quota has %d bytes after a kill, %d before", now, before)
	}
	cable(n.internet, "fiber", "up")
	soon("the fiber is back", 15*time.Second, "up", "rests")
	pings("over the fiber again", 20)

	// A download uses up a quota. The count of the daemon that was killed is up to 1 MB too high.
	if err := os.WriteFile(file, bytes.Replace(b, []byte(line), []byte(line+"      quota: 4MB/month\n"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	n.run(n.site, program, "reload", "gateway")
	soon("the line is no backup", 10*time.Second, "up", "up")
	n.serve(12_000_000)
	soon("the quota is used up", 10*time.Second, "up", "rests")
	if used := status().Lines[1].Used; used < 4e6 || used > 4.5e6 {
		t.Errorf("%d bytes of a quota of 4 MB are used", used)
	}
	if text := log.String(); !regexp.MustCompile(`(?s)quota is nearly used up.*quota is used up`).MatchString(text) {
		t.Errorf("no warning before the quota was used up:\n%s", text)
	}
}

// forgetProcess has the record of the VPS be that of a setup which was killed just after it had
// started the gateway.
func (n *newcomer) forgetProcess() {
	n.t.Helper()
	file := filepath.Join(n.vpsDir, "setup.json")
	b, err := os.ReadFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	without := regexp.MustCompile(`,\s*"pid": \d+`).ReplaceAll(b, nil)
	if bytes.Equal(b, without) {
		n.t.Fatalf("no process in %s", b)
	}
	if err := os.WriteFile(file, without, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func empty(t *testing.T, dir string) bool {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	return len(list) == 0
}

// download has the host download from the server, which has to see the VPS, at most five times until
// both lines carry a part of it: on a busy machine one of them may suffice for what is offered.
func (n *newcomer) download(size int) {
	n.t.Helper()
	for range 5 {
		before := n.received()
		if from := n.serve(size); !strings.HasPrefix(from, "203.0.113.1:") {
			n.t.Errorf("the server sees %s, not the VPS", from)
		}
		after := n.received()
		if len(after) != 2 {
			n.t.Fatalf("paths %v", after)
		}
		least := uint64(size)
		for path, bytes := range after {
			n.t.Logf("%s carried %d of %d bytes", path, bytes-before[path], size)
			least = min(least, bytes-before[path])
		}
		if least >= uint64(size/5) {
			return
		}
	}
	n.t.Error("a line carries less than a fifth of each download")
}

// serve has the host download from the server, and returns whom the server sees.
func (n *newcomer) serve(size int) (from string) {
	n.t.Helper()
	var l net.Listener
	netnstest.Do(n.t, n.server, func() (err error) { l, err = net.Listen("tcp4", "198.51.100.1:80"); return err })
	seen := make(chan string, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.RemoteAddr
		_, _ = w.Write(make([]byte, size))
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	var r report
	if err := json.Unmarshal([]byte(n.run(n.host, program, "fetch", "--json", "http://198.51.100.1/")), &r); err != nil || r.Bytes != int64(size) {
		n.t.Errorf("the host got %d bytes, %v", r.Bytes, err)
	}
	return <-seen
}

// reachIPv6 has the site itself, and its host after the operator did what join asks for, reach the
// server by IPv6, which has to see the VPS: nothing goes past the tunnel by the fiber's own IPv6.
func (n *newcomer) reachIPv6(joined string) {
	n.t.Helper()
	found := regexp.MustCompile(`give eth0 the address ((fd[0-9a-f:]+::)1)/64`).FindStringSubmatch(joined)
	if found == nil {
		n.t.Fatalf("join names no address of the LAN:\n%s", joined)
	}
	n.ip6(n.site, "addr add "+found[1]+"/64 dev eth0")
	n.ip6(n.host, "addr add "+found[2]+"2/64 dev eth0; route add default via "+found[1])
	var l net.Listener
	netnstest.Do(n.t, n.server, func() (err error) { l, err = net.Listen("tcp6", "[2001:db8:5::1]:80"); return err })
	seen := make(chan string, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.RemoteAddr })}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	for name, namespace := range map[string]string{"site": n.site, "host": n.host} {
		n.run(namespace, program, "fetch", "http://[2001:db8:5::1]/")
		if from := <-seen; !strings.HasPrefix(from, "[2001:db8:3::1]:") {
			n.t.Errorf("the server sees %s, not the VPS, by IPv6 of the %s", from, name)
		}
	}
}

func (n *newcomer) received() map[string]uint64 {
	n.t.Helper()
	var s gatewayStatus
	if err := json.Unmarshal([]byte(n.run(n.site, program, "status", "--json", "gateway")), &s); err != nil {
		n.t.Fatal(err)
	}
	m := map[string]uint64{}
	for _, p := range s.Paths {
		m[p.Path] = p.ReceivedBytes
	}
	return m
}
