package rib

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp/message"
)

// modelPath is a path in the model.
type modelPath struct {
	received *message.Attributes
	label    uint32
	stale    bool
}

// modelSource is a source in the model. Its policy rejects attributes whose MED is a multiple of
// policy, and adds policy to the LOCAL_PREF of others; 0 accepts them unchanged.
type modelSource struct {
	Peer
	policy uint32
	paths  map[message.Key]modelPath
}

// modelConsumer is a consumer, what it has taken, and what it does not want.
type modelConsumer struct {
	*Consumer
	family message.Family
	of     Source
	best   bool
	odd    bool // it does not want labels with this parity
	parity uint32
	state  map[message.Key]taken
	since  map[message.Key]bool // taken since the barrier
	before map[message.Key]bool // pending when the barrier was set
	at     Barrier
	woken  bool // it knows that there is something to take
}

// taken is a route that a consumer has. received is nil with a consumer of best paths.
type taken struct {
	received, accepted *message.Attributes
	label              uint32
	source             Source
}

// model is a RIB beside maps that say what it must contain.
type model struct {
	rib       *RIB
	interner  *message.Interner
	pool      []*message.Attributes
	derived   map[*message.Attributes]map[uint32]*message.Attributes
	sources   map[Source]*modelSource
	consumers []*modelConsumer
	keys      []message.Key
}

// accepted is what the policy of a source makes of attributes; nil: it rejects them.
func (m *model) accepted(policy uint32, a *message.Attributes) *message.Attributes {
	if policy == 0 {
		return a
	}
	if med(a)%policy == 0 {
		return nil
	}
	if m.derived[a] == nil {
		m.derived[a] = map[uint32]*message.Attributes{}
	}
	if m.derived[a][policy] == nil {
		f := a.Fields()
		f.LocalPref, f.HasLocalPref = LocalPref(a)+policy, true
		m.derived[a][policy] = m.interner.Intern(f)
	}
	return m.derived[a][policy]
}

func (m *model) accept(policy uint32, id ID) ID {
	a := m.rib.Attributes(id)
	if m.accepted(policy, a) == nil {
		return 0
	}
	if policy == 0 {
		return id
	}
	return m.rib.Derive(id, Change{uint64(policy)}, func(a *message.Attributes) *message.Attributes { return m.accepted(policy, a) })
}

// bestOf is the route selection as RFC 4271 section 9.1.2.2 states it: each step removes paths from
// consideration.
func (m *model) bestOf(k message.Key) (taken, bool) {
	type entry struct {
		taken
		*modelSource
		stale bool
	}
	var all []entry
	for _, s := range slices.Sorted(maps.Keys(m.sources)) {
		source := m.sources[s]
		if p, ok := source.paths[k]; ok {
			if a := m.accepted(source.policy, p.received); a != nil {
				all = append(all, entry{taken{p.received, a, p.label, s}, source, p.stale})
			}
		}
	}
	if len(all) == 0 {
		return taken{}, false
	}
	keep := func(rank func(entry) int) {
		least := slices.MinFunc(all, func(a, b entry) int { return rank(a) - rank(b) })
		all = slices.DeleteFunc(all, func(e entry) bool { return rank(e) != rank(least) })
	}
	number := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	keep(func(e entry) int { return number(e.stale) })
	keep(func(e entry) int { return -int(LocalPref(e.accepted)) })
	keep(func(e entry) int { return number(e.source != Local) })
	keep(func(e entry) int { return e.accepted.ASPath().Len() })
	keep(func(e entry) int { return int(e.accepted.Origin()) })
	lowest := map[uint32]uint32{}
	for _, e := range all {
		as := e.accepted.ASPath().First()
		if least, ok := lowest[as]; !ok || med(e.accepted) < least {
			lowest[as] = med(e.accepted)
		}
	}
	all = slices.DeleteFunc(all, func(e entry) bool { return med(e.accepted) > lowest[e.accepted.ASPath().First()] })
	keep(func(e entry) int { return number(!e.External) })
	last := func(a netip.Addr) int {
		if !a.IsValid() {
			return -1
		}
		b := a.As16()
		return int(b[15])
	}
	keep(func(e entry) int {
		if e.accepted.OriginatorID().IsValid() {
			return last(e.accepted.OriginatorID())
		}
		return last(e.RouterID)
	})
	keep(func(e entry) int { return e.accepted.ClusterList().Len() })
	keep(func(e entry) int { return last(e.Address) })
	return all[0].taken, true
}

