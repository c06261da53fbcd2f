package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Isolate(m)) }

// paced writes data in pieces with pauses, so that it is on the way for some seconds.
func paced(c net.Conn, data []byte, pause time.Duration) error {
	for len(data) > 0 {
		n, err := c.Write(data[:min(len(data), 8<<10)])
		if err != nil {
			return err
		}
		data = data[n:]
		time.Sleep(pause)
	}
	return c.(*net.TCPConn).CloseWrite()
}

// TestStripped: a connection that loses MPTCP's options after it has carried data is reset, and what
// was received of it is right. Of what is sent the other end may get some twice before: the round
// trip is so short here that the kernel's timer is not awaited. One that loses the options in the
// handshake goes on as TCP.
func TestStripped(t *testing.T) {
	netnstest.NeedIsolation(t)
	nft := programs.Need(t, "nft")
	namespace := netnstest.New(t)
	netnstest.IP(t, "", "link add strip0 type veth peer name strip1 netns "+namespace+"; addr add 192.0.2.1/24 dev strip0; link set strip0 up")
	t.Cleanup(func() { netnstest.IP(t, "", "link del strip0") })
	netnstest.IP(t, namespace, "addr add 192.0.2.2/24 dev strip1; link set strip1 up; link set lo up")
	rules := func(text string) {
		t.Helper()
		netnstest.Do(t, namespace, func() error {
			cmd := exec.Command(nft, "-f", "-")
			cmd.Stdin = strings.NewReader(text)
			out, err := cmd.CombinedOutput()
			if err != nil {
				return errors.New(string(out))
			}
			return nil
		})
	}
	const all = "table inet strip { chain in { type filter hook prerouting priority 0; tcp option mptcp exists MATCH reset tcp option mptcp; }\n" +
		"chain out { type filter hook postrouting priority 0; tcp option mptcp exists MATCH reset tcp option mptcp; }; }"
	data := make([]byte, 2<<20)
	for i := 0; i < len(data); i += 4 {
		binary.BigEndian.PutUint32(data[i:], uint32(i))
	}
	for name, c := range map[string]struct {
		upload, handshake bool
		pause             time.Duration
	}{
		"download":            {pause: time.Millisecond},
		"slow download":       {pause: 20 * time.Millisecond},
		"upload":              {upload: true, pause: time.Millisecond},
		"slow upload":         {upload: true, pause: 20 * time.Millisecond},
		"download, handshake": {handshake: true},
		"upload, handshake":   {upload: true, handshake: true},
	} {
		t.Run(name, func(t *testing.T) {
			var l net.Listener
			if err := netns.Do(namespace, func() (err error) {
				lc := net.ListenConfig{}
				lc.SetMultipathTCP(true)
				l, err = lc.Listen(context.Background(), "tcp", "192.0.2.2:0")
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			r := &stub{}
			r.plan.Targets = []Target{{Address: netip.MustParseAddrPort(l.Addr().String()), Multipath: true}}
			_, s, at := start(t, r, ServiceOptions{})
			if c.handshake {
				rules(strings.ReplaceAll(all, "MATCH", "tcp flags & syn == 0"))
				defer rules("delete table inet strip")
			}
			client := enter(t, at)
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			_ = server.SetDeadline(time.Now().Add(patience))
			from, to := server, net.Conn(client)
			if c.upload {
				from, to = to, from
			}
			go func() { _ = paced(from, data, c.pause) }() // the receiver sees how it ends
			var got []byte
			first := make([]byte, 64<<10)
			n, err := io.ReadFull(to, first)
			got = append(got, first[:n]...)
			if err == nil {
				if !c.handshake {
					rules(strings.ReplaceAll(all, "MATCH", ""))
					defer rules("delete table inet strip")
				}
				var rest []byte
				rest, err = io.ReadAll(to)
				got = append(got, rest...)
			}
			if !bytes.HasPrefix(data, got) && (!c.upload || c.handshake) {
				t.Errorf("of %d bytes some are wrong, %v", len(got), err)
			}
			stripped := s.Counts.Stripped.Load()
			switch {
			case c.handshake:
				if len(got) != len(data) || err != nil || stripped != 0 {
					t.Errorf("%d bytes of %d arrive, %v, %d are stripped", len(got), len(data), err, stripped)
				}
			case !errors.Is(err, syscall.ECONNRESET) || stripped != 1:
				t.Errorf("after %d bytes the receiver gets %v, %d are stripped", len(got), err, stripped)
			}
		})
	}
}
