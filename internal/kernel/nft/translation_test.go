package nft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// routed makes a host and a server with a router between them, which forwards. The commands of each
// configure its interfaces: eth0 of host and server, in and out of the router.
func routed(t *testing.T, onHost, onRouter, onServer string) (host, router, server string) {
	t.Helper()
	host, router, server = netnstest.New(t), netnstest.New(t), netnstest.New(t)
	for _, c := range []struct{ namespace, commands string }{
		{router, "link add in type veth peer name eth0 netns " + host}, {router, "link add out type veth peer name eth0 netns " + server},
		{host, "link set eth0 up; " + onHost}, {router, "link set in up; link set out up; " + onRouter}, {server, "link set eth0 up; " + onServer},
	} {
		if _, err := netnstest.TryIP(t, c.namespace, c.commands); err != nil {
			t.Fatalf("%s: %v", c.commands, err)
		}
	}
	netnstest.Do(t, router, func() error {
		return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	})
	return host, router, server
}

// TestTranslation: packets from the sources that leave by the interfaces are masqueraded, others
// are not.
func TestTranslation(t *testing.T) {
	host, router, server := routed(t,
		"-4 addr add 192.168.1.2/24 dev eth0; -6 addr add fd01::2/64 dev eth0 nodad; -4 route add default via 192.168.1.1; -6 route add default via fd01::1",
		"-4 addr add 192.168.1.1/24 dev in; -6 addr add fd01::1/64 dev in nodad; -4 addr add 203.0.113.1/24 dev out; -6 addr add fd02::1/64 dev out nodad",
		"-4 addr add 203.0.113.2/24 dev eth0; -6 addr add fd02::2/64 dev eth0 nodad; -4 route add 192.168.1.0/24 via 203.0.113.1; -6 route add fd01::/64 via fd02::1")
	set := func(links, sources string) {
		t.Helper()
		tr := Translation{Table: "tabane-test", Links: strings.Fields(links)}
		for _, s := range strings.Fields(sources) {
			tr.Sources = append(tr.Sources, netip.MustParsePrefix(s))
		}
		netnstest.Do(t, router, tr.Set)
	}
	const own4, own6, seen4, seen6 = "192.168.1.2", "fd01::2", "203.0.113.1", "fd02::1"
	for _, tt := range []struct{ links, sources, want4, want6 string }{
		{"out", "192.168.0.0/23 fd01::/63", seen4, seen6},
		{"in out", "10.0.0.0/8 192.168.1.2/32 fd00::/8", seen4, seen6},
		{"out", "192.168.0.0/24 fd01::/64", own4, seen6},
		{"in", "192.168.0.0/16 fd01::/64", own4, own6},
	} {
		set(tt.links, tt.sources)
		for to, want := range map[string]string{"203.0.113.2": tt.want4, "fd02::2": tt.want6} {
			if got := exchange(t, host, server, to); got != netip.MustParseAddr(want) {
				t.Errorf("%s, %s: %s sees %v, want %s", tt.links, tt.sources, to, got, want)
			}
		}
	}
	netnstest.Do(t, router, func() error { return errors.Join(Delete("tabane-test"), Delete("tabane-test")) })
	if got := exchange(t, host, server, "203.0.113.2"); got != netip.MustParseAddr(own4) {
		t.Errorf("after the table was deleted, the server sees %v", got)
	}
}

// TestTranslationLeaksNothing: packets of no connection, which the kernel does not translate, do not
// leave.
func TestTranslationLeaksNothing(t *testing.T) {
	host, router, server := routed(t,
		"-4 addr add 192.168.1.2/24 dev eth0; -4 route add default via 192.168.1.1",
		"-4 addr add 192.168.1.1/24 dev in; -4 addr add 203.0.113.1/24 dev out",
		"-4 addr add 203.0.113.2/24 dev eth0")
	for _, sources := range []string{"10.0.0.0/8", "192.168.0.0/16"} {
		tr := Translation{Table: "tabane-test", Links: []string{"out"}, Sources: []netip.Prefix{netip.MustParsePrefix(sources)}}
		netnstest.Do(t, router, tr.Set)
		var at net.PacketConn
		netnstest.Do(t, server, func() (err error) { at, err = net.ListenPacket("ip4:tcp", "203.0.113.2"); return err })
		netnstest.Do(t, host, func() error {
			c, err := net.Dial("ip4:tcp", "203.0.113.2")
			if err != nil {
				return err
			}
			defer c.Close()
			reset := make([]byte, 20) // RST of a connection that the router does not know
			reset[1], reset[3], reset[12], reset[13] = 9, 9, 5<<4, 4
			_, err = c.Write(reset)
			return err
		})
		want := 1
		if sources == "192.168.0.0/16" {
			want = 0
			if got := exchange(t, host, server, "203.0.113.2"); got != netip.MustParseAddr("203.0.113.1") {
				t.Errorf("server sees %v", got)
			}
		}
		count := 0
		for b := make([]byte, 100); ; count++ {
			wait := time.Second
			if count >= want {
				wait = 10 * time.Millisecond // the exchange has arrived after it
			}
			_ = at.SetReadDeadline(time.Now().Add(wait))
			if _, _, err := at.ReadFrom(b); err != nil {
				break
			}
		}
		at.Close()
		if count != want {
			t.Errorf("with sources %s, %d packets of no connection leave, want %d", sources, count, want)
		}
	}
}

