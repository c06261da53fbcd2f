package openplane

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
)

// tunnels are the receiving ends of tunnels that do not encrypt. Their methods are safe for
// concurrent use.
type tunnels struct {
	mu      sync.Mutex
	program *program.Program // nil when the plane has stopped
	numbers map[string]int   // of peers
	ends    map[string]*end
	// inherited are the cookies that a previous instance accepted, by the numbers of peers that are
	// not configured yet.
	inherited map[int][]uint64
}

// end is that of a peer.
type end struct {
	number  int // of the peer in the program, -1 if it has none
	want    []uint64
	cookies []uint64 // that the program accepts
	// inherited are those of a previous instance, accepted until then: the peer sends with them
	// until it knows others.
	inherited []uint64
	until     time.Time
	// before is what has arrived with cookies that are not accepted any more.
	before [dataplane.MaxPaths]dataplane.Arrived
}

// accept replaces the cookies that packets of a peer are accepted with.
func (t *tunnels) accept(peer string, cookies []uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.ends[peer]
	if e == nil {
		if len(cookies) == 0 {
			return nil
		}
		if t.ends == nil {
			t.ends = map[string]*end{}
		}
		e = &end{number: -1}
		t.ends[peer] = e
	}
	e.want = cookies
	return t.reconcile(peer, e)
}

// number replaces the numbers of the peers in the program.
func (t *tunnels) number(numbers map[string]int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.numbers = numbers
	var errs []error
	if t.ends == nil {
		t.ends = map[string]*end{}
	}
	for peer, number := range numbers {
		if old := t.inherited[number]; len(old) > 0 && t.ends[peer] == nil {
			t.ends[peer] = &end{number: number, cookies: slices.Clone(old), inherited: old, until: time.Now().Add(holdFor)}
			delete(t.inherited, number)
		}
	}
	for _, cookies := range t.inherited {
		for _, c := range cookies {
			errs = append(errs, t.program.Refuse(c))
		}
	}
	t.inherited = nil
	for peer, e := range t.ends {
		errs = append(errs, t.reconcile(peer, e))
		if _, ok := numbers[peer]; !ok && len(e.want) == 0 {
			delete(t.ends, peer)
		}
	}
	return errors.Join(errs...)
}

// reconcile has the program accept what is wanted. The mutex is locked.
func (t *tunnels) reconcile(peer string, e *end) error {
	if t.program == nil {
		return nil
	}
	number, ok := t.numbers[peer]
	if !ok {
		number = -1
	}
	var errs []error
	e.cookies = slices.DeleteFunc(e.cookies, func(c uint64) bool {
		if number == e.number && (slices.Contains(e.want, c) || slices.Contains(e.inherited, c) && time.Now().Before(e.until)) {
			return false
		}
		last, err := t.program.Arrived(c)
		addArrived(&e.before, &last)
		errs = append(errs, err, t.program.Refuse(c))
		return true
	})
	e.number = number
	for _, c := range e.want {
		if number < 0 || slices.Contains(e.cookies, c) {
			continue
		}
		if err := t.program.Accept(c, number); err != nil {
			errs = append(errs, err)
			continue
		}
		e.cookies = append(e.cookies, c)
	}
	return errors.Join(errs...)
}

// arrived is what has arrived from a peer.
func (t *tunnels) arrived(peer string) (all [dataplane.MaxPaths]dataplane.Arrived) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.ends[peer]
	if e == nil {
		return all
	}
	all = e.before
	for _, c := range e.cookies {
		if t.program == nil {
			break
		}
		if now, err := t.program.Arrived(c); err == nil {
			addArrived(&all, &now)
		}
	}
	return all
}

func addArrived(to, more *[dataplane.MaxPaths]dataplane.Arrived) {
	for i := range to {
		to[i].Count = add(to[i].Count, more[i].Count)
		to[i].Lost += more[i].Lost
	}
}

// close has the program not used any more.
func (t *tunnels) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.program = nil
}
