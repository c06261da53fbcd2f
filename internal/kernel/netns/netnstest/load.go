package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
)

// Load is what traffic between two network namespaces has brought, and what it has cost.
type Load struct {
	// Took is how long was measured, Bytes the payload that arrived meanwhile.
	Took  time.Duration
	Bytes int
	// Sent and Received are datagrams, Late those of the latter that later ones have overtaken.
	Sent, Received, Late int
	Cost
}

// Cost is what the process has used: CPU time, and allocations. On a busy machine it is more
// meaningful than a rate.
type Cost struct {
	CPU     time.Duration
	Mallocs uint64
}

// CostNow is what the process has used since it started.
func CostNow() Cost {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Cost{time.Duration(u.Utime.Nano() + u.Stime.Nano()), m.Mallocs}
}

// Since is what the process has used since an earlier time.
func (c Cost) Since(before Cost) Cost { return Cost{c.CPU - before.CPU, c.Mallocs - before.Mallocs} }

// TCP sends as much as possible over one connection to an address in another namespace, and
// measures the last three quarters of the time.
func TCP(from, to string, at netip.AddrPort, length time.Duration) (Load, error) {
	var l net.Listener
	if err := netns.Do(to, func() (err error) { l, err = net.Listen("tcp", at.String()); return err }); err != nil {
		return Load{}, err
	}
	defer l.Close()
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- netns.Do(from, func() error {
			c, err := net.DialTimeout("tcp", at.String(), 5*time.Second)
			if err != nil {
				return errors.Join(err, l.Close())
			}
			defer c.Close()
			for data := make([]byte, 1<<18); ; {
				select {
				case <-stop:
					return nil
				default:
				}
				if _, err := c.Write(data); err != nil {
					return err
				}
			}
		})
	}()
	c, err := l.Accept()
	if err != nil {
		return Load{}, errors.Join(err, <-ended)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10*time.Second + length)); err != nil {
		return Load{}, err
	}
	var r Load
	data, warm, start, before := make([]byte, 1<<18), false, time.Now(), CostNow()
	for ; r.Took < length; r.Took = time.Since(start) {
		n, err := c.Read(data)
		if err != nil {
			return Load{}, err
		}
		r.Bytes += n
		if !warm && time.Since(start) > length/4 {
			warm, r.Bytes, start, before = true, 0, time.Now(), CostNow()
		}
	}
	r.Cost = CostNow().Since(before)
	close(stop)
	if _, err := io.Copy(io.Discard, c); err != nil {
		return Load{}, err
	}
	return r, <-ended
}

// UDP offers datagrams of a size, at least 4 bytes, to an IPv4 address in another namespace: so
// many per second, or as many as possible if that is 0. Neither socket is one of Go's network
// poller, and the receiver reads once a millisecond: waking a poller for each datagram costs the
// sending processor more than a hop does.
func UDP(from, to string, at netip.AddrPort, size, rate int, length time.Duration) (Load, error) {
	to4 := &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	in, err := socket(to, unix.SOCK_NONBLOCK, func(fd int) error {
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20), unix.Bind(fd, to4))
	})
	if err != nil {
		return Load{}, fmt.Errorf("listen on %v: %w", at, err)
	}
	out, err := socket(from, 0, func(fd int) error { return unix.Connect(fd, to4) })
	if err != nil {
		return Load{}, errors.Join(fmt.Errorf("connect to %v: %w", at, err), unix.Close(in))
	}
	received, stop := make(chan Load), make(chan struct{})
	go func() { received <- receive(in, size, stop) }()
	r, err := send(out, size, rate, length)
	close(stop)
	got := <-received
	r.Received, r.Late, r.Bytes = got.Received, got.Late, got.Received*size
	return r, errors.Join(err, unix.Close(out), unix.Close(in))
}

// socket opens a socket for IPv4 datagrams in a namespace and prepares it.
func socket(namespace string, flags int, prepare func(fd int) error) (fd int, err error) {
	err = netns.Do(namespace, func() error {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|flags, 0); err != nil {
			return err
		}
		if err := prepare(fd); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		return nil
	})
	return fd, err
}

// receive counts the datagrams of a size that a socket gets, until stop is closed.
func receive(fd, size int, stop <-chan struct{}) (r Load) {
	highest := uint32(0)
	for data := make([]byte, size+1); ; {
		n, err := unix.Read(fd, data)
		if err != nil {
			select {
			case <-stop:
				return r
			case <-time.After(time.Millisecond):
				continue
			}
		}
		if n != size {
			continue
		}
		r.Received++
		if v := binary.BigEndian.Uint32(data); v < highest {
			r.Late++
		} else {
			highest = v
		}
	}
}

// send sends datagrams for a time, and waits for the last ones to arrive.
func send(fd, size, rate int, length time.Duration) (r Load, err error) {
	data := make([]byte, size)
	before, start := CostNow(), time.Now()
	for ; r.Took < length; r.Took = time.Since(start) {
		due := r.Sent + 64
		if rate > 0 {
			due = int(r.Took.Seconds() * float64(rate))
		}
		for ; r.Sent < due; r.Sent++ {
			binary.BigEndian.PutUint32(data, uint32(r.Sent))
			if _, err := unix.Write(fd, data); err != nil {
				return r, err
			}
		}
		if rate > 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	time.Sleep(min(length/2, 200*time.Millisecond)) // for the last ones
	r.Cost = CostNow().Since(before)
	return r, nil
}
