package acceptance

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/kernel/afpacket"
)

// TestAllianceFromOneFile: daemons with roles make an alliance behind NAT. A download of the leader
// uses the lines of all, goes on when a member leaves, and the member returns.
func TestAllianceFromOneFile(t *testing.T) {
	t.Parallel()
	l := up(t, "gateway-alliance", "home.gateway.log", "leader.gateway.log", "member2.gateway.log")
	l.eventually("all paths are registered", 10*time.Second, l.registered("own", "member1", "member2"))
	cmd := l.command("leader", program, "fetch", "--json", "http://server/cbr?rate=12Mbit/s&duration=4s")
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	l.end("member2", "gateway", syscall.SIGTERM)
	l.eventually("the member has left", 2*time.Second, l.registered("own", "member1"))
	l.start("member2", "gateway")
	l.eventually("the member has returned", 10*time.Second, l.registered("own", "member1", "member2"))
	err := cmd.Wait()
	var r report
	if e := json.Unmarshal([]byte(out.String()), &r); err != nil || e != nil || r.Bytes != 6_000_000 {
		t.Errorf("the stream: %+v, %v, %v", r, err, e)
	}
	var s struct {
		Paths []struct {
			Path, Endpoint string
			CareOf         string `json:"care_of"`
			SentBytes      uint64 `json:"sent_bytes"`
		}
	}
	text := l.must("home", program, "status", "--json", "gateway")
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	outside := map[string][2]string{"own": {"198.51.100.10:", "192.168.0.2:"}, "member1": {"198.51.100.11:", "192.168.1.2:"}, "member2": {"198.51.100.12:", "192.168.2.2:"}}
	for _, p := range s.Paths {
		want := outside[p.Path]
		if !strings.HasPrefix(p.Endpoint, want[0]) || !strings.HasPrefix(p.CareOf, want[1]) || p.SentBytes < 100_000 {
			t.Errorf("path %+v, want packets sent to NAT %s and the care-of address %s", p, want[0], want[1])
		}
	}
	if len(s.Paths) != len(outside) {
		t.Errorf("the home agent has paths %+v", s.Paths)
	}
}

