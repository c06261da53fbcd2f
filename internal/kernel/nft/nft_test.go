package nft

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestMasquerade: a server sees the router's address in place of that of a host behind it, and the
// host gets the answer. Packets out of other interfaces keep their source.
func TestMasquerade(t *testing.T) {
	host, router, server := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	run := func(namespace, commands string) {
		t.Helper()
		if _, err := netnstest.TryIP(t, namespace, commands); err != nil {
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

// exchange sends a datagram from a namespace to an address in another one, and its answer, and
// returns the source that the receiver sees.
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
	var source netip.AddrPort
	var n int
	// A busy kernel adds the routes to new addresses later, and drops what it is sent before.
	err := error(os.ErrDeadlineExceeded)
	for errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
		_, err = out.Write([]byte("request"))
		if err = errors.Join(err, in.SetReadDeadline(time.Now().Add(200*time.Millisecond)), out.SetReadDeadline(end)); err != nil {
			t.Fatal(err)
		}
		n, source, err = in.ReadFromUDPAddrPort(b)
	}
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

// TestUntracked: chains that may drop packets of half a connection are found, unless they accept a
// mark before.
func TestUntracked(t *testing.T) {
	const mark = 4791
	nft := programs.Need(t, "nft")
	for name, tt := range map[string]struct {
		rules string
		want  string
	}{
		"none":                 {`chain c { type filter hook input priority 0; policy drop; }`, ""},
		"accepts all":          {`chain c { type filter hook forward priority 0; tcp dport 25 drop; iifname "lan" accept; }`, ""},
		"policy":               {`chain c { type filter hook forward priority 0; policy drop; }`, "inet fw c"},
		"policy, marked":       {`chain c { type filter hook forward priority 0; policy drop; meta mark 4791 counter accept; }`, ""},
		"another mark":         {`chain c { type filter hook forward priority 0; policy drop; meta mark 4790 accept; }`, "inet fw c"},
		"some bits":            {`chain c { type filter hook forward priority 0; policy drop; meta mark and 0xffff == 4791 accept; }`, ""},
		"bits of another mark": {`chain c { type filter hook forward priority 0; policy drop; meta mark and 0xff == 0x10 accept; }`, "inet fw c"},
		"marked, not all":      {`chain c { type filter hook forward priority 0; policy drop; iifname "w" meta mark 4791 accept; meta mark 4791 tcp dport 1 accept; }`, "inet fw c"},
		"state":                {`chain c { type filter hook forward priority 0; ct state invalid counter drop; }`, "inet fw c"},
		"marked before":        {`chain c { type filter hook forward priority 0; meta mark 4791 accept; ct state invalid drop; }`, ""},
		"marked after":         {`chain c { type filter hook forward priority 0; ct state invalid drop; meta mark 4791 accept; }`, "inet fw c"},
		"verdict map":          {`chain c { type filter hook forward priority 0; ct state vmap { invalid : drop, established : accept }; }`, "inet fw c"},
		"last rule":            {`chain c { type filter hook forward priority 0; iifname "lan" accept; reject with icmpx admin-prohibited; }`, "inet fw c"},
		"chain of another":     {`chain d { ct state invalid drop; }; chain c { type filter hook forward priority 0; iifname "w" jump d; }`, "inet fw c"},
		"harmless chain":       {`chain d { tcp dport 25 drop; }; chain c { type filter hook forward priority 0; jump d; }`, ""},
		"reverse path":         {`chain c { type filter hook prerouting priority -150; meta nfproto ipv6 fib saddr . mark . iif oif missing drop; }`, "inet fw c"},
		"reverse path, marked": {`chain c { type filter hook prerouting priority -150; meta mark 4791 accept; meta nfproto ipv6 fib saddr . mark . iif oif missing drop; }`, ""},
		"mark set":             {`chain c { type filter hook prerouting priority -150; meta mark set ct mark; }`, "inet fw c"},
		"mark set, marked":     {`chain c { type filter hook prerouting priority -150; meta mark and 0xffff == 4791 accept; meta mark set 1; }`, ""},
		"mark set in a chain":  {`chain d { meta mark set 1; }; chain c { type filter hook prerouting priority -150; iifname "w" jump d; }`, "inet fw c"},
		"of the LAN":           {`chain d { meta mark set 1; }; chain c { type filter hook prerouting priority -150; iifname "lan" jump d; iifname "lan" meta mark set 2; }`, ""},
		"of a line":            {`chain c { type filter hook prerouting priority -150; iifname "v" meta mark set 2; }`, "inet fw c"},
		"of the line's number": {`chain c { type filter hook prerouting priority -150; iif "lo" meta mark set 2; }`, "inet fw c"},
		"of lines by a prefix": {`chain c { type filter hook prerouting priority -150; iifname "w*" meta mark set 2; }`, "inet fw c"},
		"of all but lines":     {`chain c { type filter hook prerouting priority -150; iifname != "lan" meta mark set 2; }`, "inet fw c"},
		"other bits":           {`chain c { type filter hook prerouting priority -150; meta mark set meta mark or 0x30000; }`, ""},
		"our bits":             {`chain c { type filter hook prerouting priority -150; meta mark set meta mark or 0x30008; }`, "inet fw c"},
		"if there is no mark":  {`chain c { type filter hook prerouting priority -150; meta mark 0 meta mark set ct mark; meta mark and 0xff == 0 meta mark set 7; }`, ""},
		"drop for the LAN":     {`chain c { type filter hook forward priority 0; iifname "lan" ct state invalid drop; }`, ""},
		"nat":                  {`chain c { type nat hook postrouting priority 100; policy drop; }`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			netnstest.Do(t, ns, func() error {
				c := exec.Command(nft, "-f", "-")
				c.Stdin = strings.NewReader("table inet fw {\n" + strings.ReplaceAll(tt.rules, ";", "\n") + "\n}\n")
				if out, err := c.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				found, err := Untracked(Packets{Mark: mark, Bits: 0xffff, Lines: []string{"v", "w", "lo"}})
				if err != nil {
					return err
				}
				var got []string
				for _, c := range found {
					got = append(got, c.String())
				}
				if strings.Join(got, ", ") != tt.want {
					t.Errorf("found %q, want %q", got, tt.want)
				}
				return nil
			})
		})
	}
}

// TestUntrackedLegacy is TestUntracked for the rules of iptables-legacy.
func TestUntrackedLegacy(t *testing.T) {
	for name, tt := range map[string]struct {
		rules string
		want  bool
	}{
		"no rules":             {"-P FORWARD ACCEPT", false},
		"input":                {"-P INPUT DROP", false},
		"policy":               {"-P FORWARD DROP", true},
		"policy, marked":       {"-P FORWARD DROP; -A FORWARD -m comment --comment x -m mark --mark 4791 -j ACCEPT", false},
		"another mark":         {"-P FORWARD DROP; -A FORWARD -m mark --mark 4790 -j ACCEPT", true},
		"not this mark":        {"-P FORWARD DROP; -A FORWARD -m mark ! --mark 4791 -j ACCEPT", true},
		"masked mark":          {"-P FORWARD DROP; -A FORWARD -m mark --mark 4791/0xfff -j ACCEPT", true},
		"some bits":            {"-P FORWARD DROP; -A FORWARD -m mark --mark 4791/0xffff -j ACCEPT", false},
		"marked, not all":      {"-P FORWARD DROP; -A FORWARD -i w -m mark --mark 4791 -j ACCEPT; -A FORWARD -m mark --mark 4791 -m conntrack --ctstate NEW -j ACCEPT", true},
		"no drop of all":       {"-A FORWARD -i w -j DROP; -A FORWARD -p tcp -m tcp --dport 25 -j REJECT; -A FORWARD", false},
		"state":                {"-A FORWARD -m conntrack --ctstate INVALID -j DROP", true},
		"last rule":            {"-A FORWARD -i lan -j ACCEPT; -A FORWARD -j REJECT", true},
		"marked before":        {"-A FORWARD -m mark --mark 4791 -j ACCEPT; -A FORWARD -j DROP", false},
		"marked after":         {"-A FORWARD -j DROP; -A FORWARD -m mark --mark 4791 -j ACCEPT", true},
		"chain of another":     {"-N d; -A d -m state --state INVALID -j DROP; -A FORWARD -i w -j d", true},
		"harmless chain":       {"-N d; -N e; -A d -i w -j DROP; -A e -j DROP; -A FORWARD -j d", false},
		"another table":        {"-t mangle -A FORWARD -p tcp -m tcp --syn -j TCPMSS --clamp-mss-to-pmtu", false},
		"prerouting":           {"-t raw -A PREROUTING -m rpfilter --invert -j DROP", true},
		"mark set":             {"-t mangle -A PREROUTING -j MARK --set-mark 1", true},
		"of the LAN":           {"-t mangle -A PREROUTING -i lan -j MARK --set-mark 1; -t mangle -A PREROUTING -i l+ -j CONNMARK --restore-mark", false},
		"of a line":            {"-t mangle -A PREROUTING -i w -j MARK --set-mark 1", true},
		"of lines by a prefix": {"-t mangle -A PREROUTING -i w+ -j MARK --set-mark 1", true},
		"of all but the LAN":   {"-t mangle -A PREROUTING ! -i lan -j MARK --set-mark 1", true},
		"mark restored":        {"-t mangle -A PREROUTING -j CONNMARK --restore-mark", true},
		"mark saved":           {"-t mangle -A PREROUTING -j CONNMARK --save-mark", false},
		"other bits":           {"-t mangle -A PREROUTING -j MARK --set-mark 0x10000/0xffff0000; -t mangle -A PREROUTING -j CONNMARK --restore-mark --mask 0xff0000", false},
		"in a chain":           {"-t mangle -N d; -t mangle -A d -j MARK --set-mark 1; -t mangle -A PREROUTING -j d", true},
		"masquerade, no drop":  {"-t nat -A POSTROUTING -j MASQUERADE", false},
	} {
		for _, version := range []string{"IPv4", "IPv6"} {
			t.Run(name+", "+version, func(t *testing.T) {
				command := programs.Need(t, "iptables-legacy")
				if version == "IPv6" {
					command = programs.Need(t, "ip6tables-legacy")
				}
				netnstest.Do(t, netnstest.New(t), func() error {
					for rule := range strings.SplitSeq(tt.rules, ";") {
						if out, err := exec.Command(command, strings.Fields(rule)...).CombinedOutput(); err != nil {
							t.Fatalf("%s: %v: %s", rule, err, out)
						}
					}
					found, err := Untracked(Packets{Mark: 4791, Bits: 0xffff, Lines: []string{"v", "w"}})
					if err != nil {
						return err
					}
					if (len(found) > 0) != tt.want {
						t.Errorf("found %v", found)
					}
					// What is advised helps.
					for _, c := range found {
						advice := strings.Fields(c.AcceptMark(4791, 0xffff))
						if out, err := exec.Command(command, advice[1:]...).CombinedOutput(); err != nil {
							t.Fatalf("%v: %v: %s", advice, err, out)
						}
					}
					if found, err = Untracked(Packets{Mark: 4791, Bits: 0xffff, Lines: []string{"v", "w"}}); len(found) > 0 {
						t.Errorf("found %v after what is advised", found)
					}
					return err
				})
			})
		}
	}
}
