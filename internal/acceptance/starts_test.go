package acceptance

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
	"github.com/tabane/tabane/internal/testkit/wireguard"
)

// starts is how often BenchmarkStarts starts each way.
var starts = flag.Int("starts", 20, "how often BenchmarkStarts starts each way")

// startsRun is how long it measures each time from the first byte on, of which startsBegin are the
// beginning of TCP.
const startsRun, startsBegin = 10 * time.Second, 2 * time.Second

// startsWays are two gateways, and for comparison what one line of both rates carries. A limit is
// what the lines carry of a TCP connection in bit/s: 40 Mbit/s of Ethernet frames, less Ethernet's
// header (14), and that of IPv4 and TCP with time stamps (20 and 32); and of those of a tunnel,
// IPv4, UDP (20 and 8) and its own, 44 of the gateway and 32 of WireGuard, whose usual MTU is 1420.
var startsWays = []struct {
	name  string
	line  int // rate of each line in Mbit/s
	limit float64
	// start returns what stops the way.
	start func(*meshed) (stop func())
}{
	{"gateway", 20, 40e6 * (1500 - 20 - 8 - 44 - 20 - 32) / (1500 + 14), (*meshed).gateway},
	{"no-gateway", 40, 40e6 * (1500 - 20 - 32) / (1500 + 14), (*meshed).plain},
	{"wireguard-go", 40, 40e6 * (1420 - 20 - 32) / (1420 + 20 + 8 + 32 + 14), (*meshed).wireguard},
}

// meshed are two sites, each with a host and two lines into one Internet. No line has its own way
// to one of the other site.
type meshed struct {
	t                  testing.TB
	sites, hosts, dirs [2]string
	gateways           [2]*exec.Cmd
	// shaped are the ends of the lines: namespaces and interfaces.
	shaped [][2]string
}

