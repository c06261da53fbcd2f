// Package mptcptest gives tests a server and a client in network namespaces, whose MPTCP
// connections have a subflow over each of several links. It neither delays nor drops packets.
package mptcptest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/mptcp"
)

// Port is the server's.
const Port = 80

// Pair is a server and a client.
type Pair struct {
	// Server and Client are network namespaces.
	Server, Client string
	links          int
}

// New makes links between two network namespaces, named link0, link1 and so on. The kernel's path
// manager of the server advertises the addresses of the further links.
func New(t testing.TB, server, client string, links int) *Pair {
	t.Helper()
	p := &Pair{Server: server, Client: client, links: links}
	for i := range links {
		p.wire(t, i)
	}
	for ns, advertises := range map[string]bool{p.Server: true, p.Client: false} {
		do(t, ns, func() error {
			c, err := mptcp.Dial()
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetLimits(mptcp.Limits{Subflows: 8, AddAddrAccepted: 8}); err != nil || !advertises {
				return err
			}
			for i := range links - 1 {
				if err := c.Add(mptcp.Endpoint{Address: p.Address(i + 1), Signal: true}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return p
}

func do(t testing.TB, namespace string, f func() error) {
	t.Helper()
	if err := netns.Do(namespace, f); err != nil {
		t.Fatal(err)
	}
}

// Link is the name of a link at both ends.
func Link(i int) string { return fmt.Sprintf("link%d", i) }

func address(link, host int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::%x", link+1, host))
}

// Address is the server's address on a link.
func (p *Pair) Address(link int) netip.Addr { return address(link, 1) }

// wire makes a link with an address at each end.
func (p *Pair) wire(t testing.TB, i int) {
	t.Helper()
	f, err := os.Open("/run/netns/" + p.Client)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	do(t, p.Server, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: Link(i)}, PeerName: Link(i), PeerNamespace: netlink.NsFd(int(f.Fd())),
		})
	})
	for ns, host := range map[string]int{p.Server: 1, p.Client: 2} {
		do(t, ns, func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			link, err := netlink.LinkByName(Link(i))
			if err != nil {
				return err
			}
			on := &net.IPNet{IP: address(i, host).AsSlice(), Mask: net.CIDRMask(64, 128)}
			return errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(link, &netlink.Addr{IPNet: on, Flags: unix.IFA_F_NODAD}), netlink.LinkSetUp(link))
		})
	}
}

// Listen opens a listener on the server. It is closed when the test ends.
func (p *Pair) Listen(t testing.TB) net.Listener {
	t.Helper()
	var l net.Listener
	do(t, p.Server, func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(true)
		l, err = config.Listen(context.Background(), "tcp", fmt.Sprintf("[::]:%d", Port))
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Connect opens a connection, waits until it has a subflow over each link, and returns both ends.
// They are closed when the test ends.
func (p *Pair) Connect(t testing.TB, l net.Listener) (server, client net.Conn) {
	t.Helper()
	var acceptErr error
	var wg sync.WaitGroup
	wg.Go(func() { server, acceptErr = l.Accept() })
	err := netns.Do(p.Client, func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		d.SetMultipathTCP(true)
		client, err = d.Dial("tcp", netip.AddrPortFrom(p.Address(0), Port).String())
		return err
	})
	if err != nil {
		_ = l.Close() // ends Accept
	}
	wg.Wait()
	if err := errors.Join(err, acceptErr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		if _, err := from.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	local := server.RemoteAddr().(*net.TCPAddr).AddrPort()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n := p.subflows(t, local)
		if n == p.links {
			return server, client
		}
		if time.Now().After(deadline) {
			t.Fatalf("the connection has %d subflows, want %d", n, p.links)
		}
	}
}

// subflows returns the number of established subflows of the connection whose initial subflow comes
// from the client's address.
func (p *Pair) subflows(t testing.TB, client netip.AddrPort) int {
	t.Helper()
	count, token := map[uint32]int{}, uint32(0)
	do(t, p.Server, func() error {
		d, err := mptcp.DialDiag()
		if err != nil {
			return err
		}
		err = d.Subflows(mptcp.IPv6, func(s mptcp.Subflow) {
			count[s.Token]++
			if s.Remote == client {
				token = s.Token
			}
		})
		return errors.Join(err, d.Close())
	})
	return count[token]
}

// Pump sends from one end to the other until stop is closed or an end is closed; then it closes
// both. The channel is closed when it is done.
func Pump(from, to net.Conn, stop <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 256<<10)
		for {
			if _, err := from.Write(b); err != nil {
				return
			}
		}
	})
	wg.Go(func() { _, _ = io.Copy(io.Discard, to) })
	go func() {
		select {
		case <-stop:
			_, _ = from.Close(), to.Close()
		case <-done:
		}
	}()
	go func() { wg.Wait(); close(done) }()
	return done
}
