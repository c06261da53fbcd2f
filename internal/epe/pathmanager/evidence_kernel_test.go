package pathmanager

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
)

// listenAt replaces the site's listening socket by one at an address.
func (s *site) listenAt(address string, multipath bool) {
	s.t.Helper()
	if err := s.listener.Close(); err != nil {
		s.t.Fatal(err)
	}
	err := netns.Do(s.server, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(multipath)
		s.listener, err = lc.Listen(context.Background(), "tcp", address)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestListenerClosed: where the server has closed its listening socket, or has one with TCP, the
// kernel resets the subflows of a client that takes all addresses, and the status names the
// server's port.
func TestListenerClosed(t *testing.T) {
	for name, tt := range map[string]struct {
		listen    string
		multipath bool
		want      string
	}{
		"closed":        {"[::]:81", true, "nothing on this host listens on port 80 any more"},
		"TCP":           {"[::]:80", false, "port 80 of this host is listened to with TCP only"},
		"other address": {"[2001:db8:1::10]:80", true, "nothing on this host listens on [2001:db8:1::"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, addressingIPv6())
			s.connect()
			s.listenAt(tt.listen, tt.multipath)
			l, stop := s.manage()
			defer stop()
			s.offerAll(l, 0, RoutePresent)
			s.offerAll(l, 1, RoutePresent)
			var u Unjoined
			for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline) && !u.Reset; time.Sleep(10 * time.Millisecond) {
				u = l.Status().Unjoined
			}
			if !u.Reset || u.Announced != 2 || !strings.HasPrefix(u.Meaning, "client has 0 of 2 addresses: ") || !strings.Contains(u.Meaning, tt.want) {
				t.Errorf("%+v, want %q", u, tt.want)
			}
		})
	}
}
