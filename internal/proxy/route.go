package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/proxy/choice"
	"github.com/tabane/tabane/internal/proxy/header"
	"github.com/tabane/tabane/internal/proxy/relay"
	"github.com/tabane/tabane/internal/proxy/request"
)

const (
	// nameFresh is how long the addresses of a name are used before they are asked for again, and
	// nameStale how long they are used meanwhile, and while the resolver fails (RFC 8767): the
	// resolver of the host has its own cache and the lifetimes of records.
	nameFresh = 10 * time.Second
	nameStale = 10 * time.Minute
	// nameFailed is how long a failure counts without asking again.
	nameFailed = time.Second
	// nameTimeout is the most time for the resolver.
	nameTimeout = 5 * time.Second
	// maxNames bounds the names that are known, maxLookups those that are asked for at a time, of
	// requests and of upstreams each, and maxWaiting the connections that wait for them.
	maxNames   = 4096
	maxLookups = 32
	maxWaiting = 4096
	// maxClientLookups bounds the names that are asked for at a time for the requests of one
	// client.
	maxClientLookups = maxLookups / 2
	// maxAddresses bounds the addresses of a name that a connection tries, and maxKnown those that
	// are known.
	maxAddresses = 4
	maxKnown     = 64
	// silentDelay is the time without an answer to MPTCP after which TCP is tried as well, in units
	// of the engine's delay of 250 ms: some networks drop segments with options that they do not
	// know.
	silentDelay = 4
)

// resolve returns the addresses of a name. net.Resolver has one.
type resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)

// name is what is known of a name.
type name struct {
	addresses []netip.Addr // the last that were answered
	answered  time.Time    // when
	err       error        // of the last question
	asked     time.Time    // when it ended
	asking    bool
	waiting   []func()
}

// usable reports whether the addresses of a name are used: also those of earlier while the resolver
// fails, which says nothing of the name.
func (n *name) usable(now time.Time) bool {
	return len(n.addresses) > 0 && now.Sub(n.answered) < nameStale
}

// unresolved reports whether an error is of the resolver, and not of the name, which may exist.
func unresolved(err error) bool {
	var fault *net.DNSError
	return errors.As(err, &fault) && !fault.IsNotFound
}

// upstream is an upstream with its state.
type upstream struct {
	at    Upstream
	state choice.Upstream

	connections, failures uint64
	lastError             string
}

// router decides where connections go. It is safe for concurrent use.
type router struct {
	log    *slog.Logger
	lookup resolve
	own    func() ([]netip.Addr, error) // addresses of this host
	now    func() time.Time
	slots  slots

	mu        sync.Mutex
	asking    map[netip.Addr]int // names that are asked for, by the client
	names     map[string]*name
	waiting   int
	upstreams []*upstream             // never shrinks; targets have indices
	fallback  choice.Memory           // without MPTCP
	late      choice.Memory           // did not answer before another address of the plan
	portless  choice.Memory           // for which this host had no free port lately
	ports     map[uint16][]netip.Addr // where the proxy itself listens
	counts    transports
}

// slots bound what the resolver is asked at a time. Clients cannot take those of the upstreams.
type slots struct{ requests, upstreams chan struct{} }

// transports count connections to targets by what carries them.
type transports struct {
	MPTCP    uint64 `json:"mptcp"`
	TCP      uint64 `json:"tcp"`
	Fallback uint64 `json:"fallback"`
}

func newRouter(log *slog.Logger, lookup resolve) *router {
	if lookup == nil {
		lookup = net.DefaultResolver.LookupNetIP
	}
	return &router{
		log: log, lookup: lookup, own: ownAddresses, now: time.Now,
		slots:  slots{requests: make(chan struct{}, maxLookups), upstreams: make(chan struct{}, maxLookups)},
		asking: map[netip.Addr]int{}, names: map[string]*name{}, ports: map[uint16][]netip.Addr{},
	}
}

// ownAddresses returns the addresses of the interfaces.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read own addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, ip.Unmap())
			}
		}
	}
	return own, nil
}

// served is what the router needs of a listener.
type served struct {
	listener  Listener
	upstreams []int // indices in the router's list, those of the listener's upstreams
}

// serve returns what the router needs of a listener, and makes its upstreams known.
func (r *router) serve(l Listener) *served {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &served{listener: l}
	for _, u := range l.all() {
		if u.Host == "" {
			continue
		}
		i := slices.IndexFunc(r.upstreams, func(known *upstream) bool { return known.at == u })
		if i < 0 {
			i = len(r.upstreams)
			r.upstreams = append(r.upstreams, &upstream{at: u})
		}
		s.upstreams = append(s.upstreams, i)
	}
	return s
}

