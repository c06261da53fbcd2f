package labrun

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// wakeEvery is the time that the thread of wakes sleeps.
const wakeEvery = 10 * time.Millisecond

// wakes measures how late a thread of normal priority wakes on this host: by so much the host may
// have delayed what a lab does, too.
type wakes struct {
	mu sync.Mutex
	// worst are the longest delays since the calls of begin that have not ended.
	worst map[*time.Duration]struct{}
	done  chan struct{}
	ended sync.WaitGroup
}

// watchWakes starts measuring. The caller calls stop.
func watchWakes() *wakes {
	w := &wakes{worst: map[*time.Duration]struct{}{}, done: make(chan struct{})}
	w.ended.Go(w.measure)
	return w
}

func (w *wakes) stop() {
	close(w.done)
	w.ended.Wait()
}

func (w *wakes) measure() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case <-w.done:
			return
		default:
		}
		due := time.Now().Add(wakeEvery)
		sleep := unix.NsecToTimespec(int64(wakeEvery))
		// A signal ends the sleep early, which is no delay.
		_ = unix.Nanosleep(&sleep, nil)
		w.observe(time.Since(due))
	}
}

func (w *wakes) observe(late time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for worst := range w.worst {
		*worst = max(*worst, late)
	}
}

// begin returns a function to call once, which returns the longest delay since begin.
func (w *wakes) begin() func() time.Duration {
	worst := new(time.Duration)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.worst[worst] = struct{}{}
	return func() time.Duration {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.worst, worst)
		return *worst
	}
}
