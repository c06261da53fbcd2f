package acceptance

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/sockdiag"
)

// disturbances is what a soak does to the network of a content provider.
func (s *soakTest) disturbances() []disturbance {
	var peers, providers, withBFD, borders, servers, reflectors []string
	for _, p := range s.peers {
		peers = append(peers, p.name)
		if p.provider {
			providers = append(providers, p.name)
		}
		if p.bfd {
			withBFD = append(withBFD, p.name)
		}
	}
	for _, b := range s.borders {
		borders = append(borders, b.name)
	}
	for _, x := range s.servers {
		servers = append(servers, x.name)
	}
	for _, r := range s.reflectors {
		reflectors = append(reflectors, r.name)
	}
	return []disturbance{
		// Routes.
		{name: "advertises other routes", weight: 4, targets: peers, apply: s.otherRoutes},
		{name: "hijacks", weight: 3, targets: peers, apply: s.hijack},
		{name: "loses the client", weight: 3, targets: providers, apply: s.withhold},
		// Links.
		{name: "link to the peer down at the border router", weight: 2, targets: peers, apply: s.linkDown(true)},
		{name: "carrier of the link to the peer lost", weight: 2, targets: peers, apply: s.linkDown(false)},
		{name: "link to the peer flaps", targets: peers, apply: s.flap},
		{name: "link to the peer drops everything", targets: withBFD, apply: s.hole},
		{name: "link to the client's provider down", weight: 2, targets: providers, apply: s.providerDown},
		{name: "link to the client's provider limited", targets: providers, apply: s.limit},
		{name: "core link down", weight: 2, targets: borders, apply: s.coreDown},
		{name: "core link of a reflector down", targets: reflectors, apply: s.reflectorCut},
		// Daemons.
		{name: "router killed", targets: peers, apply: s.endRouter(syscall.SIGKILL)},
		{name: "asbr killed", weight: 2, targets: borders, apply: s.endASBR(syscall.SIGKILL)},
		{name: "asbr stopped", targets: borders, apply: s.endASBR(syscall.SIGTERM)},
		{name: "reflector killed", targets: reflectors, apply: s.endReflector(syscall.SIGKILL)},
		{name: "reflector stopped", targets: reflectors, apply: s.endReflector(syscall.SIGTERM)},
		// The next instance of an edge keeps the routes that it finds until all sessions have been
		// up for a while, so nothing else may change meanwhile.
		{name: "edge killed", targets: servers, apply: s.endEdge, alone: true},
		{name: "edge frozen", targets: servers, apply: s.freezeEdge},
		{name: "asbr frozen", targets: borders, apply: s.freeze("asbr")},
		{name: "router frozen", targets: peers, apply: s.freeze("router")},
		{name: "sessions with the peer reset", weight: 2, targets: peers, apply: s.reset},
		// Damping holds sessions down that flap.
		{name: "sessions with the peer flap", targets: peers, apply: s.flapSessions, within: faultBack},
		// The host.
		{name: "forwarding switched off", targets: borders, apply: s.withoutForwarding, within: faultBack, alone: true},
		{name: "MTU of a server's interface steps", weight: 2, targets: servers, apply: s.smallerInterface, within: faultBack},
		// Commands.
		{name: "reload without change", targets: slices.Concat(borders, servers, reflectors), apply: s.reloadSame},
		{name: "border router without the peer", targets: peers, apply: s.removePeer},
		{name: "server without a peer", targets: servers, apply: s.removeEPE},
		{name: "drain", targets: borders, apply: s.drain},
		// Another program deletes what is ours.
		{name: "deletion on a server", weight: 3, targets: servers, apply: s.deleteOn(serverObjects)},
		{name: "deletion on a border router", weight: 3, targets: borders, apply: s.deleteOn(borderObjects)},
	}
}

func (s *soakTest) peer(name string) *soakPeer {
	return s.peers[slices.IndexFunc(s.peers, func(p *soakPeer) bool { return p.name == name })]
}

func (s *soakTest) borderNamed(name string) *soakBorder {
	return s.borders[slices.IndexFunc(s.borders, func(b *soakBorder) bool { return b.name == name })]
}

func (s *soakTest) server(name string) *soakServer {
	return s.servers[slices.IndexFunc(s.servers, func(x *soakServer) bool { return x.name == name })]
}

func (s *soakTest) reflector(name string) *soakReflector {
	return s.reflectors[slices.IndexFunc(s.reflectors, func(r *soakReflector) bool { return r.name == name })]
}

