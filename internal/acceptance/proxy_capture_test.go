package acceptance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// captureNet is a client, the host of a proxy, which also routes, and a server, in a row.
type captureNet struct {
	lab
	client, router, server string
	nft, config            string
	// multipath has the client connect by MPTCP.
	multipath bool
}

// The addresses of a captureNet, and the ports of its server: the proxy captures the first only.
var (
	captureServers = []netip.Addr{netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("2001:db8:2::1"), netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("2001:db8:2::2")}
	captureProxy   = map[bool]string{true: "10.2.0.254", false: "2001:db8:2::fe"} // by Is4
	captureClient  = map[bool]string{true: "10.1.0.1", false: "2001:db8:1::1"}
)

const (
	capturedPort = 80
	passedPort   = 81
)

func newCaptureNet(t *testing.T) *captureNet {
	t.Helper()
	n := &captureNet{
		lab: lab{t: t}, client: netnstest.New(t), router: netnstest.New(t), server: netnstest.New(t),
		nft: programs.Need(t, "nft"), config: filepath.Join(t.TempDir(), "proxy.yaml"),
	}
	netnstest.IP(t, n.router, "link set lo up; link add lan type veth peer name lan netns "+n.client+"; link add wan type veth peer name wan netns "+n.server)
	for namespace, commands := range map[string]string{
		n.client: `addr add 10.1.0.1/24 dev lan; addr add 2001:db8:1::1/64 dev lan nodad; link set lan up
			-4 route add 10.2.0.0/24 via 10.1.0.254; route add 2001:db8:2::/64 via 2001:db8:1::fe`,
		n.router: `addr add 10.1.0.254/24 dev lan; addr add 2001:db8:1::fe/64 dev lan nodad; link set lan up
			addr add 10.2.0.254/24 dev wan; addr add 2001:db8:2::fe/64 dev wan nodad; link set wan up`,
		n.server: `link set lo up; addr add 10.2.0.1/24 dev wan; addr add 10.2.0.2/24 dev wan; addr add 2001:db8:2::1/64 dev wan nodad; addr add 2001:db8:2::2/64 dev wan nodad; link set wan up
			-4 route add 10.1.0.0/24 via 10.2.0.254; route add 2001:db8:1::/64 via 2001:db8:2::fe`,
	} {
		netnstest.IP(t, namespace, commands)
	}
	netnstest.Do(t, n.router, func() error {
		return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	})
	for _, port := range []int{capturedPort, passedPort} {
		n.serve(port)
	}
	text := fmt.Sprintf("proxy:\n  control: %s\n  listeners: [{listen: \"transparent://lan\", match: {ports: [%d]}, upstream: tcp}]\n",
		filepath.Join(filepath.Dir(n.config), "s.sock"), capturedPort)
	if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return n
}

// serve has the server tell each client which addresses the connection has here.
func (n *captureNet) serve(port int) {
	n.t.Helper()
	var l net.Listener
	netnstest.Do(n.t, n.server, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	n.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%v from %v", c.LocalAddr(), c.RemoteAddr().(*net.TCPAddr).IP)
			_ = c.Close()
		}
	}()
}

// start starts the proxy; the function that it returns ends it.
func (n *captureNet) start() (end func(syscall.Signal)) {
	n.t.Helper()
	cmd := exec.Command(program, "proxy", "-c", n.config)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	n.t.Cleanup(func() { // after it has ended
		if n.t.Failed() {
			n.t.Logf("a proxy says:\n%s", &output)
		}
	})
	netnstest.Start(n.t, n.router, cmd)
	return func(s syscall.Signal) {
		n.t.Helper()
		_ = cmd.Process.Signal(s)
		err := cmd.Wait()
		if s == unix.SIGTERM && err != nil {
			n.t.Errorf("the proxy ends with %v", err)
		}
	}
}

// says returns what the server says to the client of a connection.
func (n *captureNet) says(to netip.AddrPort) (text string, err error) {
	err = netns.Do(n.client, func() error {
		d := net.Dialer{Timeout: time.Second}
		d.SetMultipathTCP(n.multipath)
		c, err := d.Dial("tcp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if is, err := c.(*net.TCPConn).MultipathTCP(); err != nil || is != n.multipath {
			return fmt.Errorf("the connection is MPTCP: %v, %w", is, err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Second)) // reading fails if it cannot be set
		b, err := io.ReadAll(c)
		text = string(b)
		return err
	})
	return text, err
}

