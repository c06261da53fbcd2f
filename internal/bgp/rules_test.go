package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/policy"
)

// ruled applies keys with these prefix lists to a neighbor.
func ruled(p Policies, k Keys, vrps *policy.VRPs) func(*Neighbor) {
	return func(n *Neighbor) {
		if faults := p.CheckKeys(&k, n.Address, n.BFD); len(faults) > 0 {
			panic(faults)
		}
		local, passive := n.LocalAddress, n.Passive
		p.Compiler(vrps).Apply(&k, n)
		n.LocalAddress, n.Passive = local, passive
	}
}

func list(texts ...string) policy.List {
	l := make(policy.List, len(texts))
	for i, text := range texts {
		if err := l[i].UnmarshalText([]byte(text)); err != nil {
			panic(err)
		}
	}
	return l
}

func number(n uint32) *uint32 { return &n }

// TestRules: rules of import and export reject and change routes, for best paths and the Adj-RIB-In
// alike, follow a change of policy and of VRPs softly, and Lookup names them.
func TestRules(t *testing.T) {
	from, r, to := newRouter(t, 40, 65001), newRouter(t, 41, 65000), newRouter(t, 42, 65002)
	p := Policies{
		Lists: map[string]policy.List{"customers": list("reject 2a00:1:1::/48", "accept 2a00:1::/32 le 48"), "secret": list("accept 2a00:2::/32")},
		RPKI:  true, RejectInvalid: true,
	}
	keys := Keys{
		ImportRules: []policy.Rule{
			{Name: "leaks", ASPath: policy.ASPath{Contains: []uint32{64999}}, Action: policy.Reject},
			{Name: "backup", Communities: []policy.Community{policy.Standard(65001<<16 | 666), {Large: true, Value: [3]uint32{65001, 1, 2}}}, Set: policy.Changes{LocalPref: number(50)}},
			{Name: "customers", PrefixList: "customers", Set: policy.Changes{LocalPref: number(200), MED: number(7), AddCommunities: []policy.Community{policy.Standard(65000<<16 | 5)}}, Action: policy.Accept},
		},
	}
	vrps := policy.NewVRPs([]policy.VRP{{Prefix: prefix("2a00:5::/32"), MaxLength: 48, ASN: 65099}})
	from.peer(r, passive)
	r.peer(from, ruled(p, keys, vrps), func(n *Neighbor) { n.LocalPref = 120 })
	export := Keys{ExportRules: []policy.Rule{
		{Name: "secret", PrefixList: "secret", Action: policy.Reject},
		{Name: "longer", ASPath: policy.ASPath{Origin: []uint32{65077}}, Set: policy.Changes{Prepend: 2}},
		{Name: "mark", Set: policy.Changes{MED: number(9), RemoveCommunities: []policy.Community{policy.Standard(65000<<16 | 5)}, AddCommunities: []policy.Community{policy.Standard(65009<<16 | 1)}}},
	}}
	r.peer(to, passive, ruled(p, export, nil))
	to.peer(r)
	path := func(asns ...uint32) Attributes { return Attributes{ASPath: message.MakeASPath(asns...)} }
	from.must(from.Originate(
		UnicastRoute{Prefix: prefix("2a00:1::/32")},
		UnicastRoute{Prefix: prefix("2a00:1:1::/48")},
		UnicastRoute{Prefix: prefix("2a00:1:2::/48"), Attributes: Attributes{Communities: []uint32{65001<<16 | 666}}},
		UnicastRoute{Prefix: prefix("2a00:2::/32"), Attributes: Attributes{Communities: []uint32{65001<<16 | 666}}},
		UnicastRoute{Prefix: prefix("2a00:3::/32"), Attributes: path(64999, 65077)},
		UnicastRoute{Prefix: prefix("2a00:4::/32"), Attributes: path(65077)},
		UnicastRoute{Prefix: prefix("2a00:5::/32")},
		UnicastRoute{Prefix: prefix("2a00:6::/32"), Attributes: Attributes{Communities: []uint32{GracefulShutdown, 65001<<16 | 666}}},
	))
	type accepted struct{ pref, med uint32 }
	agree := func(what string, want map[string]accepted, rejected map[string]string) {
		t.Helper()
		r.wait(what, func() bool {
			for p, a := range want {
				u, best := r.adjIn["r40"][prefix(p)], r.unicast[prefix(p)]
				if u.LocalPref != a.pref || u.MED != a.med || best.LocalPref != a.pref || best.MED != a.med {
					return false
				}
			}
			for p, rule := range rejected {
				if _, there := r.unicast[prefix(p)]; there || r.reasons[prefix(p)] != RuleReason(rule) {
					return false
				}
			}
			return len(r.unicast) == len(want) && len(r.adjIn["r40"]) == len(want)
		})
	}
	agree("first policy", map[string]accepted{
		"2a00:1::/32": {200, 7}, "2a00:1:1::/48": {120, 0}, "2a00:1:2::/48": {200, 7}, "2a00:2::/32": {50, 0}, "2a00:4::/32": {120, 0}, "2a00:6::/32": {lowestPref, 0},
	}, map[string]string{"2a00:3::/32": "leaks", "2a00:5::/32": RPKIRule})

	// What the other neighbor receives.
	receives := func(p string, path []uint32, med uint32, communities ...uint32) {
		t.Helper()
		to.wait(p, func() bool {
			u, ok := to.adjIn["r41"][prefix(p)]
			slices.Sort(u.Communities)
			return ok && u.ASPath == message.MakeASPath(path...) && u.HasMED && u.MED == med && slices.Equal(u.Communities, communities)
		})
	}
	receives("2a00:1::/32", []uint32{65000, 65001}, 9, 65009<<16|1)
	receives("2a00:1:2::/48", []uint32{65000, 65001}, 9, 65001<<16|666, 65009<<16|1)
	receives("2a00:4::/32", []uint32{65000, 65000, 65000, 65001, 65077}, 9, 65009<<16|1)
	to.mu.Lock()
	if _, there := to.adjIn["r41"][prefix("2a00:2::/32")]; there {
		t.Error("the rejected route is exported")
	}
	to.mu.Unlock()

	explained := func(dst, want string) {
		t.Helper()
		found, err := r.Lookup(prefix(dst))
		if text := fmt.Sprintf("%+v", found); err != nil || !strings.Contains(text, want) {
			t.Errorf("%s: %s, %v; want %q", dst, text, err, want)
		}
	}
	explained("2a00:1:2::/48", "backup, customers: local_pref 200, med 7, community 65000:5 added")
	explained("2a00:3::9/128", "rejected: rule leaks: 2a00:3::/32")
	explained("2a00:5::/48", "rejected: rule rpki-invalid: 2a00:5::/32")

	// The VRPs change: what was invalid is accepted, and the other way round.
	change := func(p Policies, keys Keys, vrps *policy.VRPs) {
		t.Helper()
		n := Neighbor{Address: address(40)}
		ruled(p, keys, vrps)(&n)
		r.must(r.SetImport("r40", n.Import))
	}
	vrps = policy.NewVRPs([]policy.VRP{{Prefix: prefix("2a00:1::/32"), MaxLength: 32, ASN: 65001}, {Prefix: prefix("2a00:5::/32"), MaxLength: 32, ASN: 65001}})
	change(p, keys, vrps)
	agree("other VRPs", map[string]accepted{
		"2a00:1::/32": {200, 7}, "2a00:2::/32": {50, 0}, "2a00:4::/32": {120, 0}, "2a00:5::/32": {120, 0}, "2a00:6::/32": {lowestPref, 0},
	}, map[string]string{"2a00:3::/32": "leaks", "2a00:1:1::/48": RPKIRule, "2a00:1:2::/48": RPKIRule})
	receives("2a00:5::/32", []uint32{65000, 65001}, 9, 65009<<16|1)

	p.RejectInvalid = false
	keys.ImportRules = []policy.Rule{{Name: "none", Action: policy.Reject}}
	change(p, keys, vrps)
	agree("nothing", nil, map[string]string{"2a00:1::/32": "none", "2a00:6::/32": "none"})
	to.wait("withdrawals", func() bool { return len(to.adjIn["r41"]) == 0 })
	r.must(r.SetExport("r42", ExportPolicy{}))
	change(p, Keys{}, nil)
	to.wait("all routes, unchanged", func() bool {
		return len(to.adjIn["r41"]) == 8 && !to.adjIn["r41"][prefix("2a00:2::/32")].HasMED
	})
	for _, x := range []*router{r, to} {
		x.mu.Lock()
		if len(x.downs) > 0 {
			t.Errorf("sessions ended: %v", x.downs)
		}
		x.mu.Unlock()
	}
}