// TestTranslationKeeps: packets from sources that are kept leave with these, and nobody connects to
// one from elsewhere, unless it is open.
func TestTranslationKeeps(t *testing.T) {
	host, router, server := routed(t,
		"-4 addr add 198.51.100.2/24 dev eth0; -6 addr add 2001:db8:1::2/64 dev eth0 nodad; -4 route add default via 198.51.100.1; -6 route add default via 2001:db8:1::1",
		"-4 addr add 198.51.100.1/24 dev in; -6 addr add 2001:db8:1::1/64 dev in nodad; -4 addr add 203.0.113.1/24 dev out; -6 addr add 2001:db8:2::1/64 dev out nodad",
		"-4 addr add 203.0.113.2/24 dev eth0; -6 addr add 2001:db8:2::2/64 dev eth0 nodad; -4 route add default via 203.0.113.1; -6 route add default via 2001:db8:2::1")
	for _, tt := range []struct {
		kept, open string
		seen4      string
		reached    bool
	}{
		{"198.51.0.0/16 2001:db8:1::/48", "", "198.51.100.2", false},
		{"198.51.0.0/16 2001:db8:1::/48", "198.51.100.2/32 2001:db8:1::/64", "198.51.100.2", true},
		{"2001:db8:1::/48", "2001:db8:1::2/128", "203.0.113.1", true},
	} {
		tr := Translation{Table: "tabane-test", Links: []string{"out"}, Sources: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/48")}}
		for list, text := range map[*[]netip.Prefix]string{&tr.Kept: tt.kept, &tr.Open: tt.open} {
			for _, p := range strings.Fields(text) {
				*list = append(*list, netip.MustParsePrefix(p))
			}
		}
		netnstest.Do(t, router, func() error {
			err := tr.Set()
			if ok, e := tr.Holds(); !ok || e != nil {
				t.Errorf("%+v: holds %t, %v", tt, ok, e)
			}
			return err
		})
		for to, want := range map[string]string{"203.0.113.2": tt.seen4, "2001:db8:2::2": "2001:db8:1::2"} {
			if got := exchange(t, host, server, to); got != netip.MustParseAddr(want) {
				t.Errorf("%+v: %s sees %v, want %s", tt, to, got, want)
			}
		}
		for _, to := range []string{"198.51.100.2", "2001:db8:1::2"} {
			e, err := netnstest.Echo(server, netip.MustParseAddr(to), 3, 56)
			if err != nil || e.Received > 0 != tt.reached && (to != "198.51.100.2" || tt.seen4 != "203.0.113.1") {
				t.Errorf("%+v: %d echoes of %s from elsewhere, %v", tt, e.Received, to, err)
			}
		}
	}
}

// TestTranslationHolds: every change of the table by another program is noticed and undone.
func TestTranslationHolds(t *testing.T) {
	nft := programs.Need(t, "nft")
	ns := netnstest.New(t)
	tr := Translation{
		Table: "tabane-test", Links: []string{"eth0", "eth1"}, Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
		Kept: []netip.Prefix{netip.MustParsePrefix("2001:db8::/48")},
	}
	holds := func(want bool, after string) {
		t.Helper()
		if got, err := tr.Holds(); got != want || err != nil {
			t.Errorf("%s: holds %t, %v", after, got, err)
		}
	}
	netnstest.Do(t, ns, func() error {
		holds(false, "nothing set")
		for _, change := range []string{
			"delete table inet tabane-test", "flush chain inet tabane-test sources", "flush chain inet tabane-test kept", "flush chain inet tabane-test forward",
			"insert rule inet tabane-test kept return", "flush set inet tabane-test kept6", "flush table inet tabane-test",
			"insert rule inet tabane-test postrouting accept", "add rule inet tabane-test sources accept",
			"add chain inet tabane-test more", "add set inet tabane-test more { type ipv4_addr; }",
			"delete element inet tabane-test sources4 { 10.0.0.0/8 }", "add element inet tabane-test sources6 { fc00::/8 }",
			"flush set inet tabane-test sources4; add element inet tabane-test sources4 { 10.0.0.0/9 }", "flush chain inet tabane-test postrouting; delete chain inet tabane-test postrouting",
		} {
			if err := tr.Set(); err != nil {
				return err
			}
			holds(true, "set")
			if out, err := exec.Command(nft, change).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", change, err, out)
			}
			holds(false, change)
		}
		return errors.Join(tr.Set(), tr.Set())
	})
}

