package sim

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/selection"
)

// use chooses the paths that carry data, with Connection.Overflow.
type use struct {
	selection.Connection[int]
	at    time.Duration // of the next decision
	paths []progress
	// reasons are those of the paths after the last decision.
	reasons   []selection.Reason
	decisions []Use
}

// Use is a decision on a path, with the rate and the delay that were assumed of it.
type Use struct {
	At     time.Duration
	Path   int
	Reason selection.Reason
	Rate   unit.Bandwidth
	Delay  time.Duration
}

// record adds the decisions that changed.
func (u *use) record(now time.Duration, samples []selection.Sample[int]) {
	for _, s := range samples {
		why := u.Reason(s.Path)
		if why != u.reasons[s.Path] {
			rate, delay := u.Estimate(s.Path)
			u.decisions = append(u.decisions, Use{now, s.Path, why, unit.Bandwidth(8 * rate), delay})
			u.reasons[s.Path] = why
		}
	}
}

// progress is the last sample of a path.
type progress struct {
	delivered uint64
	inFlight  int
	// acked is the time of the last delivery, and at that since when something has been in flight
	// without one.
	acked, at time.Duration
	// stalled: it makes no progress while another path does; past is what is then known of it.
	stalled bool
	past    selection.Past
	since   time.Duration // the time of past
}

// silence returns for how long something has been in flight without a delivery.
func (p *progress) silence(now time.Duration) time.Duration {
	if p.inFlight == 0 {
		return 0
	}
	return now - p.at
}

// learned returns what the connection learned of each of n paths.
func (u *use) learned(now time.Duration, n int) []selection.Past {
	all := make([]selection.Past, n)
	for i := range all {
		all[i] = u.learnedOf(now, i)
	}
	return all
}

// learnedOf returns what the connection learned of a path, or else what it recalls of it.
func (u *use) learnedOf(now time.Duration, i int) selection.Past {
	p, ok := u.Learned(now, i)
	if !ok && u.Recall != nil {
		p = u.Recall(i)
	}
	return p
}

// lookAtPaths sets which paths are backups, as package selection decides.
func (c *connection) lookAtPaths(s *Sim) {
	c.use.at = s.now + selection.Interval
	if c.use.paths == nil {
		c.use.paths, c.use.reasons = make([]progress, len(c.flows)), make([]selection.Reason, len(c.flows))
		c.use.Policy, c.use.Terms = c.Policy, terms(c.Paths)
		c.use.Recall = func(i int) selection.Past { return c.recall(i, s.now) }
		c.use.Source = func() (selection.Source, bool) { return c.source(s) }
	}
	samples := make([]selection.Sample[int], 0, len(c.flows))
	for i := range c.inOrder() {
		if f := &s.senders[int(c.first)+i]; f.state != caClosed && !c.Paths[i].Backup {
			samples = append(samples, f.look(s, &c.use.paths[i]))
		}
	}
	samples = slices.DeleteFunc(samples, func(x selection.Sample[int]) bool { return c.leaves(s, &x) })
	c.use.Update(s.now, samples)
	c.use.record(s.now, samples)
	for i := range c.paths {
		c.paths[i].Backup = c.Paths[i].Backup || !c.use.Reason(i).Open()
	}
}

// recall returns what is known of a path before this connection measures it.
func (c *connection) recall(i int, now time.Duration) (past selection.Past) {
	if p := &c.use.paths[i]; p.past.Verdict == selection.Stalled {
		past = p.past
		past.Rest = max(past.Rest-(now-p.since), 0)
	} else if c.Past != nil {
		past = c.Past[i]
	}
	return past
}

// leaves reports whether a subflow has stalled: it makes no progress while another one does. The
// path manager closes it, which reinjects its data, and remembers that. Here it remains, and carries
// nothing until it makes progress.
func (c *connection) leaves(s *Sim, x *selection.Sample[int]) bool {
	p := &c.use.paths[x.Path]
	switch {
	case p.at == s.now:
		p.stalled = false
	case x.Silence > 0 && !p.stalled && c.progressesBeside(s.now, p, x.Silence):
		p.past, p.since, p.stalled = c.use.learnedOf(s.now, x.Path).Stall(), s.now, true
		c.use.Forget(x.Path)
		c.reinject(s, &s.senders[int(c.first)+x.Path])
	}
	return p.stalled
}

// progressesBeside reports whether another path makes progress while one is silent.
func (c *connection) progressesBeside(now time.Duration, silent *progress, silence time.Duration) bool {
	for i := range c.use.paths {
		if p := &c.use.paths[i]; p != silent && selection.ProgressesBeside(p.acked-silent.at, p.silence(now), silence) {
			return true
		}
	}
	return false
}

// terms returns the terms of each path for the policy.
func terms(paths []Path) func(int) selection.Terms {
	all := make([]selection.Terms, len(paths))
	for i, p := range paths {
		all[i] = selection.Terms{Listed: p.Listed, Rank: p.Rank, Share: p.Share}
		if p.Commit > 0 {
			all[i].Budget = selection.NewBudget(float64(p.Commit) / 8)
		}
	}
	return func(i int) selection.Terms { return all[i] }
}

// look returns the sample of a subflow, and updates its progress.
func (f *sender) look(s *Sim, p *progress) selection.Sample[int] {
	rtt, flight := f.retrans.rtt, int(f.board.next-f.board.una)
	if f.cc.Delivered != p.delivered {
		p.acked = s.now
	}
	if flight == 0 || p.inFlight == 0 || p.acked == s.now {
		p.at = s.now
	}
	p.delivered, p.inFlight = f.cc.Delivered, flight
	sample := selection.Sample[int]{
		Path: f.index, Delivered: uint32(f.cc.Delivered), Segment: f.c.Segment, Cwnd: int(f.clamped()), InFlight: flight,
		NotSent: f.backlog.bytes, SRTT: rtt.SRTT, MinRTT: rtt.MinRTT, SlowStart: f.cc.Cwnd < f.cc.Ssthresh,
	}
	sample.Idled, f.idled = f.idled || flight == 0, false
	if f.c.ReceiveBuffer > 0 {
		sample.Window = int(f.c.edge - min(f.c.edge, f.c.acked))
	}
	if silence := s.now - p.at; flight > 0 && silence >= selection.StallTimeout(flight, rtt.SRTT, rtt.RTTVAR) {
		sample.Silence = silence
	}
	return sample
}
