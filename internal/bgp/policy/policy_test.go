package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func entries(t testing.TB, texts ...string) List {
	t.Helper()
	l := make(List, len(texts))
	for i, text := range texts {
		if err := l[i].UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func communities(t testing.TB, texts ...string) []Community {
	t.Helper()
	l := make([]Community, len(texts))
	for i, text := range texts {
		if err := l[i].UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func number(n uint32) *uint32 { return &n }

func TestEntry(t *testing.T) {
	for text, want := range map[string]string{
		"accept 2001:db8::/32":             "accept 2001:db8::/32",
		" reject  0.0.0.0/0 le 32 ":        "reject 0.0.0.0/0 le 32",
		"accept 2001:db8::/32 le 48 ge 40": "accept 2001:db8::/32 ge 40 le 48",
		"accept 2001:db8::/32 ge 128":      "accept 2001:db8::/32 ge 128",
		"accept 2001:db8::/32 ge 32":       "accept 2001:db8::/32 le 128",
		"accept 10.0.0.1/32":               "accept 10.0.0.1/32",
	} {
		var e Entry
		if err := e.UnmarshalText([]byte(text)); err != nil || e.String() != want {
			t.Errorf("%q: got %q, %v", text, e, err)
		}
	}
	for text, want := range map[string]string{
		"":                                   "want a prefix list entry",
		"2001:db8::/32":                      "want a prefix list entry",
		"permit 2001:db8::/32":               "want a prefix list entry",
		"accept 2001:db8::/32 le":            "want a prefix list entry",
		"accept 2001:db8::1/32":              "without host bits",
		"accept ::ffff:10.0.0.0/104":         "without host bits",
		"accept 2001:db8::/32 eq 48":         "want ge or le",
		"accept 2001:db8::/32 le 31":         "le must be from 32 to 128",
		"accept 10.0.0.0/8 ge 33":            "ge must be from 8 to 32",
		"accept 2001:db8::/32 le 48 le 49":   "given twice",
		"accept 2001:db8::/32 ge 49 le 48":   "matches nothing",
		"accept 2001:db8::/32 ge +40":        "ge must be",
		"accept fe80::1%eth0/128":            "without host bits",
		"accept 2001:db8::/32 le 1000000000": "le must be",
	} {
		e := Entry{Max: 7}
		if err := e.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || e.Max != 7 {
			t.Errorf("%q: got %v (%v), want %q", text, err, e, want)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add("accept 2001:db8::/32 ge 40 le 48")
	f.Add("reject 10.0.0.0/8")
	f.Fuzz(func(t *testing.T, text string) {
		var e, again Entry
		if e.UnmarshalText([]byte(text)) != nil {
			return
		}
		accessor.Call(t, e)
		if err := again.UnmarshalText([]byte(e.String())); err != nil || again != e {
			t.Errorf("%q is %v, then %v, %v", text, e, again, err)
		}
	})
}

func FuzzCommunity(f *testing.F) {
	f.Add("65000:1")
	f.Add("65536:1:2")
	f.Add("blackhole")
	f.Fuzz(func(t *testing.T, text string) {
		var c, again Community
		if c.UnmarshalText([]byte(text)) != nil {
			return
		}
		accessor.Call(t, c)
		if err := again.UnmarshalText([]byte(c.String())); err != nil || again != c {
			t.Errorf("%q is %v, then %v, %v", text, c, again, err)
		}
	})
}

func TestCommunity(t *testing.T) {
	for text, want := range map[string]Community{
		"65000:1":     Standard(65000<<16 | 1),
		"0:0":         Standard(0),
		"65535:65281": Standard(0xffffff01),
		"no-export":   Standard(0xffffff01),
		"65536:1:2":   {true, [3]uint32{65536, 1, 2}},
	} {
		var c Community
		if err := c.UnmarshalText([]byte(text)); err != nil || c != want {
			t.Errorf("%s: got %v, %v", text, c, err)
		}
	}
	for _, text := range []string{"", "1", "65536:1", "1:65536", "1:2:3:4", "01:2", "+1:2", ":", "internet", "4294967296:1:1"} {
		var c Community
		if err := c.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, c)
		}
	}
}

// drawPrefix draws from few addresses, so that prefixes often cover each other.
func drawPrefix(t *rapid.T, name string) netip.Prefix {
	bits := rapid.Uint32Range(0, 0xff).Draw(t, name)
	if rapid.Bool().Draw(t, name+" IPv4") {
		a := netip.AddrFrom4([4]byte{byte(bits & 0x91), byte(bits & 3), 0, byte(bits & 1)})
		return netip.PrefixFrom(a, rapid.IntRange(0, 32).Draw(t, name+" bits")).Masked()
	}
	a := [16]byte{0x20, byte(bits & 0x91), 7: byte(bits & 3), 8: byte(bits & 0x81), 15: byte(bits & 1)}
	return netip.PrefixFrom(netip.AddrFrom16(a), rapid.IntRange(0, 128).Draw(t, name+" bits")).Masked()
}

// TestListMatchesLinearScan compares the index with the definition.
func TestListMatchesLinearScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l List
		for range rapid.IntRange(0, 40).Draw(t, "entries") {
			p := drawPrefix(t, "entry")
			from := rapid.IntRange(p.Bits(), p.Addr().BitLen()).Draw(t, "ge")
			l = append(l, Entry{
				Accept: rapid.Bool().Draw(t, "accept"), Prefix: p,
				Min: uint8(from), Max: uint8(rapid.IntRange(from, p.Addr().BitLen()).Draw(t, "le")),
			})
		}
		c := compileList(l)
		for range 20 {
			p := drawPrefix(t, "route")
			i := slices.IndexFunc(l, func(e Entry) bool { return e.matches(p) })
			if got, want := c.accepts(p), i >= 0 && l[i].Accept; got != want || (Index{c}).First(p) != i {
				t.Fatalf("%s: got %v, want %v (entry %d of %v)", p, got, want, i, l)
			}
		}
		warned := map[string]bool{}
		for _, w := range l.warnings() {
			warned[w.Path] = true
		}
		for i, e := range l {
			shadowed := slices.ContainsFunc(l[:i], func(before Entry) bool { return before.shadows(e) })
			if warned[fmt.Sprintf("[%d]", i)] != shadowed {
				t.Fatalf("entry %d of %v: warned %v, shadowed %v", i, l, !shadowed, shadowed)
			}
		}
	})
}

// TestValidateMatchesDefinition compares the index with RFC 6811 section 2.
func TestValidateMatchesDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []VRP
		for range rapid.IntRange(0, 30).Draw(t, "vrps") {
			p := drawPrefix(t, "vrp")
			list = append(list, VRP{p, uint8(rapid.IntRange(p.Bits(), p.Addr().BitLen()).Draw(t, "max")), rapid.Uint32Range(0, 3).Draw(t, "asn")})
		}
		slices.SortFunc(list, VRP.Compare)
		list = slices.Compact(list)
		s := NewVRPs(list)
		if !slices.Equal(slices.Collect(s.All()), list) || s.Len() != len(list) {
			t.Fatalf("the set of %v has %d: %v", list, s.Len(), slices.Collect(s.All()))
		}
		for range 20 {
			p, origin := drawPrefix(t, "route"), rapid.Uint32Range(0, 3).Draw(t, "origin")
			want := NotFound
			for _, v := range list {
				if v.Prefix.Bits() > p.Bits() || !v.Prefix.Contains(p.Addr()) {
					continue
				}
				if v.ASN == origin && origin != 0 && p.Bits() <= int(v.MaxLength) {
					want = Valid
					break
				}
				want = Invalid
			}
			if got := s.Validate(p, origin); got != want {
				t.Fatalf("%s from %d: got %v, want %v (%v)", p, origin, got, want, list)
			}
		}
	})
}

