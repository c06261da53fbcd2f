package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// Shape is the impairment of a link, in each direction unless Forward or Backward override it. A
// link with only a rate and a queue uses the kernel's TBF; any other is emulated.
type Shape struct {
	// Rate is the rate in whole Ethernet frames without preamble, as the kernel's TBF counts.
	// Default: unlimited.
	Rate unit.Bandwidth `yaml:"rate,omitempty"`
	// Burst is what passes at once after a pause: the depth of a token bucket. A policer has a
	// buffer of 1 byte. Default: 0B, or 32 KiB and 2 ms of the rate with the kernel's TBF.
	// Example: 100kB
	Burst unit.Size `yaml:"burst,omitempty"`
	// Queue is how long a packet may wait at that rate; what would wait longer is dropped.
	// Default: 50ms.
	Queue time.Duration `yaml:"queue,omitempty"`
	// Buffer is the queue in all detail, instead of queue.
	Buffer *linkmodel.Queue `yaml:"buffer,omitempty"`
	// Delay is the one-way delay.
	Delay time.Duration `yaml:"delay,omitempty"`
	// Jitter varies the delay.
	Jitter *linkmodel.Jitter `yaml:"jitter,omitempty"`
	// Slot is how often frames are delivered, all together that have come since, as by Wi-Fi, radio
	// and cable. Default: each by itself. Example: 4ms
	Slot time.Duration `yaml:"slot,omitempty"`
	// Loss is what the link loses.
	Loss *linkmodel.Loss `yaml:"loss,omitempty"`
	// Duplicate is the probability that a frame arrives twice. Example: 0.001
	Duplicate float64 `yaml:"duplicate,omitempty"`
	// Load is traffic of others on the link.
	Load *linkmodel.Load `yaml:"load,omitempty"`
	// Forward is what differs from the first end of the link to the second.
	Forward *linkmodel.Change `yaml:"forward,omitempty"`
	// Backward is what differs from the second end of the link to the first.
	Backward *linkmodel.Change `yaml:"backward,omitempty"`
}

// shapePaths are the paths of all values of a Shape.
var shapePaths = field.Paths[Shape]()

// ShapePaths returns the paths of all values of a Shape that Set can set.
func ShapePaths() []string { return slices.Clone(shapePaths) }

// Set sets the value at a path, or at the one that a shorter name resolves to (field.Resolve), to
// that of the text. Without forward or backward it is set in both directions, and replaces a value
// that the shape has for one of them.
func (s *Shape) Set(name, text string) error {
	path, err := field.Resolve(name, shapePaths)
	if err != nil {
		return err
	}
	if err := field.Set(s, path, text); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	switch limit := path[strings.LastIndex(path, ".")+1:]; limit {
	case "bytes", "packets", "time":
		if !slices.ContainsFunc(field.Assignments(s), func(a string) bool { return strings.HasPrefix(a, path+"=") }) {
			return fmt.Errorf("%s: must be > 0, got %s", name, text)
		}
	}
	switch {
	case path == "queue" && s.Buffer != nil:
		buffer := *s.Buffer
		buffer.Limit = linkmodel.Limit{}
		if s.Buffer = &buffer; buffer == (linkmodel.Queue{}) {
			s.Buffer = nil
		}
	case s.Buffer != nil && s.Buffer.Limit != (linkmodel.Limit{}):
		s.Queue = 0
	}
	key, _, _ := strings.Cut(path, ".")
	if key == "buffer" {
		key = "queue"
	}
	if key != "forward" && key != "backward" {
		field.Clear(s, "forward."+key)
		field.Clear(s, "backward."+key)
		s.Forward, s.Backward = given(s.Forward), given(s.Backward)
	}
	return nil
}

// given returns the change, or nil if it changes nothing.
func given(c *linkmodel.Change) *linkmodel.Change {
	if c != nil && *c == (linkmodel.Change{}) {
		return nil
	}
	return c
}

// ParseShape parses a whole shape from assignments KEY=VALUE with different keys. Keys that are not
// given have their defaults.
func ParseShape(assignments []string) (Shape, error) {
	var s Shape
	if len(assignments) == 0 {
		return s, errors.New("want at least one KEY=VALUE")
	}
	first := map[string]string{}
	for _, a := range assignments {
		name, text, ok := strings.Cut(a, "=")
		if !ok {
			return s, fmt.Errorf("want KEY=VALUE, got %q", a)
		}
		path, err := field.Resolve(name, shapePaths)
		if err != nil {
			return s, err
		}
		if before, twice := first[path]; twice {
			return s, fmt.Errorf("%s is given twice, first as %q", path, before)
		}
		first[path] = a
		if err := field.Set(&s, path, text); err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
	}
	return s, s.Check().Err()
}

