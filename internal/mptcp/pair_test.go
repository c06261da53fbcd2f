package mptcp

import (
	"context"
	"errors"
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
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// pair is a server and a client in separate namespaces with two links between them. The server has
// the default address on the first link, and an address to announce on the second.
type pair struct {
	t              testing.TB
	server, client string // namespaces
	conn           *Conn
	events         *Events
	diag           *Diag
	listener       net.Listener
}

var (
	defaultAddress  = netip.MustParseAddr("2001:db8:1::10")
	clientAddress   = netip.MustParseAddr("2001:db8:1::20")
	announceAddress = netip.MustParseAddr("2001:db8:2::a")
	clientSecond    = netip.MustParseAddr("2001:db8:2::20")
)

func newPair(t testing.TB) *pair {
	t.Helper()
	p := &pair{t: t, server: netnstest.New(t), client: netnstest.New(t)}
	p.wire("first", defaultAddress, clientAddress)
	p.wire("second", announceAddress, clientSecond)
	err := netns.Do(p.client, func() error {
		c, err := Dial()
		if err != nil {
			return err
		}
		return errors.Join(c.SetLimits(Limits{Subflows: 8, AddAddrAccepted: 8}), c.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Do(p.server, func() (err error) {
		if err := SetManager(UserManager); err != nil {
			return err
		}
		if p.conn, err = Dial(); err != nil {
			return err
		}
		if p.events, err = Subscribe(); err != nil {
			return err
		}
		if p.diag, err = DialDiag(); err != nil {
			return err
		}
		config := net.ListenConfig{}
		config.SetMultipathTCP(true)
		p.listener, err = config.Listen(context.Background(), "tcp", "[::]:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.listener.Close(), p.conn.Close(), p.events.Close(), p.diag.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// wire creates a veth pair with an address at each end.
func (p *pair) wire(name string, server, client netip.Addr) {
	p.t.Helper()
	f, err := os.Open("/run/netns/" + p.client)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	err = netns.Do(p.server, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(int(f.Fd())),
		})
	})
	if err != nil {
		p.t.Fatal(err)
	}
	for ns, a := range map[string]netip.Addr{p.server: server, p.client: client} {
		err := netns.Do(ns, func() error {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0); err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			on := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(64, 128)}
			return errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(link, &netlink.Addr{IPNet: on, Flags: unix.IFA_F_NODAD}), netlink.LinkSetUp(link))
		})
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// connect opens a connection to the server's default address and sends a byte in each direction, so
// that it is established at both ends. It returns the client's and the server's socket.
func (p *pair) connect() (client, server net.Conn) {
	p.t.Helper()
	var accepted net.Conn
	var acceptErr error
	var wg sync.WaitGroup
	wg.Go(func() { accepted, acceptErr = p.listener.Accept() })
	var dialed net.Conn
	err := netns.Do(p.client, func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		d.SetMultipathTCP(true)
		dialed, err = d.Dial("tcp", netip.AddrPortFrom(defaultAddress, 80).String())
		return err
	})
	wg.Wait()
	if err := errors.Join(err, acceptErr); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _, _ = dialed.Close(), accepted.Close() })
	for from, to := range map[net.Conn]net.Conn{dialed: accepted, accepted: dialed} {
		if _, err := from.Write([]byte{1}); err != nil {
			p.t.Fatal(err)
		}
		if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
			p.t.Fatal(err)
		}
	}
	return dialed, accepted
}

// expect receives events until one has type E.
func expect[E Event](p *pair) E {
	p.t.Helper()
	timer := time.AfterFunc(20*time.Second, func() { _ = p.events.genl.SetReadDeadline(time.Unix(1, 0)) })
	defer timer.Stop()
	for {
		events, err := p.events.Receive()
		if err != nil {
			p.t.Fatalf("wait for %T: %v", *new(E), err)
		}
		for _, e := range events {
			p.t.Logf("%T%+v", e, e)
			if wanted, ok := e.(E); ok {
				return wanted
			}
		}
	}
}

func (p *pair) request(r Request) {
	p.t.Helper()
	if err := p.conn.Request(r); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) subflows() []Subflow {
	p.t.Helper()
	var all []Subflow
	for _, f := range []Family{IPv4, IPv6} {
		if err := p.diag.Subflows(f, func(s Subflow) { all = append(all, s) }); err != nil {
			p.t.Fatal(err)
		}
	}
	return all
}

