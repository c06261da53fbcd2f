package acceptance

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// repairTime is how long after the start of a daemon no rule is deleted: before it watches the
	// kernel, it cannot repair.
	repairTime = 5 * time.Second
	// defaultSequences is how many sequences a plain test runs. TABANE_SEQUENCES sets another
	// number, and TABANE_SEED repeats a run.
	defaultSequences = 50
)

// threePeers is the network of testdata/three-peers.yaml.
var threePeers = egressNet{
	peers: []egressPeer{
		{
			name: "transit-a", border: "asbr1", link: "wan-a", lan: "2001:db8:a::/64", epe: []string{"2001:db8:1::a"}, sid: "fc00:1:1::",
			lan4: "10.10.0.0/24", epe4: []string{"10.1.0.10"}, sid4: "fc00:1:101::",
		},
		{
			name: "transit-b", border: "asbr1", link: "wan-b", lan: "2001:db8:b::/64", epe: []string{"2001:db8:1::b"}, sid: "fc00:1:2::",
			lan4: "10.11.0.0/24", epe4: []string{"10.1.0.11"}, sid4: "fc00:1:102::",
		},
		{
			name: "transit-c", border: "asbr2", link: "wan-c", lan: "2001:db8:c::/64", epe: []string{"2001:db8:1::c"}, sid: "fc00:2:1::",
			lan4: "10.12.0.0/24", epe4: []string{"10.1.0.12"}, sid4: "fc00:2:101::",
		},
	},
	servers: []egressServer{{"server", "2001:db8:1::10", "10.1.0.16"}},
	inside:  "reflector", insideAddress: netip.MustParseAddr("2001:db8:1::fe"), insideAddress4: netip.MustParseAddr("10.1.0.254"),
	own: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParsePrefix("fc00::/16"), netip.MustParsePrefix("10.1.0.0/24")},
	// In each prefix, in none, and our own.
	targets: []string{
		"2001:db8:110::1", "2001:db8:100::1", "2001:db8:100:1::1", "2001:db8:101::1", "2001:db8:200::1", "2001:db8:200:1::1",
		"2001:db8:300::1", "2001:db8:f0::1", "2001:db8:eeee::1", "2001:db8:1::77", "fc00:2:9::1",
		"10.100.9.1", "10.100.0.1", "10.100.1.1", "10.101.0.1", "10.200.9.1", "10.200.1.1", "10.240.0.1", "10.77.0.1", "10.1.0.77", "240.0.0.1",
	},
}

var (
	// leakPool are the prefixes that peers advertise and withdraw: alone, nested, and all.
	leakPool = []string{
		"2001:db8:100::/40", "2001:db8:100::/48", "2001:db8:100:1::/64", "2001:db8:101::/48",
		"2001:db8:200::/48", "2001:db8:200:1::/64", "2001:db8:300::/48", "::/0",
		"10.100.0.0/16", "10.100.0.0/24", "10.100.1.0/24", "10.101.0.0/24", "10.200.0.0/16", "10.200.1.0/24", "0.0.0.0/0",
	}
	// leakForbidden are advertised too and never believed.
	leakForbidden = []string{"2001:db8:1::/64", "2001:db8:1::fe/128", "fc00:2:1::/128", "fc00::/16", "10.1.0.0/24", "10.1.0.254/32", "240.0.0.1/32"}
	// leakAlways are advertised by all peers all the time.
	leakAlways = []string{"10.240.0.0/16", "2001:db8:f0::/48"}
)

// leakTest is a lab under random changes.
type leakTest struct {
	*egressJudge
	daemons *daemons
	random  *rand.Rand
	log     []string
	// networks are what each peer's file says.
	networks []map[string]bool
}

