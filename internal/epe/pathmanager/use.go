package pathmanager

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/mptcp"
)

// With Options.Overflow, or a rule, package selection decides which subflows of a connection carry
// data, from samples of all connections with several subflows; the others are backups.

// pathKey is a path of a connection: an egress peer, or -1 for a default address that leads to none
// of them, and an address of the client.
type pathKey struct {
	peer   int
	client netip.Addr
}

// path returns the path of a subflow. That on the default address follows BGP's best path, which is
// that of the preferred peer.
func (c *connection) path(s *subflow, preferred []int) pathKey {
	k := pathKey{s.peer, s.remote.Addr()}
	if s.peer < 0 && !c.machine.shareDefault && len(preferred) > 0 {
		k.peer = preferred[0]
	}
	return k
}

// preferred returns the peers with a route to the client, in the order of preference.
func (c *connection) preferred() []int {
	return c.ordered(func(p *peer, r Route) bool { return r.State == RoutePresent && !p.backup })
}

// usable returns the subflows that may carry data, one for each path, in the order of preference. A
// subflow on the default address comes before that of the same path.
func (c *connection) usable() (all []*subflow, keys []pathKey) {
	preferred := c.preferred()
	add := func(s *subflow) {
		if k := c.path(s, preferred); !slices.Contains(keys, k) {
			all, keys = append(all, s), append(keys, k)
		}
	}
	for _, s := range c.subflows {
		if s.peer < 0 && !s.closing && !c.mustBackUp(s) {
			add(s)
		}
	}
	for _, peer := range preferred {
		for _, s := range c.subflows {
			if s.peer == peer && !s.closing && !c.mustBackUp(s) {
				add(s)
			}
		}
	}
	return all, keys
}

// decide chooses the subflows that carry data.
func (c *connection) decide() {
	m := c.machine
	if !c.chooses() {
		return
	}
	usable, keys := c.usable()
	samples := make([]selection.Sample[pathKey], len(usable))
	for i, s := range usable {
		samples[i] = s.overflowSample(keys[i], m.now)
		samples[i].Sharers = m.sharers[keys[i]]
	}
	at := m.now.Sub(c.since)
	c.choice.Update(at, samples)
	for _, k := range keys {
		if learned, ok := c.choice.Learned(at, k); ok && k.peer >= 0 {
			m.memory.Learn(m.now, m.key(k), learned)
		}
	}
	for _, s := range c.subflows {
		at := slices.Index(usable, s)
		s.use = selection.Unused
		if at >= 0 {
			s.path, s.use = keys[at], c.choice.Reason(keys[at])
		}
	}
}

// key is the path in the memory.
func (m *machine) key(k pathKey) selection.Key {
	return selection.KeyOf(m.peers[k.peer].address, k.client)
}

// recall returns what earlier connections learned of a path.
func (m *machine) recall(k pathKey) selection.Past {
	if k.peer < 0 {
		return selection.Past{}
	}
	return m.memory.Recall(m.now, m.key(k))
}

// rememberStall records that the path of a subflow made no progress while another one did. This
// connection, too, has the path rest when it has a subflow again.
func (c *connection) rememberStall(s *subflow) {
	if k := c.path(s, c.preferred()); c.chooses() && k.peer >= 0 {
		c.machine.memory.Stalled(c.machine.now, c.machine.key(k))
		c.choice.Forget(k)
	}
}

// broken is a path that carries handshakes and no data, and how that was noticed.
type broken struct {
	selection.Key
	how string
}

// carried reports whether the client acknowledged more than the handshake over a subflow, as far as
// its samples tell.
func (s *subflow) carried() bool { return s.last.Acked >= uint64(max(s.last.SegmentSize, 1)) }

// leaveBroken remembers that the path of a subflow carries no data. No client of its network joins
// it meanwhile, so that no other connection waits for data there.
func (c *connection) leaveBroken(s *subflow, how string) {
	m := c.machine
	k := m.key(pathKey{s.peer, s.remote.Addr()})
	if m.memory.Recall(m.now, k).Verdict == selection.Broken {
		return
	}
	m.memory.Broken(m.now, k)
	m.counts.Broken++
	m.broken = append(m.broken, broken{k, how})
	for _, same := range m.clients.Subnets(k.Client) {
		for other := range same {
			other.choice.Forget(pathKey{s.peer, other.client})
			other.withdraw(s.peer)
			m.schedule(other, s.peer, other.brokenUntil(s.peer))
		}
	}
}

