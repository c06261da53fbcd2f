package cc

import (
	"math"
	"time"
)

// The parameters of Cubic: C, the multiplicative decrease, and the growth of a Reno with the same
// mean rate, in the units of Linux (net/ipv4/tcp_cubic.c: bic_scale, beta, BICTCP_BETA_SCALE,
// beta_scale).
const (
	cubicC         = 410.0 / 1024 // segments per cubic second
	cubicBeta      = 717
	cubicBetaScale = 1024
	cubicReno      = 15 // a segment for each 15/8 windows
	// cubicCount bounds for how many segments the window grows by one: 20 before the first loss, 100
	// windows at the plateau, and 2 at least.
	cubicFirst, cubicPlateau, cubicFastest = 20, 100, 2
	// jiffy is the unit of Linux' time here, CONFIG_HZ=250. The growth is computed once in a jiffy,
	// and while the window stays the same once in more than jiffiesSame.
	jiffy       = 4 * time.Millisecond
	jiffiesSame = int64(time.Second / jiffy / 32)
)

// cubic is the Cubic of Linux on each subflow independently (RFC 9438, with fast convergence and
// the Reno-friendly region). Windows are whole segments, as there: at a window of 7 segments that is
// up to a tenth of the rate. HyStart has it leave slow start early (Subflow.HyStart).
//
// It differs from the RFC: the growth of the Reno-friendly region stays 0.53 segments for a window
// beyond the window before the loss, and is computed at most every 28 ms while the window stays the
// same; the window is reduced from its size, not from what is in flight.
type cubic struct{}

// cubicState is a congestion avoidance stage (struct bictcp).
type cubicState struct {
	wMax, origin uint32 // last_max_cwnd, bic_origin_point
	same         uint32 // the window at the last computation (last_cwnd)
	count        uint32 // the window grows by one for so many segments (cnt)
	counted      uint32 // segments since it grew (snd_cwnd_cnt)
	acks, reno   uint32 // segments and window of the Reno-friendly region (ack_cnt, tcp_cwnd)
	k            float64
	begun        bool  // the stage has begun
	epoch, last  int64 // jiffies: when it began, and of the last computation
}

func (*cubic) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	now := int64(a.Now / jiffy)
	if f.begun {
		f.epoch = min(f.epoch+int64(f.Idle/jiffy), now) // CA_EVENT_TX_START
	}
	f.Idle = 0
	if !a.Limited {
		return
	}
	acked := uint32(a.Segments)
	if f.Cwnd < f.Ssthresh { // tcp_slow_start
		next := min(f.Cwnd+float64(acked), f.Ssthresh, maxWindow)
		acked -= uint32(next - f.Cwnd)
		if f.Cwnd = next; acked == 0 {
			return
		}
	}
	f.update(now, acked)
	f.avoid(acked)
}

// update computes count (bictcp_update).
func (f *Subflow) update(now int64, acked uint32) {
	window := uint32(f.Cwnd)
	f.acks += acked
	if f.same == window && now-f.last <= jiffiesSame {
		return
	}
	if !f.begun || now != f.last {
		f.same, f.last = window, now
		if !f.begun {
			f.begin(now, window, acked)
		}
		f.count = f.cubicCount(now, window)
	}
	for each := max(uint32(uint64(window)*cubicReno>>3), 1); f.acks > each; f.acks -= each {
		f.reno++
	}
	if f.reno > window {
		f.count = min(f.count, window/(f.reno-window))
	}
	f.count = max(f.count, cubicFastest)
}

// begin begins a stage. If the window is already at W_max, or W_max is unset because there was no
// loss or a timeout reset it, the cubic function starts at its plateau.
func (f *Subflow) begin(now int64, window, acked uint32) {
	f.begun, f.epoch, f.acks, f.reno = true, now, acked, window
	if f.wMax > window {
		f.k, f.origin = math.Cbrt(float64(f.wMax-window)/cubicC), f.wMax // RFC 9438, equation 2
	} else {
		f.k, f.origin = 0, window
	}
}

// cubicCount returns for how many segments the window grows by one, by the cubic function at a
// round-trip time from now (RFC 9438, equation 1).
func (f *Subflow) cubicCount(now int64, window uint32) uint32 {
	trip := (f.leaving.shortest + jiffy - 1) / jiffy
	t := (time.Duration(now-f.epoch) + trip) * jiffy
	away := t.Seconds() - f.k
	target := float64(f.origin) + math.Copysign(math.Floor(cubicC*math.Abs(away*away*away)), away)
	count := uint32(min(cubicPlateau*uint64(window), math.MaxUint32))
	if grows := target - float64(window); grows >= 1 {
		count = uint32(float64(window) / grows)
	}
	if f.wMax == 0 {
		count = min(count, cubicFirst)
	}
	return count
}

// avoid grows the window by one for each count segments (tcp_cong_avoid_ai).
func (f *Subflow) avoid(acked uint32) {
	if f.counted >= f.count {
		f.counted = 0
		f.Cwnd++
	}
	f.counted += acked
	f.Cwnd = min(f.Cwnd+float64(f.counted/f.count), maxWindow)
	f.counted %= f.count
}

// reduced returns ssthresh after a loss, and sets W_max (cubictcp_recalc_ssthresh). Fast
// convergence: a window that did not return to W_max releases more bandwidth to new flows.
func (f *Subflow) reduced() float64 {
	window := uint32(f.Cwnd)
	if window < f.wMax {
		f.wMax = uint32(uint64(window) * (cubicBetaScale + cubicBeta) / (2 * cubicBetaScale))
	} else {
		f.wMax = window
	}
	f.begun, f.counted = false, 0
	least := float64(minThreshold)
	if f.MinThreshold > 0 {
		least = f.MinThreshold
	}
	return max(float64(uint64(window)*cubicBeta/cubicBetaScale), least)
}

func (*cubic) Lost(s []Subflow, i int, _ time.Duration) {
	f := &s[i]
	f.Ssthresh = f.reduced()
	f.Cwnd = f.Ssthresh
}

func (*cubic) TimedOut(s []Subflow, i int, _ time.Duration) {
	f := &s[i]
	f.Ssthresh, f.Cwnd = f.reduced(), lossWindow
	f.cubicState, f.leaving = cubicState{}, hystartState{} // bictcp_reset
}