func TestValidate(t *testing.T) {
	// The examples of RFC 6811 section 2, and a ROA for AS 0 (RFC 6483 section 4).
	list := []VRP{
		{prefix("10.0.0.0/16"), 24, 65001}, {prefix("2001:db8::/32"), 48, 65001}, {prefix("2001:db8:a::/48"), 48, 65002}, {prefix("2001:db9::/32"), 128, 0},
	}
	slices.SortFunc(list, VRP.Compare)
	s := NewVRPs(list)
	for _, tt := range []struct {
		prefix string
		origin uint32
		want   Validity
	}{
		{"2001:db8::/32", 65001, Valid},
		{"2001:db8:a::/48", 65001, Valid},
		{"2001:db8:a::/48", 65002, Valid},
		{"2001:db8:b::/48", 65002, Invalid},
		{"2001:db8:a::/49", 65001, Invalid},
		{"2001:db8::/31", 65001, NotFound},
		{"2001:db8::/32", 0, Invalid},
		{"2001:db9::/32", 0, Invalid},
		{"10.0.255.0/24", 65001, Valid},
		{"10.1.0.0/24", 65001, NotFound},
	} {
		if got := s.Validate(prefix(tt.prefix), tt.origin); got != tt.want {
			t.Errorf("%s from %d: got %v, want %v", tt.prefix, tt.origin, got, tt.want)
		}
	}
	if got := (*VRPs)(nil).Validate(prefix("::/0"), 1); got != NotFound {
		t.Errorf("without VRPs: %v", got)
	}
}

