package condition

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/nft"
)

// parameters are those of a made-up host.
type parameters map[string]string

func (p parameters) read(key string) (string, error) {
	v, ok := p[strings.ReplaceAll(key, "/", ".")]
	if !ok {
		return "", fmt.Errorf("read sysctl %q: %w", key, fs.ErrNotExist)
	}
	return v, nil
}

// healthy returns the parameters of a host on which all conditions hold.
func healthy() parameters {
	return parameters{
		"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1", "net.mptcp.enabled": "1", "net.ipv4.tcp_syncookies": "1",
		"net.ipv4.conf.wan.forwarding": "1", "net.ipv4.conf.lan.5.forwarding": "1",
		"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.wan.rp_filter": "2", "net.ipv4.conf.lan.5.rp_filter": "0",
		"net.ipv6.conf.all.disable_ipv6": "0", "net.ipv6.conf.wan.disable_ipv6": "0", "net.ipv6.conf.lan.5.disable_ipv6": "0",
	}
}

// watched returns conditions of all kinds.
func watched(p parameters) []Condition {
	links := []string{"wan", "missing", "lan.5"}
	return []Condition{
		ipv6(p.read, links), forwarding(p.read, bgp.IPv4, links), forwarding(p.read, bgp.IPv6, links),
		reversePath(p.read, links), multipath(p.read), cookies(p.read),
	}
}

func TestProblems(t *testing.T) {
	for _, tt := range []struct {
		set  parameters // nothing: the parameter is missing
		want string
	}{
		{nil, ""},
		{parameters{"net.ipv4.ip_forward": "0"}, "this host does not forward IPv4, as a router must: sysctl -w net.ipv4.ip_forward=1"},
		{parameters{"net.ipv6.conf.all.forwarding": "0"}, "this host does not forward IPv6, as a router must: sysctl -w net.ipv6.conf.all.forwarding=1"},
		{parameters{"net.ipv6.conf.all.forwarding": "2"}, ""},
		{parameters{"net.ipv4.conf.wan.forwarding": "0"}, `interface "wan" does not forward IPv4, as a router must: sysctl -w net.ipv4.conf.wan.forwarding=1`},
		{parameters{"net.ipv4.conf.lan.5.forwarding": "0"}, `interface "lan.5" does not forward IPv4, as a router must: sysctl -w net/ipv4/conf/lan.5/forwarding=1`},
		{parameters{"net.ipv4.conf.wan.rp_filter": "1"}, `interface "wan" drops IPv4 packets whose best return path is another: sysctl -w net.ipv4.conf.wan.rp_filter=2`},
		{
			parameters{"net.ipv4.conf.all.rp_filter": "1", "net.ipv4.conf.wan.rp_filter": "0"},
			`interface "wan" drops IPv4 packets whose best return path is another: sysctl -w net.ipv4.conf.wan.rp_filter=2; ` +
				`interface "lan.5" drops IPv4 packets whose best return path is another: sysctl -w net/ipv4/conf/lan.5/rp_filter=2`,
		},
		{parameters{"net.ipv4.conf.all.rp_filter": "2"}, ""},
		{parameters{"net.mptcp.enabled": "0"}, "new connections are TCP, because MPTCP is switched off on this host: sysctl -w net.mptcp.enabled=1"},
		{parameters{"net.mptcp.enabled": ""}, "new connections are TCP, because the kernel of this host has no MPTCP: use a kernel with CONFIG_MPTCP, and CONFIG_MPTCP_IPV6"},
		{parameters{"net.ipv4.tcp_syncookies": "2"}, "captured connections fail, because this host answers each SYN with a SYN cookie: sysctl -w net.ipv4.tcp_syncookies=1"},
		{parameters{"net.ipv4.tcp_syncookies": ""}, ""},
		{parameters{"net.ipv6.conf.wan.disable_ipv6": "1"}, `IPv6 is switched off on interface "wan": sysctl -w net.ipv6.conf.wan.disable_ipv6=0`},
		{parameters{"net.ipv6.conf.all.disable_ipv6": "1"}, ""}, // of interfaces that come later
		{
			parameters{"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.wan.disable_ipv6": "1"},
			"IPv6 is switched off on this host: sysctl -w net.ipv6.conf.all.disable_ipv6=0",
		},
		{parameters{"net.ipv6.conf.all.disable_ipv6": "", "net.ipv6.conf.all.forwarding": ""}, "this kernel runs without IPv6: boot without ipv6.disable=1"},
	} {
		p := healthy()
		for key, v := range tt.set {
			if p[key] = v; v == "" {
				delete(p, key)
			}
		}
		x := Examine(watched(p))
		var got []string
		for _, problem := range x.Problems {
			got = append(got, problem.Error())
		}
		if strings.Join(got, "; ") != tt.want || len(x.Unknown) > 0 {
			t.Errorf("%v: %q, %v", tt.set, got, x.Unknown)
		}
		first, _, _ := strings.Cut(tt.want, "; ")
		if err := Require(watched(p)); tt.want != "" && !strings.Contains(tt.want, "MPTCP") && !strings.Contains(tt.want, "cookie") && (err == nil || err.Error() != first) {
			t.Errorf("%v: a start reports %v", tt.set, err)
		}
	}
}

