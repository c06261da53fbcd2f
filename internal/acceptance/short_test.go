package acceptance

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/published"
)

// The sizes of a short connection: what the client sends, and what the server answers.
const shortRequest, shortAnswer = 100, 10_000

// shortPort is the port of shortAnswers on the server.
const shortPort = 8080

// shortFor is how long TestShortTimes opens connections in each run, shortWait how long
// it then waits for those that have not ended, and shortRounds the number of runs of each way.
const shortFor, shortWait, shortRounds = 4 * time.Second, 4 * time.Second, 3

// oldConnection is the age at which addresses are announced to a connection that has carried
// little (ADR 19).
const oldConnection = time.Second

// shortAnswers has the server answer short connections, with MPTCP where the client has it.
func (l *lab) shortAnswers() {
	l.t.Helper()
	var listener net.Listener
	netnstest.Do(l.t, l.namespace("server"), func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(true)
		listener, err = config.Listen(l.t.Context(), "tcp", fmt.Sprintf("[2001:db8:1::10]:%d", shortPort))
		return err
	})
	l.t.Cleanup(func() { _ = listener.Close() })
	answer := make([]byte, shortAnswer)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := io.ReadFull(c, make([]byte, shortRequest)); err == nil {
					_, _ = c.Write(answer)
				}
			}()
		}
	}()
}

// shortRun is what became of short connections.
type shortRun struct {
	took   []time.Duration // of those that were answered, sorted
	failed map[string]int  // by error
	// announced, joins and cookies are ADD_ADDR, SYNs with MP_JOIN and SYN cookies of the server.
	announced, joins, cookies int
}

func (r *shortRun) quantile(q float64) time.Duration {
	if len(r.took) == 0 {
		return 0
	}
	return r.took[min(int(q*float64(len(r.took))), len(r.took)-1)]
}

func (r *shortRun) failures() (n int) {
	for _, of := range r.failed {
		n += of
	}
	return n
}

// short opens so many connections per second for some time, whether or not earlier ones have ended.
func (l *lab) short(perSecond int, lasts time.Duration, multipath bool) *shortRun {
	l.t.Helper()
	protocol := unix.IPPROTO_TCP
	if multipath {
		protocol = unix.IPPROTO_MPTCP
	}
	counters := func() [3]int {
		return [3]int{l.counter("server", "MPTcpExt:", "AddAddrTx"), l.counter("server", "MPTcpExt:", "MPJoinSynRx"), l.counter("server", "TcpExt:", "SyncookiesSent")}
	}
	r := &shortRun{failed: map[string]int{}}
	before := counters()
	var mu sync.Mutex
	var running sync.WaitGroup
	finish := time.Now().Add(lasts + shortWait)
	netnstest.Do(l.t, l.namespace("client"), func() error {
		begun := time.Now()
		for i := range int(lasts.Seconds() * float64(perSecond)) {
			due := begun.Add(time.Duration(i) * time.Second / time.Duration(perSecond))
			time.Sleep(time.Until(due))
			// The thread is in the namespace, so the socket is.
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				return err
			}
			to := &unix.SockaddrInet6{Port: shortPort, Addr: [16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 1, 15: 0x10}}
			if err := unix.Connect(fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
				_ = unix.Close(fd)
				return err
			}
			opened := time.Now()
			running.Go(func() {
				err := exchange(os.NewFile(uintptr(fd), "short connection"), finish)
				took := time.Since(opened)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					r.failed[err.Error()]++
				} else {
					r.took = append(r.took, took)
				}
			})
		}
		return nil
	})
	running.Wait()
	slices.Sort(r.took)
	after := counters()
	r.announced, r.joins, r.cookies = after[0]-before[0], after[1]-before[1], after[2]-before[2]
	return r
}

// exchange sends a request over a socket, which may not be connected yet, and reads the answer.
func exchange(socket *os.File, until time.Time) error {
	defer socket.Close()
	if err := socket.SetDeadline(until); err != nil {
		return err
	}
	if _, err := socket.Write(make([]byte, shortRequest)); err != nil {
		return errors.Unwrap(err)
	}
	n, err := io.Copy(io.Discard, socket)
	var path *os.PathError
	switch {
	case errors.As(err, &path):
		return path.Err
	case err == nil && n != shortAnswer:
		return io.ErrUnexpectedEOF
	}
	return err
}

// TestShortConnections: addresses are announced to no connection that ends soon, so nothing joins
// it and nothing is reset.
func TestShortConnections(t *testing.T) {
	t.Parallel()
	l := epe(t)
	l.shortAnswers()
	r := l.short(50, 3*time.Second, true)
	old := 0
	for _, took := range r.took {
		if took >= oldConnection {
			old++
		}
	}
	if r.failures() > 0 || len(r.took) != 150 {
		t.Errorf("%d of 150 connections were answered, failed: %v", len(r.took), r.failed)
	}
	if r.cookies > 0 || r.announced > 2*old || r.joins > 2*old {
		t.Errorf("%d addresses announced, %d joins, %d SYN cookies, with %d connections older than %v", r.announced, r.joins, r.cookies, old, oldConnection)
	}
	if got := l.counter("server", "MPTcpExt:", "MPCapableACKRX"); got < 150 {
		t.Errorf("%d connections used MPTCP", got)
	}
}

