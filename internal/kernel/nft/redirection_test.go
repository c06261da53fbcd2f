package nft

import (
	"net"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestRedirection: datagrams that begin with the byte arrive at the other port, and answers come
// from the one that they were sent to; others arrive where they are sent, also while the table is
// there.
func TestRedirection(t *testing.T) {
	host, far := netnstest.New(t), netnstest.New(t)
	for _, command := range []struct{ namespace, text string }{
		{host, "link add out type veth peer name eth0 netns " + far}, {host, "link set out up; -4 addr add 192.0.2.1/24 dev out; -6 addr add fd02::1/64 dev out nodad"},
		{far, "link set eth0 up; -4 addr add 192.0.2.2/24 dev eth0; -6 addr add fd02::2/64 dev eth0 nodad"},
	} {
		if _, err := netnstest.TryIP(t, command.namespace, command.text); err != nil {
			t.Fatal(err)
		}
	}
	r := Redirection{Table: "tabane-test", First: 9, From: 4790, To: 4791}
	for range 2 {
		netnstest.Do(t, host, r.Set)
	}
	for network, to := range map[string]string{"udp4": "192.0.2.1:4790", "udp6": "[fd02::1]:4790"} {
		at := map[string]*net.UDPConn{}
		for name, port := range map[string]int{"tunnel": 4790, "join": 4791} {
			netnstest.Do(t, host, func() (err error) { at[name], err = net.ListenUDP(network, &net.UDPAddr{Port: port}); return err })
			defer at[name].Close()
		}
		for first, name := range map[byte]string{9: "join", 4: "tunnel"} {
			var c net.Conn
			netnstest.Do(t, far, func() (err error) { c, err = net.Dial("udp", to); return err })
			defer c.Close()
			b := make([]byte, 10)
			_, err := c.Write([]byte{first, 1})
			_ = at[name].SetReadDeadline(time.Now().Add(5 * time.Second))
			n, from, e := at[name].ReadFromUDPAddrPort(b)
			if err != nil || e != nil || n != 2 || b[0] != first {
				t.Errorf("%d to %s: %d bytes at the port for %s, %v, %v", first, to, n, name, err, e)
				continue
			}
			_, err = at[name].WriteToUDPAddrPort([]byte("yes"), from)
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			if n, e := c.Read(b); err != nil || e != nil || string(b[:n]) != "yes" {
				t.Errorf("%d to %s: answered %q, %v, %v", first, to, b[:n], err, e)
			}
		}
	}
	netnstest.Do(t, host, func() error { return Delete("tabane-test") })
	if there, err := Exists("tabane-test"); there || err != nil {
		t.Errorf("the table exists: %t, %v", there, err)
	}
}