// listen replaces where the proxy itself listens, for the refusal of loops.
func (r *router) listen(at []netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ports = map[uint16][]netip.Addr{}
	for _, a := range at {
		r.ports[a.Port()] = append(r.ports[a.Port()], a.Addr().Unmap())
	}
}

// Route implements relay.Router.
func (r *router) Route(q relay.Query, answer func(relay.Plan)) (relay.Plan, bool) {
	s := q.Service.Tag.(*served)
	r.mu.Lock()
	defer r.mu.Unlock()
	again := func() {
		plan, ok := r.Route(q, answer)
		if ok {
			answer(plan)
		}
	}
	var plan relay.Plan
	ok := true
	switch {
	case len(s.upstreams) > 0:
		plan, ok = r.toUpstreams(s, again)
	case q.Protocol == request.None && s.listener.AcceptProxyProtocol && !q.Headed:
		plan = relay.Plan{Err: errors.New("the PROXY header has no destination"), Failure: request.Denied}
	case q.Protocol == request.None:
		plan = r.toAddresses(q, []netip.Addr{q.Local.Addr()}, q.Local.Port())
	case q.Asked.Address.IsValid():
		plan = r.toAddresses(q, []netip.Addr{q.Asked.Address}, q.Asked.Port)
	default:
		var addresses []netip.Addr
		var err error
		if addresses, err, ok = r.addresses(q.Asked.Name, q.Peer.Addr(), again); err != nil {
			plan = relay.Plan{Err: err, Failure: request.HostUnreachable}
		} else if ok {
			plan = r.toAddresses(q, addresses, q.Asked.Port)
		}
	}
	if ok && plan.Err == nil && s.listener.ProxyProtocol != 0 {
		plan.First = header.Header{Source: q.Client, Destination: q.Local}.Append(nil, header.Version(s.listener.ProxyProtocol))
	}
	return plan, ok
}

// toUpstreams returns the addresses of a listener's upstreams, the best one's first.
func (r *router) toUpstreams(s *served, again func()) (plan relay.Plan, ok bool) {
	now := r.now()
	order := s.upstreams
	if len(order) > 1 {
		states := make([]choice.Upstream, len(s.upstreams))
		for i, u := range s.upstreams {
			states[i] = r.upstreams[u].state
		}
		order = nil
		for _, i := range choice.Order(states, now) {
			order = append(order, s.upstreams[i])
		}
	}
	var last error
	waits := false
	for _, i := range order {
		u := r.upstreams[i]
		var addresses []netip.Addr
		if a, err := netip.ParseAddr(u.at.Host); err == nil {
			addresses = []netip.Addr{a.Unmap()}
		} else {
			known := true
			if addresses, err, known = r.addresses(u.at.Host, configured, nil); !known {
				waits = true
				continue
			}
			if err != nil {
				last = err
				r.failed(u, err)
				continue
			}
		}
		before := len(plan.Targets)
		for _, a := range r.ordered(addresses, u.at.Port, now) {
			if len(plan.Targets)-before == maxAddresses {
				break
			}
			if err := r.check(netip.AddrPortFrom(a, u.at.Port)); err != nil {
				last = err
				continue
			}
			plan.Targets = append(plan.Targets, relay.Target{Address: netip.AddrPortFrom(a, u.at.Port), Multipath: u.at.Multipath, Upstream: int32(i)})
		}
		if len(plan.Targets) == before && last != nil {
			r.failed(u, last) // it is not the one that is meant
		}
	}
	if len(plan.Targets) == 0 && waits {
		for _, i := range order {
			if _, err := netip.ParseAddr(r.upstreams[i].at.Host); err != nil {
				if _, _, known := r.addresses(r.upstreams[i].at.Host, configured, again); !known {
					return plan, false
				}
			}
		}
	}
	if len(plan.Targets) == 0 && last != nil {
		return relay.Plan{Err: last, Failure: request.HostUnreachable}, true
	}
	plan.Targets = r.transports(plan.Targets, now)
	return plan, true
}

