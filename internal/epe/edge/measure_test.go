package edge

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/mptcp"
)

// TestMeasureFlows: what UDP carries is measured by its packets, as what TCP carries is by its
// sockets, in both versions of IP, and nothing stays on the interface.
func TestMeasureFlows(t *testing.T) {
	netnstest.Need(t)
	server, client := netnstest.New(t), netnstest.New(t)
	netnstest.IP(t, server, "link add lan type veth peer name lan netns "+client+`
link set lan up
address add 2001:db8:1::10/64 dev lan nodad
address add 192.0.2.10/24 dev lan`)
	netnstest.IP(t, client, `link set lan up
address add 2001:db8:1::1/64 dev lan nodad
address add 192.0.2.1/24 dev lan`)
	e := &Edge{config: Config{Interface: "lan"}, log: slog.New(slog.DiscardHandler)}
	var diag *mptcp.Diag
	netnstest.Do(t, server, func() (err error) {
		if e.namespace, err = netns.Current(); err == nil {
			diag, err = mptcp.DialDiag()
		}
		return err
	})
	defer func() {
		if err := errors.Join(e.namespace.Close(), diag.Close()); err != nil {
			t.Error(err)
		}
	}()
	const size, every = 1000, 10 * time.Millisecond
	for _, ends := range [][2]string{{"[2001:db8:1::10]:443", "[2001:db8:1::1]:4000"}, {"192.0.2.10:443", "192.0.2.1:4000"}} {
		local, remote := netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])
		var c *net.UDPConn
		netnstest.Do(t, server, func() (err error) {
			c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
			return err
		})
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for tick := time.NewTicker(every); ; {
				select {
				case <-stop:
					return
				case <-tick.C:
					_, _ = c.Write(make([]byte, size)) // nobody listens, which an ICMP error says
				}
			}
		}()
		rates, err := e.measureFlows(t.Context(), diag)
		close(stop)
		<-stopped
		c.Close()
		got := rates[flowEnds{local.Addr(), remote.Addr()}]
		// On a busy machine a ticker drops ticks, and what was late is counted in the next period.
		if most := 1.5 * (size + 62) / every.Seconds(); err != nil || len(rates) != 1 || got < size || got > most {
			t.Errorf("%s: %v, %v, want up to %.0f bytes/s", local, rates, err, most)
		}
	}
}
