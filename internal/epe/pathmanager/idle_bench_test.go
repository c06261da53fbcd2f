package pathmanager

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// crowdClients is the number of client hosts, each with one address and thus some 60,000 ports.
	crowdClients = 4
	// crowdSeconds is how long the CPU time is measured.
	crowdSeconds = 30
	// crowdPause and crowdMessage are how often a busy connection sends how much.
	crowdPause   = 500 * time.Millisecond
	crowdMessage = 4096
	// crowdMemory is about what a connection takes at both ends, with three subflows.
	crowdMemory = 60 << 10
	// crowdShare is the maximum number of connections of one process, which has two files for each;
	// hosts limit these to 20,000 and less.
	crowdShare = 9000
	crowdPort  = 8000
)

// crowd is a server with many clients.
type crowd struct {
	b       *testing.B
	server  string
	clients []string
}

func newCrowd(b *testing.B) *crowd {
	c := &crowd{b: b, server: netnstest.New(b)}
	must := c.must
	address := func(link string, prefix netip.Prefix) error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		on := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 128)}
		return errors.Join(netlink.LinkSetUp(l), netlink.AddrAdd(l, &netlink.Addr{IPNet: on, Flags: unix.IFA_F_NODAD}))
	}
	must(netns.Do(c.server, func() error {
		var errs []error
		for _, a := range []netip.Addr{defaultAt.Addr(), onA.Addr(), onB.Addr()} {
			errs = append(errs, address("lo", netip.PrefixFrom(a, 128)))
		}
		return errors.Join(append(errs, mptcp.SetManager(mptcp.UserManager))...)
	}))
	for i := range crowdClients {
		client := netnstest.New(b)
		c.clients = append(c.clients, client)
		f, err := os.Open("/run/netns/" + client)
		must(err)
		subnet := [16]byte{0x20, 1, 0xd, 0xb8, 2, byte(i), 15: 1}
		here := netip.PrefixFrom(netip.AddrFrom16(subnet), 64)
		subnet[15] = 2
		there := netip.PrefixFrom(netip.AddrFrom16(subnet), 64)
		name := fmt.Sprintf("client%d", i)
		must(netns.Do(c.server, func() error {
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: lan, PeerNamespace: netlink.NsFd(int(f.Fd()))}
			return errors.Join(netlink.LinkAdd(veth), address(name, here))
		}))
		must(f.Close())
		must(netns.Do(client, func() error {
			m, err := mptcp.Dial()
			if err != nil {
				return err
			}
			return errors.Join(m.SetLimits(mptcp.Limits{Subflows: 8, AddAddrAccepted: 8}), m.Close(), address(lan, there),
				netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Gw: here.Addr().AsSlice()}),
				netns.Sysctl("net.ipv4.ip_local_port_range", "1024 65535"))
		}))
	}
	return c
}

func (c *crowd) must(err error) {
	c.b.Helper()
	if err != nil {
		c.b.Fatal(err)
	}
}

// helper starts a process of this program that runs one test, which gets arguments by the
// environment. ask writes a line to it and returns the line that it answers.
func (c *crowd) helper(test, arguments string) (process *os.Process, ask func() []byte, stop func()) {
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+test+"$")
	cmd.Env = append(os.Environ(), test+"="+arguments)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	c.must(err)
	out, err := cmd.StdoutPipe()
	c.must(err)
	c.must(cmd.Start())
	answers := bufio.NewReader(out)
	ask = func() []byte {
		_, err := io.WriteString(in, "\n")
		c.must(err)
		line, err := answers.ReadBytes('\n')
		c.must(err)
		return line
	}
	return cmd.Process, ask, func() {
		c.must(in.Close())
		_, _ = io.Copy(io.Discard, answers)
		c.must(cmd.Wait())
	}
}

