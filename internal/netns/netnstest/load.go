package netnstest

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/netns"
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

// Cost is what the process has used: CPU time, and allocations. On a busy machine it says more than a rate.
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

// TCP sends as much as possible over one connection to an address in another namespace, and measures the
// last three quarters of the time.
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

// UDP offers datagrams of a size, at least 4 bytes, to an address in another namespace: so many per
// second, or as many as possible if that is 0.
func UDP(from, to string, at netip.AddrPort, size, rate int, length time.Duration) (Load, error) {
	var in, out *net.UDPConn
	if err := errors.Join(
		netns.Do(to, func() (err error) { in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err }),
		netns.Do(from, func() (err error) {
			out, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
			return err
		})); err != nil {
		return Load{}, err
	}
	defer in.Close()
	defer out.Close()
	raw, err := in.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 16<<20)
		}), err)
	}
	if err != nil {
		return Load{}, err
	}
	var got, late atomic.Int64
	go func() {
		highest := uint32(0)
		for data := make([]byte, size+1); ; {
			n, err := in.Read(data)
			if err != nil {
				return
			}
			if n != size {
				continue
			}
			got.Add(1)
			if v := binary.BigEndian.Uint32(data); v < highest {
				late.Add(1)
			} else {
				highest = v
			}
		}
	}()
	var r Load
	data := make([]byte, size)
	before, start := CostNow(), time.Now()
	for ; r.Took < length; r.Took = time.Since(start) {
		due := r.Sent + 64
		if rate > 0 {
			due = int(r.Took.Seconds() * float64(rate))
		}
		for ; r.Sent < due; r.Sent++ {
			binary.BigEndian.PutUint32(data, uint32(r.Sent))
			if _, err := out.Write(data); err != nil {
				return Load{}, err
			}
		}
		if rate > 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	time.Sleep(200 * time.Millisecond) // for the last ones
	r.Cost = CostNow().Since(before)
	r.Received, r.Late = int(got.Load()), int(late.Load())
	r.Bytes = r.Received * size
	return r, nil
}