// dropStale removes stale paths that another path replaced.
func (m *model) dropStale(k message.Key) {
	best, ok := m.bestOf(k)
	if !ok || m.sources[best.source].paths[k].stale {
		return
	}
	for _, s := range m.sources {
		if s.paths[k].stale {
			delete(s.paths, k)
		}
	}
}

// want is what a consumer has when it has taken everything.
func (m *model) want(c *modelConsumer, k message.Key) (taken, bool) {
	var t taken
	ok := false
	if c.best {
		t, ok = m.bestOf(k)
		t.received = nil
	} else if p, there := m.sources[c.of].paths[k]; there {
		t, ok = taken{p.received, m.accepted(m.sources[c.of].policy, p.received), p.label, c.of}, true
	}
	return t, ok && !(c.odd && t.label%2 == c.parity)
}

func (c *modelConsumer) pull(t *rapid.T, m *model, n int) {
	c.Pull(n, func(item Item) bool {
		k := item.Key
		if _, had := c.state[k]; had != item.Held {
			t.Fatalf("%s: held %t, but the consumer had it: %t", k, item.Held, had)
		}
		want, ok := m.want(c, k)
		got := taken{m.rib.Attributes(item.Path.Received), m.rib.Attributes(item.Path.Accepted), item.Path.Label, item.Path.Source}
		if c.best {
			got.received = nil
		}
		if ok && got != want {
			t.Fatalf("%s: took %+v, newest is %+v", k, got, want)
		}
		c.since[k] = true
		if ok {
			c.state[k] = got
		} else {
			delete(c.state, k)
		}
		return ok
	})
	c.woken = c.Pending() > 0 // else it knows that there is more
	if c.Passed(c.at) {
		for k := range c.before {
			if !c.since[k] {
				t.Fatalf("barrier passed before %s was taken", k)
			}
		}
	}
}

// drain takes everything and compares the consumer's state with the model.
func (c *modelConsumer) drain(t *rapid.T, m *model) {
	for n := 0; c.Pending() > 0; n++ {
		if n > 1000 {
			t.Fatal("never drained")
		}
		c.pull(t, m, 3)
	}
	want := map[message.Key]taken{}
	for _, k := range m.keys {
		if w, ok := m.want(c, k); ok && k.Family() == c.family {
			want[k] = w
		}
	}
	if !maps.Equal(c.state, want) {
		t.Fatalf("consumer of %s (best %t, source %d) has %v\nwant %v", c.family, c.best, c.of, c.state, want)
	}
	if c.Held() != len(want) {
		t.Fatalf("%d held, want %d", c.Held(), len(want))
	}
}

func (m *model) addConsumer(family message.Family, best bool, of Source, odd bool) {
	c := &modelConsumer{family: family, best: best, of: of, odd: odd, state: map[message.Key]taken{}, since: map[message.Key]bool{}}
	wake := func() { c.woken = true }
	if best {
		c.Consumer = m.rib.NewConsumer(family, wake)
	} else {
		c.Consumer = m.rib.NewReader(family, of, wake)
	}
	m.consumers = append(m.consumers, c)
}