// TestIPv6WithoutInterfaces: as long as no interface exists, the setting for new ones counts.
func TestIPv6WithoutInterfaces(t *testing.T) {
	p := parameters{"net.ipv6.conf.all.disable_ipv6": "1"}
	if err := Require([]Condition{ipv6(p.read, []string{"wan"})}); err == nil {
		t.Error("no problem")
	}
}

// TestRemedies: after any changes of parameters in any order, running the commands of the problems
// until there are none mends everything, and each command mends something.
func TestRemedies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := healthy()
		keys := slices.Sorted(maps.Keys(p))
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			p[rapid.SampledFrom(keys).Draw(t, "key")] = rapid.SampledFrom([]string{"0", "1", "2"}).Draw(t, "value")
		}
		for range 2 * len(keys) {
			x := Examine(watched(p))
			if len(x.Problems) == 0 {
				return
			}
			problem := rapid.SampledFrom(x.Problems).Draw(t, "problem")
			key, value, ok := strings.Cut(strings.TrimPrefix(problem.Remedy, "sysctl -w "), "=")
			if key = strings.ReplaceAll(key, "/", "."); !ok || p[key] == "" || p[key] == value {
				t.Fatalf("%s: no effect on %v", problem.Error(), p)
			}
			p[key] = value
			if name, all := strings.CutPrefix(key, "net.ipv6.conf.all.disable"); all { // as the kernel does
				for _, link := range []string{"wan", "lan.5"} {
					p["net.ipv6.conf."+link+".disable"+name] = value
				}
			}
		}
		t.Fatalf("commands do not mend %v", p)
	})
}

// TestForwarded: a chain that drops all is a problem with the command that mends it, for the
// versions that are forwarded; one that drops some is not.
func TestForwarded(t *testing.T) {
	blocking := func(list []nft.Passage) (blocks []nft.Block, _ error) {
		for _, p := range list {
			blocks = append(blocks, nft.Block{Chain: nft.Chain{Family: "inet", Table: "fw", Name: "c"}, Passage: p})
			if p.In != p.Out {
				blocks = append(blocks, nft.Block{Chain: nft.Chain{Family: "inet", Table: "fw", Name: "some"}, Passage: p})
			}
		}
		return blocks, nil
	}
	x := Examine([]Condition{forwarded(blocking, []bgp.IP{bgp.IPv4, bgp.IPv6}, []string{"wan", "lan", "wan"}), forwarded(blocking, nil, []string{"wan"})})
	want := health.Problem{Text: `chain "inet fw c" drops the packets that this host forwards`, Remedy: "nft insert rule inet fw c iifname { lan, wan } accept"}
	if !slices.Equal(x.Problems, []health.Problem{want}) {
		t.Errorf("%+v", x)
	}
}