// usual is a policy as an operator has it for a peer.
func usual(t testing.TB, customers List, vrps *VRPs) *Policy {
	rules := []Rule{
		{Name: "invalid", RPKI: []Validity{Invalid}, Action: Reject},
		{Name: "leaks", ASPath: ASPath{Contains: []uint32{64999, 65010}}, Action: Reject},
		{Name: "backup", Communities: communities(t, "65001:666", "65536:1:2"), Set: Changes{LocalPref: number(50)}},
		{Name: "tagged", ASPath: ASPath{Origin: []uint32{65003}, First: []uint32{65001}}, Set: Changes{MED: number(7), AddCommunities: communities(t, "65000:3")}},
		{Name: "customers", PrefixList: "customers", Set: Changes{LocalPref: number(200)}, Action: Accept},
		{Name: "rest", Action: Reject},
	}
	lists := map[string]List{"customers": customers}
	if faults := Check(Import, rules, lists, true); len(faults) > 0 {
		t.Fatal(faults)
	}
	return New(rules, CompileLists(lists), vrps)
}

func TestEvaluate(t *testing.T) {
	p := usual(t, entries(t, "reject 2001:db8:a:1::/64", "accept 2001:db8:a::/48 le 64"), NewVRPs([]VRP{{prefix("2001:db8:a::/48"), 64, 65003}}))
	path := func(path ...uint32) Attributes {
		return Attributes{ASPath: path, First: path[0], Origin: path[len(path)-1]}
	}
	marked := path(65001, 65002, 65003)
	marked.Large = [][3]uint32{{65536, 1, 2}}
	for _, tt := range []struct {
		what    string
		a       Attributes
		prefix  string
		accept  bool
		rule    string
		changes string
	}{
		{"customer", path(65001, 65003), "2001:db8:a::/48", true, "customers", "local_pref 200, med 7, community 65000:3 added"},
		{"the last LOCAL_PREF wins", marked, "2001:db8:a:2::/64", true, "customers", "local_pref 200, med 7, community 65000:3 added"},
		{"other origin", path(65001, 65004), "2001:db8:a::/48", false, "invalid", ""},
		{"leak", path(65001, 65010, 65003), "2001:db8:a::/48", false, "leaks", ""},
		{"rejected by the list", path(65001, 65003), "2001:db8:a:1::/64", false, "rest", ""},
		{"not in the list", path(65001, 65003), "2001:db8:b::/48", false, "rest", ""},
	} {
		v := p.Evaluate(p.Classify(tt.a), prefix(tt.prefix))
		if v.Accept != tt.accept || p.Name(v.Rule) != tt.rule || p.Changes(v.Changed).String() != tt.changes {
			t.Errorf("%s: got %+v, %s, %s", tt.what, v, p.Name(v.Rule), p.Changes(v.Changed))
		}
	}
	if v := (*Policy)(nil).Evaluate((*Policy)(nil).Classify(Attributes{}), prefix("::/0")); !v.Accept || v.Rule != -1 {
		t.Errorf("without a policy: %+v", v)
	}
	if v := New(nil, Lists{}, nil).Evaluate(Class{}, prefix("::/0")); !v.Accept || v.Rule != -1 {
		t.Errorf("without rules: %+v", v)
	}
}