// configure writes a node's file as the lab made it, with changes of one section.
func (s *soakTest) configure(node, role string, change func(section)) {
	s.lab.t.Helper()
	f := map[string]section{}
	for name, made := range s.files[node] {
		f[name] = maps.Clone(made)
	}
	change(f[role])
	b, err := json.Marshal(f)
	if err == nil {
		err = os.WriteFile(s.file(node), b, 0o600)
	}
	if err != nil {
		s.lab.t.Fatal(err)
	}
}

// reloadCommand has a daemon read its file again, and waits for that.
func (s *soakTest) reloadCommand(node, role string) {
	s.lab.t.Helper()
	s.must(node, program, "reload", role)
}

// originate has a peer's router advertise what the model says.
func (s *soakTest) originate(p *soakPeer) {
	s.lab.t.Helper()
	s.configure(p.name, "router", func(c section) { c["networks"] = slices.Concat(p.networks, p.hijacks) })
	s.reloadCommand(p.name, "router")
}

func (s *soakTest) otherRoutes(target string, random *rand.Rand) func() {
	p := s.peer(target)
	before, now := p.networks, slices.Clone(soakAlways)
	for _, prefix := range soakPool {
		if random.IntN(2) == 0 {
			now = append(now, prefix)
		}
	}
	set := func(networks []string) {
		s.change(0, func() { p.networks = networks }, func() { s.originate(p) })
	}
	set(now)
	return func() { set(before) }
}

func (s *soakTest) hijack(target string, random *rand.Rand) func() {
	p := s.peer(target)
	possible := soakHijacks
	if !p.provider {
		possible = slices.Concat(possible, soakAttractive)
	}
	var hijacks []string
	for _, i := range random.Perm(len(possible))[:1+random.IntN(4)] {
		hijacks = append(hijacks, possible[i])
	}
	set := func(hijacks []string) {
		s.change(0, func() { p.hijacks = hijacks }, func() { s.originate(p) })
	}
	set(hijacks)
	return func() { set(nil) }
}

// withhold has the client's provider not advertise the client to a peer, in IPv6, in IPv4 or in
// both.
func (s *soakTest) withhold(target string, random *rand.Rand) func() {
	p := s.peer(target)
	set := func(withheld []string) {
		s.change(0, func() { p.withheld = withheld }, func() {
			s.configure("client-isp", "router", func(c section) {
				neighbors := slices.Clone(c["neighbors"].([]any))
				for i, n := range neighbors {
					n := maps.Clone(n.(map[string]any))
					deny := slices.Clone(n["deny"].([]any))
					for _, client := range s.peer(named(n)).withheld {
						deny = append(deny, client)
					}
					n["deny"] = deny
					neighbors[i] = n
				}
				c["neighbors"] = neighbors
			})
			s.reloadCommand("client-isp", "router")
		})
	}
	set([][]string{soakClients, soakClients[:1], soakClients[1:]}[random.IntN(3)])
	return func() { set(nil) }
}

// linkDown takes the link to a peer down, at the border router or at the peer, where the border
// router sees the loss of the carrier.
func (s *soakTest) linkDown(here bool) func(string, *rand.Rand) func() {
	return func(target string, _ *rand.Rand) func() {
		p := s.peer(target)
		node, link := p.name, "csp"
		if here {
			node, link = p.border, p.link
		}
		return s.down(&p.wan, node, link)
	}
}

// down takes a link down that the model has a flag for.
func (s *soakTest) down(flag *bool, node, link string) func() {
	set := func(up bool) {
		s.change(0, func() { *flag = up }, func() { s.link(s.lab.t, node, link, up) })
	}
	set(false)
	return func() { set(true) }
}

func (s *soakTest) flap(target string, random *rand.Rand) func() {
	p := s.peer(target)
	for range 2 + random.IntN(4) {
		up := s.down(&p.wan, p.border, p.link)
		time.Sleep(time.Duration(10+random.IntN(150)) * time.Millisecond)
		up()
		time.Sleep(time.Duration(10+random.IntN(150)) * time.Millisecond)
	}
	return nil
}

// hole drops all packets on the link to a peer, in both directions; only BFD detects that.
func (s *soakTest) hole(target string, _ *rand.Rand) func() {
	p := s.peer(target)
	s.watched(p.border, "asbr", p.name)
	s.watched(p.border, "asbr", p.name+"-ipv4")
	at := scenario.Port{Node: p.border, Interface: p.link}
	must := func(err error) {
		if err != nil {
			s.lab.t.Fatal(err)
		}
	}
	s.change(bfdTime, func() { p.wan = false }, func() {
		must(s.opened.Links().Blackhole(scenario.Hole{Node: at.Node, Interface: at.Interface}))
	})
	return func() {
		s.change(0, func() { p.wan = true }, func() { must(s.opened.Links().Clear(at)) })
	}
}