// TestFirewall: a chain that drops is a problem with the commands that mend it.
func TestFirewall(t *testing.T) {
	fw := nft.Chain{Family: "inet", Table: "fw", Name: "c"}
	needed := []nft.Passage{
		{Version: "ip", In: "lan", Out: "tun"}, {Version: "ip6", In: "lan", Out: "tun"}, {Version: "ip", In: "tun", Out: "lan", Replies: true},
		{Version: "ip", In: "wan", Protocol: unix.IPPROTO_UDP, Port: 4790},
	}
	blocking := func(list []nft.Passage) (blocks []nft.Block, _ error) {
		for _, p := range list {
			blocks = append(blocks, nft.Block{Chain: fw, Passage: p})
		}
		return blocks, nil
	}
	x := Examine([]Condition{firewall(blocking, "", func() []nft.Passage { return needed }), firewall(blocking, "", func() []nft.Passage { return nil })})
	want := []health.Problem{
		{
			Text:   `chain "inet fw c" drops the packets that this host forwards`,
			Remedy: "nft insert rule inet fw c iifname lan oifname tun accept; nft insert rule inet fw c iifname tun oifname lan ct state established,related accept",
		},
		{Text: `chain "inet fw c" drops the packets to port 4790, those of the tunnel`, Remedy: "nft insert rule inet fw c iifname wan udp dport 4790 accept"},
	}
	if !slices.Equal(x.Problems, want) {
		t.Errorf("%+v", x)
	}
}

// TestFirewallInPart: of what can be read of the firewall, the problems are reported, as on a host
// where this user may not read the tables of iptables-legacy.
func TestFirewallInPart(t *testing.T) {
	fw := nft.Chain{Family: "inet", Table: "fw", Name: "c"}
	needed := []nft.Passage{{Version: "ip", In: "lan", Out: "lan"}}
	blocking := func(list []nft.Passage) (blocks []nft.Block, _ error) {
		for _, p := range list {
			blocks = append(blocks, nft.Block{Chain: fw, Passage: p})
		}
		return blocks, fs.ErrPermission
	}
	for name, c := range map[string]Condition{
		"all passages": firewall(blocking, "", func() []nft.Passage { return needed }),
		"forwarded":    forwarded(blocking, []bgp.IP{bgp.IPv4}, []string{"lan"}),
	} {
		x := Examine([]Condition{c})
		if len(x.Problems) != 1 || x.Problems[0].Text != `chain "inet fw c" drops the packets that this host forwards` || !errors.Is(errors.Join(x.Unknown...), fs.ErrPermission) {
			t.Errorf("%s: %+v", name, x)
		}
	}
}

// TestRestore: what is a daemon's is restored, and reported if that fails.
func TestRestore(t *testing.T) {
	broken := errors.New("broken")
	lacking := []health.Problem{{Text: "lacking", Remedy: "mend"}}
	for name, tt := range map[string]struct {
		restore  func(*bool) error
		restored []string
		problems []health.Problem
		unknown  int
	}{
		"restored": {func(ok *bool) error { *ok = true; return nil }, []string{"x"}, nil, 0},
		"refused":  {func(*bool) error { return broken }, nil, lacking, 1},
		"in vain":  {func(*bool) error { return nil }, nil, lacking, 0},
	} {
		ok := false
		x := Examine([]Condition{{
			Name: "x", Restore: func() error { return tt.restore(&ok) },
			Examine: func() ([]health.Problem, error) {
				if ok {
					return nil, nil
				}
				return lacking, nil
			},
		}, {Name: "y", Examine: func() ([]health.Problem, error) { return nil, nil }, Restore: func() error { t.Error("restored what holds"); return nil }}})
		if !slices.Equal(x.Restored, tt.restored) || !slices.Equal(x.Problems, tt.problems) || len(x.Unknown) != tt.unknown {
			t.Errorf("%s: %+v", name, x)
		}
	}
}
