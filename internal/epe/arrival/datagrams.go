package arrival

import "time"

// The constants of bpf/lib/spray.h, where each has its reason.
const (
	backlog  = 100_000
	begin    = 128 << 10
	again    = 30_000_000
	near     = 15_000
	slower   = 1050
	part     = 50_000
	doubt    = 150_000
	answered = 100
	idle     = 2_000_000

	mostShared = 8
)

// The states of Turns.
const (
	alone   uint32 = iota
	sprayed        // and not known to gain: a sender may slow down while other paths begin
	gaining
)

// Queue is a path of a client's flows of datagrams as a queue that is served at the rate that TCP
// measured (struct spray_queue).
type Queue struct{ Rate, Delay, Free uint32 }

// Turns are what a client's flows of datagrams bring over home alone, and sprayed, in turns (struct
// spray_turns).
type Turns struct {
	State, Paused uint32
	Since, Window uint32
	Bytes, Others uint32
	Home, Worse   uint32
	Recent, Part  uint32
	Gain, Doubt   uint32
	WorseRate     uint32
	Share         uint32
}

// verdict is what follows from the turns.
type verdict int

const (
	goesOn verdict = iota
	gains
	leaves
)

// backlog is how long what was sent over the path is still being served.
func (q *Queue) backlog(now uint32) uint32 {
	if left := q.Free - now; left <= 2*backlog {
		return left
	}
	return 0
}

// choose returns the path over which a datagram of a flow that has sent total bytes arrives first, and
// its place in the queue there.
func (t *Turns) choose(queues []Queue, home int, total, size, now uint32) int {
	best, chosen := ^uint32(0), home
	only := t.State == alone || t.Paused != 0 || total < begin || queues[home].Rate == 0 || t.doubted(queues[home].Delay, now)
	for i := range queues {
		q := &queues[i]
		if q.Rate == 0 || only && i != home {
			continue
		}
		at, byteTime := q.backlog(now), uint32(1000)
		if at < near {
			byteTime = slower
		}
		if at += size*byteTime/q.Rate + q.Delay; at < best || at == best && i == home {
			best, chosen = at, i
		}
	}
	if best == ^uint32(0) {
		return chosen
	}
	left := best - queues[chosen].Delay
	queues[chosen].Free = now + left
	if left <= backlog {
		return chosen
	}
	for i := range queues {
		if q := &queues[i]; q.backlog(now) > left-backlog {
			q.Free -= left - backlog
		} else {
			q.Free = now
		}
	}
	return chosen
}

// fitShare has rates that TCP measured fit what home alone brings at present, if that is known: they
// are shares of a time when others sent more or less.
func fitShare(queues []Queue, home int, share uint32) {
	was, is := uint64(queues[home].Rate), uint64(share)
	for i := range queues {
		switch q := &queues[i]; {
		case is == 0 || was == 0 || q.Rate == 0:
		case is*4 < was*3 && is*mostShared >= was:
			q.Rate = max(uint32(uint64(q.Rate)*is/was), 1)
		case is*3 > was*4 && i != home:
			q.Rate = 0
		}
	}
}

// doubted reports whether home alone is used, since a path may have failed.
func (t *Turns) doubted(delay, now uint32) bool {
	return t.Doubt != 0 && now-t.Doubt < max(6*delay, doubt)
}

// endPart counts a datagram, and returns what a part of a window brought when it ends. paused: the
// sender paused in it.
func (t *Turns) endPart(delay, now, size uint32) (rate uint32, ended, paused bool) {
	time, least := now-t.Recent, max(3*delay, part)
	if t.Part += size; time < least {
		return 0, false, false
	}
	rate = t.Part / (time / 1000)
	t.Recent, t.Part = max(now, 1), 0
	return rate, true, time >= 2*least
}

// doubts doubts the paths of a flow that gained, and now brings less than half of what it brought.
func (t *Turns) doubts(delay, now, size uint32) {
	rate, ended, _ := t.endPart(delay, now, size)
	if ended && t.Window != 0 && t.Others > t.Bytes/16 && !t.doubted(delay, now) && uint64(rate)*2 < uint64(t.Gain) {
		t.Doubt = max(now, 1)
	}
}

// fell reports whether a flow brings less than 3/4 of what home alone brought right before: its sender
// takes packets that are a little late for lost, and each round trip of that makes its window smaller.
func (t *Turns) fell(delay, now, size uint32) bool {
	rate, ended, paused := t.endPart(delay, now, size)
	return ended && !paused && uint64(rate)*4 < uint64(t.Home)*3
}

// count counts a datagram, and concludes from the turns whether spraying gains.
func (t *Turns) count(delay, now, size uint32, other bool) verdict {
	limit := max(16*delay, watchFor)
	if t.State == sprayed && t.Recent != 0 && t.Paused == 0 && t.fell(delay, now, size) {
		return leaves
	}
	if t.Window == 0 {
		if now-t.Since < limit/2 {
			return goesOn
		}
		t.Window, t.Bytes, t.Others = max(now, 1), 0, 0
	}
	t.Bytes += size
	if other {
		t.Others += size
	}
	time := now - t.Window
	if t.State == gaining {
		t.doubts(delay, now, size)
	}
	if time < limit {
		return goesOn
	}
	rate := uint32(0)
	if time < 2*limit {
		rate = t.Bytes / (time / 1000)
	}
	bulk := rate != 0 && t.Others > t.Bytes/16
	t.Window, t.Bytes, t.Others = max(now, 1), 0, 0
	if t.State == alone {
		if t.Home = rate; rate == 0 {
			return goesOn
		}
		t.Share = rate
		was := t.WorseRate
		t.State, t.Since, t.Window, t.Worse, t.WorseRate = sprayed, now, 0, 0, 0
		t.Recent, t.Part = max(now, 1), 0
		if was != 0 && uint64(was)*100 < uint64(rate)*102 {
			return leaves
		}
		return goesOn
	}
	t.Gain = rate
	switch {
	case !bulk:
		t.Worse = 0
	case uint64(rate)*100 < uint64(t.Home)*102:
		t.Worse++
		if uint64(rate)*100 < uint64(t.Home)*90 {
			t.Worse++
		}
		if t.Worse < 2*timesWorse {
			return goesOn
		}
		t.WorseRate = rate
		t.State, t.Since, t.Window = alone, now, 0
		return goesOn
	case now-t.Since < again:
		t.Worse, t.State = 0, gaining
		return gains
	}
	if now-t.Since >= again {
		t.State, t.Since, t.Window = alone, now, 0
	}
	return goesOn
}

