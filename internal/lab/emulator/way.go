package emulator

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// way is one direction of a link: from the ring of a port through a pipe to the other port. It
// belongs to the relay's goroutine.
type way struct {
	from, to *port
	longest  int
	pipe     *linkmodel.Pipe[int32]
	arena    *arena
	steps    linkmodel.Schedule // pending; At is in the relay's time
	log      *slog.Logger

	// emptied is when the ring was last seen empty: the frames in it arrived later.
	emptied time.Duration
	staged  [batch]linkmodel.Arrival[int32]
	logged  map[string]bool // causes that were logged

	drops                     Drops
	delivered, deliveredBytes uint64
	late                      histogram
}

// takeBatch limits the number of frames per take, and so how long one direction delays the other.
const takeBatch = 64

// take moves frames from the ring into the pipe, and reports whether there may be more. offset
// converts CLOCK_REALTIME in nanoseconds to the relay's time.
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
		w.logOnce("checksum", "frame without its checksum dropped: offloads of the sending node's interface are on")
		return
	case !f.whole() || f.length() > w.longest:
		w.drops.Oversize++
		w.logOnce("oversize", "frame longer than the MTU dropped: offloads of the sending node's interface are on", "bytes", f.header.Len)
		return
	}
	slot, ok := w.arena.take()
	if !ok {
		w.drops.Memory++
		w.logOnce("memory", "frame dropped: all memory of the link is in use", "frames", w.arena.maxSlots)
		return
	}
	n := f.copyTo(w.arena.space(slot))
	w.arena.fill(slot, n)
	// The timestamp is in real time, which may be set meanwhile.
	at := min(max(time.Duration(f.stamp()+offset), w.emptied), now)
	w.change(at)
	w.pipe.Arrive(at, int32(n), &slot)
}

// change applies the steps of the schedule up to and at the time now.
func (w *way) change(now time.Duration) {
	for len(w.steps) > 0 && w.steps[0].At <= now {
		w.pipe.Set(w.steps[0].At, w.pipe.Profile().With(w.steps[0].Change))
		w.steps = w.steps[1:]
	}
}

// give sends the frames that are due, and reports whether there may be more.
func (w *way) give(clock func() time.Duration) bool {
	now := clock()
	w.change(now)
	n := 0
	for n < batch {
		a, ok := w.pipe.Due(now)
		if !ok {
			break
		}
		w.staged[n] = a
		w.to.stage(n, w.arena.bytes(a.Frame))
		n++
	}
	for sent := 0; sent < n; {
		k, err := w.to.send(sent, n)
		// The kernel returns an error rather than 0, but the loop must not depend on that.
		if err != nil || k == 0 {
			w.refused(err)
			sent++
			continue
		}
		after := clock()
		for _, a := range w.staged[sent : sent+k] {
			w.delivered++
			w.deliveredBytes += uint64(a.Size)
			w.late.add(after - a.At)
		}
		sent += k
	}
	for _, a := range w.staged[:n] {
		w.arena.Release(a.Frame)
	}
	return n == batch
}

// refused counts a frame that the kernel did not accept.
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
		w.logOnce(fmt.Sprint(err), "kernel refused a frame", "err", err)
	}
}

// flush drops all frames in the pipe and counts them as Drops.Down.
func (w *way) flush() { w.drops.Down += uint64(w.pipe.Flush()) }

// logOnce logs each cause once, whatever the number of frames.
func (w *way) logOnce(cause, message string, args ...any) {
	if w.logged[cause] {
		return
	}
	w.logged[cause] = true
	w.log.Warn(message, append([]any{"from", w.from.name, "to", w.to.name}, args...)...)
}

// next returns the time of the next delivery or step of the schedule, unless a frame arrives
// earlier.
func (w *way) next() time.Duration {
	at := w.pipe.Next()
	if len(w.steps) > 0 {
		at = min(at, w.steps[0].At)
	}
	return at
}

// least returns the minimum time from the arrival of a frame to its delivery, with the current
// profile.
func (w *way) least() time.Duration { return w.pipe.Least() }

// statistics reads the counters. They do not include frames that are still in the ring.
func (w *way) statistics() (Statistics, error) {
	overruns, err := w.from.overruns()
	if err != nil {
		return Statistics{}, err
	}
	w.drops.Overrun += overruns
	c := w.pipe.Counted()
	waiting, size := w.pipe.Waiting()
	d := w.drops
	d.Queue, d.RED, d.CoDel, d.Loss = c.Tail, c.RED, c.CoDel, c.Lost
	refusedOnEntry := d.Checksum + d.Memory + d.Overrun
	return Statistics{
		Profile: w.pipe.Profile(),
		Arrived: c.Arrived + refusedOnEntry, ArrivedBytes: c.ArrivedBytes,
		Delivered: w.delivered, DeliveredBytes: w.deliveredBytes,
		Duplicated: c.Duplicated, Marked: c.Marked, Drops: d,
		Waiting: waiting, WaitingBytes: int64(size), Flying: w.pipe.Flying(),
		Late: w.late.lateness(),
	}, nil
}

// defaultMemory is the default of Options.Memory: 1.3 s at 400 Mbit/s.
const defaultMemory = 64 * unit.MiB