// TestForeign: rules that a Translation has not made are found, in a table of its name alone.
func TestForeign(t *testing.T) {
	nft := programs.Need(t, "nft")
	ns := netnstest.New(t)
	tr := Translation{
		Table: "tabane-test", Links: []string{"eth0"}, Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Kept: []netip.Prefix{netip.MustParsePrefix("2001:db8::/48")},
	}
	netnstest.Do(t, ns, func() error {
		foreign := func(want bool, after string) {
			t.Helper()
			if got, err := Foreign("tabane-test"); got != want || err != nil {
				t.Errorf("%s: foreign %t, %v", after, got, err)
			}
		}
		foreign(false, "without a table")
		if err := tr.Set(); err != nil {
			return err
		}
		for _, step := range []struct {
			command string
			want    bool
		}{
			{"add table inet other; add chain inet other c; add rule inet other c drop", false},
			{"add table ip tabane-test; add chain ip tabane-test c; add rule ip tabane-test c drop", false},
			{"add chain inet tabane-test c; add rule inet tabane-test c drop", true},
			{"delete table inet tabane-test; add table inet tabane-test", false},
		} {
			if out, err := exec.Command(nft, step.command).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", step.command, err, out)
			}
			foreign(step.want, step.command)
		}
		return nil
	})
}

// BenchmarkHolds reads a table with 100,000 prefixes: after a change of any table, and without one.
func BenchmarkHolds(b *testing.B) {
	ns := netnstest.New(b)
	tr := Translation{Table: "tabane-test", Links: []string{"eth0"}}
	for i := range uint32(100_000) {
		tr.Sources = append(tr.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32))
	}
	for _, changed := range []bool{true, false} {
		b.Run(fmt.Sprintf("changed=%t", changed), func(b *testing.B) {
			netnstest.Do(b, ns, func() error {
				if err := tr.Set(); err != nil {
					return err
				}
				if _, err := tr.Holds(); err != nil {
					return err
				}
				for b.Loop() {
					if changed {
						tr.heldAt = 0
					}
					if ok, err := tr.Holds(); !ok || err != nil {
						b.Fatalf("holds %t, %v", ok, err)
					}
				}
				return nil
			})
		})
	}
}

// TestManySources: as many prefixes as a large configuration has are set in one step, with those
// that overlap, adjoin, and reach the last address.
func TestManySources(t *testing.T) {
	ns := netnstest.New(t)
	tr := Translation{Table: "tabane-test", Links: []string{"eth0"}}
	for i := range 10_000 {
		// Every other /24 and /64: none of them merge.
		n := uint16(2 * i)
		tr.Sources = append(tr.Sources,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 6: byte(n >> 8), 7: byte(n)}), 64))
	}
	for _, s := range strings.Fields("10.0.0.0/23 10.0.0.7/32 172.16.0.0/13 172.24.0.0/13 255.255.255.255/32 ffff::/16") {
		tr.Sources = append(tr.Sources, netip.MustParsePrefix(s))
	}
	netnstest.Do(t, ns, func() error {
		if there, err := Exists(tr.Table); there || err != nil {
			t.Errorf("before: exists %t, %v", there, err)
		}
		for range 2 {
			if err := tr.Set(); err != nil {
				return err
			}
		}
		if ok, err := tr.Holds(); !ok || err != nil {
			t.Errorf("holds %t, %v", ok, err)
		}
		if there, err := Exists(tr.Table); !there || err != nil {
			t.Errorf("exists %t, %v", there, err)
		}
		other := Translation{Table: tr.Table, Links: tr.Links, Sources: slices.Clone(tr.Sources[1:])}
		other.Sources[len(other.Sources)-6] = netip.MustParsePrefix("10.0.0.8/32") // in place of 10.0.0.0/23
		if ok, err := other.Holds(); ok || err != nil {
			t.Errorf("without a prefix: holds %t, %v", ok, err)
		}
		return Delete(tr.Table)
	})
}
