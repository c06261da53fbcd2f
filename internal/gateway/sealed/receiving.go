package sealed

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/repair"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// receiving is the receiving side of a peer.
type receiving struct {
	// reach is which destinations packets of the peer may have (plane.Peer.Reach).
	reach atomic.Pointer[bart.Table[bool]]
	// clamp is scheduling.mtu, to which the MSS of connections is lowered.
	clamp atomic.Int32
	// timeout is when packets are held for too long or to be requested, 0 if none are.
	timeout  atomic.Int64
	requests requests

	sync.Mutex // guards the following
	links      [tunnel.MaxPaths]receivedLink
	order      order
	delays     delays
	delivery   delivery
	// reportFirst is the path of the first report of a message.
	reportFirst int
}

// order puts packets in order.
type order struct {
	// keys are the last ones that a packet was sealed with. Packets under them are put in order by
	// receiver; those under the ones before, of which few come, are delivered at once.
	keys, before *keys
	receiver     *reseq.Receiver[held]
	live         uint16 // paths that packets arrive over
}

// delays compares the delays of paths.
type delays struct {
	clock quality.Clock
	// latest is sched.Latest of the paths, in the time of clock, as of the time compared.
	latest   time.Duration
	compared time.Duration
}

// requests is when missing messages are requested.
type requests struct {
	due atomic.Int64 // 0 if nothing is to be requested
	// roundTrip is how long the answer to a request takes at most.
	roundTrip atomic.Int64
	counters  []uint64 // of requests; guarded by the mutex of receiving
}

// delivery has the packets that are delivered together.
type delivery struct {
	held    []held
	packets [][]byte
}

// receivedLink is what was received over a path under the current keys.
type receivedLink struct {
	packets, bytes uint64
	next, lost     uint64 // for the sender: counters under its current keys
	missed         uint64 // lost, under earlier keys as well; late messages count as well
	keys           *keys
	heard          time.Duration
	silence        time.Duration // how long after its last message the path is not waited for
	delay          quality.OneWayEstimator
	gaps           repair.Gaps
}

// handlePackets measures packets from the peer, puts them in order and delivers them.
func (r *peer) handlePackets(b *batch, all []opened, now time.Duration) {
	r.receivePackets(all, now)
	r.request(b, now)
}

// receivePackets is handlePackets without requests for missing packets.
func (r *peer) receivePackets(all []opened, now time.Duration) {
	p := r.plane
	routes := p.routing.Load()
	x := &r.rx
	x.Lock()
	defer x.Unlock()
	out := x.delivery.held[:0]
	data := false
	x.compareDelaysLocked(now)
	for i := range all {
		o := &all[i]
		x.measureLocked(o, now)
		if o.packet == nil {
			continue
		}
		data = true
		b := o.packet
		if !inet.LengthValid(b) {
			p.counts.drop(dropMalformed, 1)
			continue
		}
		// Only packets from the peer's own prefixes: else it could speak for others.
		if owner, ok := routes.table.Lookup(inet.Source(b)); !ok || owner != r {
			p.counts.drop(dropSource, 1)
			continue
		}
		if allowed, ok := r.rx.reach.Load().Lookup(inet.Destination(b)); !ok || !allowed {
			p.counts.drop(dropDestination, 1)
			continue
		}
		if !inet.Decapsulate(o.class, b) {
			p.counts.drop(dropCongestion, 1)
			continue
		}
		if inet.IsSYN(b) {
			var h inet.Header
			if h.Parse(b) {
				inet.ClampMSS(b, &h, int(r.rx.clamp.Load()))
			}
		}
		fresh := false
		if out, fresh = x.pushLocked(now, o, routes.hold(b), out); !fresh {
			p.counts.drop(dropDuplicate, 1)
		}
	}
	if data {
		r.active.Store(int64(now))
	}
	if live := x.livePathsLocked(now); live != x.order.live && x.order.receiver != nil {
		x.order.live = live
		out = x.order.receiver.SetLive(now, live, out)
	}
	x.finishLocked(p, out)
}

// pushLocked puts a packet in order, and appends to out what is to be delivered. It returns false
// if the packet is a duplicate, or too old to tell.
func (x *receiving) pushLocked(now time.Duration, o *opened, wait reseq.Hold, out []held) ([]held, bool) {
	if x.order.keys == nil || o.keys != x.order.keys && o.keys.Born >= x.order.keys.Born {
		out = x.changeKeysLocked(o.keys, out)
	}
	if o.keys != x.order.keys {
		// Of a session before, whose packets are few.
		if o.keys != x.order.before || !x.order.receiver.Earlier(o.stamp.Lane, uint32(o.stamp.Seq)) {
			return out, false
		}
		return append(out, hold(o)), true
	}
	h, path := hold(o), o.path
	if o.retransmission {
		path = o.stamp.Origin.Path
	}
	out, fresh := x.order.receiver.Push(now, reseq.Arrival{
		Path: int(path), Lane: o.stamp.Lane, Seq: uint32(o.stamp.Seq), Distance: o.stamp.Distance, Copied: o.stamp.Copied,
		Requests: o.requests, Hold: wait, Lag: o.lag,
	}, h, out)
	if !fresh {
		h.buffer.release()
	}
	return out, fresh
}

