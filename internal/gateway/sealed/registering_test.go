package sealed

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// ally returns a peer with a session, and paths to it that are ready, in a plane without a device.
// Messages to it go to a socket of this process that nobody reads, until the end of the test or
// check.
func ally(t cleaner, a dataplane.Alliance, ready int) (*peer, *keys) {
	t.Helper()
	socket, err := udp.Listen(udp.Options{Local: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	p := withoutDevice(Options{}, func(f func() error) error { return f() })
	r := newPeer(p, handshake.PrivateKey{1}, dataplane.Peer{Name: "ally"})
	conf := dataplane.Path{Name: "wan", Interface: "lo", Usable: true, Up: dataplane.Rate{Bandwidth: unit.GbitPerSecond}, Down: dataplane.Rate{Bandwidth: unit.GbitPerSecond}}
	l := &line{plane: p, name: "wan", device: "lo"}
	l.conf.Store(&conf)
	l.socket.Store(socket)
	p.routing.Store(&routing{lines: []*line{l}})
	a.Lifetime, a.Path = time.Minute, "wan"
	if err := r.configure(dataplane.Peer{Name: "ally", Alliance: a}, dataplane.State{Paths: []dataplane.Path{conf}}, []*line{l}); err != nil {
		t.Fatal(err)
	}
	for i := range ready {
		r.links[i].line, r.links[i].address.remote = l, socket.Local()
	}
	key, err := tunnel.NewKey(tunnel.FastestSuite(), [tunnel.KeyLen]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	k := &keys{Session: &handshake.Session{}, peer: r, send: key, receive: key}
	r.session.sending = k
	t.Cleanup(func() {
		r.mu.Lock()
		r.relaying.end("the test is over")
		r.mu.Unlock()
		socket.Close()
		p.loops.Wait()
	})
	return r, k
}

// cleaner is a test or a check of a property.
type cleaner interface {
	rapid.TB
	Cleanup(func())
}

// roles are what a peer may be.
var roles = []dataplane.Role{dataplane.NoRole, dataplane.HomeAgent, dataplane.Registrant, dataplane.Member, dataplane.Leader}

// FuzzRecordsOfPeers: whatever authentic messages of a peer contain, in whatever role, they do not
// stop the gateway, and have no effect beyond the peer's own state.
func FuzzRecordsOfPeers(f *testing.F) {
	home := netip.MustParseAddrPort("127.0.0.1:9")
	for _, records := range [][]tunnel.Record{
		{tunnel.Hello{}, tunnel.PathAdd{Path: 3, Name: "x"}, tunnel.Register{Path: 3, Lifetime: time.Hour, Up: 1, Down: 1}},
		{tunnel.Register{Path: 9, Lifetime: time.Second}, tunnel.PathRemove{Path: 9}, tunnel.NAT{Path: 1, Seen: home}},
		{tunnel.Register{Path: 0, HomeAgent: netip.MustParseAddrPort("192.0.2.1:4790"), Lifetime: time.Hour, Up: 1, Down: 1}, tunnel.Register{}},
		{tunnel.Register{Path: 0, HomeAgent: home, Lifetime: time.Hour, Up: 1, Down: 1, Open: true}, tunnel.Registered{Path: 0, Lifetime: time.Hour, Open: true}},
		{tunnel.Registered{Path: 0, Lifetime: time.Hour}, tunnel.Registered{Path: 15, Code: tunnel.MemberUnreachable}, tunnel.Bye{}},
	} {
		var b []byte
		for i, r := range records {
			b = tunnel.AppendNumbered(b, uint32(i), r)
		}
		for role := range roles {
			f.Add(uint8(role), tunnel.AppendRecord(b, tunnel.Probe{ID: 1}))
		}
	}
	f.Fuzz(func(t *testing.T, role uint8, body []byte) {
		r, k := ally(t, dataplane.Alliance{Role: roles[int(role)%len(roles)], CareOf: 2, HomeAgents: []netip.AddrPort{home}}, 2)
		o := &opened{keys: k, path: 1}
		r.records(k, o, r.links[0].place(), body, len(body), newBatch(r.plane, 1<<16))
		registered := 0
		for i := range r.links {
			if r.links[i].registration.until > 0 {
				registered++
			}
		}
		if r.conf.Alliance.Role != dataplane.HomeAgent && registered > 2 {
			t.Errorf("%d paths are registered", registered)
		}
		if len(r.plane.relays) > 1 {
			t.Errorf("%d relays", len(r.plane.relays))
		}
	})
}

// TestRegistrations: a home agent has the registrations of a model, whatever a leader with keys
// asks for and whenever: no more than configured, no longer than granted, and never with another
// address than that of the path's messages.
func TestRegistrations(t *testing.T) {
	const paths, most = 5, 2
	rapid.Check(t, func(rt *rapid.T) {
		r, k := ally(rt, dataplane.Alliance{Role: dataplane.Registrant, CareOf: most}, paths)
		remote := r.links[0].address.remote
		now := time.Duration(1)
		var until [tunnel.MaxPaths]time.Duration // the model
		refused := uint64(0)
		rate := rapid.SampledFrom([]unit.Bandwidth{0, 1, unit.MbitPerSecond, tunnel.UnknownRate})
		address := rapid.SampledFrom([]netip.AddrPort{{}, netip.MustParseAddrPort("[::]:0"), netip.MustParseAddrPort("203.0.113.9:53"), netip.MustParseAddrPort("224.0.0.1:1")})
		for range rapid.IntRange(1, 30).Draw(rt, "requests") {
			now += time.Duration(rapid.IntRange(0, 40).Draw(rt, "pause")) * time.Second
			r.registering.refresh(k, now)
			v := tunnel.Register{
				Path: uint8(rapid.IntRange(0, paths).Draw(rt, "path")), CareOf: address.Draw(rt, "care-of"), HomeAgent: address.Draw(rt, "home agent"),
				Lifetime: rapid.SampledFrom([]time.Duration{0, time.Second, 50 * time.Second, 100 * 365 * 24 * time.Hour}).Draw(rt, "lifetime"),
				Up:       rate.Draw(rt, "up"), Down: rate.Draw(rt, "down"), Cost: rapid.Int32().Draw(rt, "cost"),
			}
			want, others := tunnel.Registered{Path: v.Path}, 0
			for i, end := range until {
				if end > now && i != int(v.Path) {
					others++
				}
			}
			toMember := v.HomeAgent.IsValid() && !v.HomeAgent.Addr().IsUnspecified()
			switch {
			case toMember || v.Path == paths || v.Lifetime > 0 && v.Up == 0 && v.Down == 0:
				want.Code = tunnel.HomeMalformed
			case v.Lifetime == 0:
				until[v.Path] = 0
			case others == most:
				want.Code = tunnel.HomeResources
			default:
				want.Lifetime = min(v.Lifetime, time.Minute)
				until[v.Path] = now + want.Lifetime
			}
			if want.Code != tunnel.Accepted {
				refused++
			}
			got := r.registering.register(v, now)
			if got.Code != want.Code || got.Lifetime != want.Lifetime || v.Path < paths && got.CareOf != remote {
				rt.Fatalf("%+v is answered by %+v, want %+v", v, got, want)
			}
			for i, end := range until {
				if l := &r.links[i]; r.registering.allows(l, now) != (end > now) || i < paths && l.address.remote != remote {
					rt.Fatalf("path %d after %+v: registered %v, sent to %v, want %v, %v", i, v, r.registering.allows(l, now), l.address.remote, end > now, remote)
				}
			}
			if n := r.plane.counts.dropped[dropRegistration].Load(); n != refused {
				rt.Fatalf("%d requests are counted as refused, want %d", n, refused)
			}
		}
	})
}

// TestRelayRequests: a member relays to one home agent of those that it allows, and opens no more
// sockets than is bounded, whatever a leader with keys asks for.
func TestRelayRequests(t *testing.T) {
	allowed := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4790"), netip.MustParseAddrPort("192.0.2.2:4790")}
	asks := func(r *peer, path uint8, home string, now time.Duration) tunnel.Registered {
		return r.relaying.answer(tunnel.Register{Path: path, HomeAgent: netip.MustParseAddrPort(home), Lifetime: 1000 * time.Hour, Up: unit.MbitPerSecond, Down: unit.MbitPerSecond}, now)
	}
	rates := dataplane.Rate{Bandwidth: unit.GbitPerSecond}
	r, _ := ally(t, dataplane.Alliance{Role: dataplane.Leader, HomeAgents: allowed, Up: rates, Down: rates}, 2)
	now := time.Second
	for _, tt := range []struct {
		home string
		path uint8
		want tunnel.Code
	}{
		{"192.0.2.1:4790", 0, tunnel.Accepted},
		{"192.0.2.3:4790", 0, tunnel.MemberProhibited},
		{"192.0.2.1:4791", 0, tunnel.MemberProhibited},
		{"192.0.2.1:0", 0, tunnel.MemberMalformed},
		{"224.0.0.1:4790", 0, tunnel.MemberMalformed},
		{"255.255.255.255:4790", 0, tunnel.MemberMalformed},
		{"127.0.0.1:4790", 0, tunnel.MemberMalformed},
		{"[fe80::1]:4790", 0, tunnel.MemberMalformed},
		{"192.0.2.1:4790", 7, tunnel.MemberMalformed},
	} {
		if a := asks(r, tt.path, tt.home, now); a.Code != tt.want || tt.want == tunnel.Accepted && a.Lifetime != time.Minute || tt.want != tunnel.Accepted && a.Lifetime != 0 {
			t.Errorf("%s on path %d: %+v, want %v", tt.home, tt.path, a, tt.want)
		}
		if y := r.relaying.current; y == nil || y.homeAgent != allowed[0] || len(r.plane.relays) != 1 {
			t.Fatalf("%s on path %d: relays %+v", tt.home, tt.path, r.relaying.current)
		}
	}
	if n := r.plane.counts.dropped[dropRegistration].Load(); n != 8 {
		t.Errorf("%d requests are counted as refused, want 8", n)
	}
	begun := 0
	for i := range 100 {
		if asks(r, 0, allowed[(i+1)%2].String(), now).Code == tunnel.Accepted {
			begun++
		}
	}
	// Half of what is refused asks for the home agent that the last relay has.
	if most := maxRelayStarts + 100/2; begun > most || r.relaying.limit.next != maxRelayStarts {
		t.Errorf("%d requests are accepted, %d relays have begun, want at most %d, %d", begun, r.relaying.limit.next, most, maxRelayStarts)
	}
	if a := asks(r, 1, allowed[0].String(), now+relayStartWindow); a.Code != tunnel.Accepted || r.relaying.current.path != 1 {
		t.Errorf("later: %+v", a)
	}
}

// opens is a kernel that relays open messages.
type opens struct {
	relays map[string]dataplane.OpenRelay
	err    error
}

func (o *opens) Relay(leader string, r dataplane.OpenRelay) error {
	if o.err == nil {
		o.relays[leader] = r
	}
	return o.err
}

func (o *opens) Relayed(leader string) (n dataplane.OpenRelayed) {
	if _, ok := o.relays[leader]; ok {
		n = dataplane.OpenRelayed{Up: dataplane.Count{Packets: 1, Bytes: 100}, Down: dataplane.Count{Packets: 2, Bytes: 300}, Dropped: 4}
	}
	return n
}

func (o *opens) End(leader string) dataplane.OpenRelayed {
	n := o.Relayed(leader)
	delete(o.relays, leader)
	return n
}

// TestOpenRelayRequests: a member has the kernel relay open messages if the leader asks for that,
// between where both are, at the rates that it offers and upwards only once the home agent has
// answered; it refuses what the kernel cannot.
func TestOpenRelayRequests(t *testing.T) {
	netnstest.Need(t)
	home := netip.MustParseAddrPort("198.51.100.1:4790")
	rate := dataplane.Rate{Bandwidth: unit.MbitPerSecond}
	r, k := ally(t, dataplane.Alliance{Role: dataplane.Leader, Up: rate, Down: rate}, 1)
	now := time.Second
	ask := func(open bool, lifetime time.Duration) tunnel.Registered {
		now += relayStartWindow
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.relaying.answer(tunnel.Register{HomeAgent: home, Lifetime: lifetime, Up: unit.GbitPerSecond, Down: unit.GbitPerSecond, Open: open}, now)
	}
	if a := ask(true, time.Minute); a.Code != tunnel.MemberSealedOnly || a.Lifetime != 0 || r.relaying.current != nil {
		t.Errorf("without a kernel that relays: %+v", a)
	}
	if a := ask(false, time.Minute); a.Code != tunnel.Accepted || a.Open {
		t.Errorf("sealed ones alone: %+v", a)
	}
	o := &opens{relays: map[string]dataplane.OpenRelay{}}
	r.plane.opens = o
	if a := ask(false, time.Minute); a.Code != tunnel.Accepted || a.Open || len(o.relays) > 0 {
		t.Errorf("open messages are relayed for a leader that has not asked: %+v, %+v", a, o.relays)
	}
	if a := ask(true, time.Minute); a.Code != tunnel.Accepted || !a.Open {
		t.Errorf("%+v", a)
	}
	l := r.links[0].line
	want := dataplane.OpenRelay{
		Short: dataplane.RelayEnd{Interface: "lo", Index: 1, Local: netip.AddrPortFrom(r.links[0].address.remote.Addr(), l.socket.Load().Local().Port()), Remote: r.links[0].address.remote},
		Line:  dataplane.RelayEnd{Interface: "lo", Index: 1, Local: netip.AddrPortFrom(o.relays["ally"].Line.Local.Addr(), r.relaying.current.out.socket.Load().Local().Port()), Remote: home},
		Down:  rate.Bandwidth,
	}
	if got := o.relays["ally"]; got != want || !got.Line.Local.Addr().Is4() {
		t.Errorf("relays %+v, want %+v", got, want)
	}
	tend := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.relaying.check(now)
	}
	r.relaying.current.answered.Store(true)
	want.Up = rate.Bandwidth
	if tend(); o.relays["ally"] != want {
		t.Errorf("after the home agent's answer: %+v, want %+v", o.relays["ally"], want)
	}
	r.mu.Lock()
	s := r.relaying.status(now)
	r.mu.Unlock()
	if s.Up != (dataplane.Count{Packets: 1, Bytes: 100}) || s.Down != (dataplane.Count{Packets: 2, Bytes: 300}) || s.Dropped != 4 {
		t.Errorf("status %+v", s)
	}

	r.relaying.current.base, o.err = l.socket.Load(), errors.New("no interface")
	r.links[0].address.remote = netip.AddrPortFrom(r.links[0].address.remote.Addr(), 7)
	if tend(); r.relaying.current != nil || len(o.relays) > 0 {
		t.Errorf("goes on without the kernel: %+v", o.relays)
	}
	if s := r.relaying.status(now); s.Up.Packets != 1 || s.Down.Packets != 2 || s.Dropped != 4 {
		t.Errorf("status at the end %+v", s)
	}
	var sent *tunnel.Registered
	for b := k.out.Append(nil, 1000, now, time.Second); len(b) > 0; {
		record, _, rest, err := tunnel.NextRecord(b)
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := record.(tunnel.Registered); ok {
			sent = &v
		}
		b = rest
	}
	if sent == nil || sent.Code != tunnel.MemberUnreachable {
		t.Errorf("the leader is sent %+v", sent)
	}
	if a := ask(true, time.Minute); a.Code != tunnel.MemberSealedOnly || r.relaying.current != nil {
		t.Errorf("where the kernel refuses: %+v", a)
	}
	o.err = nil
	strict := *l.conf.Load()
	strict.Strict = true
	l.conf.Store(&strict)
	if a := ask(true, time.Minute); a.Code != tunnel.MemberSealedOnly {
		t.Errorf("over a line with a strict rate: %+v", a)
	}
	strict.Strict = false
	home = netip.MustParseAddrPort("[2001:db8::1]:4790")
	if a := ask(true, time.Minute); a.Code != tunnel.MemberSealedOnly {
		t.Errorf("between two IP versions: %+v", a)
	}
}

// TestGrantsOfOpenRelays: a leader whose packets to the home agent are not encrypted uses members
// that relay open messages alone.
func TestGrantsOfOpenRelays(t *testing.T) {
	r, _ := ally(t, dataplane.Alliance{Role: dataplane.Member}, 1)
	l := &r.links[0]
	grant := func(v tunnel.Registered) string {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.memberRequest.homes, r.memberRequest.at = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.1:4790")}, 1
		r.memberRequest.answered(v, time.Second)
		if l.line.grant.Load() != nil {
			return ""
		}
		return r.memberRequest.reason
	}
	for _, tt := range []struct {
		open bool
		v    tunnel.Registered
		want string
	}{
		{false, tunnel.Registered{Lifetime: time.Minute}, ""},
		{true, tunnel.Registered{Lifetime: time.Minute, Open: true}, ""},
		{true, tunnel.Registered{Lifetime: time.Minute}, "member does not relay open messages"},
		{true, tunnel.Registered{Code: tunnel.MemberSealedOnly}, "member does not relay open messages"},
	} {
		l.line.grant.Store(nil)
		r.memberRequest.open = tt.open
		if got := grant(tt.v); got != tt.want {
			t.Errorf("open %t, %+v: %q, want %q", tt.open, tt.v, got, tt.want)
		}
	}
	for _, open := range []bool{false, true} {
		mode := dataplane.Tunnel
		if open {
			mode = dataplane.Unsealed
		}
		home := dataplane.Peer{Name: "home", Mode: mode, Alliance: dataplane.Alliance{Role: dataplane.HomeAgent}, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("198.51.100.1:4790")}}
		if err := r.configure(r.conf, dataplane.State{Paths: []dataplane.Path{*l.line.conf.Load()}, Peers: []dataplane.Peer{home, r.conf}}, []*line{l.line}); err != nil {
			t.Fatal(err)
		}
		if r.memberRequest.open != open {
			t.Errorf("mode %v: asks for open %t", mode, r.memberRequest.open)
		}
	}
}