// connect opens connections in further processes; the busy ones send until stop.
func (c *crowd) connect(idle, busy int) (stop func()) {
	var asks []func() []byte
	var stops []func()
	processes := (idle + busy + crowdShare - 1) / crowdShare
	for i := range processes {
		part := func(n int) int { return n*(i+1)/processes - n*i/processes }
		_, ask, stop := c.helper("TestCrowdProcess",
			fmt.Sprintf("%d %d %d %s %s", crowdPort+i, part(idle+busy), part(busy), c.server, strings.Join(c.clients, " ")))
		asks, stops = append(asks, ask), append(stops, stop)
	}
	for _, ask := range asks {
		ask()
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// TestCrowdProcess has connections of BenchmarkManyConnections, both ends of each, in its own
// process. It answers once all are established, and ends with its standard input.
func TestCrowdProcess(t *testing.T) {
	arguments := strings.Fields(os.Getenv(t.Name()))
	if len(arguments) == 0 {
		t.Skip("for the benchmark")
	}
	var port, all, busy int
	if _, err := fmt.Sscan(strings.Join(arguments[:3], " "), &port, &all, &busy); err != nil {
		t.Fatal(err)
	}
	server, clients := arguments[3], arguments[4:]
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	socket := func(namespace string, with func(fd int) error) (fd int) {
		must(netns.Do(namespace, func() (err error) {
			fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
			return errors.Join(err, with(fd))
		}))
		return fd
	}
	listener := socket(server, func(fd int) error {
		return errors.Join(unix.Bind(fd, &unix.SockaddrInet6{Port: port}), unix.Listen(fd, 4096))
	})
	var dialed, accepted []int
	b := make([]byte, 2*crowdMessage)
	for i := range all {
		fd := socket(clients[i%len(clients)], func(fd int) error {
			return unix.Connect(fd, &unix.SockaddrInet6{Addr: defaultAt.Addr().As16(), Port: port})
		})
		other, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		must(err)
		// A byte in this direction establishes it at both ends.
		_, err = unix.Write(fd, b[:1])
		must(err)
		_, err = unix.Read(other, b[:1])
		must(err)
		dialed, accepted = append(dialed, fd), append(accepted, other)
	}
	defer func() {
		for _, fd := range slices.Concat(dialed, accepted, []int{listener}) {
			_ = unix.Close(fd)
		}
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println("established")
		}
	}()
	for {
		began := time.Now()
		for i := range max(busy, 1) {
			if i < busy {
				_, _, _ = unix.Recvfrom(dialed[i], b, unix.MSG_DONTWAIT)
				_ = unix.Sendto(accepted[i], b[:crowdMessage], unix.MSG_DONTWAIT, nil)
			}
			if i%100 == 0 || i >= busy-1 { // spread evenly
				select {
				case <-ended:
					return
				case <-time.After(time.Until(began.Add(crowdPause * time.Duration(i+1) / time.Duration(max(busy, 1))))):
				}
			}
		}
	}
}

// TestManagerProcess is the path manager of BenchmarkManyConnections, in its own process: it ends
// with its standard input, and answers each line there with its status.
func TestManagerProcess(t *testing.T) {
	namespace, method, ok := strings.Cut(os.Getenv(t.Name()), " ")
	if !ok {
		t.Skip("for the benchmark")
	}
	ctx, stop := context.WithCancel(t.Context())
	var m *Manager
	err := netns.Do(namespace, func() (err error) {
		if m, err = New(Options{Peers: testPeers(), Restarted: true, Keep: true, Log: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		if method == WatchReports {
			return m.Start()
		}
		m.events, err = mptcp.Subscribe()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range testPeers() {
		m.SetRoutes([]Change{{i, netip.MustParsePrefix("::/0"), Route{State: RoutePresent}}})
	}
	m.RoutesComplete()
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := json.NewEncoder(os.Stdout).Encode(m.Status()); err != nil {
			t.Error(err)
		}
	}
	stop()
	running.Wait()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// manage starts a path manager in its own process. ask returns its status.
func (c *crowd) manage(method string) (process *os.Process, ask func() Status, stop func()) {
	process, line, stop := c.helper("TestManagerProcess", c.server+" "+method)
	return process, func() (s Status) {
		c.must(json.Unmarshal(line(), &s))
		return s
	}, stop
}

// cpu returns the CPU time of a process.
func cpu(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100, nil
}

// rss returns the resident memory of a process in bytes.
func rss(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	return pages * os.Getpagesize(), err
}

// BenchmarkManyConnections measures the CPU time of a path manager with many connections, of which
// a part sends, for each method of detection. TABANE_CONNECTIONS is the number of idle ones and
// then that of busy ones, as "100000 10000"; without it they are fewer where memory does not
// suffice. The kernel has room for about four MPTCP tokens for each MB of memory (mptcp_token_init
// in net/mptcp/token.c), and each connection here needs two of them; further ones are plain TCP.
// They are read as well where all are sampled.
func BenchmarkManyConnections(b *testing.B) {
	idle, busy := 100_000, 10_000
	if text := os.Getenv("TABANE_CONNECTIONS"); text != "" {
		if _, err := fmt.Sscan(text, &idle, &busy); err != nil {
			b.Fatalf("TABANE_CONNECTIONS: %v", err)
		}
	} else {
		var info syscall.Sysinfo_t
		if err := syscall.Sysinfo(&info); err != nil {
			b.Fatal(err)
		}
		if fit := int(info.Freeram) * int(info.Unit) / 2 / crowdMemory; fit < idle+busy {
			idle, busy = fit*10/11, fit/11
		}
	}
	c := newCrowd(b)
	// settled waits until the number of subflows that a path manager knows does not change any
	// more.
	settled := func(b *testing.B, ask func() Status) (s Status) {
		b.Helper()
		for since, deadline := time.Now(), time.Now().Add(5*time.Minute); time.Since(since) < 10*time.Second; time.Sleep(100 * time.Millisecond) {
			now := ask()
			if now.Connections == 0 || now.Subflows != s.Subflows || now.Counts != s.Counts {
				since = time.Now()
			}
			if s = now; time.Now().After(deadline) {
				b.Fatalf("never settles: %+v", s)
			}
		}
		return s
	}
	_, ask, stop := c.manage(WatchReports)
	began := time.Now()
	defer c.connect(idle, busy)()
	s := settled(b, ask)
	b.Logf("%d connections after %v, of which %d use MPTCP with %d subflows", idle+busy, time.Since(began), s.Connections, s.Subflows)
	stop()
	for _, method := range []string{WatchReports, WatchSamples} {
		b.Run(method, func(b *testing.B) {
			process, ask, stop := c.manage(method)
			defer stop()
			first := settled(b, ask)
			for range b.N {
				before, err := cpu(process.Pid)
				c.must(err)
				time.Sleep(crowdSeconds * time.Second)
				after, err := cpu(process.Pid)
				c.must(err)
				b.ReportMetric((after-before).Seconds()/crowdSeconds, "cores")
			}
			last := ask()
			resident, err := rss(process.Pid)
			c.must(err)
			b.ReportMetric(float64(resident)/1e6, "MB")
			b.ReportMetric(float64(last.Reports-first.Reports)/crowdSeconds/float64(b.N), "reports/s")
			b.ReportMetric(0, "ns/op")
			b.Logf("%+v", last)
		})
	}
}