// TestAllianceUnsealed: with seal none at the leader and its home agent, packets cross members in
// open messages and in super-packets, behind NAT, in both directions; a member neither delivers
// them nor relays those of others, and the connection goes on when it is killed.
func TestAllianceUnsealed(t *testing.T) {
	t.Parallel()
	l := up(t, "testdata/alliance-open.yaml", "home.gateway.log", "leader.gateway.log", "member1.gateway.log")
	l.eventually("all paths are registered", 20*time.Second, l.registered("own", "member1", "member2"))
	hosts := netip.MustParsePrefix("10.8.0.0/15")
	var open, super, clear, forged atomic.Int64
	look := func(node, name string, line bool) {
		l.each(t, node, name, func(p afpacket.Packet) {
			switch b := p.Data; {
			case hosts.Contains(source(b)):
				clear.Add(1)
			case bytes.Contains(b, []byte("forged")):
				forged.Add(1)
			case line && isOpenMessage(b):
				open.Add(1)
				if len(b) > 1500 {
					super.Add(1)
				}
			}
		})
	}
	look("member1", "line", true)
	look("member1", "radio", false)
	look("member1", "tabane0", false)
	look("nat0", "line", false)
	const size = 20_000_000
	for node, from := range map[string]string{"host": "10.8.0.2", "server": "10.9.0.2"} {
		var r report
		text := l.must(node, program, "fetch", "--json", fmt.Sprintf("http://%s/bytes/%d", from, size))
		if err := json.Unmarshal([]byte(text), &r); err != nil || r.Bytes != size {
			t.Errorf("%s: %+v, %v", node, r, err)
		}
	}
	if open.Load() < 300 || super.Load() < 100 || clear.Load() > 0 {
		t.Errorf("%d open messages, %d super-packets, %d packets of hosts", open.Load(), super.Load(), clear.Load())
	}
	for _, node := range []string{"home", "leader"} {
		s, text := l.gateway(node)
		for _, p := range s.Paths {
			if p.Peer != "member1" && p.Peer != "member2" && (p.SentBytes < size/10 || p.ReceivedBytes < size/10) {
				t.Errorf("%s: path %s has carried little:\n%s", node, p.Path, text)
			}
		}
	}
	relays := func() (n, delivered uint64, home, text string) {
		var s struct {
			Packets uint64 `json:"packets_out"`
			Relays  []struct {
				HomeAgent string `json:"home_agent"`
				UpBytes   uint64 `json:"up_bytes"`
				DownBytes uint64 `json:"down_bytes"`
				UpPackets uint64 `json:"up_packets"`
			}
		}
		text, _ = l.try("member1", program, "status", "--json", "gateway")
		if err := json.Unmarshal([]byte(text), &s); err != nil || len(s.Relays) != 1 || s.Relays[0].UpBytes < size/10 || s.Relays[0].DownBytes < size/10 {
			t.Fatalf("the member relays %v:\n%s", err, text)
		}
		return s.Relays[0].UpPackets, s.Packets, s.Relays[0].HomeAgent, text
	}
	if _, delivered, home, text := relays(); delivered > 0 || home != "198.51.100.1:4790" {
		t.Errorf("the member delivers packets, or relays to %s:\n%s", home, text)
	}

	// Forged ones: of other hosts and ports on the short link they are not relayed. Those with the
	// leader's address and port are, as sealed ones are, and dropped at the home agent for their
	// cookie.
	_, leader := l.gateway("member1")
	endpoint := netip.MustParseAddrPort(regexp.MustCompile(`"endpoint": ?"(172\.16\.0\.1:\d+)"`).FindStringSubmatch(leader)[1])
	message := append(append([]byte{6}, make([]byte, 23)...), "E-------------------forged"...)
	to := netip.MustParseAddrPort("172.16.0.2:4790")
	for _, from := range []netip.AddrPort{netip.MustParseAddrPort("172.16.0.3:4790"), netip.AddrPortFrom(endpoint.Addr(), endpoint.Port()+1), netip.AddrPortFrom(netip.MustParseAddr("172.16.0.9"), endpoint.Port())} {
		for range 10 {
			l.inject(t, "member2", "radio", "member1", "radio", datagram(from, to, message))
		}
	}
	l.eventually("the member drops what is forged", 5*time.Second, func() (bool, string) {
		s, text := l.gateway("member1")
		return s.Dropped["forged cookie"] >= 30, text
	})
	seen := forged.Load() // on the short link
	l.inject(t, "member2", "radio", "member1", "radio", datagram(endpoint, to, message))
	l.eventually("the home agent drops it", 5*time.Second, func() (bool, string) {
		s, text := l.gateway("home")
		return s.Dropped["forged cookie"] >= 1, text
	})
	if n := forged.Load() - seen; seen != 30 || n != 2 { // arrives, and leaves
		t.Errorf("forged messages were seen %d times, and %d times with the leader's address", seen, n)
	}

	cmd := l.command("host", program, "fetch", "--json", "http://10.8.0.2/cbr?rate=12Mbit/s&duration=3s")
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	l.end("member1", "gateway", syscall.SIGKILL)
	l.eventually("its path is lost", 5*time.Second, l.registered("own", "member2"))
	err := cmd.Wait()
	var r report
	if e := json.Unmarshal([]byte(out.String()), &r); err != nil || e != nil || r.Bytes != 4_500_000 {
		t.Errorf("the stream: %+v, %v, %v", r, err, e)
	}
	l.start("member1", "gateway")
	l.eventually("the member has returned", 20*time.Second, l.registered("own", "member1", "member2"))
}

// datagram is an IPv4 packet with a datagram without a checksum.
func datagram(from, to netip.AddrPort, body []byte) []byte {
	be := binary.BigEndian
	b := be.AppendUint16([]byte{0x45, 0}, uint16(28+len(body)))
	b = append(b, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	be.PutUint16(b[10:], checksum.Of(b))
	b = be.AppendUint16(be.AppendUint16(b, from.Port()), to.Port())
	return append(be.AppendUint16(be.AppendUint16(b, uint16(8+len(body))), 0), body...)
}

// registered is an eventually condition on which paths of the leader are up and registered.
func (l *lab) registered(want ...string) func() (bool, string) {
	return func() (bool, string) {
		var s struct {
			Paths []struct {
				Peer, Path, State string
				Lifetime          float64 `json:"lifetime_seconds"`
			}
		}
		text, _ := l.try("leader", program, "status", "--json", "gateway") // fails while degraded
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return false, text
		}
		var got []string
		for _, p := range s.Paths {
			if p.Peer == "home" && p.State == "up" && p.Lifetime > 0 {
				got = append(got, p.Path)
			}
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(want))
		return slices.Equal(got, want), text
	}
}
