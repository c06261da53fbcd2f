package emulator

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/offload"
	"github.com/tabane/tabane/internal/kernel/realtime"
)

// These benchmarks measure between the sockets of the nodes: from a timestamp before the sender's
// system call to the timestamp of the receiver's kernel. Each also runs over a plain veth pair and
// a kernel bridge, which show the minimum of the machine.

const (
	payload = 1472 // of a UDP packet in a frame of 1514 bytes
	wire    = payload + 42
)

// wiring is a way to connect the nodes of a bed: a link, a bridge or a veth pair.
type wiring struct {
	name string
	// join connects the nodes. It returns nil for the child if there is no link.
	join func(b *testing.B, p linkmodel.Profile) (*bed, *child)
}

// byRelay runs the link in a process of its own, as in production: in this process it would share
// Go's scheduler with sender and receiver.
func byRelay(b *testing.B, p linkmodel.Profile) (*bed, *child) {
	d := newBed(b, 1500)
	config, err := json.Marshal(Config{A: "ra", B: "rb", Forward: p})
	if err != nil {
		b.Fatal(err)
	}
	c := &child{cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), childEnv+"="+d.middle+" "+string(config))
	c.cmd.Stdout, c.cmd.Stderr = &c.out, os.Stderr
	if c.input, err = c.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.stop(b) })
	return d, c
}

// childEnv is the environment variable that makes the test binary run a link. Its value is a
// namespace and a Config.
const childEnv = "TABANE_TEST_LINK"

// child is a link that runs in another process.
type child struct {
	cmd     *exec.Cmd
	input   io.Closer
	out     bytes.Buffer
	stopped bool
	report  Report
	cpu     time.Duration
}

// stop ends the process and sets report and cpu.
func (c *child) stop(b *testing.B) {
	if c == nil || c.stopped {
		return
	}
	c.stopped = true
	c.input.Close()
	if err := c.cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	c.cpu = c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
	if err := json.Unmarshal(c.out.Bytes(), &c.report); err != nil {
		b.Fatal(err)
	}
}

// beLink is the main function of a child. It returns at the end of standard input.
func beLink(text string) error {
	ns, config, _ := strings.Cut(text, " ")
	var o Options
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := json.Unmarshal([]byte(config), &o.Config); err != nil {
		return err
	}
	if err := realtime.Process(); err != nil {
		return err
	}
	var l *Link
	if err := netns.Do(ns, func() (err error) {
		l, err = New(o)
		return err
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := l.Run(ctx); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(l.Status())
}

// byBridge connects the nodes by a kernel bridge.
func byBridge(b *testing.B, _ linkmodel.Profile) (*bed, *child) {
	d := newBed(b, 1500)
	d.do(d.middle, func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
		errs := []error{netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge)}
		for _, name := range []string{"ra", "rb"} {
			end, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			errs = append(errs, offload.Prepare(name), netlink.LinkSetMaster(end, bridge), netlink.LinkSetUp(end))
		}
		return errors.Join(errs...)
	})
	return d, nil
}

// byVeth connects the nodes by one veth pair.
func byVeth(b *testing.B, _ linkmodel.Profile) (*bed, *child) {
	d := newBed(b, 1500)
	for _, ns := range []string{d.left, d.right} {
		d.do(ns, func() error {
			end, err := netlink.LinkByName("end")
			if err != nil {
				return err
			}
			return netlink.LinkDel(end)
		})
	}
	d.middle = d.right
	d.connect(d.left, "end", 1, 1500)
	d.do(d.right, func() error {
		end, err := netlink.LinkByName("end")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("10.0.0.2/24")
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(end, a), netlink.LinkSetUp(end), offload.Prepare("end"))
	})
	return d, nil
}

var wirings = []wiring{{"relay", byRelay}, {"veth", byVeth}, {"bridge", byBridge}}

// flow is a UDP socket on each node.
type flow struct {
	tx, rx *net.UDPConn
}

