package linkmodel

import (
	"encoding"
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
)

// Direction is the direction of frames on a link.
type Direction string

const (
	// Both means forward and backward.
	Both Direction = ""
	// Forward is from the link's end A to its end B.
	Forward Direction = "forward"
	// Backward is from the link's end B to its end A.
	Backward Direction = "backward"
)

var _ encoding.TextUnmarshaler = (*Direction)(nil)

// UnmarshalText parses "forward", "backward" or "both"; the empty text is Both.
func (d *Direction) UnmarshalText(text []byte) error {
	switch v := Direction(text); v {
	case Both, Forward, Backward:
		*d = v
	case "both":
		*d = Both
	default:
		return fmt.Errorf("direction %q is none of forward, backward and both", text)
	}
	return nil
}

// Has reports whether d includes one of the two directions.
func (d Direction) Has(one Direction) bool { return d == Both || d == one }

// Step is a scheduled change of a link.
type Step struct {
	// At is the time from the request on.
	// Example: 5s
	At time.Duration `yaml:"at" json:"at"`
	// Direction is forward, from the first end of the link to the second, or backward. Default:
	// both directions. Example: forward
	Direction Direction `yaml:"direction,omitempty" json:"direction,omitempty"`
	Change    `yaml:",inline"`
}

// Schedule is a list of changes of a link, sorted by time. Steps of the same time are applied in
// the order given.
type Schedule []Step

// Split returns the schedule of each direction.
func (s Schedule) Split() (forward, backward Schedule) {
	for _, step := range s {
		if step.Direction.Has(Forward) {
			forward = append(forward, step)
		}
		if step.Direction.Has(Backward) {
			backward = append(backward, step)
		}
	}
	return forward, backward
}

// Check finds what is wrong with the schedule of a link that starts with the two profiles: a time
// that is negative or earlier than the one before, a step that changes nothing, and a step that
// makes a profile invalid.
func (s Schedule) Check(forward, backward Profile) fault.List {
	var faults fault.List
	for i, step := range s {
		at := fmt.Sprintf("[%d]", i)
		switch {
		case step.At < 0:
			faults.Add(fault.Join(at, "at"), "must be >= 0s, got %s", step.At)
		case i > 0 && step.At < s[i-1].At:
			faults.Add(fault.Join(at, "at"), "must not be before the step above it, at %s, got %s", s[i-1].At, step.At)
		}
		if step.Change == (Change{}) {
			faults.Add(at, "changes nothing: give at least one of %s", Properties(""))
		}
		var wrong fault.List
		switch step.Direction {
		case Both, Forward, Backward:
		default:
			faults.Add(fault.Join(at, "direction"), "must be forward, backward or both, got %q", string(step.Direction))
			continue
		}
		if step.Direction.Has(Forward) {
			forward = forward.With(step.Change)
			wrong = forward.Check()
		}
		if step.Direction.Has(Backward) {
			backward = backward.With(step.Change)
			// A fault in both directions is reported once.
			if len(wrong) == 0 {
				wrong = backward.Check()
			}
		}
		faults.Merge(at, wrong)
	}
	return faults
}