// connection returns the kernel's state of the connection with the token.
func (p *pair) connection(token uint32) (c Connection) {
	p.t.Helper()
	for _, f := range []Family{IPv4, IPv6} {
		err := p.diag.Connections(f, func(found Connection) {
			if found.Token == token {
				c = found
			}
		})
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return c
}

func TestPathsOfAConnection(t *testing.T) {
	p := newPair(t)
	client, server := p.connect()
	established := expect[Established](p)
	token := established.Token
	if established.Local != netip.AddrPortFrom(defaultAddress, 80) || established.Remote.Addr() != clientAddress || !established.ServerSide {
		t.Errorf("established %+v", established)
	}

	p.request(Announce{Token: token, ID: 7, Address: announceAddress})
	joined := expect[SubEstablished](p)
	if joined.Token != token || joined.Local != netip.AddrPortFrom(announceAddress, 80) || joined.LocalID != 7 || joined.Backup {
		t.Errorf("joined %+v", joined)
	}
	found := p.connection(token)
	if found.Token != token || found.Subflows != 1 || found.Announced != 1 {
		t.Errorf("connection %+v", found)
	}
	// The queries by token and of all agree, and bytes are counted once they are acknowledged.
	if _, err := server.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		one, ok, err := p.diag.Connection(token)
		if err != nil || !ok || one.Token != token || one.Counted && one.Acked > found.Acked+1000 {
			t.Fatalf("connection %+v, %t, %v", one, ok, err)
		}
		if !one.Counted || one.Acked == found.Acked+1000 && one.Written == one.Acked && one.Outstanding == 0 && !one.Full && one == p.connection(token) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("connection %+v, before that %+v", one, found)
		}
	}
	if c, ok, err := p.diag.Connection(token + 1); err != nil || ok {
		t.Errorf("a connection that does not exist: %+v, %t, %v", c, ok, err)
	}
	p.request(SetBackup{Token: token, Local: joined.Local, Remote: joined.Remote, Backup: true})
	subflows := p.subflows()
	if len(subflows) != 2 {
		t.Fatalf("subflows %+v", subflows)
	}
	for _, s := range subflows {
		if s.Token != token || s.Joined != (s.Local == joined.Local) || s.BackupHere != s.Joined {
			t.Errorf("subflow %+v", s)
		}
	}
	p.request(SetBackup{Token: token, Local: joined.Local, Remote: joined.Remote})
	var queried []Subflow
	gone := Ends{joined.Local, netip.AddrPortFrom(clientSecond, 1)}
	err := p.diag.Query([]Ends{{established.Local, established.Remote}, gone, {joined.Local, joined.Remote}}, func(s Subflow) {
		queried = append(queried, s)
	})
	if err != nil || len(queried) != 2 || queried[0].Local != established.Local || queried[1].Local != joined.Local ||
		queried[0].Token != token || queried[1].Token != token || !queried[1].Joined {
		t.Errorf("queried %+v, %v", queried, err)
	}

	p.request(RemoveAddress{Token: token, ID: 7})
	if closed := expect[SubClosed](p); closed.Local != joined.Local || closed.Token != token {
		t.Errorf("closed %+v", closed)
	}
	if got := p.connection(token); got.Token != token || got.Subflows != 0 || got.Announced != 0 {
		t.Errorf("connection %+v", got)
	}

	p.request(Announce{Token: token, ID: 7, Address: announceAddress})
	joined = expect[SubEstablished](p)
	p.request(RemoveAddress{Token: token, ID: 7})
	err = p.conn.Request(DestroySubflow{Token: token, Local: joined.Local, Remote: joined.Remote})
	if err != nil && !errors.Is(err, ErrUnknownSubflow) {
		t.Error(err) // the client may have closed it first
	}
	if got := p.subflows(); len(got) != 1 {
		t.Errorf("subflows %+v", got)
	}

	announce := Announce{Token: token, ID: 7, Address: announceAddress}
	if err := p.conn.Request(announce); err != nil {
		t.Error(err)
	}
	if announce.ID++; !errors.Is(p.conn.Request(announce), ErrAddressTaken) {
		t.Error("an address is announced with two IDs")
	}

	// The connection continues and is closed normally.
	if _, err := server.Write([]byte("on")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(client.Close(), server.Close()); err != nil {
		t.Fatal(err)
	}
	if closed := expect[Closed](p); closed.Token != token {
		t.Errorf("closed %+v", closed)
	}
}

