package openplane

import (
	"bufio"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/seccomp/seccomptest"
)

// site is a host and its gateway, and the far host that two links lead to. The gateway's kernel has
// no route to it.
type site struct {
	t               *testing.T
	host, gate, far string
}

func newSite(t *testing.T) *site {
	s := &site{t, netnstest.New(t), netnstest.New(t), netnstest.New(t)}
	for _, ns := range []string{s.host, s.gate, s.far} {
		s.ip(ns, "ip link set lo up")
	}
	s.lan()
	for i, name := range lineNames {
		s.ip(s.gate, "ip link add %s type veth peer name p%d netns %s", name, i, s.far)
		s.up(s.gate, name, fmt.Sprintf("192.168.%d.1/24", i))
		s.up(s.far, fmt.Sprint("p", i), fmt.Sprintf("192.168.%d.2/24", i))
	}
	s.up(s.far, "lo", "10.2.0.1/32")
	for _, ns := range []string{s.gate, s.far} {
		netnstest.Do(t, ns, func() error {
			return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv4.conf.all.rp_filter", "0"))
		})
	}
	return s
}

// lan makes the link between the host and its gateway.
func (s *site) lan() {
	s.t.Helper()
	s.ip(s.gate, "ip link add %s type veth peer name lan netns %s", lanName, s.host)
	s.up(s.host, "lan", "10.1.0.1/24")
	s.up(s.gate, lanName, "10.1.0.254/24")
	s.ip(s.host, "ip -4 route add 10.2.0.0/16 via 10.1.0.254")
}

func (s *site) ip(ns, command string, args ...any) {
	s.t.Helper()
	if _, err := netnstest.TryIP(s.t, ns, fmt.Sprintf(command, args...)); err != nil {
		s.t.Fatalf(command+": %v", append(args, err)...)
	}
}

func (s *site) up(ns, link, address string) {
	s.t.Helper()
	s.ip(ns, "ip link set %s up", link)
	s.ip(ns, "ip -4 addr add %s dev %s", address, link)
}

// daemon starts the gateway's daemon and returns when it is up.
func (s *site) daemon(pins string) *exec.Cmd {
	s.t.Helper()
	c, up := s.start(pins, func(c *exec.Cmd) error { return netns.Do(s.gate, c.Start) })
	if !<-up {
		s.t.Fatalf("daemon does not come up: %v", c.Wait())
	}
	return c
}

// start starts the gateway's daemon. What is returned says whether it comes up.
func (s *site) start(pins string, start func(*exec.Cmd) error) (*exec.Cmd, <-chan bool) {
	s.t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), pinsOf+"="+pins)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = start(c)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	up := make(chan bool, 1)
	go func() {
		_, err := bufio.NewReader(out).ReadString('\n')
		up <- err == nil
	}()
	return c, up
}

// operations are the system calls by which the daemon changes maps, programs, links and pins.
var operations = []uint32{unix.SYS_BPF, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_FLOCK}

// killedAt starts the gateway's daemon and kills it before its operation number n, from 1, or when
// it is up. It returns how many operations it has begun.
func (s *site) killedAt(pins string, n int) (begun int) {
	s.t.Helper()
	return seccomptest.Kill(s.t, operations, n, func(run func(*exec.Cmd) error) (*exec.Cmd, <-chan bool) {
		return s.start(pins, func(c *exec.Cmd) error { return netns.Do(s.gate, func() error { return run(c) }) })
	})
}

// kill kills a daemon.
func (s *site) kill(c *exec.Cmd) {
	s.t.Helper()
	if err := c.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = c.Wait()
}

// stream sends a datagram to the far host every millisecond until stop is called, which returns the
// numbers of those that did not arrive.
func (s *site) stream() (stop func() (sent int, lost []uint32)) {
	s.t.Helper()
	var in, out *net.UDPConn
	to := netip.AddrPortFrom(netip.MustParseAddr("10.2.0.1"), 9)
	if err := errors.Join(
		netns.Do(s.far, func() (err error) { in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to)); return err }),
		netns.Do(s.host, func() (err error) { out, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); return err }),
	); err != nil {
		s.t.Fatal(err)
	}
	var stopped atomic.Bool
	sent := make(chan int)
	go func() {
		n := 0
		for ; !stopped.Load(); n++ {
			_, _ = out.Write(binary.BigEndian.AppendUint32(nil, uint32(n))) // a lost one is missing
			time.Sleep(time.Millisecond)
		}
		sent <- n
	}()
	got := map[uint32]bool{}
	done := make(chan bool)
	go func() {
		for b := make([]byte, 8); ; {
			if n, err := in.Read(b); err != nil {
				break
			} else if n == 4 {
				got[binary.BigEndian.Uint32(b)] = true
			}
		}
		close(done)
	}()
	return func() (int, []uint32) {
		stopped.Store(true)
		n := <-sent
		time.Sleep(100 * time.Millisecond)
		in.Close()
		out.Close()
		<-done
		var lost []uint32
		for i := range uint32(n) {
			if !got[i] {
				lost = append(lost, i)
			}
		}
		return n, lost
	}
}

