package study

import (
	"crypto/subtle"
	"errors"
	"time"

	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/qoe"
)

// phase is what a participant does next.
type phase int

const (
	// briefing shows the task, working is between its start and its end, rating asks for the score
	// of the task, and ended follows the last one.
	briefing phase = iota
	working
	rating
	ended
)

// session is a participant's state.
type session struct {
	id       [idBytes]byte
	code     string
	language string
	// order is the participant's row of the design.
	order int
	// handover is the nonce of the last hand-over to another origin, until it is used.
	handover []byte
	// tasks are those that were started, in order; only the last one may be unfinished or unrated.
	tasks []task
}

// task is a task that was started.
type task struct {
	condition int
	service   content.Service
	// started is the time of the start since the epoch, and run the server's start in which it was;
	// both are removed when the task is finished.
	started     time.Duration
	run         int64
	views       int
	finished    bool
	took        time.Duration
	interrupted bool
	// chosen is empty if the participant gave up.
	chosen string
	met    int
	score  qoe.Score
}

// errStale means that a form is of a step that the session has left, or has not reached.
var errStale = errors.New("the form is not of the session's current step")

// step returns the current position in the order, and what is to do there, of so many tasks.
func (s *session) step(total int) (position int, p phase) {
	n := len(s.tasks)
	switch {
	case n > 0 && !s.tasks[n-1].finished:
		return n - 1, working
	case n > 0 && s.tasks[n-1].score == 0:
		return n - 1, rating
	case n >= total:
		return n, ended
	}
	return n, briefing
}

// expect returns errStale unless the session is at a step.
func (s *session) expect(total, position int, p phase) error {
	if at, now := s.step(total); at != position || now != p {
		return errStale
	}
	return nil
}

// finish ends the running task.
func (t *task) finish(now time.Duration, run int64, chosen string, met int) {
	t.took = now - t.started
	if t.interrupted = run != t.run || t.took <= 0; t.took < 0 {
		t.took = 0
	}
	t.started, t.run = 0, 0
	t.finished, t.chosen, t.met = true, chosen, met
}

// accept uses up the nonce of a hand-over.
func (s *session) accept(nonce []byte) bool {
	if len(s.handover) == 0 || subtle.ConstantTimeCompare(s.handover, nonce) != 1 {
		return false
	}
	s.handover = nil
	return true
}

// bucket bounds a rate: it holds so many tokens as are used in a quarter of a minute, and at least
// four if that many are used in a minute.
type bucket struct {
	perMinute int
	tokens    float64
	filled    time.Duration
}

func (b *bucket) burst() float64 { return float64(max(b.perMinute/4, min(b.perMinute, 4))) }

// take takes a token at a time that does not fall.
func (b *bucket) take(now time.Duration) bool {
	b.tokens = min(b.burst(), b.tokens+max(0, now-b.filled).Minutes()*float64(b.perMinute))
	b.filled = max(b.filled, now)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// putBack puts a token back that was not used.
func (b *bucket) putBack() { b.tokens++ }
