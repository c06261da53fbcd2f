package acceptance

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A soak applies random disturbances to a running network, several at a time, and checks after
// them that the network is in the state that it must be in. What it does follows from its seed
// alone: the choices of a step do not depend on how long the steps before it took.
type soak struct {
	t     *testing.T
	seed  uint64
	table []disturbance
	// parts are what a disturbance of a target affects. Disturbances of a common part are not
	// applied at the same time.
	parts func(target string) []string
	// permits reports whether the network does its work without these parts.
	permits func(without map[string]bool) bool
	// missing returns how the network differs from what it must be, and "" when it does not.
	missing func() string
	// thoughts returns what the daemons think, for a state that is not back.
	thoughts func() string
	// ready returns what the network lacks to withstand the next disturbance although its state is
	// back, such as sessions that are to come up, and "" when it lacks nothing.
	ready func() string
	// each is called in each step, whole when no disturbance is left and the state is back.
	each, whole func()

	// patience multiplies the bounds on time, for a machine on which other work delays every
	// process.
	patience time.Duration

	active  []*applied
	pending []*applied // since the last check
	undone  map[*applied]bool
	log     []string
	// took and readied are how long it took until the state was back and the network ready.
	took, readied map[string][]time.Duration
	applies       int
	machine       *machineLoad
}

// disturbance is one thing that a soak does to a network.
type disturbance struct {
	name string
	// weight is how often it is chosen, relative to the others; default 1.
	weight  int
	targets []string
	// apply applies it, and returns how it is undone: nil when that is up to the daemons.
	apply func(target string, random *rand.Rand) (undo func())
	// within and back bound the time until the state is back after it was applied, and after it was
	// undone; default stateBack. A row that needs more time says why.
	within, back time.Duration
	// alone: nothing else is disturbed at the same time.
	alone bool
}

// applied is a disturbance of a target.
type applied struct {
	*disturbance
	target string
	undo   func()
}

// stateBack is how long the network may take to be in the state that it must be in.
const stateBack = 2 * time.Second

const (
	// mostActive is how many disturbances there are at a time at most.
	mostActive = 3
	// mostPending is how many changes there are between two checks at most.
	mostPending = 3
	// wholeEvery is after how many steps all disturbances are undone.
	wholeEvery = 20
	// giveUp is how long a network that is not back in time is waited for, so that a soak reports
	// how long it took.
	giveUp = 60 * time.Second
)

func (s *soak) note(format string, args ...any) {
	s.log = append(s.log, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// run disturbs the network for a while, and leaves it undisturbed.
func (s *soak) run(duration time.Duration) {
	s.t.Helper()
	s.undone, s.took, s.readied = map[*applied]bool{}, map[string][]time.Duration{}, map[string][]time.Duration{}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("steps:\n%s", strings.Join(s.log, "\n"))
		}
		s.report()
	})
	s.check(giveUp)
	s.whole()
	step := 0
	for begun := time.Now(); time.Since(begun) < duration; step++ {
		random := rand.New(rand.NewPCG(s.seed, uint64(step)))
		switch {
		case step%wholeEvery == wholeEvery-1:
			s.settle()
		case len(s.active) > 0 && (len(s.active) >= mostActive || random.IntN(5) < 2 || s.active[0].alone):
			s.undo(step, random.IntN(len(s.active)))
		default:
			s.disturb(step, random)
		}
		if wait := random.IntN(400); len(s.pending) < mostPending && random.IntN(4) == 0 {
			time.Sleep(time.Duration(wait) * time.Millisecond)
		} else {
			s.checkPending()
		}
		s.each()
	}
	s.settle()
	s.t.Logf("%d steps, %d disturbances", step, s.applies)
}

// disturb applies a random disturbance that is possible now.
func (s *soak) disturb(step int, random *rand.Rand) {
	s.t.Helper()
	var taken []string
	for _, a := range s.active {
		taken = append(taken, s.parts(a.target)...)
	}
	var possible []*applied
	for i := range s.table {
		d := &s.table[i]
		if d.alone && len(s.active) > 0 {
			continue
		}
		var free []*applied
		for _, target := range d.targets {
			parts := s.parts(target)
			without := map[string]bool{}
			for _, p := range slices.Concat(parts, taken) {
				without[p] = true
			}
			if len(without) == len(parts)+len(taken) && s.permits(without) {
				free = append(free, &applied{disturbance: d, target: target})
			}
		}
		if len(free) > 0 {
			// One target, so that a disturbance of many is not chosen more often.
			one := free[random.IntN(len(free))]
			possible = append(possible, slices.Repeat([]*applied{one}, max(d.weight, 1))...)
		}
	}
	if len(possible) == 0 {
		return
	}
	a := possible[random.IntN(len(possible))]
	s.note("%d: %s: %s", step, a.target, a.name)
	s.applies++
	if a.undo = a.apply(a.target, random); a.undo != nil {
		s.active = append(s.active, a)
	}
	s.pending = append(s.pending, a)
}

func (s *soak) undo(step, i int) {
	s.t.Helper()
	a := s.active[i]
	s.active = slices.Delete(s.active, i, i+1)
	s.note("%d: %s: end of %s", step, a.target, a.name)
	a.undo()
	s.undone[a] = true
	s.pending = append(s.pending, a)
}

