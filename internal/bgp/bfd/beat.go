package bfd

import (
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A beat is the last packet of a session that is up. Helpers send it again when the session's loop
// is late.
//
// While a link with a full table goes down, or a network namespace with one is removed, the kernel
// deletes the routes with their table locked and softirqs disabled: for a second and more for a
// million routes, it runs nothing else on that CPU, whatever its priority, and no thread that it
// woke there moves to another CPU. A helper is bound to one CPU, and there are several.
type beat struct {
	mu    sync.Mutex
	conn  net.Conn // nil: there is nothing to send
	bytes []byte
	every time.Duration // the longest time between packets of the loop
	sent  time.Time     // by loop or helper
	alive time.Time     // sent by the loop
}

const (
	// beatLate times the interval is how late a packet is that a helper sends, in percent.
	beatLate = 125
	// beatMost is how long helpers send without the loop: then it hangs.
	beatMost = 5 * time.Second
	// helpers are on so many CPUs.
	helpers = 2
	// helperLeast and helperMost bound the time between two looks of a helper.
	helperLeast = 2 * time.Millisecond
	helperMost  = 100 * time.Millisecond
)

// set records what the loop sends at now, with the longest time between packets.
func (b *beat) set(conn net.Conn, p packet, every time.Duration, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.state != stateUp || every == 0 {
		b.conn = nil
		return
	}
	p.poll, p.final = false, false
	b.conn, b.bytes, b.every, b.sent, b.alive = conn, p.encode(), every, now, now
}

// clear forgets the packet. A helper does not send it after that.
func (b *beat) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn = nil
}

// assist sends the packet again if it is late at now, and returns the interval of the session's
// packets; 0 means that there is nothing to send.
func (b *beat) assist(now time.Time) (every time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == nil || now.Sub(b.alive) > beatMost {
		return 0
	}
	if now.Sub(b.sent) >= b.every*beatLate/100 {
		b.sent = now
		if c, ok := b.conn.(syscall.Conn); ok {
			if raw, err := c.SyscallConn(); err == nil {
				// It does not wait, and the loop handles errors.
				_ = raw.Write(func(fd uintptr) bool { _, _ = unix.Write(int(fd), b.bytes); return true })
			}
		}
	}
	return b.every
}

// assist has the helpers of this process send what is late, until it ends.
func (e *engine) assist() {
	cpus := someCPUs(helpers)
	if len(cpus) < 2 {
		return
	}
	// A helper that sleeps keeps a P until it is taken from it, which would delay the loops.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + len(cpus))
	for _, cpu := range cpus {
		go func() {
			runtime.LockOSThread() // and never unlocked
			var only unix.CPUSet
			only.Set(cpu)
			if err := unix.SchedSetaffinity(0, &only); err != nil {
				return
			}
			for {
				sleep := unix.NsecToTimespec(e.assistAll(time.Now()).Nanoseconds())
				// Not time.Sleep: the runtime's timers are what may not run.
				_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &sleep, nil)
			}
		}()
	}
}

// assistAll sends the packets of all sessions that are late, and returns when to look again.
func (e *engine) assistAll(now time.Time) time.Duration {
	var peers []*peer
	if all := e.all.Load(); all != nil {
		peers = *all
	}
	next := helperMost
	for _, p := range peers {
		if every := p.out.beat.assist(now); every > 0 {
			next = min(next, max(every/8, helperLeast))
		}
	}
	return next
}

// someCPUs returns up to n CPUs that this process may use, as far apart as possible.
func someCPUs(n int) (cpus []int) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	if all := len(cpus); all > n {
		for i := range n {
			cpus[i] = cpus[i*(all-1)/(n-1)]
		}
		cpus = cpus[:n]
	}
	return cpus
}