// changeKeysLocked has the numbers begin again with new keys.
func (x *receiving) changeKeysLocked(k *keys, out []held) []held {
	if x.order.receiver == nil {
		x.order.receiver = reseq.NewReceiver[held](reseq.ReceiverOptions{})
	} else {
		out = x.order.receiver.Reset(out)
	}
	x.order.keys, x.order.before = k, x.order.keys
	return out
}

// silenceIntervals is for how many intervals of probes after its last message a path is waited for,
// and at least minSilence.
const silenceIntervals, minSilence = 4, 200 * time.Millisecond

// livePathsLocked returns the paths that messages arrive over.
func (x *receiving) livePathsLocked(now time.Duration) (live uint16) {
	for i := range x.links {
		if l := &x.links[i]; l.packets > 0 && now-l.heard < max(l.silence, minSilence) {
			live |= 1 << i
		}
	}
	return live
}

// comparePause is that between comparisons of paths.
const comparePause = 10 * time.Millisecond

// compareDelaysLocked compares the delays of the paths that messages arrive over.
func (x *receiving) compareDelaysLocked(now time.Duration) {
	if now-x.delays.compared < comparePause {
		return
	}
	x.delays.compared = now
	var paths [tunnel.MaxPaths]sched.Path
	live := x.livePathsLocked(now)
	for i := range paths {
		if v, ok := x.links[i].delay.Value(); ok {
			paths[i] = sched.Path{Usable: live>>i&1 != 0, Delay: v.Delay, Jitter: v.Jitter}
		}
	}
	if latest, found := sched.Latest(paths[:]); found {
		x.delays.latest = latest
	}
}

// measureLocked updates what is known of the path that a message arrived over.
func (x *receiving) measureLocked(o *opened, now time.Duration) {
	l := &x.links[o.path]
	l.packets++
	l.heard = now
	if l.keys != o.keys {
		if l.keys != nil && l.keys.Born > o.keys.Born {
			return // of the session before
		}
		l.keys, l.next, l.lost = o.keys, 0, 0
		l.gaps.Reset()
	}
	l.bytes += uint64(o.wire + inet.UDP4Len)
	l.next++
	switch {
	case o.missing > 0:
		l.next += uint64(o.missing)
		l.lost += uint64(o.missing)
		l.missed += uint64(o.missing)
		l.gaps.Missed(now, o.counter, uint64(o.missing))
	case o.missing < 0 && l.lost > 0:
		l.next--
		l.lost--
		l.gaps.Arrived(now, o.counter)
	}
	if o.retransmission { // without a time stamp
		if origin := &x.links[o.stamp.Origin.Path]; origin.keys == o.keys {
			o.requests = origin.gaps.Retransmitted(o.stamp.Origin.Counter)
		}
		return
	}
	difference := x.delays.clock.Difference(o.stamp.Sent, now)
	if l.delay.Leaps(difference) {
		// A clock stood still, as that of a suspended host: delays of before cannot be compared
		// with later ones.
		x.delays.clock, x.delays.latest, x.delays.compared = quality.Clock{}, 0, 0
		difference = x.delays.clock.Difference(o.stamp.Sent, now)
		for i := range x.links {
			x.links[i].delay = quality.OneWayEstimator{}
		}
	}
	l.delay.Update(now, difference, o.stamp.Wait)
	o.lag = max(0, x.delays.latest-(difference-o.stamp.Wait))
}

// finishLocked delivers packets, and has the expiry loop wait for those that are held. It keeps the
// mutex, so that packets of other paths do not overtake these.
func (x *receiving) finishLocked(p *Plane, out []held) {
	x.delivery.packets = x.delivery.packets[:0]
	for _, h := range out {
		x.delivery.packets = append(x.delivery.packets, h.packet)
	}
	p.deliver(x.delivery.packets)
	for i := range out {
		out[i].buffer.release()
	}
	clear(x.delivery.packets)
	clear(out)
	x.delivery.held = out[:0]
	var timeout time.Duration
	if x.order.receiver != nil {
		if at, waiting := x.order.receiver.Timeout(); waiting {
			timeout = max(at, 1)
		}
	}
	request := time.Duration(0)
	if at, found := x.nextRequestLocked(); found {
		request = max(at, 1)
		if timeout == 0 || request < timeout {
			timeout = request
		}
	}
	x.requests.due.Store(int64(request))
	x.timeout.Store(int64(timeout))
	if timeout != 0 {
		p.expires.set(timeout)
	}
}

// passed processes what a probe reports of a path: it holds no earlier packets of these lanes.
func (r *peer) passed(k *keys, path int, all tunnel.Progress, now time.Duration) {
	x := &r.rx
	x.Lock()
	defer x.Unlock()
	if x.order.keys != k || x.order.receiver == nil {
		return
	}
	out := x.delivery.held[:0]
	for _, l := range all {
		out = x.order.receiver.Passed(now, path, l.Lane, uint32(l.Next), out)
	}
	x.finishLocked(r.plane, out)
}

