package arrival

import "time"

const (
	learned = 128              // after so many packets, what is known of a path is remembered
	valid   = 10 * time.Minute // how long what is remembered counts
	block   = 16               // records that a block of a SACK option has arrive at most
	most    = 48               // the same of an acknowledgment
	unit    = time.Microsecond // of times here
	records = 512              // what is in flight of a connection, in super-packets
)

// Memory is what is remembered of a path to a client network (struct memory). The zero value is
// nothing.
type Memory struct {
	until, pause, learned time.Duration
	pauses                int
	measured              bool
	loses                 bool // as home, without a queue: rate is what connections brought over it
	shortest, rate        uint32
	seen, tried           time.Duration // a packet arrived over it; it was home for a trial; 0: never
}

// Network is what is remembered of the paths to a client network, and of datagrams that were sprayed
// there.
type Network struct {
	paths     [MaxPaths]Memory
	datagrams Memory
	flows     *shared // of datagrams; nil: none yet
}

// record is a packet in flight.
type record struct {
	end, length, sent, acknowledged, retransmitted uint32
	path                                           int
	arrived                                        bool
	lost                                           loss
}

// Connection sprays the packets of one TCP connection. It is not safe for concurrent use.
type Connection struct {
	network    *Network
	paths      int
	home       int
	bytes      uint32
	next       uint32
	head, tail uint32
	resumed    uint32 // tail when the connection waited for data last
	period     uint32
	heard      bool
	began      uint32 // time
	died       uint32 // time at which home was left as dead; 0: never
	waits      uint32 // time at which home died, if nothing has arrived since; 0: it has
	before     int    // what was home then
	former     int    // what was home before it died last
	alive      uint32 // time of the last arrival over that by then; 0: none died, or it is home again
	common     bool   // what was sent again over the home since did not arrive either
	outage     uint32 // time until which nothing arrived over any path; 0: there was none
	first      uint32 // what is remembered of the rate of the first path, if another one is home; or 0
	back       int    // what was home before the trial
	trial      trial
	watch      watch
	path       [MaxPaths]Path
	records    [records]record
}

// New returns a connection over so many paths, whose first one is home. first is the sequence number
// of its first byte.
func New(network *Network, paths int, first uint32, now time.Duration) *Connection {
	c := &Connection{network: network, paths: paths, next: first, period: micro(now)}
	c.watch.Since = micro(now)
	for i := range c.path {
		c.path[i].Window = firstWindow
	}
	return c
}

func micro(t time.Duration) uint32 { return uint32(t / unit) }

// recall begins with what is remembered of the paths.
func (c *Connection) recall(now time.Duration) {
	c.began = micro(now)
	for i := range c.paths {
		p, m := &c.path[i], &c.network.paths[i]
		if m.until > now {
			p.Paused, p.Until = 1, micro(m.until)
		}
		if m.known(now) > 0 {
			p.Shortest, p.Rate = m.shortest, m.rate
		}
	}
	c.home = c.network.fastest(c.paths, now)
	c.try(now)
	if c.home != 0 {
		c.first = c.network.paths[0].known(now)
	}
}

// try has a path be home whose rate is not known, once in a while: where it is longer than home by more
// than the queue of home holds, it carries nothing in order, so that its rate would never be known.
// Packets must have arrived over it, but not where home loses so many that it has no queue, which has
// others carry nothing at all.
func (c *Connection) try(now time.Duration) {
	home := &c.network.paths[c.home]
	rate, unknown, unseen := home.usable(now), -1, -1
	for i := range c.paths {
		m := &c.network.paths[i]
		switch {
		case i == c.home, m.until > now, m.known(now) > 0, m.tried != 0 && now-m.tried < valid:
		case m.seen == 0 || now-m.seen >= valid:
			if unseen < 0 {
				unseen = i
			}
		case unknown < 0:
			unknown = i
		}
	}
	if home.loses && unknown < 0 {
		unknown = unseen
	}
	if rate == 0 || rate > mostTried || unknown < 0 {
		return
	}
	c.network.paths[unknown].tried = now
	c.back, c.home = c.home, unknown
	c.trial.Need = rate * 5 / 4
}

// endTrial has home be what it was before the trial.
func (c *Connection) endTrial() {
	c.path[c.home].Rate, c.trial.Need = 0, 0
	c.home, c.first = c.back, 0
}

