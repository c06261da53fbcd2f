package forward

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/iproute"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
)

// site is a host and its gateway, and the far host that two links lead to. The gateway's kernel has no route to it.
type site struct {
	t               *testing.T
	host, gate, far string
}

func newSite(t *testing.T) *site {
	s := &site{t, netnstest.New(t), netnstest.New(t), netnstest.New(t)}
	for _, ns := range []string{s.host, s.gate, s.far} {
		s.ip(ns, "ip link set lo up")
	}
	s.ip(s.gate, "ip link add lan type veth peer name lan netns %s", s.host)
	s.up(s.host, "lan", "10.1.0.1/24")
	s.up(s.gate, "lan", "10.1.0.254/24")
	s.ip(s.host, "ip -4 route add 10.2.0.0/16 via 10.1.0.254")
	for i := range 2 {
		s.ip(s.gate, "ip link add p%d type veth peer name p%d netns %s", i, i, s.far)
		s.up(s.gate, fmt.Sprint("p", i), fmt.Sprintf("192.168.%d.1/24", i))
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

func (s *site) ip(ns, command string, args ...any) {
	s.t.Helper()
	if _, err := iproute.In(ns, fmt.Sprintf(command, args...)); err != nil {
		s.t.Fatalf(command+": %v", append(args, err)...)
	}
}

func (s *site) up(ns, link, address string) {
	s.t.Helper()
	s.ip(ns, "ip link set %s up", link)
	s.ip(ns, "ip -4 addr add %s dev %s", address, link)
}

// daemon starts the gateway's daemon and returns when it is up, or after a time.
func (s *site) daemon(pins string, longest time.Duration) *exec.Cmd {
	s.t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), pinsOf+"="+pins)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = netns.Do(s.gate, c.Start)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	up := make(chan bool, 1)
	go func() {
		_, err := bufio.NewReader(out).ReadString('\n')
		up <- err == nil
	}()
	select {
	case ok := <-up:
		if !ok {
			s.t.Fatalf("daemon does not come up: %v", c.Wait())
		}
	case <-time.After(longest):
	}
	return c
}

// kill kills a daemon.
func (s *site) kill(c *exec.Cmd) {
	s.t.Helper()
	if err := c.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = c.Wait()
}

// stream sends a datagram to the far host every millisecond until stop is called, which returns the numbers of
// those that did not arrive.
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

// TestKilledAtAnyPoint: while the daemon is killed at any point and started again, packets are sent over both
// paths, and none is lost. A clean stop leaves nothing.
func TestKilledAtAnyPoint(t *testing.T) {
	netnstest.Need(t)
	root := t.TempDir()
	if err := unix.Mount("bpf", root, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	pins := filepath.Join(root, "gateway")
	s := newSite(t)

	start := time.Now()
	c := s.daemon(pins, time.Minute)
	took := time.Since(start)
	time.Sleep(50 * time.Millisecond) // for the plan, and for neighbors
	stop := s.stream()
	time.Sleep(20 * time.Millisecond)
	s.kill(c)
	r := rand.New(rand.NewPCG(12, 6))
	const kills = 16
	for i := range kills {
		// At any point of the start, and for half as long after it.
		s.kill(s.daemon(pins, took*3/2*time.Duration(i)/kills+time.Duration(r.Int64N(int64(took/kills)+1))))
	}
	c = s.daemon(pins, time.Minute)
	sent, lost := stop()
	t.Logf("%d sent, a start takes %v", sent, took)
	if len(lost) > 0 {
		t.Errorf("%d of %d packets are lost, the first is %d", len(lost), sent, lost[0])
	}

	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("daemon stops: %v", err)
	}
	if left, err := os.ReadDir(pins); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pins are left: %v %v", left, err)
	}
	stop = s.stream()
	time.Sleep(20 * time.Millisecond)
	if sent, lost := stop(); len(lost) != sent {
		t.Errorf("after a clean stop, %d of %d packets arrive", sent-len(lost), sent)
	}
}
