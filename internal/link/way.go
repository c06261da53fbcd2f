package link

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/unit"
)

// way is one direction of a link: from the ring of a port through a pipe to the other port. It belongs to the relay's
// goroutine.
type way struct {
	from, to *port
	longest  int
	pipe     *pipe
	arena    *arena
	steps    Schedule // still to come; At is the relay's time
	log      *slog.Logger

	// emptied is when the ring was last seen empty: what is in it came later.
	emptied time.Duration
	staged  [batch]arrival
	told    map[string]bool // causes that were logged

	drops                     Drops
	delivered, deliveredBytes uint64
	late                      histogram
}

// takeBatch bounds how long one direction may keep the other waiting.
const takeBatch = 64

// take moves frames from the ring into the pipe, and says whether there may be more. offset is what makes a time of the
// relay of nanoseconds of real time.
func (w *way) take(now time.Duration, offset int64) bool {
	for range takeBatch {
		f, ok := w.from.peek()
		if !ok {
			w.emptied = now
			return false
		}
		w.accept(f, now, offset)
		w.from.done(f)
	}
	return true
}

func (w *way) accept(f frame, now time.Duration, offset int64) {
	switch {
	case !f.summed():
		w.drops.Checksum++
		w.tell("checksum", "frame without its checksum dropped: offloads of the sending node's interface are on")
		return
	case !f.whole() || f.length() > w.longest:
		w.drops.Oversize++
		w.tell("oversize", "frame longer than the MTU dropped: offloads of the sending node's interface are on", "bytes", f.header.Len)
		return
	}
	slot, ok := w.arena.take()
	if !ok {
		w.drops.Memory++
		w.tell("memory", "frame dropped: all memory of the link is in use", "frames", w.arena.most)
		return
	}
	n := f.copyTo(w.arena.space(slot))
	w.arena.fill(slot, n)
	// The stamp is of the real time, which someone may set in between.
	at := min(max(time.Duration(f.stamp()+offset), w.emptied), now)
	w.change(at)
	w.pipe.arrive(at, int32(n), slot)
}

// change does the steps of the schedule until and at the time now.
func (w *way) change(now time.Duration) {
	for len(w.steps) > 0 && w.steps[0].At <= now {
		w.pipe.set(w.steps[0].At, w.pipe.profile.With(w.steps[0].Change))
		w.steps = w.steps[1:]
	}
}

// give sends what is due, and says whether there may be more.
func (w *way) give(clock func() time.Duration) bool {
	now := clock()
	w.change(now)
	n := 0
	for n < batch {
		a, ok := w.pipe.due(now)
		if !ok {
			break
		}
		w.staged[n] = a
		w.to.stage(n, w.arena.bytes(a.slot))
		n++
	}
	for sent := 0; sent < n; {
		k, err := w.to.send(sent, n)
		// The kernel says "0 sent" only by an error, but a loop must not depend on that.
		if err != nil || k == 0 {
			w.refused(err)
			sent++
			continue
		}
		after := clock()
		for _, a := range w.staged[sent : sent+k] {
			w.delivered++
			w.deliveredBytes += uint64(a.size)
			w.late.add(after - a.at)
		}
		sent += k
	}
	for _, a := range w.staged[:n] {
		w.arena.release(a.slot)
	}
	return n == batch
}

// refused counts a frame that the kernel did not take.
func (w *way) refused(err error) {
	switch {
	case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		w.drops.Down++
	case errors.Is(err, unix.EMSGSIZE):
		w.drops.Oversize++
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN):
		w.drops.Refused++
	default:
		w.drops.Refused++
		w.tell(fmt.Sprint(err), "frame not taken by the kernel", "err", err)
	}
}

// flush loses what is in the pipe.
func (w *way) flush() { w.drops.Down += uint64(w.pipe.flush()) }

// tell logs each cause once: a flood of frames must not become a flood of lines.
func (w *way) tell(cause, message string, args ...any) {
	if w.told[cause] {
		return
	}
	w.told[cause] = true
	w.log.Warn(message, append([]any{"from", w.from.name, "to", w.to.name}, args...)...)
}

// next is when there is something to do unless a frame comes.
func (w *way) next() time.Duration {
	at := w.pipe.next()
	if len(w.steps) > 0 {
		at = min(at, w.steps[0].At)
	}
	return at
}

// least is the shortest time from the arrival of a frame to its delivery, until the next step of the schedule.
func (w *way) least() time.Duration { return w.pipe.profile.least() }

// statistics reads the counters. They are complete but for frames that are still in the ring.
func (w *way) statistics() (Statistics, error) {
	overruns, err := w.from.overruns()
	if err != nil {
		return Statistics{}, err
	}
	w.drops.Overrun += overruns
	c := &w.pipe.counted
	d := w.drops
	d.Queue, d.RED, d.CoDel, d.Loss = c.tail, c.red, c.codel, c.lost
	refusedOnEntry := d.Checksum + d.Memory + d.Overrun
	return Statistics{
		Profile: w.pipe.profile,
		Arrived: c.arrived + refusedOnEntry, ArrivedBytes: c.arrivedBytes,
		Delivered: w.delivered, DeliveredBytes: w.deliveredBytes,
		Duplicated: c.duplicated, Drops: d,
		Waiting: w.pipe.queue.len(), WaitingBytes: int64(w.pipe.queue.size), Flying: len(w.pipe.fly),
		Late: w.late.lateness(),
	}, nil
}

// memory is what the frames of one direction may take unless told otherwise: 1.3 s at 400 Mbit/s.
const defaultMemory = 64 * unit.MiB