func newModel() *model {
	m := &model{rib: New(), interner: message.NewInterner(), derived: map[*message.Attributes]map[uint32]*message.Attributes{}, sources: map[Source]*modelSource{Local: {paths: map[message.Key]modelPath{}}}}
	for i := range 8 {
		m.keys = append(m.keys, message.KeyOf(netip.MustParsePrefix(fmt.Sprintf("2a00:%x::/32", i))),
			message.KeyOf(netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", i))))
	}
	for i := range 24 {
		a := message.Fields{MED: uint32(i % 3), HasMED: true}
		a.ASPath = message.MakeASPath([]uint32{1, 2}[:1+i/8%2]...)
		if i%2 == 1 {
			a.ASPath = message.MakeASPath([]uint32{7, 8}[:1+i/8%2]...)
		}
		if i%8 == 0 {
			a.LocalPref, a.HasLocalPref = uint32(99+i%3), true
		}
		if i%7 == 0 {
			a.OriginatorID = netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		}
		m.pool = append(m.pool, m.interner.Intern(a))
	}
	return m
}

// TestConsumersAgreeWithModel: after any sequence of changes, a consumer that has taken everything
// has exactly what the model says, and what it takes in between is the newest state.
func TestConsumersAgreeWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel()
		anySource := func(t *rapid.T) Source {
			return rapid.SampledFrom(slices.Sorted(maps.Keys(m.sources))).Draw(t, "source")
		}
		remove := func(s Source) {
			for k := range m.sources[s].paths {
				delete(m.sources[s].paths, k)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"announce": func(t *rapid.T) {
				s, k := anySource(t), rapid.SampledFrom(m.keys).Draw(t, "key")
				a, label := rapid.SampledFrom(m.pool).Draw(t, "attributes"), rapid.Uint32Range(0, 3).Draw(t, "label")
				id := m.rib.Hold(a)
				m.rib.Announce(k, Path{Received: id, Accepted: m.accept(m.sources[s].policy, id), Label: label, Source: s}, rapid.Bool().Draw(t, "urgent"))
				m.rib.Release(id)
				m.sources[s].paths[k] = modelPath{received: a, label: label}
				m.dropStale(k)
			},
			"withdraw": func(t *rapid.T) {
				s, k := anySource(t), rapid.SampledFrom(m.keys).Draw(t, "key")
				_, there := m.sources[s].paths[k]
				if got := m.rib.Withdraw(k, s, rapid.Bool().Draw(t, "urgent")); got != there {
					t.Fatalf("withdrawal of %s: %t, want %t", k, got, there)
				}
				delete(m.sources[s].paths, k)
				m.dropStale(k)
			},
			"peer up": func(t *rapid.T) {
				if len(m.sources) > 5 {
					return
				}
				n := byte(len(m.sources) + rapid.IntRange(0, 1).Draw(t, "number"))
				p := Peer{External: rapid.Bool().Draw(t, "external"), RouterID: netip.AddrFrom4([4]byte{10, 0, 0, n})}
				var s Source
				for i := Source(1); ; i++ { // the address decides, as the last step does
					if m.sources[i] == nil {
						p.Address = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
						s = i
						break
					}
				}
				if got := m.rib.AddSource(p); got != s {
					t.Fatalf("source %d, want %d", got, s)
				}
				m.sources[s] = &modelSource{Peer: p, policy: rapid.Uint32Range(0, 3).Draw(t, "policy"), paths: map[message.Key]modelPath{}}
			},
			"peer down": func(t *rapid.T) {
				s := anySource(t)
				for f := message.IPv4Unicast; f < families; f++ {
					for !m.rib.Purge(f, s, rapid.IntRange(1, 50).Draw(t, "slice")) {
					}
				}
				remove(s)
				for _, k := range m.keys {
					m.dropStale(k)
				}
				read := slices.ContainsFunc(m.consumers, func(c *modelConsumer) bool { return !c.best && c.of == s })
				if s != Local && !read {
					m.rib.RemoveSource(s)
					delete(m.sources, s)
				}
			},
			"stale": func(t *rapid.T) {
				s := anySource(t)
				m.rib.MarkStale(s)
				for k, p := range m.sources[s].paths {
					p.stale = true
					m.sources[s].paths[k] = p
				}
				for f := message.IPv4Unicast; f < families; f++ {
					for i := m.rib.Reselect(f, s, 0, 7, nil); i != 0; i = m.rib.Reselect(f, s, i, 7, nil) {
					}
				}
				for _, k := range m.keys {
					m.dropStale(k)
				}
				n := 0
				for _, p := range m.sources[s].paths {
					if p.stale {
						n++
					}
				}
				if got := m.rib.Stale(s); got != n {
					t.Fatalf("%d stale paths, want %d", got, n)
				}
			},
			"stale paths expire": func(t *rapid.T) {
				s := anySource(t)
				some := rapid.Bool().Draw(t, "of some attributes")
				which := func(a *message.Attributes) bool { return !some || a.PathLen()%2 == 0 }
				for f := message.IPv4Unicast; f < families; f++ {
					for i := m.rib.PurgeStale(f, s, 0, 5, which); i != 0; i = m.rib.PurgeStale(f, s, i, 5, which) {
					}
				}
				maps.DeleteFunc(m.sources[s].paths, func(_ message.Key, p modelPath) bool { return p.stale && which(p.received) })
			},
			"import policy": func(t *rapid.T) {
				s, policy := anySource(t), rapid.Uint32Range(0, 3).Draw(t, "policy")
				m.sources[s].policy = policy
				// The new policy applies to a stale path too; the path remains stale.
				for f := message.IPv4Unicast; f < families; f++ {
					decide := func(_ message.Key, p Path) (ID, uint16) {
						if id := m.accept(policy, p.Received); id != 0 {
							return id, 0
						}
						return 0, uint16(policy)
					}
					for i := m.rib.Reimport(f, s, 0, 9, decide); i != 0; i = m.rib.Reimport(f, s, i, 9, decide) {
					}
				}
				for _, k := range m.keys {
					m.dropStale(k)
				}
			},
			"consumer": func(t *rapid.T) {
				if len(m.consumers) < 6 {
					m.addConsumer(rapid.SampledFrom([]message.Family{message.IPv6Unicast, message.IPv4Unicast}).Draw(t, "family"),
						rapid.Bool().Draw(t, "best"), anySource(t), rapid.Bool().Draw(t, "filter"))
				}
			},
			"consumer ends": func(t *rapid.T) {
				if len(m.consumers) > 0 {
					i := rapid.IntRange(0, len(m.consumers)-1).Draw(t, "consumer")
					m.consumers[i].Close()
					m.consumers = slices.Delete(m.consumers, i, i+1)
				}
			},
			"pull": func(t *rapid.T) {
				if len(m.consumers) > 0 {
					rapid.SampledFrom(m.consumers).Draw(t, "consumer").pull(t, m, rapid.IntRange(1, 20).Draw(t, "n"))
				}
			},
			"barrier": func(t *rapid.T) {
				if len(m.consumers) > 0 {
					c := rapid.SampledFrom(m.consumers).Draw(t, "consumer")
					c.at, c.since, c.before = c.Barrier(), map[message.Key]bool{}, map[message.Key]bool{}
					for i, ok := c.pending.next(0); ok; i, ok = c.pending.next(i + 1) {
						c.before[c.table.key(i)] = true
					}
				}
			},
			"export policy": func(t *rapid.T) {
				if len(m.consumers) > 0 {
					c := rapid.SampledFrom(m.consumers).Draw(t, "consumer")
					c.odd, c.parity = true, 1-c.parity
					c.MarkAll()
				}
			},
			"drain": func(t *rapid.T) {
				for _, c := range m.consumers {
					c.drain(t, m)
				}
			},
			"": func(t *rapid.T) {
				for _, c := range m.consumers {
					if c.Pending() > 0 && !c.woken {
						t.Fatal("a consumer was not woken")
					}
				}
				for s, source := range m.sources {
					all, accepted := 0, 0
					for k, p := range source.paths {
						if k.Family() == message.IPv6Unicast {
							all++
							if m.accepted(source.policy, p.received) != nil {
								accepted++
							}
						}
					}
					if a, b := m.rib.Received(message.IPv6Unicast, s); a != all || b != accepted {
						t.Fatalf("source %d: %d paths, %d accepted, want %d, %d", s, a, b, all, accepted)
					}
					for f := message.IPv4Unicast; f < families; f++ {
						sum, accepted := m.rib.Received(f, s)
						for _, n := range m.rib.Rejected(f, s) {
							accepted += n
						}
						if accepted != sum {
							t.Fatalf("source %d: %d %s paths, but %d accepted or rejected for a reason", s, sum, f, accepted)
						}
					}
				}
			},
		})
		for _, c := range m.consumers {
			c.drain(t, m)
		}
		for s := range m.sources {
			for f := message.IPv4Unicast; f < families; f++ {
				for !m.rib.Purge(f, s, 100) {
				}
			}
			remove(s)
		}
		for _, c := range m.consumers {
			c.drain(t, m)
		}
		for f := range m.rib.tables {
			tab := &m.rib.tables[f]
			tab.reaped = 0
			for !tab.reap(7) {
			}
			if tab.dests.Len() > 0 || tab.more != nil {
				t.Fatalf("%d destinations of %d are left", tab.live.n+tab.dead.n, tab.dests.Len())
			}
		}
		if n := len(m.rib.attributes.ids); n > 0 {
			t.Fatalf("%d sets of attributes are left", n)
		}
	})
}