// arrives sends datagrams to the far host until all of a few arrive.
func (s *site) arrives() {
	s.t.Helper()
	for range 500 {
		stop := s.stream()
		time.Sleep(5 * time.Millisecond)
		if sent, lost := stop(); sent > 1 && len(lost) == 0 {
			return
		}
	}
	s.t.Fatal("no packet arrives")
}

// kills is at how many points the daemon is killed.
var kills = flag.Int("kills", 16, "at how many points TestKilledAtAnyPoint kills the daemon, 0 for all")

// TestKilledAtAnyPoint: while the daemon is killed before any of its operations on the kernel and
// started again, packets are sent over both paths, and none is lost. A clean stop leaves nothing,
// and what was left in a network namespace that is gone goes with the next start.
func TestKilledAtAnyPoint(t *testing.T) {
	netnstest.Need(t)
	root := bpftest.Mount(t)
	stale := filepath.Join(root, "gateway-1")
	gone := newSite(t)
	gone.kill(gone.daemon(stale))
	pins := filepath.Join(root, "gateway-2")
	s := newSite(t)
	s.kill(s.daemon(pins))
	if _, err := os.Stat(stale); err != nil {
		t.Errorf("pins of another network namespace are removed: %v", err)
	}
	for _, name := range []string{lanName, lineNames[0], lineNames[1], "tabane-seg0"} {
		gone.ip(gone.gate, "ip link del %s", name)
	}

	c := s.daemon(pins)
	s.arrives()
	stop := s.stream()
	s.kill(c)
	all := s.killedAt(pins, math.MaxInt)
	n := *kills
	if n == 0 || n > all {
		n = all
	}
	for i := range n {
		s.killedAt(pins, 1+i*all/n)
	}
	c = s.daemon(pins)
	sent, lost := stop()
	t.Logf("%d sent; %d kills at points of %d", sent, n, all)
	if len(lost) > 0 {
		t.Errorf("%d of %d packets are lost, the first is %d", len(lost), sent, lost[0])
	}
	if all < 50 {
		t.Errorf("a start has only %d operations", all)
	}

	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("daemon stops: %v", err)
	}
	s.nothingIsLeft(root)

	// A start without open peers leaves nothing of a killed one either.
	c = s.daemon(pins)
	s.arrives()
	s.kill(c)
	if err := netns.Do(s.gate, func() error { return Clear(pins) }); err != nil {
		t.Error(err)
	}
	s.nothingIsLeft(root)
}

// TestKilledWithFilters: cls_bpf keeps the program of a killed daemon on its interfaces, and
// packets go on. The next start removes it, whether it has open peers or not.
func TestKilledWithFilters(t *testing.T) {
	netnstest.Need(t)
	root := bpftest.Mount(t)
	pins := filepath.Join(root, "gateway-2")
	s := newSite(t)
	for name, next := range map[string]func(){
		"without open peers": func() {
			if err := netns.Do(s.gate, func() error { return Clear(pins) }); err != nil {
				t.Error(err)
			}
		},
		"with tcx": func() {
			t.Setenv(legacyOf, "")
			c := s.daemon(pins)
			s.arrives()
			if n := s.filters(); n != 0 {
				t.Errorf("%d filters are left beside the links of tcx", n)
			}
			if err := errors.Join(c.Process.Signal(syscall.SIGTERM), c.Wait()); err != nil {
				t.Errorf("daemon stops: %v", err)
			}
		},
	} {
		t.Setenv(legacyOf, "yes")
		c := s.daemon(pins)
		s.arrives()
		s.kill(c)
		s.arrives()
		if n := s.filters(); n != 4 {
			t.Errorf("%s: a killed daemon leaves %d filters, want those of lan, both paths and the pair that segments", name, n)
		}
		next()
		if n := s.filters(); n != 0 {
			t.Errorf("%s: the next start leaves %d filters", name, n)
		}
		s.nothingIsLeft(root)
	}
}

// filters counts the filters of the gateway.
func (s *site) filters() (n int) {
	s.t.Helper()
	netnstest.Do(s.t, s.gate, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			list, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
			if err != nil {
				return err
			}
			n += len(list)
		}
		return err
	})
	return n
}

// nothingIsLeft fails the test if there are pins, or packets are sent.
func (s *site) nothingIsLeft(root string) {
	s.t.Helper()
	if left, err := filepath.Glob(filepath.Join(root, "gateway*")); err != nil || len(left) > 0 {
		s.t.Errorf("pins are left: %v %v", left, err)
	}
	// The kernel detaches the program of a link a moment after its pin is removed.
	arrived := 0
	for range 50 {
		stop := s.stream()
		time.Sleep(20 * time.Millisecond)
		sent, lost := stop()
		if arrived = sent - len(lost); sent > 0 && arrived == 0 {
			return
		}
	}
	s.t.Errorf("after the end, %d packets arrive", arrived)
}
