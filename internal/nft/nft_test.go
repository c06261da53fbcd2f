package nft

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/iproute"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestMasquerade: a server sees the router's address in place of that of a host behind it, and the host
// gets the answer. Packets out of other interfaces keep their source.
func TestMasquerade(t *testing.T) {
	host, router, server := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	run := func(namespace, commands string) {
		t.Helper()
		if _, err := iproute.In(namespace, commands); err != nil {
			t.Fatalf("%s: %v", commands, err)
		}
	}
	run(router, "link add in type veth peer name eth0 netns "+host)
	run(router, "link add out type veth peer name eth0 netns "+server)
	run(host, "link set eth0 up; -4 addr add 192.168.1.2/24 dev eth0; -6 addr add fd01::2/64 dev eth0 nodad; -4 route add default via 192.168.1.1; -6 route add default via fd01::1")
	run(router, "link set in up; link set out up; -4 addr add 192.168.1.1/24 dev in; -6 addr add fd01::1/64 dev in nodad; -4 addr add 203.0.113.1/24 dev out; -6 addr add fd02::1/64 dev out nodad")
	run(server, "link set eth0 up; -4 addr add 203.0.113.2/24 dev eth0; -6 addr add fd02::2/64 dev eth0 nodad")
	netnstest.Do(t, router, func() error {
		return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv6.conf.all.forwarding", "1"), Masquerade("out"))
	})
	for _, tt := range []struct{ to, seen string }{{"203.0.113.2", "203.0.113.1"}, {"fd02::2", "fd02::1"}} {
		if got := exchange(t, host, server, tt.to); got != netip.MustParseAddr(tt.seen) {
			t.Errorf("%s sees %v, want %s", tt.to, got, tt.seen)
		}
	}
	// The other way nothing is translated: the server reaches the host's own address.
	run(server, "-4 route add 192.168.1.0/24 via 203.0.113.1")
	if got := exchange(t, server, host, "192.168.1.2"); got != netip.MustParseAddr("203.0.113.2") {
		t.Errorf("the host sees %v, want the server's own address", got)
	}
}

// exchange sends a datagram from a namespace to an address in another one, and its answer, and returns
// the source that the receiver sees.
func exchange(t *testing.T, from, to, address string) netip.Addr {
	t.Helper()
	var in, out *net.UDPConn
	netnstest.Do(t, to, func() (err error) {
		in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 0)))
		return err
	})
	defer in.Close()
	netnstest.Do(t, from, func() (err error) {
		out, err = net.DialUDP("udp", nil, in.LocalAddr().(*net.UDPAddr))
		return err
	})
	defer out.Close()
	end := time.Now().Add(5 * time.Second)
	b := make([]byte, 10)
	_, err := out.Write([]byte("request"))
	if err = errors.Join(err, in.SetReadDeadline(end), out.SetReadDeadline(end)); err != nil {
		t.Fatal(err)
	}
	n, source, err := in.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != "request" {
		t.Fatalf("got %q, %v", b[:n], err)
	}
	if _, err := in.WriteToUDPAddrPort([]byte("answer"), source); err != nil {
		t.Fatal(err)
	}
	if n, err := out.Read(b); err != nil || string(b[:n]) != "answer" {
		t.Fatalf("got %q, %v", b[:n], err)
	}
	return source.Addr().Unmap()
}

func TestMasqueradeNames(t *testing.T) {
	for _, link := range []string{"", "longer-than-15-b"} {
		if err := Masquerade(link); err == nil {
			t.Errorf("no error for interface %q", link)
		}
	}
}