// An import policy may make the same of different attributes. Then the best path does not change,
// but the path of the source does.
func TestConsumerOfBestPathsSeesAcceptedAttributes(t *testing.T) {
	m := newModel()
	k := m.keys[0]
	best, reader := m.rib.NewConsumer(k.Family(), func() {}), m.rib.NewReader(k.Family(), Local, func() {})
	accepted := m.rib.Hold(m.pool[2])
	for i, a := range m.pool[:2] {
		received := m.rib.Hold(a)
		m.rib.Announce(k, Path{Received: received, Accepted: accepted, Source: Local}, false)
		m.rib.Release(received)
		if b, r := best.Pending(), reader.Pending(); b != 1-i || r != 1 {
			t.Errorf("announcement %d: %d best paths to take, want %d; %d paths of the source, want 1", i, b, 1-i, r)
		}
		take := func(Item) bool { return true }
		best.Pull(1, take)
		reader.Pull(1, take)
	}
}

func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, o set
		in, other := map[uint32]bool{}, map[uint32]bool{}
		number := rapid.OneOf(rapid.Uint32Range(0, 200), rapid.Uint32Range(0, 70000))
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				i := number.Draw(t, "i")
				if s.add(i) == in[i] {
					t.Fatal("add")
				}
				in[i] = true
			},
			"other": func(t *rapid.T) {
				i := number.Draw(t, "i")
				o.add(i)
				other[i] = true
			},
			"remove": func(t *rapid.T) {
				i := number.Draw(t, "i")
				if s.remove(i) != in[i] {
					t.Fatal("remove")
				}
				delete(in, i)
			},
			"union": func(*rapid.T) { s.union(&o); maps.Copy(in, other) },
			"": func(t *rapid.T) {
				var got []uint32
				for i, ok := s.next(0); ok; i, ok = s.next(i + 1) {
					got = append(got, i)
				}
				if want := slices.Sorted(maps.Keys(in)); !slices.Equal(got, want) || s.n != len(want) {
					t.Fatalf("%v, want %v", got, want)
				}
			},
		})
	})
}

