package emulator

import (
	"math/bits"
	"time"

	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// Statistics are the counters of one direction since New, and the frames in it. Bytes count whole
// Ethernet frames without FCS.
type Statistics struct {
	// Profile is the current profile.
	Profile linkmodel.Profile `json:"profile"`
	// Arrived counts the frames that the relay received from the sending node.
	Arrived      uint64 `json:"arrived"`
	ArrivedBytes uint64 `json:"arrived_bytes"`
	// Delivered counts the frames that the receiving node's interface accepted.
	Delivered      uint64 `json:"delivered"`
	DeliveredBytes uint64 `json:"delivered_bytes"`
	Duplicated     uint64 `json:"duplicated"`
	// Marked counts the frames that the queue marked instead of dropping (ECN).
	Marked uint64 `json:"marked"`
	Drops  Drops  `json:"drops"`
	// Waiting is the number of queued frames, without the frame being sent. Flying is the
	// number of frames being sent or on the wire.
	Waiting      int   `json:"waiting"`
	WaitingBytes int64 `json:"waiting_bytes"`
	Flying       int   `json:"flying"`
	// Late is by how much frames were delivered later than scheduled.
	Late Lateness `json:"late"`
}

// Drops counts frames that were not delivered, by cause.
type Drops struct {
	// Queue, RED and CoDel are drops by the queue, Loss by the wire, as configured.
	Queue uint64 `json:"queue"`
	RED   uint64 `json:"red"`
	CoDel uint64 `json:"codel"`
	Loss  uint64 `json:"loss"`
	// Down frames arrived at an interface that was down, or were in flight when it went down.
	Down uint64 `json:"down"`
	// Overrun frames arrived faster than the relay could read them: the emulation was not
	// exact.
	Overrun uint64 `json:"overrun"`
	// Memory frames did not fit into Options.Memory: the emulation was not exact.
	Memory uint64 `json:"memory"`
	// Oversize frames exceed the MTU, which includes an 802.1ad tag but not an 802.1Q tag.
	// Checksum frames have a checksum left to hardware. The usual cause of both is that Prepare
	// was not called for the sending node's interface.
	Oversize uint64 `json:"oversize"`
	Checksum uint64 `json:"checksum"`
	// Refused frames were not accepted by the receiving node, for example because its backlog
	// was full.
	Refused uint64 `json:"refused"`
}

// Lateness summarizes how late frames were delivered, with a resolution of about 12 %.
type Lateness struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
	// Over counts the frames that were later than LateBound, as a counter for differences.
	Over uint64 `json:"over"`
}

// LateBound is the lateness from which on an emulation distorts what runs over the link: the time
// of several full frames at 10 Mbit/s.
const LateBound = 5 * time.Millisecond

const (
	// A step of the histogram is an eighth of a power of two, from 128 ns on.
	histogramUnit  = 16 * time.Nanosecond
	histogramSteps = 8
)

// histogram counts durations.
type histogram struct {
	counts [40 * histogramSteps]uint64
	total  uint64
	max    time.Duration
	over   uint64 // LateBound
}

func (h *histogram) add(d time.Duration) {
	d = max(0, d)
	h.counts[min(bucket(d), len(h.counts)-1)]++
	h.total++
	h.max = max(h.max, d)
	if d > LateBound {
		h.over++
	}
}

// bucket returns the bucket of a duration. Buckets are linear up to the first power of two that has
// all steps, and logarithmic above.
func bucket(d time.Duration) int {
	v := uint64(d / histogramUnit)
	shift := max(0, bits.Len64(v)-bits.Len64(histogramSteps))
	return shift*histogramSteps + int(v>>shift)
}

// upper returns the upper bound of a bucket.
func upper(bucket int) time.Duration {
	shift := max(0, bucket/histogramSteps-1)
	return time.Duration(bucket-shift*histogramSteps+1) << shift * histogramUnit
}

// quantile returns the q-quantile, rounded up to the end of its bucket, or 0 without durations.
func (h *histogram) quantile(q float64) time.Duration {
	rest := uint64(q * float64(h.total))
	for i, n := range h.counts {
		if rest < n {
			return min(upper(i), h.max)
		}
		rest -= n
	}
	return h.max
}

func (h *histogram) lateness() Lateness {
	return Lateness{P50: h.quantile(0.5), P99: h.quantile(0.99), Max: h.max, Over: h.over}
}