func newFlow(b *testing.B, d *bed) *flow {
	b.Helper()
	f := &flow{}
	to := netip.MustParseAddrPort("10.0.0.2:9")
	d.do(d.right, func() (err error) {
		if f.rx, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(to)); err != nil {
			return err
		}
		raw, err := f.rx.SyscallConn()
		if err != nil {
			return err
		}
		return errors.Join(raw.Control(func(fd uintptr) {
			err = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
		}), err)
	})
	d.do(d.left, func() (err error) {
		f.tx, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	b.Cleanup(func() { f.tx.Close(); f.rx.Close() })
	// Resolve the neighbor, and wait until packets pass.
	probe := make([]byte, payload)
	for {
		f.tx.Write(probe)
		f.rx.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := f.rx.Read(probe); err == nil {
			break
		}
	}
	for {
		f.rx.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := f.rx.Read(probe); err != nil {
			break
		}
	}
	f.rx.SetReadDeadline(time.Time{})
	return f
}

// received has the times at which a packet was sent and received, in nanoseconds of CLOCK_REALTIME.
type received struct{ sent, came int64 }

// receive collects packets until n have arrived or none has arrived for a second.
func (f *flow) receive(n int) <-chan []received {
	out := make(chan []received, 1)
	go func() {
		list := make([]received, 0, n)
		buffer, control := make([]byte, 2048), make([]byte, 128)
		for len(list) < n {
			f.rx.SetReadDeadline(time.Now().Add(time.Second))
			_, k, _, _, err := f.rx.ReadMsgUDP(buffer, control)
			if err != nil {
				break
			}
			// struct cmsghdr and struct timespec.
			if k < 32 {
				continue
			}
			at := (*unix.Timespec)(unsafe.Pointer(&control[16]))
			list = append(list, received{int64(binary.LittleEndian.Uint64(buffer)), at.Nano()})
		}
		out <- list
	}()
	return out
}

// send sends n packets, one per interval, or as fast as possible if interval is 0.
func (f *flow) send(n int, interval time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buffer := make([]byte, payload)
	start := time.Now()
	for i := range n {
		for time.Since(start) < time.Duration(i)*interval {
		}
		binary.LittleEndian.PutUint64(buffer, uint64(time.Now().UnixNano()))
		f.tx.Write(buffer)
	}
}

// BenchmarkDelayError sends 1514-byte frames at a constant rate of 100 Mbit/s and reports by how
// much they are late, in microseconds.
func BenchmarkDelayError(b *testing.B) {
	for _, tt := range []struct {
		name    string
		join    func(*testing.B, linkmodel.Profile) (*bed, *child)
		profile linkmodel.Profile
	}{
		{"relay/10ms", byRelay, linkmodel.Profile{Delay: 10 * time.Millisecond}},
		{"relay/0ms", byRelay, linkmodel.Profile{}},
		{"relay/100Mbit,10ms", byRelay, linkmodel.Profile{Rate: 100 * unit.MbitPerSecond, Delay: 10 * time.Millisecond}},
		{"veth", byVeth, linkmodel.Profile{}},
		{"bridge", byBridge, linkmodel.Profile{}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			d, l := tt.join(b, tt.profile)
			f := newFlow(b, d)
			interval := (100 * unit.MbitPerSecond).TimeFor(wire)
			b.ResetTimer()
			start := time.Now()
			out := f.receive(b.N)
			f.send(b.N, interval)
			elapsed := time.Since(start)
			list := <-out
			b.StopTimer()
			var late []float64
			free := int64(0)
			for _, r := range list {
				free = max(free, r.sent)
				if tt.profile.Rate > 0 {
					free += int64(tt.profile.Rate.TimeFor(wire))
				}
				late = append(late, float64(r.came-free-int64(tt.profile.Delay))/1e3)
			}
			slices.Sort(late)
			if len(late) == 0 {
				b.Fatal("nothing came")
			}
			b.ReportMetric(late[len(late)/2], "p50-us")
			b.ReportMetric(late[len(late)*99/100], "p99-us")
			b.ReportMetric(late[len(late)-1], "max-us")
			b.ReportMetric(float64(b.N-len(list)), "lost")
			l.share(b, elapsed)
		})
	}
}

