package enroll

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestJoinAtSecondAddress: a request is answered from the address that it was sent to, by sockets
// of each IP version.
func TestJoinAtSecondAddress(t *testing.T) {
	netnstest.Enter(t)
	for _, c := range []string{"ip link set lo up", "ip -6 addr add fd01::1/128 dev lo nodad", "ip -6 addr add fd01::2/128 dev lo nodad"} {
		if _, err := netnstest.TryIP(t, "", c); err != nil {
			t.Fatal(err)
		}
	}
	netnstest.AwaitLocal(t, "", netip.MustParseAddr("fd01::1"), netip.MustParseAddr("fd01::2"))
	for _, tt := range []struct{ network, from, to string }{
		{"udp", "127.0.0.1", "127.0.0.2"}, {"udp4", "127.0.0.1", "127.0.0.2"}, {"udp", "fd01::1", "fd01::2"},
	} {
		own, err := handshake.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		at, err := net.ListenUDP(tt.network, nil)
		if err != nil {
			t.Fatal(err)
		}
		port, to := uint16(at.LocalAddr().(*net.UDPAddr).Port), netip.MustParseAddr(tt.to)
		invitation, err := join.Invite(own.Public(), port, []netip.Addr{to}, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		host := join.NewHost(own, invitation, func(handshake.PublicKey, join.Request) join.Answer { return join.Answer{} }, rand.Reader)
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, at, host, time.Minute) }()
		_, message, err := join.Begin(invitation, own, join.Request{Name: "office"}, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		// A connected socket receives from its remote address alone, as NAT does.
		site, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(tt.from), 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
		if err != nil {
			t.Fatal(err)
		}
		answered := errors.New("not sent")
		for range 4 { // one that arrived before the socket was served is answered from anywhere
			if _, err := site.Write(message); err != nil {
				t.Fatal(err)
			}
			if err := site.SetReadDeadline(time.Now().Add(resend)); err != nil {
				t.Fatal(err)
			}
			if _, answered = site.Read(make([]byte, join.MaxMessage)); answered == nil {
				break
			}
		}
		if answered != nil {
			t.Errorf("%s to %s: %v", tt.network, tt.to, answered)
		}
		stop()
		if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		site.Close()
		at.Close()
	}
}

// TestJoinOverAnyLine: a site joins while the line of its best default route is dead.
func TestJoinOverAnyLine(t *testing.T) {
	netnstest.Enter(t)
	far := netnstest.New(t)
	for _, c := range []struct{ in, command string }{
		{"", "link add w1 type veth peer name dead"}, {"", "link add w2 type veth peer name wan netns " + far}, {"", "link set w1 up"},
		{"", "link set dead up"}, {"", "link set w2 up"}, {"", "-4 addr add 192.168.1.2/24 dev w1"}, {"", "-4 addr add 192.168.2.2/24 dev w2"},
		{"", "-4 route add default via 192.168.1.1 dev w1 metric 100"}, {"", "-4 route add default via 192.168.2.1 dev w2 metric 200"},
		{far, "link set lo up"}, {far, "link set wan up"}, {far, "-4 addr add 192.168.2.1/24 dev wan"}, {far, "-4 addr add 203.0.113.7/32 dev lo"},
	} {
		if _, err := netnstest.TryIP(t, c.in, "ip "+c.command); err != nil {
			t.Fatalf("%s: %v", c.command, err)
		}
	}
	own, err := handshake.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var at *net.UDPConn
	netnstest.Do(t, far, func() (err error) {
		at, err = net.ListenUDP("udp", nil)
		return err
	})
	defer at.Close()
	to := netip.MustParseAddr("203.0.113.7")
	invitation, err := join.Invite(own.Public(), uint16(at.LocalAddr().(*net.UDPAddr).Port), []netip.Addr{to}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	host := join.NewHost(own, invitation, func(handshake.PublicKey, join.Request) join.Answer {
		return join.Answer{Name: "vps", Own: netip.MustParseAddr("10.79.0.2"), Gateway: netip.MustParseAddr("10.79.0.1")}
	}, rand.Reader)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, at, host, time.Minute) }()
	if _, err := Join(t.Context(), []string{"w1", "gone", "w2"}, invitation, own, join.Request{Name: "office"}); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
