package bgp

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestSilentNeighbors: attempts that a neighbor leaves unanswered are restarted.
func TestSilentNeighbors(t *testing.T) {
	netnstest.NeedIsolation(t)
	t.Parallel()
	// The first accepts our connection and sends nothing, the second opens one and sends
	// nothing, the third sends its OPEN but no KEEPALIVE.
	r := newRouterWith(t, 21, 65000, func(o *Options) { o.Report = ReportBest })
	listener, err := net.ListenTCP("tcp6", &net.TCPAddr{IP: net.ParseIP("fd00::16"), Port: 1790})
	r.must(err)
	t.Cleanup(func() { _ = listener.Close() })
	r.must(r.AddNeighbor(Neighbor{Name: "mute", Address: address(22), LocalAddress: address(21), ASN: 65001, Port: 1790, Families: []Family{IPv6Unicast}}))
	for name, n := range map[string]int{"shy": 23, "half": 24} {
		r.must(r.AddNeighbor(Neighbor{Name: name, Address: address(n), LocalAddress: address(21), ASN: 65001, Passive: true, Families: []Family{IPv6Unicast}}))
	}
	shy, half := dialFrom(t, r, 23), dialFrom(t, r, 24)
	open, err := gobgp.NewBGPOpenMessage(65001, 9, addr("10.0.0.24"), []gobgp.OptionParameterInterface{
		gobgp.NewOptionParameterCapability([]gobgp.ParameterCapabilityInterface{gobgp.NewCapMultiProtocol(gobgp.RF_IPv6_UC)}),
	})
	r.must(err)
	b, err := open.Serialize()
	r.must(err)
	_, err = half.Write(b)
	r.must(err)
	// Each connection is closed, and ours is retried.
	done := make(chan string, 3)
	for name, conn := range map[string]net.Conn{"shy": shy, "half": half} {
		go func() { _, _ = io.Copy(io.Discard, conn); done <- name }()
	}
	go func() {
		for i := range 2 {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if i == 0 {
				_, _ = io.Copy(io.Discard, conn)
			}
			_ = conn.Close()
		}
		done <- "mute"
	}()
	for deadline := time.After(30 * time.Second); len(done) < 3; {
		select {
		case <-deadline:
			t.Fatalf("%d of 3 attempts ended", len(done))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func dialFrom(t *testing.T, r *router, n int) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: address(n).AsSlice()}}
	conn, err := d.DialContext(t.Context(), "tcp6", netip.AddrPortFrom(address(r.n), DefaultPort).String())
	r.must(err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

const (
	// dialler is set in the child processes of TestBothDial, to the half that they run: "a" or
	// "b".
	dialler = "TABANE_TEST_BGP_DIALLER"
	// diallers is the number of speakers in each half.
	diallers = 60
)

func diallerAddress(half string, n int) netip.Addr {
	return addr(fmt.Sprintf("fd01::%s:%x", half, n+1))
}

// dial runs one half of the speakers, and prints which sessions are up, until it is killed. The
// speakers connect when there is something to read from the standard input.
func dial(half string) error {
	other := map[string]string{"a": "b", "b": "a"}[half]
	up := make(chan string)
	var speakers []*Speaker
	for i := range diallers {
		id := map[string]string{"a": "10.1.0.%d", "b": "10.2.0.%d"}[half]
		s, err := New(Options{ASN: 65000, RouterID: addr(fmt.Sprintf(id, i+1)), Listen: []netip.Addr{diallerAddress(half, i)}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		if err := s.Start(); err != nil {
			return err
		}
		speakers = append(speakers, s)
		go func() {
			for events := range s.Events() {
				for _, e := range events {
					if s, ok := e.(Session); ok && s.Up {
						up <- s.Neighbor
					}
				}
			}
		}()
	}
	fmt.Println("begun")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	for i, s := range speakers {
		if err := s.AddNeighbor(Neighbor{
			Name: fmt.Sprint(i), Address: diallerAddress(other, i), LocalAddress: diallerAddress(half, i), ASN: 65000, Families: []Family{IPv6Unicast},
		}); err != nil {
			return err
		}
	}
	for name := range up {
		fmt.Println("up", name)
	}
	return nil
}

// TestBothDial: neighbors that open a connection to each other simultaneously establish a session,
// however often their connections collide.
func TestBothDial(t *testing.T) {
	netnstest.NeedIsolation(t)
	t.Parallel()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	var starts []io.Writer
	up := make(chan string)
	begun := make(chan string, 2)
	for _, half := range []string{"a", "b"} {
		for i := range diallers {
			a := &netlink.Addr{IPNet: netlink.NewIPNet(diallerAddress(half, i).AsSlice()), Flags: syscall.IFA_F_NODAD}
			if err := netlink.AddrAdd(lo, a); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, half := range []string{"a", "b"} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), dialler+"="+half)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		starts = append(starts, stdin)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if lines.Text() == "begun" {
					begun <- half
				} else if name, ok := strings.CutPrefix(lines.Text(), "up "); ok {
					select {
					case up <- half + name:
					case <-t.Context().Done():
						return
					}
				}
			}
		}()
	}
	<-begun
	<-begun
	start := time.Now()
	for _, stdin := range starts {
		if _, err := stdin.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
	sessions := map[string]time.Duration{}
	for deadline := time.After(time.Minute); len(sessions) < 2*diallers; {
		select {
		case name := <-up:
			sessions[name] = time.Since(start)
		case <-deadline:
			t.Fatalf("%d of %d sessions are up: %v", len(sessions), 2*diallers, sessions)
		}
	}
	t.Logf("all sessions up %s after both sides connected at once", time.Since(start))
}

// TestConnect: Connect does not wait for the next attempt.
func TestConnect(t *testing.T) {
	r := newRouter(t, 20, 65000)
	r.must(r.AddNeighbor(Neighbor{
		Name: "late", Address: address(30), LocalAddress: address(20), ASN: 65001, Families: []Family{IPv6Unicast}, ConnectRetry: time.Hour,
	}))
	for end := time.Now().Add(15 * time.Second); !strings.Contains(r.Sessions()[0].Reason, "refused"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never refused: %+v", r.Sessions()[0])
		}
	}
	late := newRouter(t, 30, 65001)
	late.peer(r, passive)
	r.Connect()
	r.wait("session", func() bool { return r.up["late"] })
}