// share reports the CPU time of the link as a share of a core, and the number of frames that were
// not emulated exactly.
func (c *child) share(b *testing.B, elapsed time.Duration) {
	if c == nil {
		return
	}
	c.stop(b)
	b.ReportMetric(100*c.cpu.Seconds()/elapsed.Seconds(), "cpu%")
	b.ReportMetric(float64(c.report.Forward.Late.P99)/1e3, "own-p99-us")
	b.ReportMetric(float64(c.report.Forward.Late.Max)/1e3, "own-max-us")
	d := c.report.Forward.Drops
	if n := d.Overrun + d.Memory + d.Oversize + d.Checksum; n > 0 {
		b.ReportMetric(float64(n), "inexact")
	}
}

// BenchmarkRate offers twice the rate of the link and reports the received rate relative to the
// rate of the link. The queue is long enough to bridge pauses of the sender.
func BenchmarkRate(b *testing.B) {
	for _, rate := range []unit.Bandwidth{15e6, 30e6, 100e6} {
		b.Run(rate.String(), func(b *testing.B) {
			d, l := byRelay(b, linkmodel.Profile{Rate: rate, Delay: 5 * time.Millisecond, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: time.Second}}})
			f := newFlow(b, d)
			start := time.Now()
			b.ResetTimer()
			out := f.receive(b.N)
			f.send(b.N, rate.TimeFor(wire)/2)
			elapsed := time.Since(start)
			list := <-out
			b.StopTimer()
			if len(list) < 2 {
				return
			}
			took := time.Duration(list[len(list)-1].came - list[0].came)
			got := unit.Size((len(list) - 1) * wire).Over(took)
			b.ReportMetric(100*(float64(got)/float64(rate)-1), "error-%")
			l.share(b, elapsed)
		})
	}
}

// BenchmarkThroughput sends a TCP stream of full frames, b.N of them, through a link without a
// rate.
func BenchmarkThroughput(b *testing.B) {
	for _, w := range wirings {
		b.Run("tcp/"+w.name, func(b *testing.B) {
			d, l := w.join(b, linkmodel.Profile{})
			var listener net.Listener
			d.do(d.right, func() (err error) {
				listener, err = net.Listen("tcp4", "10.0.0.2:0")
				return err
			})
			defer listener.Close()
			done := make(chan int64)
			go func() {
				c, err := listener.Accept()
				if err != nil {
					done <- 0
					return
				}
				defer c.Close()
				n, _ := io.Copy(io.Discard, c)
				done <- n
			}()
			var c net.Conn
			for c == nil {
				_ = netns.Do(d.left, func() (err error) {
					c, err = net.DialTimeout("tcp4", listener.Addr().String(), time.Second)
					return err
				})
			}
			chunk := make([]byte, 64*1448)
			b.SetBytes(1514)
			start := time.Now()
			b.ResetTimer()
			for left := b.N * 1448; left > 0; {
				n, err := c.Write(chunk[:min(left, len(chunk))])
				if err != nil {
					b.Fatal(err)
				}
				left -= n
			}
			c.Close()
			n := <-done
			b.StopTimer()
			elapsed := time.Since(start)
			mbit := float64(n) * 1514 / 1448 * 8 / elapsed.Seconds() / 1e6
			b.ReportMetric(mbit, "Mbit/s")
			l.share(b, elapsed)
		})
		b.Run("udp/"+w.name, func(b *testing.B) {
			d, l := w.join(b, linkmodel.Profile{})
			f := newFlow(b, d)
			start := time.Now()
			b.ResetTimer()
			out := f.receive(b.N)
			f.send(b.N, 0)
			elapsed := time.Since(start)
			list := <-out
			b.StopTimer()
			if len(list) < 2 {
				return
			}
			took := time.Duration(list[len(list)-1].came - list[0].came)
			b.ReportMetric(float64(unit.Size((len(list)-1)*wire).Over(took))/1e6, "Mbit/s")
			b.ReportMetric(float64(b.N-len(list))/float64(b.N)*100, "lost%")
			l.share(b, elapsed)
		})
	}
}
