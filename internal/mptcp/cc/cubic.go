package cc

import (
	"math"
	"time"
)

// The parameters of CUBIC (RFC 9438, sections 4.1, 4.3 and 4.6).
const (
	cubicC     = 0.4 // segments per cubic second
	cubicBeta  = 0.7
	cubicAlpha = 3 * (1 - cubicBeta) / (1 + cubicBeta)
)

// cubic is RFC 9438 on each subflow independently, with fast convergence (section 4.7) and the
// Reno-friendly region (4.3). Subflow.HyStart has it leave slow start early; without it there is no
// such heuristic (4.10 only recommends HyStart++).
//
// A float holds the cubic's time in seconds; Linux has the same in integers: t and K in 1/1024 s, C
// scaled by 2^10 * 41/1024, and a table for the cube root.
type cubic struct{}

// cubicState is a congestion avoidance stage. Windows are in segments, K in seconds.
type cubicState struct {
	wMax, wEst, prior, k float64
	begun                bool          // the stage has begun
	epoch                time.Duration // when, moved by the time in which the window was not the limit
	seen                 time.Duration // the last acknowledgement
}

func (*cubic) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	before := f.seen
	f.seen = a.Now
	if !a.Limited {
		f.epoch += a.Now - before // section 4.2: the time in which the window does not grow does not count
		return
	}
	f.hystart(a)
	if f.slowStart(a.Segments) {
		return
	}
	if !f.begun {
		f.beginStage(a.Now)
	}
	segments := min(float64(a.Segments), f.Cwnd)

	alpha := cubicAlpha
	if f.wEst >= f.prior {
		alpha = 1
	}
	f.wEst = min(f.wEst+alpha*segments/f.Cwnd, maxWindow)

	t := (a.Now - f.epoch).Seconds()
	if f.wCubic(t) < f.wEst {
		f.Cwnd = max(f.Cwnd, f.wEst)
		return
	}
	target := min(max(f.wCubic(t+f.SRTT.Seconds()), f.Cwnd), 1.5*f.Cwnd)
	f.grow(a.Segments, (target-f.Cwnd)/f.Cwnd)
}

// beginStage begins a congestion avoidance stage (section 4.2). If the window is already at W_max,
// or W_max is unset because there was no loss or a timeout reset it (section 4.8), the cubic
// function starts at its plateau.
func (f *Subflow) beginStage(now time.Duration) {
	f.begun, f.epoch, f.wEst = true, now, f.Cwnd
	if f.wMax > f.Cwnd {
		f.k = math.Cbrt((f.wMax - f.Cwnd) / cubicC) // equation 2
	} else {
		f.k, f.wMax = 0, f.Cwnd
	}
}

// wCubic is equation 1.
func (c *cubicState) wCubic(t float64) float64 { return cubicC*(t-c.k)*(t-c.k)*(t-c.k) + c.wMax }

func (*cubic) Lost(s []Subflow, i int, _ time.Duration) {
	f := &s[i]
	// Fast convergence (section 4.7): a window that did not return to W_max releases more
	// bandwidth to new flows.
	if f.Cwnd < f.wMax {
		f.wMax = f.Cwnd * (1 + cubicBeta) / 2
	} else {
		f.wMax = f.Cwnd
	}
	f.prior, f.begun = f.Cwnd, false
	f.lost(cubicBeta, minThreshold)
}

func (*cubic) TimedOut(s []Subflow, i int, _ time.Duration) {
	f := &s[i]
	f.wMax, f.prior, f.begun = 0, f.Cwnd, false
	f.timedOut(cubicBeta, minThreshold)
}