// TestEvaluateMatchesDefinition compares classes and sets of rules with rules evaluated one by one.
func TestEvaluateMatchesDefinition(t *testing.T) {
	lists := map[string]List{"a": entries(t, "accept 2000::/8 ge 20"), "b": entries(t, "reject 128.0.0.0/1 le 32", "accept 0.0.0.0/0 le 20", "accept ::/0 le 60")}
	numbers := func(t *rapid.T, what string) []uint32 {
		return rapid.SliceOfN(rapid.Uint32Range(1, 4), 0, 2).Draw(t, what)
	}
	rapid.Check(t, func(t *rapid.T) {
		vrps := NewVRPs([]VRP{{drawPrefix(t, "vrp"), 40, 2}})
		rules := make([]Rule, rapid.IntRange(0, MaxRules).Draw(t, "rules"))
		for i := range rules {
			r := &rules[i]
			r.Name = fmt.Sprint(i)
			r.PrefixList = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "list")
			r.ASPath = ASPath{numbers(t, "first"), numbers(t, "contains"), numbers(t, "origin")}
			for _, c := range numbers(t, "communities") {
				r.Communities = append(r.Communities, Standard(c))
			}
			if rapid.Bool().Draw(t, "rpki") {
				r.RPKI = []Validity{rapid.SampledFrom([]Validity{Valid, Invalid, NotFound}).Draw(t, "validity")}
			}
			if r.Action = rapid.SampledFrom([]Action{"", "", "", Accept, Reject}).Draw(t, "action"); r.Action != Reject {
				r.Set.LocalPref = number(uint32(i))
			}
		}
		p := New(rules, CompileLists(lists), vrps)
		for range 10 {
			a := Attributes{ASPath: numbers(t, "path"), Communities: numbers(t, "route's communities")}
			if n := len(a.ASPath); n > 0 {
				a.First, a.Origin = a.ASPath[0], a.ASPath[n-1]
			}
			route := drawPrefix(t, "route")
			want := Verdict{Rule: -1, Accept: true}
			pref := uint32(1000)
			for i, r := range rules {
				any := func(list []uint32, in ...uint32) bool {
					return len(list) == 0 || slices.ContainsFunc(list, func(v uint32) bool { return v != 0 && slices.Contains(in, v) })
				}
				l := lists[r.PrefixList]
				e := slices.IndexFunc(l, func(e Entry) bool { return e.matches(route) })
				if r.PrefixList != "" && (e < 0 || !l[e].Accept) || !any(r.ASPath.First, a.First) || !any(r.ASPath.Origin, a.Origin) || !any(r.ASPath.Contains, a.ASPath...) ||
					len(r.Communities) > 0 && !slices.ContainsFunc(r.Communities, func(c Community) bool { return slices.Contains(a.Communities, c.Value[0]) }) ||
					len(r.RPKI) > 0 && !slices.Contains(r.RPKI, vrps.Validate(route, a.Origin)) {
					continue
				}
				if r.Set.LocalPref != nil {
					pref, want.Changed = *r.Set.LocalPref, want.Changed|1<<i
				}
				if r.Action != "" {
					want.Rule, want.Accept = i, r.Action == Accept
					break
				}
			}
			if !want.Accept {
				want.Changed = 0
			}
			got := p.Evaluate(p.Classify(a), route)
			if got != want {
				t.Fatalf("%s %+v: got %+v, want %+v", route, a, got, want)
			}
			if lp := p.Changes(got.Changed).LocalPref; want.Changed != 0 && (lp == nil || *lp != pref) {
				t.Fatalf("local pref %v, want %d", lp, pref)
			}
		}
	})
}

