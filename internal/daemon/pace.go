package daemon

import (
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/kernel/clock"
)

// longTurn is how long the loop may be without looking for events before that is logged. Packets
// take a withdrawn route or miss a deleted rule meanwhile, which a user notices from about a second
// on. A turn is meant to take some ten milliseconds (see Step), and on a machine whose processors
// are all busy ten times that.
const longTurn = time.Second

// pace measures the turns of a loop: the time from when it takes an event until it looks for the
// next one. A turn that takes longer than longTurn is logged with the step that took most of it:
// once while it lasts, since it may never end, and once at its end. Wall time counts, because events
// wait whatever the reason is. The processor time beside it says which: a step that computes takes
// about as much, one that waits for the kernel, a file, another host or a processor much less.
//
// Its methods are called from the loop.
type pace struct {
	log     *slog.Logger
	overdue *time.Timer

	mu    sync.Mutex // of the current step, which overdue reads
	step  step
	since time.Time // when step began

	begun   time.Time // of the turn; zero: the loop looks for events
	cpu     time.Duration
	longest step
	took    time.Duration // by longest
}

// step is a part of a turn: its name, and the function if it is a request.
type step struct {
	name string
	f    func()
}

// String names the function as the Go runtime does, which costs too much to do it for each step.
func (s step) String() string {
	if s.f == nil {
		return s.name
	}
	f := runtime.FuncForPC(reflect.ValueOf(s.f).Pointer()).Name()
	return s.name + " " + f[strings.LastIndexByte(f, '/')+1:]
}

func newPace(log *slog.Logger) *pace {
	p := &pace{log: log}
	p.overdue = time.AfterFunc(longTurn, p.wait)
	p.overdue.Stop()
	return p
}

// wait logs that events wait.
func (p *pace) wait() {
	p.mu.Lock()
	now := p.step
	p.mu.Unlock()
	p.log.Warn("events wait for a long step", "step", now.String())
}

// begin begins the next step of the turn, or a turn. f, unless nil, is a request.
func (p *pace) begin(name string, f func()) {
	now := time.Now()
	if p.begun.IsZero() {
		p.begun, p.cpu, p.took = now, clock.Process(), 0
		p.overdue.Reset(longTurn)
	} else {
		p.end(now)
	}
	p.mu.Lock()
	p.step, p.since = step{name, f}, now
	p.mu.Unlock()
}

// end ends a step.
func (p *pace) end(now time.Time) {
	if took := now.Sub(p.since); took >= p.took {
		p.longest, p.took = p.step, took
	}
}

// look ends a turn, if one has begun.
func (p *pace) look() {
	if p.begun.IsZero() {
		return
	}
	p.overdue.Stop()
	now := time.Now()
	p.end(now)
	if turn := now.Sub(p.begun); turn >= longTurn {
		p.log.Warn("events waited for a long step", "step", p.longest.String(), "took", p.took, "turn", turn, "cpu", clock.Process()-p.cpu)
	}
	p.begun = time.Time{}
}