// ordered returns the addresses of a name in the order in which they are tried: the families
// alternate, and those that failed or did not answer in time follow the others.
func (r *router) ordered(addresses []netip.Addr, port uint16, now time.Time) []netip.Addr {
	list := choice.Interleave(addresses)
	slices.SortStableFunc(list, func(a, b netip.Addr) int {
		late := func(a netip.Addr) int {
			if r.late.Has(netip.AddrPortFrom(a.Unmap(), port), now) {
				return 1
			}
			return 0
		}
		return late(a) - late(b)
	})
	return list
}

// toAddresses returns the addresses that a client may be connected to. Only a client of this host
// is connected to loopback, and what a PROXY header says of the client cannot make it one.
func (r *router) toAddresses(q relay.Query, addresses []netip.Addr, port uint16) relay.Plan {
	multipath := q.Service.Tag.(*served).listener.all()[0].Multipath
	local := q.Peer.Addr().IsLoopback() && q.Client.Addr().IsLoopback()
	var plan relay.Plan
	var refused error
	for _, a := range r.ordered(addresses, port, r.now()) {
		a = a.Unmap()
		to := netip.AddrPortFrom(a, port)
		err := r.check(to)
		switch {
		case err != nil:
		case a.IsMulticast():
			err = fmt.Errorf("%v is a multicast address", a)
		case a.IsLoopback() && !local:
			err = fmt.Errorf("%v is this host itself, for a client that is another one", a)
		case len(plan.Targets) < maxAddresses:
			plan.Targets = append(plan.Targets, relay.Target{Address: to, Multipath: multipath, Upstream: -1})
		}
		if err != nil {
			refused = err
		}
	}
	if len(plan.Targets) == 0 && refused != nil {
		return relay.Plan{Err: refused, Failure: request.Denied}
	}
	plan.Targets = r.transports(plan.Targets, r.now())
	return plan
}

// transports sets which targets are asked for MPTCP, and adds TCP for those that may not answer to
// it.
func (r *router) transports(targets []relay.Target, now time.Time) []relay.Target {
	n := len(targets)
	for i := range n {
		t := &targets[i]
		if t.Multipath && r.fallback.Has(t.Address, now) {
			t.Multipath = false
		}
		if t.Multipath {
			last := *t
			last.Multipath, last.Delay = false, 1
			if len(targets) == n {
				last.Delay = silentDelay
			}
			targets = append(targets, last)
		}
	}
	return targets
}

// check refuses the addresses that lead back to the proxy, and those of no host.
func (r *router) check(to netip.AddrPort) error {
	a := to.Addr()
	if !a.IsValid() || a.IsUnspecified() {
		return fmt.Errorf("%v is not the address of a host", a)
	}
	at, ok := r.ports[to.Port()]
	if !ok {
		return nil
	}
	loop := slices.Contains(at, a)
	if !loop && slices.ContainsFunc(at, netip.Addr.IsUnspecified) {
		loop = a.IsLoopback()
		if !loop {
			own, err := r.own()
			if err != nil {
				return err
			}
			loop = slices.Contains(own, a)
		}
	}
	if loop {
		return fmt.Errorf("%v is this proxy itself", to)
	}
	return nil
}

// configured is in place of the client whose request has a name.
var configured netip.Addr

// addresses returns those of a name. If it has to be asked for first, known is false, and again,
// unless nil, is called when there is an answer. It is asked for a client, or an upstream that is
// configured.
func (r *router) addresses(host string, client netip.Addr, again func()) (list []netip.Addr, err error, known bool) {
	now := r.now()
	n := r.names[host]
	if n == nil {
		if len(r.names) >= maxNames {
			r.forget(now)
		}
		if len(r.names) >= maxNames {
			return nil, errors.New("too many names are being resolved"), true
		}
		n = &name{}
		r.names[host] = n
	}
	age := now.Sub(n.asked)
	fresh := !n.asked.IsZero() && (n.err == nil && age < nameFresh || n.err != nil && age < nameFailed)
	free := client == configured || r.asking[client] < maxClientLookups
	if !fresh && !n.asking && free {
		n.asking = true
		r.asking[client]++
		go r.ask(host, client, n)
	}
	switch {
	case n.usable(now):
		return n.addresses, nil, true
	case fresh:
		return nil, n.err, true
	}
	if !n.asking {
		return nil, fmt.Errorf("client %v asks for too many names at a time", client), true
	}
	if again != nil {
		if r.waiting >= maxWaiting {
			return nil, errors.New("too many connections wait for names"), true
		}
		r.waiting++
		n.waiting = append(n.waiting, again)
	}
	return nil, nil, false
}