// expireHeld delivers packets that have been held for too long.
func (r *peer) expireHeld(b *batch, now time.Duration) {
	r.request(b, now)
	x := &r.rx
	x.Lock()
	defer x.Unlock()
	if x.order.receiver != nil {
		x.finishLocked(r.plane, x.order.receiver.Expire(now, x.delivery.held[:0]))
	}
}

// expiry delivers what is held for too long at all peers and requests what is missing, and returns
// when there is more.
func (p *Plane) expiry(b *batch, now time.Duration) time.Duration {
	next := now + time.Hour
	for _, r := range p.routing.Load().peers {
		if at := r.rx.timeout.Load(); at != 0 && time.Duration(at) <= now {
			r.contain(contain.GatewayTimer, nil, func() { r.expireHeld(b, now) })
		}
		if at := r.rx.timeout.Load(); at != 0 {
			next = min(next, time.Duration(at))
		}
	}
	b.flush()
	return max(next, now+holdGranularity)
}

// holdGranularity is the granularity of the time that packets are held.
const holdGranularity = 500 * time.Microsecond

// waitFor sets how long after its last message a path is waited for.
func (x *receiving) waitFor(path int, silence time.Duration) {
	x.Lock()
	defer x.Unlock()
	x.links[path].silence = silence
}

// lastHeard returns when a message last arrived over a path.
func (x *receiving) lastHeard(path int) time.Duration {
	x.Lock()
	defer x.Unlock()
	return x.links[path].heard
}

// lastMessage returns when a message of the peer last arrived.
func (x *receiving) lastMessage() (last time.Duration) {
	for i := range x.links {
		last = max(last, x.lastHeard(i))
	}
	return last
}

// reports appends a report of each path that something has arrived over, as far as there is room;
// the rest is first the next time.
func (x *receiving) reports(b []byte, k *keys, now time.Duration) []byte {
	x.Lock()
	defer x.Unlock()
	late := uint64(0)
	if x.order.receiver != nil {
		late = x.order.receiver.Stats().Late
	}
	first := x.reportFirst
	for n := range x.links {
		i := (first + n) % len(x.links)
		l := &x.links[i]
		if l.packets == 0 || now-l.heard > reportWindow {
			continue
		}
		report := tunnel.Report{Path: uint8(i), Bytes: l.bytes, Late: late}
		if l.keys == k {
			report.Next, report.Lost = l.next, l.lost
		}
		if d, ok := l.delay.Value(); ok {
			report.Base, report.Delay, report.Jitter, report.Spread, report.Standing = d.Base, d.Delay, d.Jitter, d.Spread, d.Standing
		}
		if len(b)+tunnel.ReportLen > controlRoom {
			x.reportFirst = i
			break
		}
		b = tunnel.AppendRecord(b, report)
	}
	return b
}

// reportWindow is how long after the last message a path is still reported.
const reportWindow = 10 * time.Second

// nextRequestLocked returns when a message is to be requested.
func (x *receiving) nextRequestLocked() (at time.Duration, found bool) {
	for i := range x.links {
		if due, missing := x.links[i].gaps.Next(time.Duration(x.requests.roundTrip.Load())); missing && (!found || due < at) {
			at, found = due, true
		}
	}
	return at, found
}

// request asks for the messages that paths have lost, over the two paths with the shortest round
// trips, because requests are lost too.
func (r *peer) request(b *batch, now time.Duration) {
	x := &r.rx
	if at := x.requests.due.Load(); at == 0 || time.Duration(at) > now {
		return
	}
	for i := range x.links {
		for k, body := x.takeRequest(i, now); body != nil; k, body = x.takeRequest(i, now) {
			r.ask(b, k, body, now)
		}
	}
}

// takeRequest returns a request that is due for messages of a path, and their keys; nil if none is.
func (x *receiving) takeRequest(path int, now time.Duration) (k *keys, body []byte) {
	x.Lock()
	defer x.Unlock()
	l := &x.links[path]
	q, found := l.gaps.Due(now, time.Duration(x.requests.roundTrip.Load()), x.requests.counters)
	x.requests.counters = q.Counters
	if !found {
		return nil, nil
	}
	return l.keys, tunnel.AppendRecord(nil, tunnel.Request{Path: uint8(path), Attempt: q.Attempt, Counters: q.Counters})
}

// ask sends a request.
func (r *peer) ask(b *batch, k *keys, body []byte, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k != r.session.sending {
		return
	}
	first, second := -1, -1
	for i := range r.links {
		l := &r.links[i]
		switch {
		case !l.ready() || !l.probing.alive.Alive():
		case first < 0 || cheaper(l, &r.links[first]):
			first, second = i, first
		case !l.spare && (second < 0 || cheaper(l, &r.links[second])):
			second = i
		}
	}
	for _, i := range [...]int{first, second} {
		if i >= 0 {
			r.messages.sendRecords(b, k, i, body, 0, now)
		}
	}
	b.flush()
}