// settle undoes all disturbances.
func (s *soak) settle() {
	s.t.Helper()
	for len(s.active) > 0 {
		s.undo(-1, 0)
	}
	s.checkPending()
	s.whole()
}

// checkPending checks that the state is back in time after the last changes.
func (s *soak) checkPending() {
	s.t.Helper()
	if len(s.pending) == 0 {
		return
	}
	var bound time.Duration
	for _, a := range s.pending {
		d := a.within
		if s.undone[a] {
			d = a.back
		}
		bound = max(bound, d, stateBack)
	}
	bound *= s.patience
	begun := time.Now()
	took := s.check(bound)
	why := s.ready()
	for ; why != ""; why = s.ready() {
		if time.Since(begun) > bound+giveUp {
			s.t.Fatalf("not ready for more after %s: %s", time.Since(begun).Round(time.Millisecond), why)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if len(s.pending) == 1 {
		name := s.pending[0].name
		if s.undone[s.pending[0]] {
			name = "end of " + name
		}
		s.took[name] = append(s.took[name], took)
		s.readied[name] = append(s.readied[name], time.Since(begun))
	}
	s.pending = nil
}

// check waits until the state is back, and fails the test if that takes longer than the bound,
// without the time during which the machine stalled.
func (s *soak) check(bound time.Duration) time.Duration {
	s.t.Helper()
	begun := time.Now()
	late, why, thought := "", "", ""
	for {
		why = s.missing()
		now := time.Now()
		took := now.Sub(begun) - s.machine.stalled(begun, now)
		switch {
		case why == "":
			if late != "" {
				s.t.Errorf("%s: the state was not back within %s but after %s; after %s it differed in:\n%s\nin the last 10 s, %s\nlast steps:\n%s", time.Now().Format("15:04:05.000"),
					bound, took.Round(time.Millisecond), bound, late, s.machine.since(time.Now().Add(-10*time.Second)), strings.Join(s.log[max(0, len(s.log)-6):], "\n"))
				s.note("state back after %s, too late", took.Round(time.Millisecond))
				s.t.Logf("what the daemons thought after %s:\n%s", bound, thought)
			}
			return took
		case took > bound+giveUp:
			s.t.Fatalf("the state is not back after %s:\n%s\n%s", took.Round(time.Millisecond), why, s.thoughts())
		case took > bound && late == "":
			asked := time.Now()
			late, thought = why, s.thoughts()
			begun = begun.Add(time.Since(asked)) // which takes a while
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// report shows how long the state took to be back, by disturbance.
func (s *soak) report() {
	names := make([]string, 0, len(s.took))
	for name := range s.took {
		names = append(names, name)
	}
	slices.Sort(names)
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%-55s %4d times, back after %s, ready after %s\n", name, len(s.took[name]), spread(s.took[name]), spread(s.readied[name]))
	}
	s.t.Logf("median and most:\n%s\n%s", &text, s.machine.since(time.Time{}))
}

// spread shows the median and the most of some times.
func spread(times []time.Duration) string {
	slices.Sort(times)
	return fmt.Sprintf("%7s %7s", times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
}

// machineLoad measures how much other work delays the processes of a machine: how late a process
// wakes, and how many wait for a processor.
type machineLoad struct {
	mu      sync.Mutex
	samples []loadSample
	stalls  []interval
}

// loadSample is the worst of one second.
type loadSample struct {
	at       time.Time
	late     time.Duration
	runnable int
}

// watchMachine measures until the test ends.
func watchMachine(t *testing.T) *machineLoad {
	// A stall is longer than what a busy scheduler does to a process now and then.
	const pause, stall = 10 * time.Millisecond, 50 * time.Millisecond
	m, done := &machineLoad{}, make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for worst := (loadSample{at: time.Now()}); ; {
			due := time.Now().Add(pause)
			select {
			case <-done:
				return
			case <-time.After(pause):
			}
			now := time.Now()
			if now.Sub(due) > stall {
				m.mu.Lock()
				m.stalls = append(m.stalls, interval{from: due, to: now})
				m.mu.Unlock()
			}
			worst.late = max(worst.late, now.Sub(due))
			if time.Since(worst.at) < time.Second {
				continue
			}
			if b, err := os.ReadFile("/proc/loadavg"); err == nil {
				_, _ = fmt.Sscanf(string(b), "%f %f %f %d/", new(float64), new(float64), new(float64), &worst.runnable)
			}
			m.mu.Lock()
			m.samples = append(m.samples, worst)
			m.mu.Unlock()
			worst = loadSample{at: time.Now()}
		}
	}()
	return m
}

// stalled returns for how long of an interval the machine did not run a process that was to wake.
func (m *machineLoad) stalled(from, to time.Time) (total time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.stalls {
		begin, end := s.from, s.to
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		total += max(0, end.Sub(begin))
	}
	return total
}

// since describes what was measured from a time on.
func (m *machineLoad) since(from time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var lates []time.Duration
	most := 0
	for _, x := range m.samples {
		if x.at.After(from) {
			lates, most = append(lates, x.late), max(most, x.runnable)
		}
	}
	if len(lates) == 0 {
		return "the load of the machine was not measured"
	}
	return fmt.Sprintf("a process that was to wake every 10 ms was late by at most (median and most of seconds) %s; %d were runnable at most on %d processors",
		strings.Join(strings.Fields(spread(lates)), " and "), most, runtime.NumCPU())
}
