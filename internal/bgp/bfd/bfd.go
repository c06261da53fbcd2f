// Package bfd is Bidirectional Forwarding Detection in asynchronous mode for neighbors on a link
// (RFC 5880, RFC 5881): it reports within milliseconds that a neighbor, or the path to it, is dead.
//
// The state machine takes time as an argument; a Detector runs it over UDP sockets. Echo, demand
// mode, authentication and multihop are not supported. What follows from a failure is the caller's
// decision.
package bfd

import (
	"time"

	"github.com/tabane/tabane/internal/base/fault"
)

// Config is what BFD is asked for. The neighbor is down when no packet was received from it for
// Multiplier times Interval (RFC 5880 section 6.8.4). Both sides must be configured. The zero value
// is no BFD.
type Config struct {
	// Interval is both Desired Min TX Interval and Required Min RX Interval (RFC 5880 section
	// 4.1), in whole microseconds.
	Interval time.Duration `yaml:"interval"`
	// Multiplier is the detection time multiplier: how many intervals may pass without a packet.
	// Default: 3. Example: 3
	Multiplier uint8 `yaml:"multiplier,omitempty"`
}

// DefaultMultiplier is what FRR and most routers use: one lost packet is noise, three are not.
const DefaultMultiplier = 3

// Bounds of a Config. A shorter interval would measure this process's scheduling latency; a
// multiplier of one would take a session down for a single lost packet.
const (
	minInterval   = 10 * time.Millisecond
	maxInterval   = 10 * time.Second
	minMultiplier = 2
)

// Enabled reports whether BFD is asked for at all.
func (c Config) Enabled() bool { return c != Config{} }

// Check returns the faults of c, at bfd.interval and bfd.multiplier.
func (c Config) Check() fault.List {
	var faults fault.List
	if !c.Enabled() {
		return nil
	}
	if c.Interval < minInterval || c.Interval > maxInterval || c.Interval%time.Microsecond != 0 {
		faults.Add("bfd.interval", "must be whole microseconds from %s to %s, got %s", minInterval, maxInterval, c.Interval)
	}
	if c.Multiplier != 0 && c.Multiplier < minMultiplier {
		faults.Add("bfd.multiplier", "must be at least %d, got %d", minMultiplier, c.Multiplier)
	}
	return faults
}