func (s *soakTest) providerDown(target string, random *rand.Rand) func() {
	p := s.peer(target)
	if random.IntN(2) == 0 {
		return s.down(&p.isp, p.name, "isp")
	}
	return s.down(&p.isp, "client-isp", fmt.Sprint("link-", p.index))
}

func (s *soakTest) limit(target string, random *rand.Rand) func() {
	link := fmt.Sprint("isp-", s.peer(target).index)
	s.must("client", program, "lab", "set", "--lab", s.lab.name, link, fmt.Sprintf("rate=%dkbit/s", 200+random.IntN(800)), "queue=100ms")
	return func() { s.must("client", program, "lab", "set", "--lab", s.lab.name, link, "rate=unlimited") }
}

func (s *soakTest) coreDown(target string, _ *rand.Rand) func() {
	for _, r := range s.reflectors {
		if r.up {
			s.watched(r.name, "reflector", target)
		}
	}
	return s.down(&s.borderNamed(target).core, target, "lan")
}

// watched waits until BFD watches a neighbor of a daemon: until then, only its hold timer detects
// the loss of what does not close its sessions.
func (s *soakTest) watched(node, role, neighbor string) {
	s.lab.t.Helper()
	s.eventually("BFD of "+node+" with "+neighbor, 20*time.Second,
		s.contains(true, `"neighbor":"`+neighbor+`","up":true,"bfd":"up"`, node, program, "status", "--json", role))
}

// rested waits until servers take what the other reflector does not advertise for withdrawn, which
// they do 10 s after it has advertised all of its routes.
func (s *soakTest) rested() {
	const settles = 13 * time.Second
	time.Sleep(time.Until(s.reflectorUp.Add(settles)))
}

func (s *soakTest) reflectorCut(target string, _ *rand.Rand) func() {
	r := s.reflector(target)
	s.rested()
	for _, b := range s.borders {
		if b.running && b.core {
			s.watched(target, "reflector", b.name)
		}
	}
	for _, x := range s.servers {
		s.watched(target, "reflector", x.name)
	}
	up := s.down(&r.up, target, "lan")
	return func() { up(); s.reflectorUp = time.Now() }
}

func (s *soakTest) endRouter(sig syscall.Signal) func(string, *rand.Rand) func() {
	return func(target string, _ *rand.Rand) func() {
		p, name := s.peer(target), target+" router"
		s.change(0, func() { p.running = false }, func() { s.daemons.end(name, sig) })
		return func() { s.change(0, func() { p.running = true }, func() { s.daemons.running(name) }) }
	}
}

// endASBR ends an asbr. A killed one leaves its kernel state, so that packets of servers that do
// not know yet are forwarded.
func (s *soakTest) endASBR(sig syscall.Signal) func(string, *rand.Rand) func() {
	return func(target string, _ *rand.Rand) func() {
		b, name := s.borderNamed(target), target+" asbr"
		s.change(0, func() { b.running = false }, func() {
			if sig == syscall.SIGKILL {
				s.goesDown(target)
			}
			s.daemons.end(name, sig)
		})
		return func() {
			s.change(0, func() { b.running = true }, func() {
				if sig == syscall.SIGKILL {
					s.comesUp(target)
				}
				s.daemons.running(name)
			})
		}
	}
}

func (s *soakTest) endReflector(sig syscall.Signal) func(string, *rand.Rand) func() {
	return func(target string, _ *rand.Rand) func() {
		r := s.reflector(target)
		s.rested()
		r.up = false
		s.daemons.end(target+" reflector", sig)
		return func() {
			s.daemons.running(target + " reflector")
			r.up, s.reflectorUp = true, time.Now()
		}
	}
}

func (s *soakTest) endEdge(target string, _ *rand.Rand) func() {
	x, name := s.server(target), target+" edge"
	x.running = false
	s.goesDown(target)
	s.daemons.end(name, syscall.SIGKILL)
	return func() {
		s.comesUp(target)
		s.daemons.running(name)
		x.running, s.reflectorUp = true, time.Now()
	}
}

// freeze stops a process for a while that is shorter than the hold time of its sessions. BFD, which
// is a process of its own, goes on.
func (s *soakTest) freeze(role string) func(string, *rand.Rand) func() {
	return func(target string, random *rand.Rand) func() {
		name := target + " " + role
		s.daemons.signal(name, syscall.SIGSTOP)
		time.Sleep(time.Duration(200+random.IntN(1500)) * time.Millisecond)
		s.daemons.signal(name, syscall.SIGCONT)
		return nil
	}
}