// TestWarningsAreTrue checks that a rule that is reported as never reached decides about no route.
func TestWarningsAreTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := func(what string) []uint32 { return rapid.SliceOfN(rapid.Uint32Range(1, 3), 0, 2).Draw(t, what) }
		rules := make([]Rule, 4)
		for i := range rules {
			rules[i] = Rule{Name: fmt.Sprint(i), ASPath: ASPath{some("first"), some("contains"), some("origin")}, Action: rapid.SampledFrom([]Action{"", Accept, Reject}).Draw(t, "action")}
			if rules[i].Action != Reject {
				rules[i].Set.MED = number(1)
			}
		}
		p := New(rules, Lists{}, nil)
		dead := map[string]bool{}
		for _, w := range Warnings(nil, rules) {
			dead[w.Path] = true
		}
		for range 20 {
			path := some("path")
			a := Attributes{ASPath: path}
			if len(path) > 0 {
				a.First, a.Origin = path[0], path[len(path)-1]
			}
			v := p.Evaluate(p.Classify(a), prefix("::/0"))
			for i := range rules {
				if dead[fmt.Sprintf("[%d]", i)] && (v.Rule == i || v.Changed>>i&1 == 1) {
					t.Fatalf("rule %d is reached by %v: %+v", i, path, rules)
				}
			}
		}
	})
}

func TestPrependsAddUp(t *testing.T) {
	var c Changes
	for range MaxRules {
		c.add(Changes{Prepend: maxPrepend})
	}
	if c.Prepend != MaxRules*maxPrepend {
		t.Errorf("%d rules of %d prepend %d", MaxRules, maxPrepend, c.Prepend)
	}
}