// captured waits until connections to each address of the server come from the proxy, to that
// address.
func (n *captureNet) captured(when string) {
	n.t.Helper()
	for _, a := range captureServers {
		to := netip.AddrPortFrom(a, capturedPort)
		want := fmt.Sprintf("%v from %s", to, captureProxy[a.Is4()])
		n.eventually(fmt.Sprintf("%s: %s", when, want), noticed, func() (bool, string) {
			got, err := n.says(to)
			return got == want, fmt.Sprint(got, err)
		})
	}
}

// passed waits until connections to a port come from the client itself.
func (n *captureNet) passed(when string, port uint16) {
	n.t.Helper()
	for _, a := range captureServers {
		to := netip.AddrPortFrom(a, port)
		want := fmt.Sprintf("%v from %s", to, captureClient[a.Is4()])
		n.eventually(fmt.Sprintf("%s: %s", when, want), noticed, func() (bool, string) {
			got, err := n.says(to)
			return got == want, fmt.Sprint(got, err)
		})
	}
}

// run runs a command on the host of the proxy.
func (n *captureNet) run(argv ...string) string {
	n.t.Helper()
	var out []byte
	netnstest.Do(n.t, n.router, func() (err error) {
		if out, err = exec.Command("sh", append([]string{"-c", `exec "$@"`, "sh"}, argv...)...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
		}
		return err
	})
	return string(out)
}