// measureShort is which TestShortTimes measures.
var measureShort = flag.String("connections", "", "measure short connections as make bench-short does: RATE@CONNECTIONS PER SECOND, separated by commas")

// TestShortTimes opens connections of 10 kB with plain TCP and with MPTCP, in turns, and writes to
// ADR 19 how much longer they take where a server may announce addresses to them. It takes minutes
// and runs only with -connections: make bench-short.
func TestShortTimes(t *testing.T) {
	if *measureShort == "" {
		t.Skip("-connections is not set: see make bench-short")
	}
	loadBefore := loadAverage(t)
	l := epe(t)
	l.set("b", "rate=30Mbit/s", "delay=10ms")
	l.shortAnswers()
	ways := []shortWay{{name: "TCP"}, {"MPTCP, edge paused", true, true}, {"MPTCP", true, false}}
	lines := append([]string{
		fmt.Sprintf("Connections of %d bytes for %v, %d runs of each way in turns, on %s.", shortAnswer, shortFor, shortRounds, published.Machine()),
		fmt.Sprintf("Processes that wanted to run before it, on average of a minute: %.1f. A round trip has 10 ms. Times are in ms, medians of the runs, in parentheses", loadBefore),
		"the least and the most; ratios are those of an MPTCP run and the TCP run next to it. Counts are of all runs.", "",
	}, published.Head("link", "connections/s", "with", "median", "95 %", "ratio of medians", "ratio of 95 %", "failed", "ADD_ADDR", "joins", "SYN cookies")...)
	for cell := range strings.SplitSeq(*measureShort, ",") {
		rate, number, _ := strings.Cut(cell, "@")
		perSecond, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("cell %q: %v", cell, err)
		}
		l.set("a", "rate="+rate, "delay=5ms")
		runs := make([][]*shortRun, len(ways))
		for round := range shortRounds {
			for i := range ways {
				i := (i + round) % len(ways) // each way is first as often
				runs[i] = append(runs[i], l.shortWay(perSecond, ways[i]))
			}
		}
		for i, way := range ways {
			lines = append(lines, shortRow(rate, perSecond, way, runs[i], runs[0]))
		}
	}
	publish(t, "docs/adr/0019-rest-and-overflow.md", "short", "make bench-short", lines)
}

// shortWay is how short connections are opened. With paused, the server's edge neither reads events
// nor announces meanwhile, so that what remains is what MPTCP costs in the kernel.
type shortWay struct {
	name              string
	multipath, paused bool
}

// shortWay is short in a way.
func (l *lab) shortWay(perSecond int, way shortWay) *shortRun {
	l.t.Helper()
	if !way.paused {
		return l.short(perSecond, shortFor, way.multipath)
	}
	edge := l.process("server", "edge").PID
	if err := unix.Kill(edge, unix.SIGSTOP); err != nil {
		l.t.Fatal(err)
	}
	defer func() {
		if err := unix.Kill(edge, unix.SIGCONT); err != nil {
			l.t.Error(err)
		}
	}()
	return l.short(perSecond, shortFor, way.multipath)
}

// shortRow is the row of a way, beside runs of TCP.
func shortRow(rate string, perSecond int, way shortWay, runs, tcp []*shortRun) string {
	ratios := []string{"", ""}
	of := func(value func(*shortRun) float64, format string) string {
		var all []float64
		for _, r := range runs {
			all = append(all, value(r))
		}
		slices.Sort(all)
		return fmt.Sprintf(format+" ("+format+" to "+format+")", (all[(len(all)-1)/2]+all[len(all)/2])/2, all[0], all[len(all)-1])
	}
	quantile := func(q float64) func(*shortRun) float64 {
		return func(r *shortRun) float64 { return 1e3 * r.quantile(q).Seconds() }
	}
	if way.multipath {
		for i, q := range []float64{0.5, 0.95} {
			ratios[i] = of(func(r *shortRun) float64 { return quantile(q)(r) / quantile(q)(tcp[slices.Index(runs, r)]) }, "%.2f")
		}
	}
	failed, announced, joins, cookies := 0, 0, 0, 0
	for _, r := range runs {
		failed += r.failures()
		announced, joins, cookies = announced+r.announced, joins+r.joins, cookies+r.cookies
	}
	return published.Row(rate, strconv.Itoa(perSecond), way.name, of(quantile(0.5), "%.1f"), of(quantile(0.95), "%.1f"), ratios[0], ratios[1],
		strconv.Itoa(failed), strconv.Itoa(announced), strconv.Itoa(joins), strconv.Itoa(cookies))
}