// Flow sprays a flow of datagrams by what TCP measured in its network. It is not safe for concurrent
// use.
type Flow struct {
	network  *Network
	home     int
	packets  uint32
	total    uint32 // bytes, up to begin
	heard    uint32
	progress uint32
	small    uint32
	left     uint32
	first    int    // where it began
	away     uint32 // time at which it left that; 0: it has not
	wait     uint32 // how long it stays away
	silent   int    // times in a row that home was left, since the client was silent
	paths    int
	backoff  backoff
}

// shared is what the flows of datagrams to one client have in common: each alone would find the paths
// empty that the others fill.
type shared struct {
	used   uint32
	turns  Turns
	queues []Queue
}

// NewFlow returns a flow over so many paths, whose first one is home.
func NewFlow(network *Network, paths int, now time.Duration) *Flow {
	return &Flow{network: network, paths: paths, progress: micro(now)}
}

// share returns what the flows of the client have in common. It begins when none has sent anything
// for a while.
func (f *Flow) share(now uint32) (s *shared, begins bool) {
	s = f.network.flows
	if begins = s == nil || now-s.used > idle; begins {
		s = &shared{queues: make([]Queue, f.paths), turns: Turns{Since: now}}
		f.network.flows = s
	}
	s.used = now
	return s, begins
}

// consult reads what TCP measured of the paths, and what other flows did.
func (f *Flow) consult(s *shared, begins bool, now time.Duration) {
	for i := range s.queues {
		q, m := &s.queues[i], &f.network.paths[i]
		q.Rate, q.Delay = m.usable(now), m.shortest
	}
	m := &f.network.datagrams
	s.turns.Paused = 0
	if m.until > now {
		s.turns.Paused = 1
	}
	if f.packets == 0 {
		f.home = f.network.fastest(f.paths, now)
	}
	if begins && m.known(now) > 0 {
		s.turns.Home, s.turns.Share, s.turns.State = m.rate, m.rate, sprayed
	}
	fitShare(s.queues, f.home, s.turns.Share)
}

// conclude remembers what the turns found.
func (f *Flow) conclude(s *shared, v verdict, now time.Duration) {
	m := &f.network.datagrams
	if v == gains {
		m.rate, m.learned, m.measured = s.turns.Home, now, true
		return
	}
	m.measured = false
	if m.until <= now {
		next := time.Duration(lossPause * unit)
		if m.pauses > 0 && m.until+8*m.pause > now {
			next = 2 * m.pause
		}
		m.pause = min(next, maxPause*unit)
		m.until = now + m.pause
		m.pauses++
	}
	s.turns.Paused = 1
}

// Choose returns the path of a datagram.
func (f *Flow) Choose(at time.Duration, size uint32) int {
	now := micro(at)
	s, begins := f.share(now)
	if f.packets%learned == 0 || begins {
		f.consult(s, begins, at)
	}
	if f.packets == 0 {
		f.first = f.home
	}
	f.packets++
	if f.silent != 0 && f.heard == f.progress {
		// All paths were silent: what failed is what they have in common.
		if f.silent >= f.paths {
			f.home, f.away, f.wait = f.first, 0, f.wait/2
		}
		f.silent = 0
	}
	if f.heard == f.progress {
		if size >= answered || f.small == f.heard {
			f.progress = now
		}
		f.small = f.heard
	}
	if f.away != 0 && now-f.away >= f.wait {
		f.home, f.away, f.left, f.progress = f.first, 0, max(now, 1), now
	}
	limit, soon := uint32(dead), func(t uint32) bool { return t != 0 && now-t < suspect }
	if soon(f.left) || soon(s.turns.Doubt) {
		limit = dead / 3
	}
	// A sender that gets no acknowledgments says more than a client that is heard.
	lost, times := false, uint32(backoffTimes)
	if soon(f.left) {
		times = 1
	}
	if size >= answered {
		lost = f.backoff.sent(now, size) >= times
	}
	if lost || f.heard != 0 && f.heard != f.progress && later(now-f.progress, max(3*s.queues[f.home].Delay, limit)) {
		f.backoff.Times = min(f.backoff.Times, backoffTimes-1)
		f.home, f.progress = (f.home+1)%f.paths, now
		f.away = max(now, 1)
		if f.silent++; f.silent == 1 {
			f.wait = min(max(2*f.wait, away), maxPause)
		}
	}
	chosen := s.turns.choose(s.queues, f.home, f.total, size, now)
	if f.total < begin {
		f.total += size
	}
	if v := s.turns.count(s.queues[f.home].Delay, now, size, chosen != f.home); v != goesOn {
		if v == leaves {
			f.left = max(now, 1)
		}
		f.conclude(s, v, at)
	}
	return chosen
}

// Heard applies a packet of the client.
func (f *Flow) Heard(at time.Duration) {
	f.heard = max(micro(at), 1)
	f.progress = f.heard
}