// TestReapIsBounded: while one consumer has all destinations without paths to take, others that have
// none do not look through all of these each time.
func TestReapIsBounded(t *testing.T) {
	const routes = 100 << wordShift
	r := New()
	slow, idle := r.NewConsumer(message.IPv6Unicast, func() {}), r.NewConsumer(message.IPv6Unicast, func() {})
	s := r.AddSource(Peer{})
	id := r.Hold(&message.Attributes{})
	for i := range routes {
		k := message.KeyOf(netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(i >> 8), byte(i)}), 48))
		r.Announce(k, Path{Received: id, Accepted: id, Source: s}, false)
	}
	for _, c := range []*Consumer{slow, idle} {
		c.Pull(routes, func(Item) bool { return true })
	}
	r.Purge(message.IPv6Unicast, s, routes)
	idle.Pull(routes, func(Item) bool { return false })
	table := &r.tables[message.IPv6Unicast]
	if table.dead.n != routes || slow.Pending() != routes {
		t.Fatalf("%d destinations without paths, %d of them to take, want %d", table.dead.n, slow.Pending(), routes)
	}
	table.reaped = 1 << wordShift
	if idle.Pull(routes, func(Item) bool { return false }); table.reaped != 1<<wordShift {
		t.Error("a consumer with nothing to take looked at some")
	}
	if table.reap(reapStep) {
		t.Errorf("looked at all to free %d", reapStep)
	}
}