// leakModes are the deliveries of the server, each for packets of both IP versions.
var leakModes = []map[string]any{
	{"default": "best"},
	{"default": map[string]any{"single": "transit-c"}},
	{"default": map[string]any{"spread": map[string]int{"transit-a": 1, "transit-b": 2, "transit-c": 3}}},
	{"default": map[string]any{"spray": []string{"transit-b", "transit-a", "transit-c"}}},
	{"default": map[string]any{"single": "transit-a"}, "networks": []map[string]any{
		{"prefix": "2001:db8:100::/40", "mode": map[string]any{"spread": map[string]int{"transit-b": 1, "transit-c": 1}}},
		{"prefix": "2001:db8:100::/48", "mode": "best"}, {"prefix": "2001:db8:200:1::/64", "mode": map[string]any{"single": "transit-b"}},
		{"prefix": "10.100.0.0/16", "mode": map[string]any{"single": "transit-c"}}, {"prefix": "2001:db8:eeee::/48", "mode": map[string]any{"single": "transit-c"}},
	}},
	{"networks": []map[string]any{{"asn": 65001, "mode": map[string]any{"single": "transit-b"}}, {"asn": 65003, "mode": map[string]any{"spread": map[string]int{"transit-c": 1, "transit-a": 1}}}}},
}

// TestNoPacketLeavesUnannounced applies random sequences of advertisements, withdrawals, modes of
// delivery, link flaps, kills and deleted rules while packets of all kinds are sent in IPv4 and
// IPv6, and captures what arrives at each peer. No packet may arrive at a peer that did not
// advertise its destination.
func TestNoPacketLeavesUnannounced(t *testing.T) {
	sequences, seed := number(t, "TABANE_SEQUENCES", defaultSequences), number(t, "TABANE_SEED", int(time.Now().UnixNano()&0xffffff))
	t.Logf("TABANE_SEQUENCES=%d TABANE_SEED=%d", sequences, seed)
	lab := up(t, "testdata/three-peers.yaml")
	l := &leakTest{egressJudge: lab.judge(threePeers), random: rand.New(rand.NewPCG(uint64(seed), 0))}
	l.daemons = lab.daemons("server edge", "reflector reflector", "asbr1 asbr", "asbr2 asbr", "transit-a router", "transit-b router", "transit-c router")
	for i := range l.net.peers {
		l.networks = append(l.networks, map[string]bool{leakAlways[0]: true, leakAlways[1]: true})
		l.advertises(i, leakAlways, time.Now().Add(-time.Hour))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("changes:\n%s", strings.Join(l.log, "\n"))
		}
	})
	stop := l.traffic(t, uint64(seed))
	for n := range sequences {
		for range 3 + l.random.IntN(4) {
			l.step(n)
			time.Sleep(time.Duration(20+l.random.IntN(130)) * time.Millisecond)
		}
	}
	l.converged()
	time.Sleep(propagation)
	stop()
	l.verdict(t)
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s must be a number, got %q", name, text)
	}
	return n
}