// fastest returns the path that is known to be faster than the first one by a quarter, and than all
// others, or else the first one. That the first one is paused says that it harmed as another path.
func (n *Network) fastest(paths int, now time.Duration) int {
	best, most := 0, uint64(n.paths[0].known(now))*5/4
	for i := 1; i < paths && most > 0; i++ {
		if rate := uint64(n.paths[i].usable(now)); rate > most {
			best, most = i, rate
		}
	}
	return best
}

// known returns the rate of a path, 0 if it is not known.
func (m *Memory) known(now time.Duration) uint32 {
	if !m.measured || now-m.learned >= valid {
		return 0
	}
	return m.rate
}

// usable is known of a path that is not paused.
func (m *Memory) usable(now time.Duration) uint32 {
	if m.until > now {
		return 0
	}
	return m.known(now)
}

// remember remembers what the connection knows of the paths.
func (c *Connection) remember(now time.Duration) {
	for i := range c.paths {
		p, m := &c.path[i], &c.network.paths[i]
		if p.Gone != 0 {
			m.seen = now
		}
		lossy := i == c.home && p.losesBare()
		// An application that pauses says what it sends, not what a path carries. Losses can leave
		// nothing in flight, too.
		if c.head-c.resumed < learned && !lossy {
			continue
		}
		if i != c.home && m.loses && m.known(now) > 0 {
			continue // what it brings beside another home says nothing of what it loses as home
		}
		if p.Packets >= learned && p.Rate != 0 {
			m.shortest, m.learned, m.measured = p.shortest(), now, true
			if m.loses = lossy; m.loses {
				m.rate = p.lossyRate((micro(now)-c.began)/1000, m.rate)
			} else {
				m.rate = p.Rate
			}
		}
	}
}

// leave leaves a path for a time that grows with each pause soon after another, for all of the
// network.
func (c *Connection) leave(i int, now time.Duration) {
	p, m, first := &c.path[i], &c.network.paths[i], pause*unit
	if p.loses() {
		first = lossPause * unit
	}
	next := first
	switch {
	case m.pauses == 0:
	case m.until > now:
		next = max(m.pause, first)
	case m.until+8*m.pause > now:
		next = 2 * m.pause
	}
	m.pause = min(next, maxPause*unit)
	m.until = now + m.pause
	m.pauses++
	p.Until, p.Paused, p.Window = micro(m.until), 1, firstWindow
	p.Packets, p.Late, p.Lost, p.Bare = 0, 0, 0, 0
}

func (c *Connection) record(at uint32) *record { return &c.records[at%records] }

// search returns the first record whose end is at or after a sequence number.
func (c *Connection) search(sequence uint32) uint32 { return c.searchFrom(c.tail, sequence) }