// forget forgets the names that are not in use.
func (r *router) forget(now time.Time) {
	for host, n := range r.names {
		if !n.asking && now.Sub(n.asked) >= nameFresh {
			delete(r.names, host)
		}
	}
}

// ask asks the resolver for a name.
func (r *router) ask(host string, client netip.Addr, n *name) {
	list, err := r.resolve(host, client)
	if err == nil && len(list) == 0 {
		err = errors.New("it has no address")
	}
	for i := range list {
		list[i] = list[i].Unmap()
	}
	r.mu.Lock()
	n.asking, n.asked = false, r.now()
	if r.asking[client]--; r.asking[client] == 0 {
		delete(r.asking, client)
	}
	if err != nil {
		err = fmt.Errorf("resolve %q: %w", host, err)
		if !unresolved(err) {
			n.addresses = nil
		}
		if client == configured && n.err == nil && n.usable(n.asked) {
			r.log.Warn("upstream is not resolved, its last addresses are used", "err", err, "at_most", nameStale)
		}
	} else {
		if len(list) > maxKnown {
			list = choice.Interleave(list)[:maxKnown]
		}
		n.addresses, n.answered = list, n.asked
	}
	n.err = err
	waiting := n.waiting
	n.waiting = nil
	r.waiting -= len(waiting)
	r.mu.Unlock()
	for _, again := range waiting {
		again()
	}
}

// resolve has the resolver answer, once one of the slots is free.
func (r *router) resolve(host string, client netip.Addr) (list []netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), nameTimeout)
	defer cancel()
	slots := r.slots.requests
	if client == configured {
		slots = r.slots.upstreams
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, errors.New("too many names are being resolved")
	}
	defer func() { <-slots }()
	err = errors.New("resolver failed")
	_ = contain.Do(contain.ProxyConnection, r.log, []byte(host), func() { list, err = r.lookup(ctx, "ip", host) })
	return list, err
}

// portlessFor is how long the status reports that no local port was free for a destination.
const portlessFor = time.Minute

// Tried implements relay.Router.
func (r *router) Tried(o relay.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var u *upstream
	if o.Target.Upstream >= 0 {
		u = r.upstreams[o.Target.Upstream]
	}
	if errors.Is(o.Err, relay.ErrNoPort) {
		if r.portless.Remember(o.Target.Address, r.now(), portlessFor) {
			r.log.Warn("connection fails", "destination", o.Target.Address, "err", o.Err)
		}
		return
	}
	if o.Err != nil {
		// Whether an address that was asked for MPTCP answers is known when it was asked for TCP.
		if u != nil && !o.Target.Multipath {
			r.failed(u, fmt.Errorf("connect to %v: %w", o.Target.Address, o.Err))
			r.late.Remember(o.Target.Address, r.now(), choice.Late)
		}
		return
	}
	for _, late := range o.Late {
		if r.late.Remember(late, r.now(), choice.Late) && u != nil {
			r.log.Info("address of an upstream does not answer in time, others are tried first for a while", "upstream", u.at, "address", late, "for", choice.Late)
		}
	}
	r.late.Forget(o.Target.Address)
	switch {
	case o.Fallback, o.Silent:
		r.counts.Fallback++
		if r.fallback.Remember(o.Target.Address, r.now(), choice.Remembered) {
			reason := "it answers without MPTCP"
			if o.Silent {
				reason = "it does not answer to MPTCP"
			}
			r.log.Info("destination is connected by TCP for a while", "destination", o.Target.Address, "reason", reason, "for", choice.Remembered)
		}
	case o.Target.Multipath:
		r.counts.MPTCP++
	default:
		r.counts.TCP++
	}
	if u != nil {
		r.answered(u)
		u.connections++
	}
}

// failed records that a connection to an upstream failed.
func (r *router) failed(u *upstream, err error) {
	u.failures++
	u.lastError = err.Error()
	if u.state.Failed(r.now()) {
		r.log.Warn("upstream is down", "upstream", u.at, "err", err)
	}
}

// answered records that an upstream answers.
func (r *router) answered(u *upstream) {
	if u.state.Down() {
		r.log.Info("upstream answers again", "upstream", u.at)
	}
	u.state.Succeeded()
	u.lastError = ""
}

// Began implements relay.Router.
func (r *router) Began(t relay.Target) {
	if t.Upstream < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstreams[t.Upstream].state.Active++
}

// Closed implements relay.Router.
func (r *router) Closed(t relay.Target) {
	if t.Upstream < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstreams[t.Upstream].state.Active--
}