// freezeEdge freezes the daemon of a server, whose kernel goes on sending along its routes.
func (s *soakTest) freezeEdge(target string, random *rand.Rand) func() {
	from := time.Now()
	s.freeze("edge")(target, random)
	s.frozen[target] = append(s.frozen[target], interval{from, time.Now()})
	return nil
}

// reset resets the connections of the BGP sessions with a peer: of both, or of one.
func (s *soakTest) reset(target string, random *rand.Rand) func() {
	p := s.peer(target)
	addresses := p.addresses(2)
	lost := [][]string{addresses[:], addresses[:1], addresses[1:]}[random.IntN(3)]
	s.in(s.lab.t, p.border, func() error {
		all, err := sockdiag.Connections()
		for _, c := range all {
			if slices.Contains(lost, c.Remote.Addr().Unmap().String()) {
				err = errors.Join(err, c.Destroy())
			}
		}
		return err
	})
	return nil
}

// faultBack bounds the time until the state is back after faults that the daemons detect by
// examining the host, or whose repetition they delay.
const faultBack = 10 * time.Second

// flapSessions resets the sessions with a peer again and again.
func (s *soakTest) flapSessions(target string, random *rand.Rand) func() {
	for range 2 + random.IntN(4) {
		s.reset(target, random)
		time.Sleep(time.Duration(100+random.IntN(900)) * time.Millisecond)
	}
	return nil
}

// withoutForwarding switches the forwarding of a family off until the border router says so.
func (s *soakTest) withoutForwarding(border string, random *rand.Rand) func() {
	key := []string{"net.ipv6.conf.all.forwarding", "net.ipv4.ip_forward"}[random.IntN(2)]
	set := func(value string) {
		s.in(s.lab.t, border, func() error { return netns.Sysctl(key, value) })
	}
	reported := func(want bool) (bool, string) {
		var status health.Status
		text, _ := s.try(border, program, "status", "--json", "asbr") // fails while degraded
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			return false, err.Error()
		}
		return strings.Contains(status.Reason, key) == want, status.Reason
	}
	set("0")
	s.eventually(border+" reports "+key, faultBack*s.patience, func() (bool, string) { return reported(true) })
	set("1")
	s.eventually(border+" reports "+key+" no more", faultBack*s.patience, func() (bool, string) { return reported(false) })
	return nil
}

// smallerInterface lowers the MTU of a server's interface and raises it again. The EPE Routes
// follow it each time, with room for the header that the encapsulation adds.
func (s *soakTest) smallerInterface(server string, random *rand.Rand) func() {
	const whole, added = 1500, 24
	routeMTU := regexp.MustCompile(` mtu (\d+) `)
	for _, mtu := range []int{1300 + random.IntN(200), whole} {
		s.ip(server, fmt.Sprintf("link set lan mtu %d", mtu))
		want := fmt.Sprint(mtu + added)
		s.eventually(fmt.Sprintf("the routes of %s follow an interface of %d", server, mtu), faultBack*s.patience, func() (bool, string) {
			routes := s.ip(server, "route show table all proto 117")
			wrong := slices.ContainsFunc(routeMTU.FindAllStringSubmatch(routes, -1), func(m []string) bool { return m[1] != want })
			return !wrong, routes
		})
	}
	return nil
}

func (s *soakTest) reloadSame(target string, _ *rand.Rand) func() {
	role, _, _ := strings.Cut(target, target[len(target)-1:])
	if role == "server" {
		role = "edge"
	}
	s.reloadCommand(target, role)
	return nil
}

func (s *soakTest) removePeer(target string, _ *rand.Rand) func() {
	p := s.peer(target)
	set := func(configured bool) {
		s.change(0, func() { p.configured = configured }, func() {
			s.configure(p.border, "asbr", func(c section) {
				c["peers"] = slices.DeleteFunc(slices.Clone(c["peers"].([]any)), func(x any) bool {
					return !s.peer(named(x)).configured
				})
			})
			s.reloadCommand(p.border, "asbr")
		})
	}
	// The link of a peer that is in no file is like any other.
	s.unguarded[target] = append(s.unguarded[target], interval{from: time.Now()})
	set(false)
	return func() {
		set(true)
		unguarded := s.unguarded[target]
		unguarded[len(unguarded)-1].to = time.Now()
	}
}