// routes returns n routes to originate.
func routes(n int) []UnicastRoute {
	list := make([]UnicastRoute, n)
	for i := range list {
		list[i].Prefix = netip.PrefixFrom(addr(fmt.Sprintf("2a00:%x::", i+1)), 32)
	}
	return list
}

// limited is a router with a neighbor that has a limit of prefixes.
func limited(t *testing.T, l PrefixLimit) (from, r *router) {
	from, r = newRouter(t, 43, 65001), newRouter(t, 44, 65000)
	from.peer(r, passive)
	r.peer(from, func(n *Neighbor) { n.Import.MaxPrefixes, n.ConnectRetry = l, time.Second })
	return from, r
}

func TestMaxPrefixesDiscard(t *testing.T) {
	from, r := limited(t, PrefixLimit{Limit: 3, Action: LimitDiscard})
	all := routes(6)
	from.must(from.Originate(all...))
	discarded := func(n uint64) func() bool {
		return func() bool {
			s := r.Sessions()[0]
			return len(r.adjIn["r43"]) == 3 && s.Prefixes == 3 && s.Discarded == n
		}
	}
	r.wait("three routes", discarded(3))
	// A route that is there already may change.
	first := slices.IndexFunc(all, func(u UnicastRoute) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		_, there := r.adjIn["r43"][u.Prefix]
		return there
	})
	all[first].MED, all[first].HasMED = 5, true
	from.must(from.Originate(all[first]))
	r.wait("the changed route", func() bool { return r.adjIn["r43"][all[first].Prefix].MED == 5 })
	// With less than the limit, what was discarded is asked for.
	var there []netip.Prefix
	r.mu.Lock()
	for p := range r.adjIn["r43"] {
		there = append(there, p)
	}
	r.mu.Unlock()
	from.must(from.Withdraw(there[:2]...))
	r.wait("less", func() bool { return len(r.adjIn["r43"]) == 1 })
	r.wait("more again", func() bool { return len(r.adjIn["r43"]) == 3 })
	if r.mu.Lock(); len(r.downs) > 0 {
		t.Errorf("session ended: %v", r.downs)
	}
	r.mu.Unlock()
}

