// Package link emulates a wire in user space, for kernels without netem: rate, delay, jitter, loss, duplication and a
// queue, for each direction on its own, and changes of them at set times.
//
// A Link relays Ethernet frames between two veth ends in a network namespace of the link's own; the other end of each
// is a node's interface. Everything is decided by a pure core in virtual time, from the profile, the seed and the times
// of arrival, so that equal arrivals meet an equal fate.
//
// It refuses to look into frames, to mark them, to change them, and to carry what is not a frame of a wire: a
// super-packet of TSO or a checksum left to hardware is dropped and counted, never passed on broken. Prepare turns
// off what makes them. It makes and removes no interface. Where only a rate is asked, package tc costs less.
package link

import (
	"encoding"
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/channel"
	"github.com/tabane/tabane/internal/fault"
)

// Direction says which way frames go.
type Direction string

const (
	// Both is forward and backward alike.
	Both Direction = ""
	// Forward is from the link's end A to its end B.
	Forward Direction = "forward"
	// Backward is from the link's end B to its end A.
	Backward Direction = "backward"
)

var _ encoding.TextUnmarshaler = (*Direction)(nil)

// UnmarshalText reads "forward", "backward", or "both" and the empty text for both.
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

// has says whether d includes one of the two directions.
func (d Direction) has(one Direction) bool { return d == Both || d == one }

// Step is a change of a link at a time.
type Step struct {
	// At counts from the start of the schedule.
	At             time.Duration `yaml:"at" json:"at"`
	Direction      Direction     `yaml:"direction,omitempty" json:"direction,omitempty"`
	channel.Change `yaml:",inline"`
}

// Schedule is what happens to a link, in order of time. Steps of the same time apply in the order given.
type Schedule []Step

// Check finds what is wrong with the schedule of a link that starts with the two profiles: a time that is negative or
// earlier than the one before, a step that changes nothing, and a profile that a step makes impossible.
func (s Schedule) Check(forward, backward channel.Profile) fault.List {
	var faults fault.List
	for i, step := range s {
		at := fmt.Sprintf("[%d]", i)
		switch {
		case step.At < 0:
			faults.Add(fault.Join(at, "at"), "must be >= 0s, got %s", step.At)
		case i > 0 && step.At < s[i-1].At:
			faults.Add(fault.Join(at, "at"), "must not be before the step above it, at %s, got %s", s[i-1].At, step.At)
		}
		if step.Change == (channel.Change{}) {
			faults.Add(at, "changes nothing: give at least one of rate, delay, jitter, loss, duplicate, queue")
		}
		var wrong fault.List
		switch step.Direction {
		case Both, Forward, Backward:
		default:
			faults.Add(fault.Join(at, "direction"), "must be forward, backward or both, got %q", string(step.Direction))
			continue
		}
		if step.Direction.has(Forward) {
			forward = forward.With(step.Change)
			wrong = forward.Check()
		}
		if step.Direction.has(Backward) {
			backward = backward.With(step.Change)
			// What is wrong in both directions is told once.
			if len(wrong) == 0 {
				wrong = backward.Check()
			}
		}
		faults.Merge(at, wrong)
	}
	return faults
}

// Config describes a link.
type Config struct {
	// A and B are the names of the two interfaces in the link's namespace.
	A string `yaml:"a" json:"a"`
	B string `yaml:"b" json:"b"`
	// Forward is what happens from A to B, Backward from B to A.
	Forward  channel.Profile `yaml:"forward,omitempty" json:"forward"`
	Backward channel.Profile `yaml:"backward,omitempty" json:"backward"`
	// Schedule counts from the start of Run.
	Schedule Schedule `yaml:"schedule,omitempty" json:"schedule,omitempty"`
	// Seed decides all that is random; the two directions draw from it independently.
	Seed uint64 `yaml:"seed,omitempty" json:"seed,omitempty"`
}

// maxInterface is the kernel's IFNAMSIZ without its terminator.
const maxInterface = 15

// Check finds what is wrong with the link. It does not ask the kernel.
func (c *Config) Check() fault.List {
	var faults fault.List
	for _, end := range []struct{ path, name string }{{"a", c.A}, {"b", c.B}} {
		if end.name == "" || len(end.name) > maxInterface {
			faults.Add(end.path, "must be an interface name of 1 to %d bytes, got %q", maxInterface, end.name)
		}
	}
	if c.A == c.B && c.A != "" {
		faults.Add("b", "must not be the same interface as a, %q", c.A)
	}
	faults.Merge("forward", c.Forward.Check())
	faults.Merge("backward", c.Backward.Check())
	if len(faults) == 0 {
		faults.Merge("schedule", c.Schedule.Check(c.Forward, c.Backward))
	}
	return faults
}