func (s *soakTest) removeEPE(target string, random *rand.Rand) func() {
	x := s.server(target)
	set := func(without int) {
		x.without = without
		s.configure(target, "edge", func(c section) {
			if without >= 0 {
				c["peers"] = slices.DeleteFunc(slices.Clone(c["peers"].([]any)), func(x any) bool { return named(x) == s.peers[without].name })
			}
		})
		s.reloadCommand(target, "edge")
	}
	without := random.IntN(len(s.peers))
	s.released[without] = append(s.released[without], interval{from: time.Now()})
	set(without)
	return func() {
		set(-1)
		released := s.released[without]
		for i := range released {
			if released[i].to.IsZero() { // also that of the other server, which is a little less strict
				released[i].to = time.Now()
			}
		}
	}
}

func (s *soakTest) drain(target string, _ *rand.Rand) func() {
	b := s.borderNamed(target)
	s.must(target, program, "asbr", "drain", "--wait", "0s")
	b.drained = true
	return func() {
		b.drained = false
		s.must(target, program, "asbr", "drain", "--undo")
	}
}

// object is a kind of kernel object that another program deletes: what shows all, what matches one,
// and the command with what the match has in parentheses.
type object struct{ show, match, del string }

var (
	serverObjects = []object{
		{"rule", `(?m)^(\d+):.*from 2001:db8:1::\S+ lookup 1\d\d`, "rule del pref $1"},
		{"rule", `(?m)^(\d+):.*from 2001:db8:1::\S+ unreachable`, "rule del pref $1"},
		{"route show table all proto 117", `(?m)^(2001:db8:\S+) nhid.* table (1\d\d)`, "route del $1 table $2"},
		{"route show table all proto 117", `(?m)^unreachable default .*table (1\d\d)`, "route del unreachable default table $1 metric 4294967295"},
		{"nexthop", `(?m)^id (\d+) .*seg6`, "nexthop del id $1"},
		{"addr", `inet6 (2001:db8:1::(?:2|4)\d/\d+)`, "address del $1 dev lan"},
		{"-4 rule", `(?m)^(\d+):.*from 10\.1\.0\.\S+ lookup 1\d\d`, "-4 rule del pref $1"},
		{"-4 rule", `(?m)^(\d+):.*from 10\.1\.0\.\S+ unreachable`, "-4 rule del pref $1"},
		{"-4 route show table all proto 117", `(?m)^(10\.\S+) nhid.* table (1\d\d)`, "-4 route del $1 table $2"},
		{"-4 route show table all proto 117", `(?m)^unreachable default .*table (1\d\d)`, "-4 route del unreachable default table $1 metric 4294967295"},
		{"addr", `inet (10\.1\.0\.(?:3[2-9]|6[4-9]|7[01])/\d+)`, "address del $1 dev lan"},
	}
	borderObjects = []object{
		{"rule", `(?m)^(9\d\d|1\d\d\d):`, "rule del pref $1"},
		{"route", `(?m)^(fc00:\S+) .*seg6local`, "route del $1"},
		{"route show table all proto 116", `(?m)^(2001:db8:\S+) via .* table (1\d\d)`, "route del $1 table $2"},
		{"route show table all proto 116", `(?m)^unreachable default .*table (1\d\d)`, "route del unreachable default table $1 metric 4294967295"},
		{"-4 rule", `(?m)^(899|9\d\d|1\d\d\d):`, "-4 rule del pref $1"},
		{"-4 route", `(?m)^(240\.\S+) `, "-4 route del $1"},
		{"-4 route show table all proto 116", `(?m)^(10\.\S+) via .* table (1\d\d)`, "-4 route del $1 table $2"},
		{"-4 route show table all proto 116", `(?m)^unreachable default .*table (1\d\d)`, "-4 route del unreachable default table $1 metric 4294967295"},
	}
)

// deleteOn deletes a random object of a random kind.
func (s *soakTest) deleteOn(kinds []object) func(string, *rand.Rand) func() {
	return func(target string, random *rand.Rand) func() {
		o := kinds[random.IntN(len(kinds))]
		re := regexp.MustCompile(o.match)
		text := s.ip(target, o.show)
		found := re.FindAllStringSubmatchIndex(text, -1)
		if len(found) == 0 {
			s.note("%s has no %s", target, o.match)
			return nil
		}
		command := string(re.ExpandString(nil, o.del, text, found[random.IntN(len(found))]))
		s.note("%s: %s", target, command)
		if strings.HasPrefix(target, "asbr") && strings.Contains(command, "rule ") {
			s.unguarded[target] = append(s.unguarded[target], interval{time.Now(), time.Now()})
		}
		// What the daemon deletes in the meantime is not there.
		if _, err := netnstest.TryIP(s.lab.t, s.namespace(target), command); err != nil {
			s.note("%v", err)
		}
		return nil
	}
}