// state returns the proxy's part of the kernel: tables, rules and routes, without the port that it
// chooses at each start.
func (n *captureNet) state() string {
	n.t.Helper()
	text := n.run(n.nft, "list", "ruleset") + netnstest.IP(n.t, n.router, "-4 rule; -6 rule; -4 route show table 4788; -6 route show table 4788")
	var lines []string
	for line := range strings.Lines(text) {
		if before, after, ok := strings.Cut(line, "tproxy ip"); ok {
			_, after, _ = strings.Cut(after[strings.LastIndex(after, "]")+1:], " meta")
			line = before + "tproxy meta" + after
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// TestProxyCaptures: a transparent listener captures connections of IPv4 and IPv6 and connects to
// where they went. What it needs of the kernel is restored when another program deletes it, taken
// over after kill -9, and gone after a clean stop.
func TestProxyCaptures(t *testing.T) {
	t.Parallel()
	n := newCaptureNet(t)
	before := n.state()
	n.passed("before", capturedPort)
	end := n.start()
	n.captured("started")
	n.multipath = true
	n.captured("a client with MPTCP")
	n.multipath = false
	n.passed("a port that does not match", passedPort)
	running := n.state()
	if rules := strings.Count(running, "tproxy"); rules != 2 || strings.Count(running, "4788") < 4 {
		t.Errorf("the kernel has\n%s", running)
	}

	n.run(n.nft, "delete", "table", "inet", "tabane-proxy")
	netnstest.IP(t, n.router, "-4 rule del priority 4788; -6 rule del priority 4788; -4 route flush table 4788; -6 route flush table 4788")
	n.eventually("everything is restored", noticed, func() (bool, string) {
		now := n.state()
		return now == running, now
	})
	n.captured("restored")

	end(unix.SIGKILL)
	if left := n.state(); left != running {
		t.Errorf("after kill -9 the kernel has\n%s", left)
	}
	end = n.start()
	n.captured("started again")
	if now := n.state(); now != running {
		t.Errorf("after the second start the kernel has\n%swant\n%s", now, running)
	}

	end(unix.SIGTERM)
	if after := n.state(); after != before {
		t.Errorf("after a clean stop the kernel has\n%swant\n%s", after, before)
	}
	n.passed("stopped", capturedPort)
}

// converse opens a connection to a server that answers what it receives; the function that it
// returns exchanges a byte.
func (n *captureNet) converse(l net.Listener) (exchange func(when string)) {
	n.t.Helper()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	var c net.Conn
	netnstest.Do(n.t, n.client, func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), noticed)
		return err
	})
	n.t.Cleanup(func() { _ = c.Close() })
	return func(when string) {
		n.t.Helper()
		_ = c.SetDeadline(time.Now().Add(noticed)) // reading fails if it cannot be set
		b := []byte{'x'}
		if _, err := c.Write(b); err != nil {
			n.t.Errorf("%s: %v", when, err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			n.t.Errorf("%s: %v", when, err)
		}
	}
}

// TestProxyCaptureGoesOn: connections that were forwarded when a proxy starts, or starts again, go
// on without it, and captured ones go on after a reload without their listener.
func TestProxyCaptureGoesOn(t *testing.T) {
	t.Parallel()
	n := newCaptureNet(t)
	listen := func(port int) (l net.Listener) {
		netnstest.Do(t, n.server, func() (err error) {
			l, err = net.Listen("tcp", fmt.Sprintf("10.2.0.1:%d", port))
			return err
		})
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	text, err := os.ReadFile(n.config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := strings.Replace(string(text), "match: {ports: [80]}, ", "", 1)
	write(all)
	forwarded := n.converse(listen(7001))
	end := n.start()
	n.captured("started")
	forwarded("a proxy has started")
	end(unix.SIGKILL)
	again := n.converse(listen(7002))
	end = n.start()
	n.captured("started again")
	forwarded("a proxy has started again")
	again("a killed proxy has started again")

	carried := n.converse(listen(7003))
	carried("captured")
	write(strings.Replace(all, "transparent://lan", "socks5://127.0.0.1:1080", 1))
	n.run(program, "reload", "proxy")
	n.passed("no listener", capturedPort)
	carried("its listener is gone")
	end(unix.SIGTERM)
	if left := n.state(); strings.Contains(left, "4788") || strings.Contains(left, "tabane-proxy") {
		t.Errorf("after a clean stop the kernel has\n%s", left)
	}
}

// reported waits until the status of the proxy has a remedy.
func (n *captureNet) reported(what, remedy string) {
	n.t.Helper()
	n.eventually(what, noticed, func() (bool, string) {
		err := netns.Do(n.router, func() error {
			out, err := exec.Command("sh", "-c", "curl -s -g http://[::1]:9113/status").Output()
			if err == nil && !strings.Contains(string(out), remedy) {
				err = fmt.Errorf("%.500s", out)
			}
			return err
		})
		return err == nil, fmt.Sprint(err)
	})
}

// TestProxyCaptureFirewall: a firewall that drops what this host itself receives, and not what it
// forwards, is reported with a command that has it accept captured connections, and so are SYN
// cookies for all.
func TestProxyCaptureFirewall(t *testing.T) {
	t.Parallel()
	n := newCaptureNet(t)
	n.run(n.nft, "add table inet fw; add chain inet fw input { type filter hook input priority 0; policy drop; }; "+
		"add rule inet fw input ct state established,related accept; add rule inet fw input icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; add rule inet fw input tcp dport 22 accept; add rule inet fw input iif lo accept")
	end := n.start()
	const remedy = "nft insert rule inet fw input iifname lan meta mark 4788 accept"
	n.reported("the firewall is reported", remedy)
	n.run("sh", "-c", remedy)
	n.captured("the firewall accepts it")
	n.run("sysctl", "-qw", "net.ipv4.tcp_syncookies=2")
	n.reported("SYN cookies are reported", "sysctl -w net.ipv4.tcp_syncookies=1")
	n.run("sysctl", "-qw", "net.ipv4.tcp_syncookies=1")
	n.captured("SYN cookies are sent only in need")
	end(unix.SIGTERM)
}

// TestProxyBesideCaptures: a proxy without transparent listeners does not touch the captures of one
// that runs, and removes those of one that was killed.
func TestProxyBesideCaptures(t *testing.T) {
	t.Parallel()
	n := newCaptureNet(t)
	before := n.state()
	end := n.start()
	n.captured("started")
	running := n.state()
	n.config = filepath.Join(t.TempDir(), "other.yaml")
	text := fmt.Sprintf("proxy:\n  control: %s\n  status: 127.0.0.1:9555\n  listeners: [{listen: \"tcp://127.0.0.1:4000\", upstream: \"tcp://10.2.0.1:%d\"}]\n",
		filepath.Join(filepath.Dir(n.config), "s.sock"), capturedPort)
	if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	other := func() func(syscall.Signal) {
		end := n.start()
		n.eventually("the other proxy listens", noticed, func() (bool, string) {
			err := netns.Do(n.router, func() error {
				c, err := net.Dial("tcp", "127.0.0.1:4000")
				if err == nil {
					_ = c.Close()
				}
				return err
			})
			return err == nil, fmt.Sprint(err)
		})
		return end
	}
	endOther := other()
	n.captured("another proxy runs")
	endOther(unix.SIGTERM)
	if now := n.state(); now != running {
		t.Errorf("after another proxy the kernel has\n%swant\n%s", now, running)
	}
	end(unix.SIGKILL)
	endOther = other()
	n.eventually("what a killed proxy left is removed", noticed, func() (bool, string) {
		now := n.state()
		return now == before, now
	})
	endOther(unix.SIGTERM)
}