// TestFullSendBuffer: the send buffer is full while the application waits to write, and not once
// the peer has read.
func TestFullSendBuffer(t *testing.T) {
	p := newPair(t)
	client, server := p.connect()
	token := expect[Established](p).Token
	const size = 64 << 20 // larger than the buffers of both ends
	wrote := make(chan error, 1)
	go func() {
		_, err := server.Write(make([]byte, size))
		wrote <- err
	}()
	until := func(full bool) (c Connection) {
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			var err error
			if c, _, err = p.diag.Connection(token); err != nil {
				t.Fatal(err)
			}
			if c.Full == full || time.Now().After(deadline) {
				break
			}
		}
		if c.Full != full {
			t.Fatalf("connection %+v, want full %v", c, full)
		}
		return c
	}
	if c := until(true); c.Written <= c.Acked || c.Written >= size {
		t.Errorf("connection %+v, want a part of %d written", c, size)
	}
	if _, err := io.CopyN(io.Discard, client, size); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	until(false)
	if err := errors.Join(client.Close(), server.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestRequestsForClosedConnections(t *testing.T) {
	p := newPair(t)
	p.connect()
	token := expect[Established](p).Token
	here, there := netip.AddrPortFrom(announceAddress, 80), netip.AddrPortFrom(clientSecond, 4711)
	for _, tt := range []struct {
		request Request
		want    error
	}{
		{Announce{Token: token + 1, ID: 7, Address: announceAddress}, ErrUnknownConnection},
		{RemoveAddress{Token: token + 1, ID: 7}, ErrUnknownConnection},
		{CreateSubflow{Token: token + 1, ID: 7, Local: announceAddress, Remote: there}, ErrUnknownConnection},
		{DestroySubflow{Token: token + 1, Local: here, Remote: there}, ErrUnknownConnection},
		{SetBackup{Token: token + 1, Local: here, Remote: there}, ErrUnknownConnection},
		{RemoveAddress{Token: token, ID: 9}, ErrUnknownAddress},
		{DestroySubflow{Token: token, Local: here, Remote: there}, ErrUnknownSubflow},
		{SetBackup{Token: token, Local: here, Remote: there, Backup: true}, ErrUnknownSubflow},
		{Announce{Token: token, Address: announceAddress}, nil},
		{Announce{Token: token, ID: 7}, nil},
	} {
		err := p.conn.Request(tt.request)
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%v: %v, want %v", tt.request, err, tt.want)
		}
	}
}

// Connections created before the path manager was changed belong to the kernel's.
func TestRequestsForTheKernelsConnections(t *testing.T) {
	p := newPair(t)
	if err := netns.Do(p.server, func() error { return SetManager(KernelManager) }); err != nil {
		t.Fatal(err)
	}
	p.connect()
	token := expect[Established](p).Token
	if err := p.conn.Request(Announce{Token: token, ID: 7, Address: announceAddress}); !errors.Is(err, ErrUnknownConnection) {
		t.Errorf("announce on a connection of the kernel's: %v", err)
	}
}

func TestSubflowsOfBothFamilies(t *testing.T) {
	p := newPair(t)
	var ipv4 net.Conn
	err := netns.Do(p.server, func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		d.SetMultipathTCP(true)
		ipv4, err = d.Dial("tcp", "127.0.0.1:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ipv4.Close()
	accepted, err := p.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	here := netip.MustParseAddrPort("127.0.0.1:80")
	if created := expect[Created](p); created.Local != here && created.Remote != here {
		t.Errorf("created %+v", created)
	}
	found := 0
	for _, s := range p.subflows() {
		if s.Local == here || s.Remote == here {
			found++
			if s.Active != (s.Remote == here) {
				t.Errorf("which end opened it: %+v", s)
			}
			// One end is a dual-stack socket, whose addresses are IPv4-mapped in the
			// kernel.
			p.request(SetBackup{Token: s.Token, Local: s.Local, Remote: s.Remote, Backup: true})
		}
	}
	if found != 2 {
		t.Errorf("subflows %+v", p.subflows())
	}
}

func TestCloseWakesReceive(t *testing.T) {
	p := newPair(t)
	events, err := func() (e *Events, err error) {
		err = netns.Do(p.server, func() (err error) { e, err = Subscribe(); return err })
		return e, err
	}()
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan error)
	go func() {
		for {
			if _, err := events.Receive(); err != nil {
				received <- err
				return
			}
		}
	}()
	if err := events.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-received; !errors.Is(err, os.ErrClosed) {
		t.Errorf("receive: %v, want os.ErrClosed", err)
	}
}
