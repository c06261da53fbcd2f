package flows

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/mptcp"
)

// A server with a default address and two EPE addresses, each of which is routed to a SID, and a
// client that is also the SRv6 endpoint of both SIDs.
const (
	serverBatch = `link set eth0 up
address add 2001:db8:1::10/64 dev eth0 nodad
address add 2001:db8:1::a/128 dev eth0 nodad
address add 2001:db8:1::b/128 dev eth0 nodad
route add 2001:db8:c::/64 via 2001:db8:1::2 dev eth0
route add fc00:1::/32 via 2001:db8:1::2 dev eth0
route add 2001:db8:c::/64 encap seg6 mode encap.red segs fc00:1:1:: dev eth0 table 101
route add 2001:db8:c::/64 encap seg6 mode encap segs fc00:1:2:: dev eth0 table 102
rule add from 2001:db8:1::a lookup 101
rule add from 2001:db8:1::b lookup 102`
	clientBatch = `link set eth0 up
address add 2001:db8:1::2/64 dev eth0 nodad
address add 2001:db8:c::2/128 dev lo nodad
route add 2001:db8:1::/64 dev eth0 src 2001:db8:c::2 metric 1
route add fc00:1:1:: encap seg6local action End.DT6 table 255 dev eth0
route add fc00:1:2:: encap seg6local action End.DT6 table 255 dev eth0`
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func inside(t testing.TB, ns string, f func() error) {
	t.Helper()
	if err := netns.Do(ns, f); err != nil {
		t.Fatal(err)
	}
}

func ip(t testing.TB, ns, batch string) {
	t.Helper()
	if _, err := netnstest.TryIP(t, ns, batch); err != nil {
		t.Fatal(err)
	}
}

// namespace creates a namespace that is deleted at the end of the test.
func namespace(t testing.TB) string {
	t.Helper()
	ns := netnstest.New(t)
	ip(t, ns, "link set lo up")
	return ns
}

// testbed creates the server and the client and returns the names of their namespaces.
func testbed(t testing.TB) (server, client string) {
	t.Helper()
	server, client = namespace(t), namespace(t)
	for _, ns := range []string{server, client} {
		inside(t, ns, func() error {
			for _, file := range []string{"ipv6/conf/all/seg6_enabled", "ipv6/conf/default/seg6_enabled", "ipv6/conf/all/forwarding"} {
				if err := os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ip(t, server, `link add eth0 type veth peer name eth0 netns `+client)
	ip(t, server, serverBatch)
	ip(t, client, clientBatch)
	paths := func(ns string, endpoints ...mptcp.Endpoint) {
		inside(t, ns, func() error {
			c, err := mptcp.Dial()
			if err != nil {
				return err
			}
			err = c.SetLimits(mptcp.Limits{Subflows: 8, AddAddrAccepted: 8})
			for _, e := range endpoints {
				err = errors.Join(err, c.Add(e))
			}
			return errors.Join(err, c.Close())
		})
	}
	paths(client)
	paths(server, mptcp.Endpoint{Address: serverA, Signal: true}, mptcp.Endpoint{Address: serverB, Signal: true})
	return server, client
}

// subflow is the observed state of a subflow at the end of the test.
type subflow struct {
	sid   netip.Addr
	peer  string
	token uint32
	bytes uint64
	acked uint64
	ended bool
}

// TestSubflowsOfAConnection monitors a real MPTCP connection over three paths from its
// establishment to its end.
func TestSubflowsOfAConnection(t *testing.T) {
	server, clientNS := testbed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	// State written by the sink in the goroutine of Run; it is read after Run has returned.
	seen := map[netip.Addr]subflow{}
	var back uint64
	all := make(chan struct{}) // closed when all subflows have carried packets
	var w *Watcher
	inside(t, server, func() (err error) {
		w, err = New(Options{
			Interfaces: []string{"eth0"}, Interval: MinInterval, Log: slog.New(slog.DiscardHandler),
			Peers: map[netip.Addr]string{serverA: "transit-a", serverB: "transit-b"},
			Sink: func(s *Snapshot) error {
				open, ended := 0, 0
				for _, f := range s.Flows {
					if f.Protocol != "tcp" {
						continue
					}
					if !f.Sent {
						back += f.Delta.Bytes
						continue
					}
					sf := seen[f.Local.Addr()]
					sf.sid, sf.peer, sf.bytes, sf.ended = f.SID, f.Peer, f.Total.Bytes, sf.ended || f.Ended
					if socket, _ := f.Socket(); socket != nil {
						sf.token, sf.acked = socket.Token, max(sf.acked, socket.Acked)
						if socket.RTT == 0 || socket.Window == 0 || socket.Congestion == "" {
							t.Errorf("socket %+v", socket)
						}
					}
					seen[f.Local.Addr()] = sf
				}
				for _, sf := range seen {
					if sf.token != 0 && sf.acked > 0 {
						open++
					}
					if sf.ended {
						ended++
					}
				}
				if open == 3 {
					select {
					case <-all:
					default:
						close(all)
					}
				}
				if ended == 3 {
					stop()
				}
				return nil
			},
		})
		return err
	})
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()

	var l net.Listener
	inside(t, server, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(true)
		l, err = lc.Listen(ctx, "tcp6", "[::]:80")
		return err
	})
	sent := make(chan uint64, 1)
	go func() {
		var n uint64
		defer func() { sent <- n }()
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		chunk := make([]byte, 256<<10)
		for {
			m, err := c.Write(chunk)
			if n += uint64(m); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-all:
				return
			case <-ctx.Done():
				return
			default:
			}
		}
	}()
	var c net.Conn
	inside(t, clientNS, func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: client.AsSlice()}}
		d.SetMultipathTCP(true)
		c, err = d.DialContext(ctx, "tcp", "[2001:db8:1::10]:80")
		return err
	})
	defer c.Close()
	if multipath, err := c.(*net.TCPConn).MultipathTCP(); err != nil || !multipath {
		t.Fatalf("the connection is no MPTCP: %v", err)
	}
	received := make(chan uint64, 1)
	go func() {
		var n uint64
		b := make([]byte, 64<<10)
		for {
			m, err := c.Read(b)
			n += uint64(m)
			if err != nil {
				received <- n
				c.Close()
				return
			}
		}
	}()
	if err := w.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v, with %+v", err, seen)
	}
	written, read := <-sent, <-received
	if written != read {
		t.Errorf("%d bytes were written, %d read", written, read)
	}

	if len(seen) != 3 {
		t.Fatalf("%d subflows, want 3: %+v", len(seen), seen)
	}
	var bytes uint64
	for address, want := range map[string]subflow{
		"2001:db8:1::10": {},
		"2001:db8:1::a":  {sid: netip.MustParseAddr("fc00:1:1::"), peer: "transit-a"},
		"2001:db8:1::b":  {sid: netip.MustParseAddr("fc00:1:2::"), peer: "transit-b"},
	} {
		sf := seen[netip.MustParseAddr(address)]
		if sf.sid != want.sid || sf.peer != want.peer || !sf.ended {
			t.Errorf("subflow from %s: %+v", address, sf)
		}
		if sf.bytes <= sf.acked || sf.acked == 0 {
			t.Errorf("subflow from %s: %d bytes on the wire, %d acknowledged", address, sf.bytes, sf.acked)
		}
		if sf.token == 0 || sf.token != seen[serverA].token {
			t.Errorf("subflow from %s is of connection %x, that from %v of %x", address, sf.token, serverA, seen[serverA].token)
		}
		bytes += sf.bytes
	}
	// Every byte that the application wrote was sent on one of them.
	if bytes <= written || back == 0 {
		t.Errorf("%d bytes sent and %d received on the wire, the application wrote %d", bytes, back, written)
	}
}

func TestNewRefuses(t *testing.T) {
	netnstest.Need(t)
	if _, err := New(Options{Interfaces: []string{"none-such"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an interface that is not there: %v", err)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no interface is accepted")
	}
}