func TestMaxPrefixesDown(t *testing.T) {
	from, r := limited(t, PrefixLimit{Limit: 3, Action: LimitDown, Restart: 2 * time.Second})
	from.must(from.Originate(routes(3)...))
	r.wait("three routes", func() bool { return len(r.adjIn["r43"]) == 3 })
	from.must(from.Originate(routes(4)...))
	r.wait("down", func() bool { _, down := r.downs["r43"]; return down && len(r.adjIn["r43"]) == 0 })
	start := time.Now()
	s := r.Sessions()[0]
	if s.Up || !strings.Contains(s.Reason, "more than 3 ipv6-unicast prefixes; opens again 2s after") || !strings.Contains(s.Sent, "6/1") {
		t.Errorf("%+v", s)
	}
	// The link follows, and the session stays down.
	r.must(r.Disable("r43"))
	r.must(r.Enable("r43"))
	from.must(from.Withdraw(routes(4)[3].Prefix))
	r.wait("up again", func() bool { return r.up["r43"] && len(r.adjIn["r43"]) == 3 })
	if d := time.Since(start); d < 1900*time.Millisecond {
		t.Errorf("opened again after %s", d)
	}
	// A higher limit opens it at once.
	from.must(from.Originate(routes(4)...))
	r.wait("down again", func() bool { return !r.up["r43"] })
	r.must(r.SetImport("r43", ImportPolicy{MaxPrefixes: PrefixLimit{Limit: 9, Action: LimitDown, Restart: time.Hour}}))
	r.wait("four routes", func() bool { return r.up["r43"] && len(r.adjIn["r43"]) == 4 })
	from.mu.Lock()
	defer from.mu.Unlock()
	if got := from.downs["r44"]; !strings.Contains(got, "Maximum Number of Prefixes Reached") {
		t.Errorf("the neighbor saw %q", got)
	}
}