func (l *leakTest) note(format string, args ...any) {
	l.log = append(l.log, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// step applies one random change.
func (l *leakTest) step(sequence int) {
	i := l.random.IntN(len(l.net.peers))
	p := l.net.peers[i]
	switch n := l.random.IntN(100); {
	case n < 10:
		l.deliver(sequence)
	case n < 70:
		for range 1 + l.random.IntN(3) {
			prefix := leakPool[l.random.IntN(len(leakPool))]
			if l.random.IntN(10) == 0 {
				prefix = leakForbidden[l.random.IntN(len(leakForbidden))]
			}
			l.networks[i][prefix] = !l.networks[i][prefix]
		}
		l.note("%d: %s advertises %s", sequence, p.name, l.advertised(i))
		l.advertise(i)
	case n < 80:
		daemon := []string{"server edge", "asbr1 asbr", "asbr2 asbr"}[l.random.IntN(3)]
		if time.Since(l.daemons.all[daemon].started) > repairTime {
			l.deleteRule(sequence, strings.Fields(daemon)[0])
		}
	case n < 90:
		l.note("%d: link to %s flaps", sequence, p.name)
		l.link(l.t, p.border, p.link, false)
		l.advertises(i, nil, time.Now())
		time.Sleep(time.Duration(20+l.random.IntN(200)) * time.Millisecond)
		l.advertises(i, l.believed(i), time.Now())
		l.link(l.t, p.border, p.link, true)
	case n < 96:
		l.kill(sequence, p.name+" router", func() { l.advertises(i, nil, time.Now()) }, func() { l.advertises(i, l.believed(i), time.Now()) })
	default:
		switch daemon := []string{"server edge", "asbr1 asbr", "asbr2 asbr", "reflector reflector"}[l.random.IntN(4)]; daemon {
		case "server edge", "reflector reflector":
			l.kill(sequence, daemon, func() {}, func() {})
		default:
			if time.Since(l.daemons.all[daemon].started) < 2*staleAfterRestart {
				return // most of the time, every withdrawal counts
			}
			border := strings.Fields(daemon)[0]
			l.kill(sequence, daemon, func() { l.goesDown(border) }, func() { l.comesUp(border) })
		}
	}
}

// deliver has the server deliver its packets in another way.
func (l *leakTest) deliver(sequence int) {
	l.t.Helper()
	mode := leakModes[l.random.IntN(len(leakModes))]
	l.note("%d: the server delivers as %v", sequence, mode)
	l.edit("server", "edge", func(s section) { s["delivery"] = mode })
	l.daemons.signal("server edge", syscall.SIGHUP)
}

func (l *leakTest) advertised(peer int) []string {
	list := []string{}
	for prefix, on := range l.networks[peer] {
		if on {
			list = append(list, prefix)
		}
	}
	slices.Sort(list)
	return list
}

// advertise writes a peer's file and has it reload it.
func (l *leakTest) advertise(peer int) {
	l.t.Helper()
	p := l.net.peers[peer]
	file := filepath.Join("/run/tabane/lab", l.lab.name, p.name+".yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	var config struct {
		Router map[string]any `json:"router"`
	}
	if err := json.Unmarshal(b, &config); err != nil {
		l.t.Fatal(err)
	}
	config.Router["networks"] = l.advertised(peer)
	if b, err = json.Marshal(config); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.advertises(peer, l.believed(peer), time.Now())
	l.daemons.signal(p.name+" router", syscall.SIGHUP)
}

// believed is what a peer advertises and its border router accepts.
func (l *leakTest) believed(peer int) []string {
	return slices.DeleteFunc(l.advertised(peer), func(prefix string) bool { return slices.Contains(leakForbidden, prefix) })
}

// kill kills a daemon and starts the next instance soon after.
func (l *leakTest) kill(sequence int, daemon string, killed, starts func()) {
	l.t.Helper()
	l.note("%d: %s is killed", sequence, daemon)
	killed()
	l.daemons.end(daemon, syscall.SIGKILL)
	time.Sleep(time.Duration(l.random.IntN(300)) * time.Millisecond)
	starts()
	l.daemons.start(daemon)
}

// deleteRule deletes one of a daemon's policy rules, as another program would.
func (l *leakTest) deleteRule(sequence int, node string) {
	l.in(l.t, node, func() error {
		rules, err := netlink.RuleList([]int{netlink.FAMILY_V6, netlink.FAMILY_V4}[l.random.IntN(2)])
		if err != nil {
			return err
		}
		rules = slices.DeleteFunc(rules, func(r netlink.Rule) bool { return r.Priority < 900 || r.Priority > 2000 })
		if len(rules) == 0 {
			return fmt.Errorf("%s has no policy rules", node)
		}
		r := rules[l.random.IntN(len(rules))]
		l.note("%d: %s loses rule %s", sequence, node, r)
		if node != "server" {
			l.unguarded[node] = append(l.unguarded[node], interval{time.Now(), time.Now()})
		}
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	})
}

// converged waits until the server's tables have what the peers advertise, so that the changes
// had an effect.
func (l *leakTest) converged() {
	l.t.Helper()
	for i, p := range l.net.peers {
		want := l.believed(i)
		l.eventually("the server has the routes of "+p.name, 40*time.Second, func() (bool, string) {
			got := []string{}
			for family, anywhere := range map[string]string{"-6": "::/0", "-4": "0.0.0.0/0"} {
				for line := range strings.Lines(l.ip("server", fmt.Sprintf("%s route show table %d", family, 101+i))) {
					if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "nhid" {
						got = append(got, strings.Replace(fields[0], "default", anywhere, 1))
					}
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want), fmt.Sprintf("has %v, want %v", got, want)
		})
	}
}
