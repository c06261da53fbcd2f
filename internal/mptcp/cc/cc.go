package cc

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Windows that the standards name, in segments.
const (
	// InitialWindow is the initial window (RFC 6928, section 2).
	InitialWindow = 10
	// minThreshold is the minimum of ssthresh after a loss (RFC 5681, equation 4).
	minThreshold = 2
	// lossWindow is the window after a timeout (RFC 5681, section 3.1).
	lossWindow = 1
	// maxWindow is the maximum TCP window in bytes (RFC 7323, section 2.3), used as a limit in
	// segments.
	maxWindow = 1 << 30
)

// NoThreshold is the slow start threshold before the first loss: "arbitrarily high" (RFC 5681,
// section 3.1), yet finite.
const NoThreshold = math.MaxFloat64

// Subflow is the state of a subflow that a control reads and writes. The sender updates the
// measured fields before every call; only the control changes Cwnd and Ssthresh. The zero value is
// a subflow that is not established, which takes no part in coupling.
type Subflow struct {
	// Cwnd and Ssthresh are the congestion window and the slow start threshold, in segments. A
	// sender sends while less than Cwnd is in flight; fractions count up to the next whole
	// segment.
	Cwnd, Ssthresh float64

	// SRTT and MinRTT are the smoothed and the minimum round-trip time. A subflow without SRTT
	// takes no part in the coupling of the others.
	SRTT, MinRTT time.Duration
	// InFlight is the data sent and neither acknowledged nor known to be lost, in segments
	// (FlightSize of RFC 5681). On a loss it is the value just before the loss was detected.
	InFlight float64
	// Delivered counts the segments that were delivered since the subflow opened, in recovery
	// too.
	Delivered uint64
	// Idle is for how long nothing was sent since the last acknowledgement, before a segment that
	// was sent with nothing else outstanding. Cubic clears it.
	Idle time.Duration
	// HyStart has cubic leave slow start as Linux does, before it causes losses.
	HyStart bool
	// Paced: what is sent is paced, so that HyStart expects a train of a whole round-trip time.
	Paced bool
	// MinThreshold replaces the control's own minimum of Ssthresh after a loss, in segments; 0: it
	// does not.
	MinThreshold float64

	state
}

// state is the per-subflow state of the controls between calls.
type state struct {
	// afterTimeout: the slow start that follows a timeout grows by one segment an
	// acknowledgement at most.
	afterTimeout bool
	cubicState
	leaving hystartState
	vegasState
	wvegasState
	oliaState
}

// Start returns the state of a new subflow with an initial window in segments, usually
// InitialWindow. It panics when the window is below one segment.
func Start(window int) Subflow {
	if window < 1 {
		panic(fmt.Sprintf("BUG: a subflow starts with a window of %d segments", window))
	}
	return Subflow{Cwnd: float64(window), Ssthresh: NoThreshold}
}

// Ack is one acknowledgement of new data.
type Ack struct {
	// Now is the time on the caller's monotonic clock.
	Now time.Duration
	// Segments is the number of segments newly acknowledged.
	Segments int
	// RTT is its round-trip time sample, or 0: of the first segment that it acknowledges, with the
	// delay of the acknowledgment.
	RTT time.Duration
	// Limited: the sender was limited by the congestion window. Otherwise the window does not
	// grow (RFC 9293 leaves it open; RFC 7661, section 4.3, and Linux' tcp_is_cwnd_limited).
	Limited bool
}

// Control is the congestion control of one connection. It may hold state, so each connection needs
// its own. s is all subflows of the connection in an order that never changes, i the subflow
// concerned. No call allocates.
type Control interface {
	// Acked is called for an acknowledgement outside of recovery. It is not called for those in
	// recovery, nor for the one that ends it.
	Acked(s []Subflow, i int, a Ack)
	// Lost is called when fast recovery starts, once for each window of losses. It sets
	// Ssthresh, and Cwnd to the window during and after recovery.
	Lost(s []Subflow, i int, now time.Duration)
	// TimedOut is called when the retransmission timer expires. It is not called when the timer
	// expires again for the same segment: ssthresh stays the same (RFC 5681, section 3.1).
	TimedOut(s []Subflow, i int, now time.Duration)
}

// A Sampler is a Control that has a use for each round-trip time.
type Sampler interface {
	// Sampled is called for the round-trip time of each acknowledgement, cumulative or selective,
	// before Acked: that of the segment that was sent last of those that it acknowledges first
	// (pkts_acked of Linux' congestion controls).
	Sampled(s []Subflow, i int, now, rtt time.Duration)
}

// controls is the table of congestion controls, in the order of Names.
var controls = []struct {
	name string
	// kernel is the kernel's name, if that is another.
	kernel string
	// make is nil for a control that only the kernel has.
	make func() Control
}{
	{name: "newreno", kernel: "reno", make: func() Control { return new(newReno) }},
	{name: "cubic", make: func() Control { return new(cubic) }},
	{name: "vegas", make: func() Control { return new(vegas) }},
	{name: "lia", make: func() Control { return new(lia) }},
	{name: "olia", make: func() Control { return new(olia) }},
	{name: "balia", make: func() Control { return new(balia) }},
	{name: "wvegas", make: func() Control { return new(wvegas) }},
	{name: "bbr"},
}

// Names returns the names that New accepts.
func Names() []string { return names(false) }

// Known returns the names of all controls: those that New accepts, then those that only the kernel
// has.
func Known() []string { return names(true) }

func names(kernels bool) []string {
	var list []string
	for _, c := range controls {
		if kernels || c.make != nil {
			list = append(list, c.name)
		}
	}
	return list
}

// InKernel returns the kernel's name of a control, which is its own unless the table has another.
func InKernel(name string) string {
	for _, c := range controls {
		if c.name == name && c.kernel != "" {
			return c.kernel
		}
	}
	return name
}

// OfKernel is the inverse of InKernel.
func OfKernel(name string) string {
	for _, c := range controls {
		if c.kernel == name && name != "" {
			return c.name
		}
	}
	return name
}

// New returns a control for one connection.
func New(name string) (Control, error) {
	for _, c := range controls {
		if c.name == name && c.make != nil {
			return c.make(), nil
		}
	}
	return nil, fmt.Errorf("choose congestion control %q: want one of %s", name, strings.Join(Names(), ", "))
}