// BenchmarkStarts starts two gateways with two lines each, again and again, and measures one TCP
// connection of hosts behind them: in how many starts it has 0.95 of what the lines carry. A single
// line of the same rate, without a gateway and with wireguard-go, is measured in the same way.
func BenchmarkStarts(b *testing.B) {
	m := newMeshed(b)
	for _, control := range []string{"cubic", "bbr"} {
		for _, way := range startsWays {
			b.Run(control+"/"+way.name, func(b *testing.B) {
				m.t = b
				m.shape(way.line)
				m.configure("auto")
				netnstest.Do(b, m.hosts[0], func() error { return netns.Sysctl("net.ipv4.tcp_congestion_control", control) })
				for b.Loop() {
					var all, later []float64
					for n := range *starts {
						stop := way.start(m)
						begin, rest := m.download()
						whole := (begin*startsBegin.Seconds() + rest*(startsRun-startsBegin).Seconds()) / startsRun.Seconds()
						all, later = append(all, whole/way.limit), append(later, rest/way.limit)
						b.Logf("start %d: %.3f of the limit in %v, %.3f in the first %v, %.3f then", n+1, whole/way.limit, startsRun, begin/way.limit, startsBegin, rest/way.limit)
						stop()
					}
					for name, list := range map[string][]float64{"": all, "-later": later} { // later: without the beginning
						slices.Sort(list)
						enough := 0
						for _, share := range list {
							if share >= 0.95 {
								enough++
							}
						}
						b.ReportMetric(float64(enough), "enough"+name)
						b.ReportMetric(list[len(list)/2], "median"+name)
						b.ReportMetric(list[0], "least"+name)
					}
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func newMeshed(b *testing.B) *meshed {
	m := &meshed{t: b}
	internet := netnstest.New(b)
	ip := func(namespace, commands string) {
		b.Helper()
		if _, err := netnstest.TryIP(b, namespace, "-4 "+strings.ReplaceAll(commands, "; ", "; -4 ")); err != nil {
			b.Fatalf("%s: %v", commands, err)
		}
	}
	for i := range m.sites {
		m.sites[i], m.hosts[i], m.dirs[i] = netnstest.New(b), netnstest.New(b), b.TempDir()
		site, host := m.sites[i], m.hosts[i]
		ip(site, "link set lo up; link add lan type veth peer name eth0 netns "+host)
		ip(site, fmt.Sprintf("link set lan up; addr add 10.0.%d.1/24 dev lan", i+1))
		ip(host, fmt.Sprintf("link set eth0 up; addr add 10.0.%d.2/24 dev eth0; route add default via 10.0.%d.1", i+1, i+1))
		for line := range 2 {
			far, near := fmt.Sprintf("s%dl%d", i, line), fmt.Sprintf("line%d", line)
			network := 10*i + line
			ip(site, fmt.Sprintf("link add %s type veth peer name %s netns %s", near, far, internet))
			ip(internet, fmt.Sprintf("link set %s up; addr add 198.18.%d.1/24 dev %s", far, network, far))
			ip(site, fmt.Sprintf("link set %s up; addr add 198.18.%d.2/24 dev %s; route add default via 198.18.%d.1 dev %s metric %d", near, network, near, network, near, 100+line))
			m.shaped = append(m.shaped, [2]string{site, near}, [2]string{internet, far})
		}
		ip(internet, fmt.Sprintf("route add 10.0.%d.0/24 via 198.18.%d.2", i+1, 10*i))
	}
	for _, namespace := range []string{internet, m.sites[0], m.sites[1]} {
		netnstest.Do(b, namespace, func() error {
			return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv4.conf.all.rp_filter", "0"))
		})
	}
	return m
}

// shape sets the rate of all lines, in Mbit/s.
func (m *meshed) shape(rate int) {
	m.t.Helper()
	for _, at := range m.shaped {
		cmd := exec.Command(programs.Need(m.t, "tc"), "qdisc", "replace", "dev", at[1], "root", "tbf", "rate", fmt.Sprintf("%dmbit", rate), "burst", "32kb", "latency", "50ms")
		if err := netns.Start(at[0], cmd); err != nil {
			m.t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			m.t.Fatal(err)
		}
	}
}

// gateway carries packets by gateways.
func (m *meshed) gateway() (stop func()) {
	m.start()
	m.await()
	return m.stop
}

// route adds or deletes each site's route to the other one.
func (m *meshed) route(command, to string) {
	m.t.Helper()
	for i, site := range m.sites {
		netnstest.IP(m.t, site, fmt.Sprintf("ip -4 route %s 10.0.%d.0/24 ", command, 2-i)+strings.ReplaceAll(to, "SITE", fmt.Sprint(10*i)))
	}
}

// plain carries packets over the first line of both sites, as they are.
func (m *meshed) plain() (stop func()) {
	const way = "via 198.18.SITE.1"
	m.route("add", way)
	return func() { m.route("del", way) }
}

// wireguard carries packets over the first line of both sites by wireguard-go, which runs in this
// process.
func (m *meshed) wireguard() (stop func()) {
	m.t.Helper()
	var keys [2]handshake.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = handshake.GenerateKey(rand.Reader); err != nil {
			m.t.Fatal(err)
		}
	}
	var ends [2]func()
	for i, site := range m.sites {
		ends[i] = wireguard.Start(m.t, site, "wg0", keys[i], wireguard.Peer{
			Public:   keys[1-i].Public(),
			Endpoint: netip.MustParseAddrPort(fmt.Sprintf("198.18.%d.2:51820", 10*(1-i))),
			Hosts:    netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", 2-i)),
		})
		netnstest.IP(m.t, site, "ip link set wg0 up")
	}
	m.route("add", "dev wg0")
	return func() {
		for _, end := range ends {
			end() // its routes go with it
		}
	}
}

// run runs the program in a site, and returns what it prints.
func (m *meshed) run(site int, arguments ...string) (string, error) {
	m.t.Helper()
	cmd := exec.Command(program, arguments...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := netns.Start(m.sites[site], cmd)
	if err == nil {
		err = cmd.Wait()
	}
	return out.String(), err
}

// configure writes the files of both gateways, whose lines have a rate.
func (m *meshed) configure(rate string) {
	m.t.Helper()
	var public [2]string
	for i, dir := range m.dirs {
		_ = os.Remove(dir + "/gw.key")
		out, err := m.run(i, "gateway", "key", "--out", dir+"/gw.key")
		if err != nil {
			m.t.Fatalf("%v: %s", err, out)
		}
		public[i] = strings.TrimSpace(strings.TrimPrefix(out, "public key: "))
	}
	for i, dir := range m.dirs {
		endpoints := ""
		if i == 0 {
			endpoints = `, endpoints: ["198.18.10.2:4790", "198.18.11.2:4790"]`
		}
		text := fmt.Sprintf(`gateway:
  key: %s/gw.key
  control: %s/gateway.sock
  lan: {interfaces: [lan], prefixes: [10.0.%d.0/24]}
  paths: [{name: line0, interface: line0, rate: %s}, {name: line1, interface: line1, rate: %s}]
  peers: [{name: other, public_key: "%s", prefixes: [10.0.%d.0/24]%s}]
`, dir, dir, i+1, rate, rate, public[1-i], 2-i, endpoints)
		if err := os.WriteFile(filepath.Join(dir, "gateway.yaml"), []byte(text), 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *meshed) start() {
	m.t.Helper()
	for i, dir := range m.dirs {
		m.gateways[i] = exec.Command(program, "gateway", "-c", filepath.Join(dir, "gateway.yaml"))
		if err := netns.Start(m.sites[i], m.gateways[i]); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *meshed) stop() {
	m.t.Helper()
	for _, g := range m.gateways {
		if err := errors.Join(g.Process.Signal(syscall.SIGTERM), g.Wait()); err != nil {
			m.t.Fatal(err)
		}
	}
}

// await waits until both gateways have two paths that are up.
func (m *meshed) await() {
	m.t.Helper()
	begun := time.Now()
	for {
		up := 0
		for i := range m.sites {
			out, _ := m.run(i, "status", "--json", "gateway") // it fails while degraded
			var s gatewayStatus
			if json.Unmarshal([]byte(out), &s) == nil {
				for _, p := range s.Paths {
					if p.State == "up" {
						up++
					}
				}
			}
		}
		if up == 4 {
			return
		}
		if time.Since(begun) > 20*time.Second {
			m.t.Fatalf("%d paths are up", up)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// download has the second host download from the first one, and returns the rates in bit/s at the
// beginning and after it.
func (m *meshed) download() (begin, rest float64) {
	m.t.Helper()
	var l net.Listener
	at := netip.MustParseAddrPort("10.0.1.2:80").String()
	netnstest.Do(m.t, m.hosts[0], func() (err error) { l, err = net.Listen("tcp4", at); return err })
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for block := make([]byte, 1<<16); err == nil; {
			_, err = c.Write(block)
		}
	}()
	var c net.Conn
	netnstest.Do(m.t, m.hosts[1], func() (err error) { c, err = net.DialTimeout("tcp4", at, 5*time.Second); return err })
	defer c.Close()
	block := make([]byte, 1<<16)
	if _, err := io.ReadFull(c, block[:1]); err != nil {
		m.t.Fatal(err)
	}
	begun, bytes, first := time.Now(), 0, 0
	var took, took1 time.Duration
	_ = c.SetReadDeadline(begun.Add(startsRun + 5*time.Second))
	for took < startsRun {
		n, err := c.Read(block)
		if err != nil {
			m.t.Fatal(err)
		}
		bytes += n
		if took = time.Since(begun); took < startsBegin {
			first, took1 = bytes, took
		}
	}
	return float64(first) * 8 / took1.Seconds(), float64(bytes-first) * 8 / (took - took1).Seconds()
}