// String returns the shape in the form that ParseShape reads, "rate=30Mbit/s delay=20ms"; the zero
// value is "rate=unlimited".
func (s Shape) String() string {
	if list := field.Assignments(&s); len(list) > 0 {
		return strings.Join(list, " ")
	}
	return "rate=" + field.Unlimited
}

// Plain reports whether the kernel's TBF is enough for the shape.
func (s Shape) Plain() bool {
	return s == (Shape{Rate: s.Rate, Queue: s.Queue})
}

// IsZero reports whether the shape impairs nothing.
func (s Shape) IsZero() bool { return s == (Shape{}) }

// Profiles returns the shape as a profile of each direction.
func (s Shape) Profiles() (forward, backward linkmodel.Profile) {
	p := linkmodel.Profile{Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: s.Queue}}}
	field.Copy(&p, s)
	if s.Buffer != nil {
		p.Queue = *s.Buffer
		if p.Queue.Limit == (linkmodel.Limit{}) {
			p.Queue.Time = s.Queue
		}
	}
	forward, backward = p, p
	if s.Forward != nil {
		forward = p.With(*s.Forward)
	}
	if s.Backward != nil {
		backward = p.With(*s.Backward)
	}
	return forward, backward
}

// ShapeOf returns the shape that has these profiles.
func ShapeOf(forward, backward linkmodel.Profile) Shape {
	var s Shape
	field.Copy(&s, forward)
	if q := forward.Queue; q == (linkmodel.Queue{Limit: linkmodel.Limit{Time: q.Time}}) {
		s.Queue = q.Time
	} else {
		s.Buffer = &q
	}
	if change := backward.Since(forward); change != (linkmodel.Change{}) {
		s.Backward = &change
	}
	return s
}

// Check returns the faults of the shape. It does not check whether the link supports it.
func (s Shape) Check() fault.List {
	var faults fault.List
	if s.Rate < 0 {
		faults.Add("rate", "must not be negative, got %s", s.Rate)
	}
	if s.Queue < 0 {
		faults.Add("queue", "must not be negative, got %s", s.Queue)
	}
	if s.Queue > 0 && s.Rate == 0 && s.Forward == nil && s.Backward == nil {
		faults.Add("queue", "needs a rate: nothing waits on a link without one")
	}
	if s.Queue != 0 && s.Buffer != nil && s.Buffer.Limit != (linkmodel.Limit{}) {
		faults.Add("buffer", "must have no limit where queue is given: queue is a limit too")
	}
	if s.Buffer != nil && s.Rate == 0 && s.Forward == nil && s.Backward == nil {
		faults.Add("buffer", "needs a rate: nothing waits on a link without one")
	}
	if s.Plain() || len(faults) > 0 {
		return faults
	}
	both := s
	both.Forward, both.Backward = nil, nil
	profile, _ := both.Profiles()
	for _, f := range profile.Check() {
		// The profile's queue is the shape's buffer.
		if s.Buffer != nil {
			f.Path = renamed(f.Path, "queue", "buffer")
		}
		faults = append(faults, f)
	}
	if len(faults) > 0 {
		return faults
	}
	forward, backward := s.Profiles()
	for _, way := range []struct {
		name    string
		change  *linkmodel.Change
		profile linkmodel.Profile
	}{{"forward", s.Forward, forward}, {"backward", s.Backward, backward}} {
		switch {
		case way.change == nil:
		case *way.change == (linkmodel.Change{}):
			faults.Add(way.name, "is empty: give at least one of %s", linkmodel.Properties(""))
		default:
			faults.Merge(way.name, way.profile.Check())
		}
	}
	return faults
}

// renamed replaces the first element of a path.
func renamed(path, from, to string) string {
	if path == from {
		return to
	}
	if len(path) > len(from) && path[:len(from)] == from && (path[len(from)] == '.' || path[len(from)] == '[') {
		return to + path[len(from):]
	}
	return path
}

// Emulated reports whether the link needs the emulator: for its own shape or schedule, or for that
// of a case or an event.
func (s *Spec) Emulated(name string) bool {
	if l := s.Links[name]; l != nil && (l.Emulate || !l.Shape.Plain() || len(l.Schedule) > 0) {
		return true
	}
	if s.Experiment == nil {
		return false
	}
	for _, c := range s.Experiment.Cases {
		if shape, ok := c.Links[name]; ok && !shape.Plain() {
			return true
		}
		for _, e := range c.Events {
			if e.Set != nil && e.Set.Link == name && !e.Set.Shape.Plain() {
				return true
			}
		}
	}
	return false
}