func TestMaxPrefixesWarn(t *testing.T) {
	from, r := limited(t, PrefixLimit{Limit: 3})
	from.must(from.Originate(routes(5)...))
	r.wait("all routes", func() bool { return len(r.adjIn["r43"]) == 5 })
	r.Speaker.mu.Lock()
	defer r.Speaker.mu.Unlock()
	if !r.neighbors["r43"].limit.exceeded.Has(IPv6Unicast) {
		t.Error("no warning")
	}
}

// TestGroup: clients of a prefix need no configuration of their own, with a password and a limit; a
// neighbor of its own keeps its session.
func TestGroup(t *testing.T) {
	rr := newRouter(t, 0x50, 65000)
	clients := make([]*router, 4)
	for i := range clients {
		clients[i] = newRouter(t, 0x51+i, 65000)
	}
	group := Group{
		Name: "servers", Prefix: prefix("fd00::50/124"), Limit: 2,
		Neighbor: Neighbor{LocalAddress: address(0x50), ASN: 65000, Families: []Family{VPNv6, IPv6Unicast}, ReflectorClient: true, Password: "secret"},
	}
	rr.must(rr.AddGroup(group))
	secret := func(n *Neighbor) { n.Password, n.ConnectRetry = "secret", time.Second }
	rr.peer(clients[0], client, func(n *Neighbor) { n.Password = "other" })
	clients[0].peer(rr, func(n *Neighbor) { n.Password = "other" })
	clients[1].peer(rr, secret)
	clients[2].peer(rr, secret)
	for i, name := range []string{"r81", "servers/fd00::52", "servers/fd00::53"} {
		rr.wait(name, func() bool { return rr.up[name] })
		clients[i].must(clients[i].Originate(UnicastRoute{Prefix: routes(3)[i].Prefix, NextHop: address(0x51 + i)}))
	}
	for i := range 3 {
		clients[i].wait("reflected routes", func() bool { return len(clients[i].unicast) == 3 })
	}
	clients[3].peer(rr, secret)
	clients[3].wait("rejection", func() bool { return clients[3].Sessions()[0].Reason != "" })
	time.Sleep(1500 * time.Millisecond) // another attempt
	if s := clients[3].Sessions()[0]; s.Up {
		t.Errorf("the third client of two is up: %+v", s)
	}
	// One ends, and its place is given to another one.
	clients[1].Stop()
	rr.wait("end", func() bool { return !rr.up["servers/fd00::52"] })
	rr.wait("the next client", func() bool { return rr.up["servers/fd00::54"] })
	clients[3].wait("reflected routes", func() bool { return len(clients[3].unicast) == 2 })

	if err := rr.AddGroup(group); err == nil {
		t.Error("the group was added twice")
	}

	// A member is changed with its group only, and replaced by a neighbor of its own.
	member := "servers/fd00::54"
	for verb, err := range map[string]error{
		"delete": rr.DeleteNeighbor(member), "disable": rr.Disable(member), "enable": rr.Enable(member),
		"set import policy of": rr.SetImport(member, ImportPolicy{}), "set export policy of": rr.SetExport(member, ExportPolicy{}),
	} {
		if want := verb + ` neighbor "` + member + `": it is a member of group "servers", which changes as a whole`; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	rr.must(rr.Reset(member))
	rr.wait("the member after a reset", func() bool { return rr.downs[member] == "reset" && rr.up[member] })
	rr.peer(clients[3], client, secret)
	rr.wait("the neighbor instead of the member", func() bool { return rr.up["r84"] && !rr.up[member] })
	rr.must(rr.DeleteNeighbor("r84"))
	rr.wait("the member instead of the neighbor", func() bool { return rr.up[member] && !rr.up["r84"] })
	changed, reset := group, group
	changed.Limit = 1
	reset.Neighbor.HoldTime = 30 * time.Second
	for want, now := range map[string]Group{`limit of group "servers" changed`: changed, `group "servers" reset`: reset} {
		if lines := CompareGroups([]Group{group}, []Group{now}); !slices.Equal(lines, []string{want}) {
			t.Errorf("%q, want %q", lines, want)
		}
	}
	// A lower limit ends no session, and accepts no further one.
	flaps := func() (n uint64) {
		for _, s := range rr.Sessions() {
			n += s.Flaps
		}
		return n
	}
	before, members := flaps(), len(rr.Sessions())
	rr.must(rr.ChangeGroups([]Group{group}, []Group{changed}))
	late := newRouter(t, 0x55, 65000)
	late.peer(rr, secret)
	late.wait("rejection", func() bool { return late.Sessions()[0].Reason != "" })
	if n := flaps(); n != before || len(rr.Sessions()) != members {
		t.Errorf("%d flaps and %d sessions, want %d and %d", n, len(rr.Sessions()), before, members)
	}
	rr.must(rr.ChangeGroups([]Group{changed}, nil))
	rr.wait("only the neighbor of its own", func() bool { return rr.up["r81"] && !rr.up["servers/fd00::53"] && !rr.up["servers/fd00::54"] })
	if s := rr.Sessions(); len(s) != 1 || s[0].Flaps != 0 {
		t.Errorf("%+v", s)
	}
}

func TestCheckKeys(t *testing.T) {
	p := Policies{Lists: map[string]policy.List{"a": list("accept ::/0")}, RPKI: true, RejectInvalid: true}
	k := Keys{
		LocalAddress: addr("fe80::1"), Role: "transit", Multihop: 2, HoldTime: time.Second, ConnectRetry: 1500 * time.Millisecond,
		MaxPrefixes: PrefixLimit{Action: "drop", Restart: time.Minute},
		ImportRules: []policy.Rule{{Name: RPKIRule, PrefixList: "b", Action: policy.Reject}},
		ExportRules: []policy.Rule{{Name: "x", RPKI: []policy.Validity{policy.Valid}, Action: policy.Reject}},
	}
	got := p.CheckKeys(&k, addr("2001:db8::1"), bfd.Config{Interval: 100 * time.Millisecond}).Error()
	for _, want := range []string{
		"local_address: fe80::1 and address 2001:db8::1 must both be link-local", "hold_time: must be whole seconds", `role: must be "customer", "provider", "peer", "rs" or "rs-client", got "transit"`, "multihop: excludes bfd", "connect_retry: must be whole seconds",
		"max_prefixes.limit: must be > 0", `max_prefixes.action: must be "warn", "discard" or "down", got "drop"`, "max_prefixes.restart: needs action: down",
		`import_rules[0].prefix_list: there is no prefix list "b"`, "import_rules[0].name: rpki-invalid is the rule that rpki adds", "export_rules[0].rpki: is a condition of import",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %q", got, want)
		}
	}
	if got := p.CheckKeys(&Keys{Multihop: 2}, addr("fe80::1"), bfd.Config{}).Error(); got != "multihop: fe80::1 is link-local, so the neighbor is on the link" {
		t.Error(got)
	}
	warned := p.Warn(&Keys{ImportRules: []policy.Rule{{Name: "late", RPKI: []policy.Validity{policy.Invalid}, Action: policy.Accept}}}).Error()
	if warned != `import_rules[0]: rule "late" is never reached: rule "rpki-invalid" decides about all of its routes` {
		t.Error(warned)
	}
}