// brokenUntil returns until when an address is not announced to a client because the path carries
// no data; zero if it is.
func (c *connection) brokenUntil(peer int) time.Time {
	if p := c.machine.recall(pathKey{peer, c.client}); p.Verdict == selection.Broken {
		return c.machine.now.Add(p.Rest)
	}
	return time.Time{}
}

// resetMiddlebox is the reason of an MP_TCPRST for a subflow whose options a middlebox removes
// (RFC 8684 section 3.6).
const resetMiddlebox = 6

// youngFor is the age up to which a reset subflow without samples is taken to have carried nothing:
// data follows its handshake at once, and a client that leaves seldom does then.
const youngFor = time.Second

// subflowReset notes that the client, or something that pretends to be the client, closed a subflow
// with a reset before it carried data.
func (c *connection) subflowReset(e mptcp.SubClosed) {
	s := c.find(e.Local, e.Remote)
	if s == nil || s.peer < 0 || s.initial || s.closing || e.Error != unix.ECONNRESET || s.carried() {
		return
	}
	switch {
	case e.WasReset && e.ResetReason == resetMiddlebox:
		c.leaveBroken(s, "the client misses MPTCP options")
	case e.WasReset || s.backup:
	case !s.sampled.IsZero() || c.machine.now.Sub(s.since) < youngFor:
		c.leaveBroken(s, "reset")
	}
}

// overflowSample returns the last sample of a subflow as package selection needs it.
func (s *subflow) overflowSample(k pathKey, now time.Time) selection.Sample[pathKey] {
	l := &s.last
	o := selection.Sample[pathKey]{
		Path: k, Source: s.number, Delivered: l.Delivered, Segment: int(l.SegmentSize), Cwnd: int(l.Window), InFlight: int(l.InFlight),
		NotSent: int(l.NotSent), Window: int(l.SendWindow), SRTT: l.RTT, MinRTT: l.MinRTT, SlowStart: l.Window < l.Threshold,
	}
	o.Idled = s.idled
	if silence := now.Sub(s.progress); l.InFlight > 0 && silence >= stallTimeout(*l) {
		o.Silence = silence
	}
	return o
}

// idledFor is the shortest idle time of a subflow between two samples that counts: the kernel
// counts in jiffies, and its counters are not read exactly at the time of the sample.
const idledFor = 12 * time.Millisecond

// progressed records a sample of a subflow; s.sampled is still the time of the previous one.
func (s *subflow) progressed(now time.Time, l mptcp.Subflow) {
	if l.InFlight == 0 || s.last.InFlight == 0 || l.Delivered != s.last.Delivered || l.Acked != s.last.Acked {
		s.progress = now
	}
	s.idled = l.InFlight == 0 || now.Sub(s.sampled)-(l.Busy-s.last.Busy) >= idledFor
	s.last = l
}

// rests reports whether a subflow is a backup because package selection has other paths carry the
// data.
func (c *connection) rests(s *subflow) bool { return c.chooses() && !s.use.Open() }

// decideAll chooses the subflows of the connections that were sampled at that time.
func (m *machine) decideAll(now time.Time) {
	if !m.choosesAny() {
		return
	}
	m.now = now
	m.countSharers()
	for _, c := range m.conns {
		if c.chooses() && slices.ContainsFunc(c.subflows, func(s *subflow) bool { return s.sampled.Equal(now) }) {
			c.applyChoice()
		}
	}
}

// countSharers counts the subflows that saturate each path to a client in the last samples. Clients
// of one prefix are counted apart: each may have a line of its own.
func (m *machine) countSharers() {
	clear(m.sharers)
	for _, c := range m.conns {
		for _, s := range c.subflows {
			if !s.use.Open() || !s.sampled.Equal(m.now) {
				continue
			}
			if sample := s.overflowSample(s.path, m.now); sample.Saturated() {
				m.sharers[s.path]++
			}
		}
	}
}
