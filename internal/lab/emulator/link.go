// Package emulator emulates a wire in user space, for kernels without netem: rate, delay, jitter,
// loss, duplication and a queue, separately for each direction, with changes at scheduled times.
//
// A Link relays Ethernet frames between two veth ends in a network namespace of the link's own; the
// other end of each is a node's interface. What happens to a frame is computed by package linkmodel
// in virtual time, from the profile, the seed and the arrival times, so it is the same for the same
// arrivals.
//
// It parses and changes frames only for ECN marking, if a queue has ECN set (linkmodel.Queue).
// Frames that cannot be on a wire, such as TSO super-packets and frames with checksums left to
// hardware, are dropped and counted; Prepare turns off the offloads that produce them. The package
// neither creates nor removes interfaces. If only a rate is needed, package tc costs less.
package emulator

import (
	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// Config describes a link.
type Config struct {
	// A and B are the names of the two interfaces in the link's namespace.
	A string `yaml:"a" json:"a"`
	B string `yaml:"b" json:"b"`
	// Forward is what happens from A to B, Backward from B to A.
	Forward  linkmodel.Profile `yaml:"forward,omitempty" json:"forward"`
	Backward linkmodel.Profile `yaml:"backward,omitempty" json:"backward"`
	// Schedule counts from the start of Run.
	Schedule linkmodel.Schedule `yaml:"schedule,omitempty" json:"schedule,omitempty"`
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
