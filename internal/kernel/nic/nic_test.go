package nic

import (
	"errors"
	"net"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func TestConn(t *testing.T) {
	ns := netnstest.Enter(t)
	netnstest.IP(t, ns, "link add near type veth peer name far; link set near up; link set far up; link set lo up; address add 192.0.2.1/24 dev near")
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, want := range map[string]int64{"near": 10e9, "lo": 0} { // veth says so
		if got, err := c.Speed(name); err != nil || got != want {
			t.Errorf("%s: %d bit/s, %v; want %d", name, got, err, want)
		}
	}
	index, before, err := c.Sent("near")
	if err != nil || index == 0 {
		t.Fatalf("interface %d, %v", index, err)
	}
	if _, err := netnstest.TryIP(t, ns, "neighbor replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev near"); err != nil {
		t.Fatal(err)
	}
	if err := send("192.0.2.2:9", 1000); err != nil {
		t.Fatal(err)
	}
	if _, after, err := c.Sent("near"); err != nil || after < before+1000 {
		t.Errorf("%d bytes, then %d, %v", before, after, err)
	}
	netnstest.IP(t, ns, "link delete near")
	if _, _, err := c.Sent("near"); err == nil {
		t.Error("no error for an interface that is not there")
	}
	if _, err := c.Speed("near"); err == nil {
		t.Error("no error for an interface that is not there")
	}
}

// send sends a datagram.
func send(to string, size int) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	_, err = conn.Write(make([]byte, size))
	return errors.Join(err, conn.Close())
}
