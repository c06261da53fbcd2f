// Package codel is the law of controlled delay (RFC 8289), which decides from the time that packets
// spend in a queue on which of them congestion is signaled. It has no queue and no clock.
package codel

import (
	"math"
	"time"
)

// Law is the parameters of the law.
type Law struct {
	// Target is the acceptable standing delay (section 4.4), Interval a round-trip time that
	// most flows do not exceed (section 4.3).
	Target, Interval time.Duration
	// Frame is the maximum size of a packet in bytes: a queue of one is never too long.
	Frame int
}

// State is the state of a queue, named as in section 5. The zero value is that of an empty queue.
type State struct {
	above           bool // firstAbove is set
	firstAbove      time.Duration
	dropNext        time.Duration
	count, previous int // previous is lastcount_
	dropping        bool
}

// Queue is the queue from which packets are dequeued.
type Queue[P any] interface {
	// Pop removes the first packet and returns when it arrived; ok is false when there is none.
	Pop() (p P, arrived time.Duration, ok bool)
	// Bytes returns the length of the queue.
	Bytes() int
	// Signal signals congestion on a dequeued packet: it returns true if the packet is to be
	// sent nevertheless, as one that was marked, and false if it was dropped.
	Signal(P) bool
}

// Dequeue returns the packet to send at the time now, and false when none is left (section 5.6). A
// packet that is marked instead of dropped is returned, as in Linux.
func Dequeue[P any](s *State, l Law, now time.Duration, q Queue[P]) (P, bool) {
	p, exists, mayDrop := take(s, l, now, q)
	switch {
	case s.dropping:
		if !mayDrop {
			s.dropping = false
		}
		for s.dropping && now >= s.dropNext {
			s.count++
			if q.Signal(p) {
				s.dropNext = control(s.dropNext, l.Interval, s.count)
				break
			}
			if p, exists, mayDrop = take(s, l, now, q); !mayDrop {
				s.dropping = false
			} else {
				s.dropNext = control(s.dropNext, l.Interval, s.count)
			}
		}
	case mayDrop:
		if !q.Signal(p) {
			p, exists, _ = take(s, l, now, q)
		}
		s.dropping = true
		// If the last dropping state ended recently, start with its drop rate, which
		// controlled the queue.
		delta := s.count - s.previous
		s.count = 1
		if delta > 1 && now-s.dropNext < 16*l.Interval {
			s.count = delta
		}
		s.dropNext = control(now, l.Interval, s.count)
		s.previous = s.count
	}
	return p, exists
}

// take is dodequeue of section 5; mayDrop is its ok_to_drop.
func take[P any](s *State, l Law, now time.Duration, q Queue[P]) (p P, exists, mayDrop bool) {
	p, arrived, exists := q.Pop()
	switch {
	case !exists:
		s.above = false
	case now-arrived < l.Target || q.Bytes() <= l.Frame:
		s.above = false
	case !s.above:
		s.above, s.firstAbove = true, now+l.Interval
	default:
		mayDrop = now >= s.firstAbove
	}
	return p, exists, mayDrop
}

// control returns the time of the next signal by the control law (section 3.3).
func control(t, interval time.Duration, count int) time.Duration {
	return t + time.Duration(float64(interval)/math.Sqrt(float64(count)))
}
