package emulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := beLink(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	netnstest.Main(m)
}

// bed is a test bed of two nodes with the link's namespace between them.
type bed struct {
	t                   testing.TB
	left, middle, right string // namespaces
}

func (b *bed) do(ns string, f func() error) {
	b.t.Helper()
	if err := netns.Do(ns, f); err != nil {
		b.t.Fatal(err)
	}
}

// newBed creates left.end -- ra | rb -- right.end. Both nodes have addresses in 10.0.0.0/24 and
// fd00::/64.
func newBed(t testing.TB, mtu int) *bed {
	t.Helper()
	b := &bed{t: t, left: netnstest.New(t), middle: netnstest.New(t), right: netnstest.New(t)}
	b.connect(b.left, "ra", 1, mtu)
	b.connect(b.right, "rb", 2, mtu)
	return b
}

// connect creates a veth pair between "end" in a node and an interface in the middle namespace, and
// prepares the end.
func (b *bed) connect(node, middle string, host byte, mtu int) {
	b.t.Helper()
	b.pair(node, middle, host, mtu)
	b.do(node, func() error { return offload.Prepare("end") })
}

func (b *bed) pair(node, middle string, host byte, mtu int) {
	b.t.Helper()
	ns, err := os.Open("/run/netns/" + b.middle)
	if err != nil {
		b.t.Fatal(err)
	}
	defer ns.Close()
	far := netlink.NsFd(int(ns.Fd()))
	b.do(node, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "end", mtu
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerMTU, veth.PeerNamespace = middle, uint32(mtu), far
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		end, err := netlink.LinkByName("end")
		if err != nil {
			return err
		}
		for _, text := range []string{fmt.Sprintf("10.0.0.%d/24", host), fmt.Sprintf("fd00::%d/64", host)} {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			a.Flags = unix.IFA_F_NODAD
			if a.IP.To4() != nil {
				a.Flags = 0
			}
			if err := netlink.AddrAdd(end, a); err != nil {
				return err
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(end))
	})
}

// open opens a link in the middle namespace.
func (b *bed) open(o Options) *Link {
	b.t.Helper()
	var l *Link
	o.Config.A, o.Config.B = "ra", "rb"
	b.do(b.middle, func() (err error) {
		l, err = New(o)
		return err
	})
	return l
}

// run runs a link until the test ends or stop is called.
func (b *bed) run(l *Link) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	b.t.Cleanup(stop)
	// The kernel drops frames that a node sends before it has processed the new carrier.
	for _, ns := range []string{b.left, b.right} {
		until(b.t, "the nodes' interfaces are operational", func() bool { return b.end(ns).OperState == netlink.OperUp })
	}
	return stop
}

// end returns the attributes of the node's interface.
func (b *bed) end(ns string) *netlink.LinkAttrs {
	b.t.Helper()
	var attrs *netlink.LinkAttrs
	b.do(ns, func() error {
		end, err := netlink.LinkByName("end")
		if err == nil {
			attrs = end.Attrs()
		}
		return err
	})
	return attrs
}

// until waits until f returns true, for at most 5 s.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// lines is a log writer that a test can read, safe for concurrent use.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