func TestCheck(t *testing.T) {
	lists := map[string]List{"customers": entries(t, "accept 2001:db8::/32", "reject 2001:db8::/32", "accept 2001:db8::/32 le 48")}
	rules := []Rule{
		{Name: "a", PrefixList: "customer", RPKI: []Validity{Invalid}, ASPath: ASPath{Contains: []uint32{1, 0}}, Action: Reject},
		{Name: "a", Action: "drop"},
		{},
		{Name: "b", Action: Reject, Set: Changes{MED: number(0)}},
		{Name: "c", Set: Changes{Prepend: 21, LocalPref: number(1), AddCommunities: []Community{Standard(1)}, RemoveCommunities: []Community{Standard(1)}}},
		{Name: "d", Set: Changes{AddCommunities: slices.Repeat([]Community{Standard(2)}, 41)}},
	}
	want := map[Direction]fault.List{
		Import: {
			{Path: "[0].prefix_list", Message: `there is no prefix list "customer", did you mean "customers"?`},
			{Path: "[0].as_path.contains[1]", Message: "must be an AS number > 0, got 0"},
			{Path: "[0].rpki", Message: "needs the section rpki with a cache: without, every route is not-found"},
			{Path: "[1].name", Message: "a is already [0].name"},
			{Path: "[1].action", Message: `must be "accept" or "reject", got "drop"`},
			{Path: "[2].name", Message: "must not be empty: status names the rule by it"},
			{Path: "[2]", Message: "has no effect: it needs an action, or something to set"},
			{Path: "[3].set", Message: "has no effect: the rule rejects the route"},
			{Path: "[4].set.prepend", Message: "is for export rules: set local_pref here"},
			{Path: "[4].set.add_communities[0]", Message: "0:1 is in remove_communities too"},
			{Path: "[5].set.add_communities", Message: "must be at most 40, got 41"},
		},
		Export: {
			{Path: "[0].rpki", Message: "is a condition of import rules: routes that are advertised have been validated"},
			{Path: "[4].set.local_pref", Message: "is not sent to another AS (RFC 4271 section 5.1.5): set med, or prepend"},
			{Path: "[4].set.prepend", Message: "must be at most 20, got 21"},
		},
	}
	for direction, want := range want {
		got := Check(direction, rules, lists, false)
		if direction == Export {
			got = slices.DeleteFunc(got, func(f fault.Fault) bool { return !slices.Contains(want, f) })
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", direction, diff)
		}
	}
	if got := Check(Export, make([]Rule, MaxRules+1), nil, false); !strings.Contains(got[0].Message, "at most 60 rules") {
		t.Error(got[0])
	}
	if diff := cmp.Diff(fault.List{
		{Path: "customers[1]", Message: `"reject 2001:db8::/32" has no effect: entry [0] "accept 2001:db8::/32" matches all of it`},
		{Path: "customers", Message: "is used by no rule"},
	}, ListWarnings(lists, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestChangesAdd(t *testing.T) {
	var c Changes
	c.add(Changes{Prepend: 1, AddCommunities: communities(t, "1:1", "1:2"), MED: number(3)})
	c.add(Changes{Prepend: 2, RemoveCommunities: communities(t, "1:1"), AddCommunities: communities(t, "1:3")})
	if got, want := c.String(), "med 3, prepend 3, community 1:1 removed, community 1:2 added, community 1:3 added"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// table draws n prefixes as an IPv6 table has them: most of 32 to 48 bits, in the space of the
// registries.
func table(n int, seed uint64) []netip.Prefix {
	r := rand.New(rand.NewPCG(seed, 1))
	registries := []uint16{0x2001, 0x2400, 0x2404, 0x2600, 0x2604, 0x2620, 0x2800, 0x2804, 0x2a00, 0x2a02, 0x2a06, 0x2a0d, 0x2c0f}
	lengths := []int{29, 32, 32, 36, 40, 44, 46, 47, 48, 48, 48, 48}
	list := make([]netip.Prefix, n)
	for i := range list {
		g := registries[r.IntN(len(registries))]
		a := netip.AddrFrom16([16]byte{byte(g >> 8), byte(g), byte(r.UintN(64)), byte(r.UintN(256)), byte(r.UintN(256)), byte(r.UintN(256))})
		list[i] = netip.PrefixFrom(a, lengths[r.IntN(len(lengths))]).Masked()
	}
	return list
}

// BenchmarkEvaluate is one evaluation of a policy of six rules, with a prefix list of 10,000
// entries and 500,000 VRPs, for routes with a class that is kept.
func BenchmarkEvaluate(b *testing.B) {
	var customers List
	for _, p := range table(10_000, 1) {
		customers = append(customers, Entry{Accept: true, Prefix: p, Min: uint8(p.Bits()), Max: 48})
	}
	var list []VRP
	for _, p := range table(500_000, 2) {
		list = append(list, VRP{p, 48, 65003})
	}
	slices.SortFunc(list, VRP.Compare)
	p := usual(b, customers, NewVRPs(slices.Compact(list)))
	class := p.Classify(Attributes{ASPath: []uint32{65001, 65003}, First: 65001, Origin: 65003})
	routes := table(1<<17, 3)
	for _, rpki := range []bool{false, true} {
		if !rpki {
			class.rules &^= 1
		} else {
			class.rules |= 1
		}
		b.Run(fmt.Sprintf("rpki=%v", rpki), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p.Evaluate(class, routes[i&(len(routes)-1)])
			}
		})
	}
}

// BenchmarkClassify is the part that is done once for all routes with the same attributes.
func BenchmarkClassify(b *testing.B) {
	p := usual(b, nil, nil)
	a := Attributes{ASPath: []uint32{65001, 3356, 174, 65003}, First: 65001, Origin: 65003, Communities: []uint32{1, 2, 3, 4}}
	for b.Loop() {
		p.Classify(a)
	}
}

// BenchmarkNewVRPs is the index of 500,000 VRPs, made when a cache sends changes.
func BenchmarkNewVRPs(b *testing.B) {
	var list []VRP
	for _, p := range table(500_000, 2) {
		list = append(list, VRP{p, 48, 65003})
	}
	slices.SortFunc(list, VRP.Compare)
	list = slices.Compact(list)
	for b.Loop() {
		NewVRPs(list)
	}
}