// searchFrom does, from a record on.
func (c *Connection) searchFrom(low, sequence uint32) uint32 {
	high := c.head
	for low != high {
		if middle := low + (high-low)/2; later(sequence, c.record(middle).end) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// waitsForData reports whether no more than one segment is in flight, whose acknowledgment may be
// delayed.
func (c *Connection) waitsForData() bool {
	flight := uint32(0)
	for i := range c.paths {
		flight += c.path[i].Sent - c.path[i].Gone
	}
	return flight <= delayed
}

// silent reports whether what home carries is overdue while what others carry arrives.
func (c *Connection) silent() bool {
	for i := range c.paths {
		if i != c.home && c.path[i].Gone != 0 && c.path[c.home].stalled(&c.path[i], 1) {
			return true
		}
	}
	return false
}

// interrupted applies that nothing arrived over any path for a while: that says nothing of one of them.
func (c *Connection) interrupted(now uint32) {
	c.outage, c.watch.Since, c.watch.Worse = max(now, 1), now, 0
	for i := range c.paths {
		c.path[i].Progress = now
	}
}

// retransmit notes that a segment is sent again, and returns home, or another path if home is dead.
func (c *Connection) retransmit(sequence, now uint32) int {
	if at := c.search(sequence + 1); at-c.tail < c.head-c.tail {
		if r := c.record(at); !r.arrived && r.retransmitted == 0 {
			r.retransmitted = max(now, 1)
		}
	}
	if c.trial.Need != 0 {
		c.endTrial()
	}
	home := &c.path[c.home]
	if c.waits != 0 && later(now-c.waits, home.answered()) {
		c.common = true
	}
	if !c.heard || c.paths == 1 || !home.dead(now) && !c.silent() {
		return c.home
	}
	best := (c.home + 1) % c.paths
	for i := range c.paths {
		if i != c.home && c.path[i].Gone != 0 && later(c.path[i].Progress, c.path[best].Progress) {
			best = i
		}
	}
	if outage(c.path[:c.paths], c.home, now) {
		c.interrupted(now)
	}
	if c.waits == 0 {
		c.waits, c.before = max(now, 1), c.home
	}
	c.former, c.alive = c.home, max(home.Progress, 1)
	home.Shortest, home.Progress, c.died = 0, now, max(now, 1)
	c.home, c.first = best, 0
	c.path[best].Progress, c.path[best].Paused = now, 0
	return best
}

// Choose returns the path of a segment.
func (c *Connection) Choose(at time.Duration, sequence, size uint32) int {
	now := micro(at)
	if later(c.next, sequence) {
		return c.retransmit(sequence, now)
	}
	if c.bytes == 0 {
		c.recall(at)
	}
	if c.waitsForData() {
		c.resumed = c.tail
	}
	if c.head%learned == 0 {
		c.remember(at)
	}
	c.bytes = min(c.bytes+size, 1<<30)
	c.next = sequence + size
	if c.head-c.tail >= records-1 {
		return c.sendHome(now, size)
	}
	if later(now-c.period, rounds) {
		c.period = now
		if now-c.died > rounds {
			c.died = 0
		}
		if now-c.outage > rounds {
			c.outage = 0
		}
		for i := range c.paths {
			if p := &c.path[i]; p.Shortest != 0 {
				p.Shortest2, p.Shortest = p.Shortest, p.Smooth
			}
		}
	}
	chosen := c.choose(at, size)
	c.write(c.head, chosen, now, size)
	c.head++
	return chosen
}

// write counts a segment as sent over a path, and has a record say so.
func (c *Connection) write(at uint32, path int, now, size uint32) {
	p := &c.path[path]
	p.send(now, size)
	*c.record(at) = record{end: c.next, length: size, sent: now, acknowledged: p.Gone, path: path}
}

// sendHome sends new data home while all records are used. The last one grows, or is used again once it
// has arrived: what is not counted waits on home all the same, so that what is sent there later would
// seem to be slow.
func (c *Connection) sendHome(now, size uint32) int {
	last := c.record(c.head - 1)
	switch {
	case c.head-c.tail < records:
		c.write(c.head, c.home, now, size)
		c.head++
	case last.arrived:
		c.write(c.head-1, c.home, now, size)
	case last.path == c.home:
		last.end = c.next
		last.length += size
		c.path[c.home].send(now, size)
	}
	return c.home
}

// choose returns the path of new data.
func (c *Connection) choose(at time.Duration, size uint32) int {
	now := micro(at)
	// Home is not the first path because it was faster. Losses can make it slower than that.
	if c.first != 0 && c.bytes < 1<<30 && c.path[c.home].loses() && uint64(c.bytes)*1000 < uint64(now-c.began)*uint64(c.first) {
		c.leave(c.home, at)
		c.home, c.first, c.trial.Need, c.path[0].Paused = 0, 0, 0, 0
	}
	chosen, home := c.home, &c.path[c.home]
	if home.Shortest == 0 {
		return chosen
	}
	quiet := c.silent()
	harm := home.Late > mayBeLate+home.Packets/256
	all := uint32(0)
	for i := range c.paths {
		all += c.path[i].Gone
	}
	worse := c.watch.isWorse(home, now, all, all-home.Gone)
	if harm {
		home.Late, home.Packets = 0, 0
		chosen, home = c.settle()
	}
	arrival := home.arrival(size)
	if quiet {
		arrival = ^uint32(0)
	}
	for i := range c.paths {
		p := &c.path[i]
		if i == c.home {
			continue
		}
		if p.Paused != 0 {
			if p.Until-now <= maxPause {
				continue
			}
			p.Paused = 0
		}
		if p.stalled(home, 2) || p.Packets != 0 && (harm || worse || p.harms()) {
			c.leave(i, at)
			continue
		}
		// In slow start, and where home has no queue, others gain nothing that a loss there is worth.
		if !quiet && (c.bytes < careful || !home.queued()) {
			continue
		}
		if p.better(home, size, &arrival) {
			chosen = i
		}
	}
	return chosen
}

// settle has the path that has brought most be home, where data on home is overtaken, and returns it:
// the others are left then, and it may be home that is late. One that was dead is not.
func (c *Connection) settle() (int, *Path) {
	most := c.home
	for i := range c.paths {
		if c.path[i].Shortest != 0 && c.path[i].Gone > c.path[most].Gone {
			most = i
		}
	}
	if most != c.home {
		if c.home == 0 {
			c.first = c.path[0].Rate
		}
		c.home, c.alive, c.trial.Need, c.path[most].Paused = most, 0, 0, 0
	}
	return most, &c.path[most]
}

// sentDead reports whether a record was in flight on a path that was dead: it arrives late, and says
// nothing of the round trip.
func (c *Connection) sentDead(r *record) bool {
	return c.died != 0 && c.path[r.path].Shortest == 0 && !later(r.sent, c.died)
}

// arrived applies the arrival of a record.
func (c *Connection) arrived(at, now uint32) {
	r := c.record(at)
	if r.arrived {
		return
	}
	r.arrived = true
	if c.waits != 0 {
		if c.common {
			c.home, c.alive = c.before, 0
			c.interrupted(now)
		}
		c.waits, c.common = 0, false
	}
	// A home that carries something again, or was only late, is home again.
	if c.alive != 0 && r.path == c.former && r.retransmitted == 0 && later(r.sent, c.alive) {
		c.home, c.alive = c.former, 0
	}
	p, home := &c.path[r.path], &c.path[c.home]
	p.Gone += r.length
	p.Progress = now
	if r.retransmitted != 0 {
		// What an outage of all paths lost says nothing of one.
		if c.outage != 0 && !later(r.sent, c.outage) {
			return
		}
		r.lost = p.retransmitted(later(home.shortest(), now-r.retransmitted), now)
		return
	}
	if c.sentDead(r) {
		return
	}
	p.arrived(home.Rate, now-r.sent, r.length, r.acknowledged)
	if c.trial.Need == 0 || r.path != c.home {
		return
	}
	switch c.trial.arrived(p.Gone, now) {
	case goesOn:
	case leaves:
		c.endTrial()
	case gains:
		c.trial.Need = 0
	}
}

// twice applies that a packet arrived again (RFC 2883): if the path had lost it, it was the first one.
func (c *Connection) twice(right, now uint32) {
	at := c.searchFrom(c.head-min(c.head, records), right)
	r := c.record(at)
	if at == c.head || r.end != right || r.lost == none {
		return
	}
	p := &c.path[r.path]
	p.found(r.lost)
	r.lost = none
	if !c.sentDead(r) {
		p.arrived(c.path[c.home].Rate, now-r.sent, r.length, r.acknowledged)
	}
}

// Block is a block of a SACK option: the sequence numbers [Left, Right).
type Block struct{ Left, Right uint32 }

// Acknowledged applies an acknowledgment with the blocks of its SACK option.
func (c *Connection) Acknowledged(at time.Duration, ack uint32, blocks []Block) {
	if c.bytes == 0 || later(ack, c.next) {
		return
	}
	now := micro(at)
	c.heard = true
	for range most {
		if c.tail == c.head || later(c.record(c.tail).end, ack) {
			break
		}
		c.arrived(c.tail, now)
		c.tail++
	}
	if len(blocks) > 0 && !later(blocks[0].Right, ack) {
		c.twice(blocks[0].Right, now)
	}
	for _, b := range blocks {
		if b.Left == b.Right || !later(b.Right, ack) || later(b.Right, c.next) {
			continue
		}
		i := c.search(b.Right)
		for range block {
			if i-c.tail >= c.head-c.tail {
				break
			}
			if r := c.record(i); later(r.end, b.Right) || later(b.Left, r.end-r.length) {
				break
			}
			c.arrived(i, now)
			i--
		}
	}
}

// Sent returns the bytes that were sent over each path.
func (c *Connection) Sent() (sent [MaxPaths]uint32) {
	for i := range c.path {
		sent[i] = c.path[i].Sent
	}
	return sent
}
