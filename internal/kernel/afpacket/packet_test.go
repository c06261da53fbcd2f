package afpacket

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestUnread: packets that a slow handler has not had when Run ends count as dropped.
func TestUnread(t *testing.T) {
	netnstest.Need(t)
	ns := netnstest.New(t)
	netnstest.Do(t, ns, func() error {
		if _, err := netnstest.TryIP(t, "", "ip link set lo up"); err != nil {
			return err
		}
		s, err := Open(Options{})
		if err != nil {
			return err
		}
		defer s.Close()
		conn, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer conn.Close()
		const sent = 1000
		for range sent {
			_, _ = conn.Write([]byte("x")) // nobody listens
		}
		ended, end := context.WithCancel(t.Context())
		end()
		handled := 0
		if err := s.Run(ended, Handler{Packet: func(Packet) error { handled++; time.Sleep(2 * time.Millisecond); return nil }}); err != nil {
			return err
		}
		// Each is seen as sent and as received, and so are the answers of ICMP.
		if all := handled + int(s.Dropped()); handled == 0 || s.Dropped() == 0 || all < 2*sent {
			t.Errorf("of 2 x %d packets %d were handled, and %d count as dropped", sent, handled, s.Dropped())
		}
		return nil
	})
}
