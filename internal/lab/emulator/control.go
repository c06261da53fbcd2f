package emulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// Report is the state of a link.
type Report struct {
	A string `json:"a"`
	B string `json:"b"`
	// Connected: both nodes' interfaces are up. Cuts counts the transitions from connected to
	// not connected.
	Connected bool   `json:"connected"`
	Cuts      uint64 `json:"cuts"`
	// Realtime: the relay has real-time priority.
	Realtime bool       `json:"realtime"`
	Forward  Statistics `json:"forward"`
	Backward Statistics `json:"backward"`
	// Steps is the number of pending steps of the schedule, the sum of both directions.
	Steps int `json:"steps"`
}

// Report returns the state and statistics of the link. After Run has returned they are final.
func (l *Link) Report() (Report, error) {
	var r Report
	var failed error
	err := l.do(func(time.Duration) { r, failed = l.report() })
	if errors.Is(err, ErrClosed) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.last, l.lastErr
	}
	return r, failed
}

// report builds the Report. It must be called on the relay's goroutine, or after the relay has
// ended.
func (l *Link) report() (Report, error) {
	r := Report{
		A: l.config.A, B: l.config.B,
		Connected: l.cable.connected(), Cuts: l.cable.pulls.Load(), Realtime: l.realtime.Load(),
		Steps: len(l.ways[0].steps) + len(l.ways[1].steps),
	}
	var errs [2]error
	r.Forward, errs[0] = l.ways[0].statistics()
	r.Backward, errs[1] = l.ways[1].statistics()
	return r, errors.Join(errs[:]...)
}

// Status returns the Report, or its error, as a value for JSON.
func (l *Link) Status() any {
	r, err := l.Report()
	if err != nil {
		return map[string]string{"error": err.Error()}
	}
	return r
}

// Set changes one direction or both immediately. A change that makes the profile invalid, now or at
// a pending step of the schedule, is rejected as a whole. After Run has returned, the error wraps
// ErrClosed.
func (l *Link) Set(d linkmodel.Direction, c linkmodel.Change) error {
	if err := l.set(d, c); err != nil {
		return fmt.Errorf("change link between %q and %q: %w", l.config.A, l.config.B, err)
	}
	return nil
}

func (l *Link) set(d linkmodel.Direction, c linkmodel.Change) error {
	var refused error
	err := l.do(func(now time.Duration) {
		forward, backward := l.ways[0].profileAt(now), l.ways[1].profileAt(now)
		if refused = (linkmodel.Schedule{{Direction: d, Change: c}}).Check(forward, backward).Err(); refused != nil {
			return
		}
		for i, one := range []linkmodel.Direction{linkmodel.Forward, linkmodel.Backward} {
			if d.Has(one) {
				refused = errors.Join(refused, l.ways[i].fits(now, c))
			}
		}
		if refused != nil {
			return
		}
		for i, one := range []linkmodel.Direction{linkmodel.Forward, linkmodel.Backward} {
			if d.Has(one) {
				l.ways[i].pipe.Set(now, l.ways[i].pipe.Profile().With(c))
			}
		}
	})
	return errors.Join(err, refused)
}

// profileAt returns the profile at the time now, with the steps that are due applied.
func (w *way) profileAt(now time.Duration) linkmodel.Profile {
	w.change(now)
	return w.pipe.Profile()
}

// fits reports whether the pending steps still give valid profiles after the change.
func (w *way) fits(now time.Duration, c linkmodel.Change) error {
	after := w.profileAt(now).With(c)
	for _, step := range w.steps {
		after = after.With(step.Change)
		if err := after.Check().Err(); err != nil {
			return fmt.Errorf("does not go with the step of the schedule that comes in %s: %w", step.At-now, err)
		}
	}
	return nil
}

// Play starts a schedule now and discards the pending steps of the previous one. Before Run it
// replaces Config.Schedule. A schedule that does not pass Check is rejected as a whole. After Run
// has returned, the error wraps ErrClosed.
func (l *Link) Play(s linkmodel.Schedule) error {
	var refused error
	err := l.do(func(now time.Duration) {
		if refused = s.Check(l.ways[0].profileAt(now), l.ways[1].profileAt(now)).Err(); refused != nil {
			return
		}
		if l.config.Schedule = s; l.state == running {
			l.ways[0].steps, l.ways[1].steps = begin(s, now)
		}
	})
	if err = errors.Join(err, refused); err != nil {
		return fmt.Errorf("play schedule of link between %q and %q: %w", l.config.A, l.config.B, err)
	}
	return nil
}

// maxRequest limits the size of a request body in bytes.
const maxRequest = 1 << 20

// Handler changes the link on request: POST /set with a Step as JSON, whose At must be 0, and POST
// /schedule with a Schedule. Times are in nanoseconds, rates as text. It answers 204, or 400 with
// the error as text.
func (l *Link) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /set", func(w http.ResponseWriter, r *http.Request) {
		var s linkmodel.Step
		answer(w, decode(w, r, &s), func() error {
			if s.At != 0 {
				return fmt.Errorf("at must be 0: a change is made now, got %s", s.At)
			}
			return l.Set(s.Direction, s.Change)
		})
	})
	mux.HandleFunc("POST /schedule", func(w http.ResponseWriter, r *http.Request) {
		var s linkmodel.Schedule
		answer(w, decode(w, r, &s), func() error { return l.Play(s) })
	})
	return mux
}

func decode(w http.ResponseWriter, r *http.Request, to any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("read request: more than one JSON value")
	}
	return nil
}

func answer(w http.ResponseWriter, err error, do func() error) {
	if err == nil {
		err = do()
	}
	switch {
	case errors.Is(err, ErrClosed):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
