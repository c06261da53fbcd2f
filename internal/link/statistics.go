package link

import (
	"math/bits"
	"time"

	"github.com/tabane/tabane/internal/channel"
)

// Statistics are what happened in one direction since the link was made, and what is in it. Bytes
// are of whole Ethernet frames without FCS.
type Statistics struct {
	// Profile is in force now.
	Profile channel.Profile `json:"profile"`
	// Arrived is what the sending node gave to the link and what the relay saw of it.
	Arrived      uint64 `json:"arrived"`
	ArrivedBytes uint64 `json:"arrived_bytes"`
	// Delivered is what the receiving node's interface took.
	Delivered      uint64 `json:"delivered"`
	DeliveredBytes uint64 `json:"delivered_bytes"`
	Duplicated     uint64 `json:"duplicated"`
	// Marked is what the queue marked in place of dropping (ECN).
	Marked uint64 `json:"marked"`
	Drops  Drops  `json:"drops"`
	// Waiting is in the queue now, without the frame that is being sent; Flying is being sent or on
	// the wire.
	Waiting      int   `json:"waiting"`
	WaitingBytes int64 `json:"waiting_bytes"`
	Flying       int   `json:"flying"`
	// Late is by how much frames were delivered later than they should.
	Late Lateness `json:"late"`
}

// Drops counts frames that were not delivered, by cause.
type Drops struct {
	// Queue, RED and CoDel are the queue's, Loss the wire's: what was asked for.
	Queue uint64 `json:"queue"`
	RED   uint64 `json:"red"`
	CoDel uint64 `json:"codel"`
	Loss  uint64 `json:"loss"`
	// Down frames met an interface that is down, or were on the wire when it went down.
	Down uint64 `json:"down"`
	// Overrun frames came faster than the relay could take them: the emulation was not exact.
	Overrun uint64 `json:"overrun"`
	// Memory frames would have been more on the way than Options.Memory holds: the emulation was
	// not exact.
	Memory uint64 `json:"memory"`
	// Oversize frames are longer than the MTU allows, to which a tag of 802.1ad counts, unlike one
	// of 802.1Q; Checksum frames have a checksum that hardware should have filled in: as a rule the
	// sending node's interface was not treated with Prepare.
	Oversize uint64 `json:"oversize"`
	Checksum uint64 `json:"checksum"`
	// Refused frames were not taken by the receiving node, for example because its backlog was
	// full.
	Refused uint64 `json:"refused"`
}

// Lateness sums up how late frames were delivered, to about 12 %.
type Lateness struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

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
}

func (h *histogram) add(d time.Duration) {
	d = max(0, d)
	h.counts[min(bucket(d), len(h.counts)-1)]++
	h.total++
	h.max = max(h.max, d)
}

// bucket is linear up to the first power of two that has all steps, and logarithmic from there on.
func bucket(d time.Duration) int {
	v := uint64(d / histogramUnit)
	shift := max(0, bits.Len64(v)-bits.Len64(histogramSteps))
	return shift*histogramSteps + int(v>>shift)
}

// upper is the end of a bucket.
func upper(bucket int) time.Duration {
	shift := max(0, bucket/histogramSteps-1)
	return time.Duration(bucket-shift*histogramSteps+1) << shift * histogramUnit
}

// quantile is the duration that the share q of all does not exceed, up to the width of a bucket; 0
// when there is none.
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
	return Lateness{P50: h.quantile(0.5), P99: h.quantile(0.99), Max: h.max}
}
