package ccbpf

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/seccomp/seccomptest"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/mptcp/mptcptest"
)

var (
	killPoints   = flag.Int("points", 12, "at how many points TestKilled and TestKilledReplacing kill a loader, 0 for all")
	injectLosses = flag.Uint64("losses", 600, "how many losses TestContain waits for")
)

// use loads a control and chooses it for new sockets of a namespace. It is unloaded when the test
// ends.
func use(t testing.TB, name string, o Options, namespace string) {
	t.Helper()
	if _, err := Load(name, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unload(o.Dir, name); err != nil {
			t.Error(err)
		}
	})
	netnstest.Do(t, namespace, func() error { return netns.Sysctl("net.ipv4.tcp_congestion_control", o.Prefix+name) })
}

// sample is what a subflow's socket says of itself.
type sample struct {
	Stats
	window uint32 // the present one
}

// stats returns the samples of the subflows of a namespace that have data in flight or had it, by
// their two ends.
func stats(t testing.TB, namespace string) map[[2]netip.AddrPort]sample {
	t.Helper()
	all := map[[2]netip.AddrPort]sample{}
	names := MapNames{}
	netnstest.Do(t, namespace, func() error {
		d, err := mptcp.DialDiag()
		if err != nil {
			return err
		}
		var failed error
		err = d.Storages(mptcp.IPv6, func(s *mptcp.Socket, storages []mptcp.Storage) {
			for _, v := range storages {
				if !names.Has(v.Map) {
					continue
				}
				st, err := DecodeStats(v.Value)
				failed = errors.Join(failed, err)
				all[[2]netip.AddrPort{s.Local, s.Remote}] = sample{Stats: st, window: s.Window}
			}
		})
		return errors.Join(err, failed, d.Close())
	})
	return all
}

// drop makes a link of a namespace drop one of every n packets that arrive, at random.
func drop(t testing.TB, namespace, name string, n int32) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "drop", Type: ebpf.SchedCLS, License: "Dual MIT/GPL",
		Instructions: asm.Instructions{
			asm.FnGetPrandomU32.Call(), asm.Mod.Imm32(asm.R0, n),
			asm.JEq.Imm(asm.R0, 0, "drop"),
			asm.Mov.Imm(asm.R0, -1), asm.Return(), // TCX_NEXT
			asm.Mov.Imm(asm.R0, 2).WithSymbol("drop"), asm.Return(), // TCX_DROP
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	netnstest.Do(t, namespace, func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: i.Index, Program: p, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	})
}

// start opens connections and sends over them from the server, until the test ends.
func start(t testing.TB, p *mptcptest.Pair, connections int) {
	t.Helper()
	l := p.Listen(t)
	stop := make(chan struct{})
	var done []<-chan struct{}
	for range connections {
		server, client := p.Connect(t, l)
		done = append(done, mptcptest.Pump(server, client, stop))
	}
	t.Cleanup(func() {
		close(stop)
		for _, d := range done {
			<-d
		}
	})
}

// sane is the largest window that the links of a test can need: they have no delay.
const sane = 1 << 17

// TestContain makes every 4th call of a program that returns a value return garbage. An impossible
// window must be gone as soon as a program runs. It can be seen before: the kernel reports the
// window without the lock of the socket, and may skip all programs for milliseconds.
func TestContain(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.inject = 4
			p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 2)
			use(t, name, o, p.Server)
			for i := range 2 {
				drop(t, p.Client, mptcptest.Link(i), 40)
			}
			start(t, p, 4)
			most, want := uint32(0), *injectLosses/uint64(len(Names()))
			before := map[[2]netip.AddrPort]sample{} // with an impossible window, from their first sample on
			for deadline := time.Now().Add(time.Minute + time.Duration(want)*10*time.Millisecond); ; time.Sleep(10 * time.Millisecond) {
				var losses, repairs uint64
				for flow, s := range stats(t, p.Server) {
					losses += uint64(s.Losses) + uint64(s.Timeouts)
					repairs += uint64(s.Repairs)
					most = max(most, s.HighestWindow)
					first, impossible := before[flow]
					switch {
					case s.window <= sane:
						delete(before, flow)
					case !impossible:
						before[flow] = s
					case s.Acks > first.Acks && s.Repairs == first.Repairs:
						t.Fatalf("window %d, and %d after %d more acknowledgments", first.window, s.window, s.Acks-first.Acks)
					}
				}
				if most > sane {
					t.Fatalf("a window of %d segments after %d losses", most, losses)
				}
				if losses >= want {
					t.Logf("%d losses, %d repairs, largest window %d", losses, repairs, most)
					if repairs < losses/64 {
						t.Errorf("%d repairs of %d losses", repairs, losses)
					}
					if list, err := List(o.Dir); err != nil || len(list) != 1 || list[0].Repairs < repairs {
						t.Errorf("list %+v, %v, want at least %d repairs", list, err, repairs)
					}
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("only %d losses", losses)
				}
			}
		})
	}
}

// TestBusy sends now and then: the time without data in flight is not counted.
func TestBusy(t *testing.T) {
	const times, pause = 20, 50 * time.Millisecond
	for _, name := range []string{"newreno", Cubic} {
		t.Run(name, func(t *testing.T) {
			p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 1)
			use(t, name, testOptions(t), p.Server)
			server, client := p.Connect(t, p.Listen(t))
			for range times {
				deliver(t, server, client)
				time.Sleep(pause)
			}
			all := stats(t, p.Server)
			if len(all) != 1 {
				t.Fatalf("%d sockets have statistics, want 1", len(all))
			}
			for _, s := range all {
				if s.Acks < times || s.Busy <= 0 || s.Busy > times*pause/2 {
					t.Errorf("%d acknowledgments, busy for %v, want at least %d, and less than half of %v", s.Acks, s.Busy, times, times*pause)
				}
			}
		})
	}
}

// TestLowat sends over a slow link with a long queue: the scheduler gives its subflow no more than
// its window has room for, what the link carries in the time of the bound, and a page fragment.
func TestLowat(t *testing.T) {
	const (
		rate     = 5_000_000 / 8 // bytes per second; half a second of it is sent
		fragment = 32 << 10
		most     = 3 * (rate/50 + fragment) // the scatter of the estimated rate is much less
	)
	for _, name := range []string{Cubic, "lia"} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.Lowat = true
			p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 1)
			use(t, name, o, p.Server)
			netnstest.Do(t, p.Server, func() error {
				return tc.SetRate(mptcptest.Link(0), tc.Rate{Rate: 8 * rate, Queue: 400 * time.Millisecond})
			})
			start(t, p, 1)
			highest := 0
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				s := sending(t, p.Server)
				room := max(int(s.Window)-int(s.InFlight), 0) * int(s.SegmentSize)
				highest = max(highest, int(s.NotSent)-room)
				if s.Acked > rate/2 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%+v, at most %d bytes unsent beyond the window", s, highest)
				}
			}
			if t.Logf("at most %d bytes unsent beyond the window", highest); highest > most {
				t.Errorf("%d bytes unsent beyond the window, want at most %d", highest, most)
			}
		})
	}
}

// sending returns the subflow of a namespace that has sent most.
func sending(t testing.TB, namespace string) (most mptcp.Socket) {
	t.Helper()
	netnstest.Do(t, namespace, func() error {
		d, err := mptcp.DialDiag()
		if err != nil {
			return err
		}
		err = d.Sockets(mptcp.IPv6, func(s *mptcp.Socket) {
			if s.Acked >= most.Acked {
				most = *s
			}
		})
		return errors.Join(err, d.Close())
	})
	return most
}

// TestReplaceInUse replaces a control that 100 connections use, each of which sends every 5 ms. It
// logs the longest time without an arrival; a stall of seconds would fail it.
func TestReplaceInUse(t *testing.T) {
	const connections, every = 100, 5 * time.Millisecond
	o := testOptions(t)
	p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 1)
	use(t, "lia", o, p.Server)
	l := p.Listen(t)
	start := time.Now()
	var longest [connections]atomic.Int64 // since it was last set to 0
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after the connections are closed
	for i := range connections {
		server, client := p.Connect(t, l)
		wg.Go(func() {
			b := make([]byte, 1000)
			for {
				if _, err := server.Write(b); err != nil {
					return
				}
				time.Sleep(every)
			}
		})
		wg.Go(func() {
			b := make([]byte, 1000)
			for last := time.Since(start); ; {
				if _, err := io.ReadFull(client, b); err != nil {
					return
				}
				now := time.Since(start)
				longest[i].Store(max(longest[i].Load(), int64(now-last)))
				last = now
			}
		})
		t.Cleanup(func() { _, _ = server.Close(), client.Close() })
	}
	measure := func() (most time.Duration) {
		for i := range longest {
			longest[i].Store(0)
		}
		time.Sleep(700 * time.Millisecond)
		for i := range longest {
			gap := time.Duration(longest[i].Load())
			if most = max(most, gap); gap == 0 {
				t.Errorf("connection %d stands still", i)
			}
		}
		return most
	}
	before := measure()
	o.Pace = false
	replaced := make(chan time.Duration)
	go func() {
		time.Sleep(200 * time.Millisecond)
		at := time.Now()
		if outcome, err := Load("lia", o); err != nil || outcome != Replaced {
			t.Errorf("load: %v, %v", outcome, err)
		}
		replaced <- time.Since(at)
	}()
	during := make(chan time.Duration)
	go func() { during <- measure() }()
	t.Logf("replaced in %v; longest time without an arrival %v before, %v meanwhile", <-replaced, before, <-during)
	if all := stats(t, p.Server); len(all) != connections {
		t.Errorf("%d sockets have statistics, want %d", len(all), connections)
	}
	// A new connection uses the new version.
	p.Connect(t, l)
	if list, err := List(o.Dir); err != nil || len(list) != 1 || list[0].Version.Paced() {
		t.Errorf("list: %+v, %v", list, err)
	}
}

// loadIn is the environment variable with the directory in which the test's program loads a
// control.
const loadIn = "TABANE_TEST_LOAD_IN"

// load is the loader that TestKilled and TestKilledReplacing kill.
func load(dir string) error {
	_, err := Load(os.Getenv(loadIn+"_NAME"), Options{Dir: dir, Pace: true, Prefix: os.Getenv(loadIn + "_PREFIX"), Rates: killedRates})
	return err
}

// killedRates are the rates that the loader sets.
var killedRates = []unit.Bandwidth{unit.MbitPerSecond}

// operations are the system calls by which the loader changes maps, programs, links and pins.
var operations = []uint32{unix.SYS_BPF, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT}

// killLoader starts a loader and kills it before its operation number n, from 1, or when it has
// loaded. It returns how many operations it has begun.
func killLoader(t *testing.T, o Options, name string, n int) int {
	return seccomptest.Kill(t, operations, n, func(run func(*exec.Cmd) error) (*exec.Cmd, <-chan bool) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), loadIn+"="+o.Dir, loadIn+"_PREFIX="+o.Prefix, loadIn+"_NAME="+name)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan error)
		go func() { started <- run(cmd) }()
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		up := make(chan bool, 1)
		go func() {
			_, err := io.ReadFull(out, make([]byte, len(loaded)))
			up <- err == nil
		}()
		return cmd, up
	})
}

// loaded is what the loader prints in the end.
const loaded = "loaded\n"

// killedAt calls f for the points, of all operations of a loader, at which it is to be killed.
func killedAt(t *testing.T, o Options, name string, f func(n int)) {
	all := killLoader(t, o, name, math.MaxInt)
	n := *killPoints
	if n == 0 || n > all {
		n = all
	}
	for i := range n {
		f(1 + i*all/n)
	}
	if t.Logf("killed at %d of %d operations", n, all); all < 30 {
		t.Errorf("a loader has only %d operations", all)
	}
}

// TestKilled kills a loader before its operations on the kernel: the control is loaded whole or not
// at all, and can then be loaded.
func TestKilled(t *testing.T) {
	o := testOptions(t)
	o.Rates = killedRates
	// ratio has a second pin.
	for _, name := range []string{"lia", Ratio} {
		t.Run(name, func(t *testing.T) {
			whole := 0
			killedAt(t, o, name, func(n int) {
				if err := Unload(o.Dir, name); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				settle(t, o.Prefix+name, false)
				killLoader(t, o, name, n)
				list, err := List(o.Dir)
				if err != nil {
					t.Fatal(err)
				}
				if settle(t, o.Prefix+name, len(list) == 1); len(list) == 1 {
					whole++
				}
				if _, err := Load(name, o); err != nil {
					t.Fatalf("load after a loader was killed before operation %d: %v", n, err)
				}
			})
			t.Logf("%d had loaded", whole)
			if err := Unload(o.Dir, name); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			settle(t, o.Prefix+name, false)
		})
	}
}

// TestKilledReplacing kills loaders that replace another version, which a connection uses: one of
// the two is loaded, with the pinned rates, which are either all old or all new; the connection
// goes on, and the new version can then be loaded.
func TestKilledReplacing(t *testing.T) {
	o := testOptions(t)
	p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 1)
	for _, name := range []string{"lia", Ratio} {
		t.Run(name, func(t *testing.T) {
			old, replacing := o, o
			old.Pace, old.Rates, replacing.Rates = false, []unit.Bandwidth{2 * killedRates[0], killedRates[0]}, killedRates
			use(t, name, old, p.Server)
			l := p.Listen(t)
			server, client := p.Connect(t, l)
			defer func() { _, _, _ = server.Close(), client.Close(), l.Close() }()
			replaced := 0
			killedAt(t, o, name, func(n int) {
				if _, err := Load(name, old); err != nil {
					t.Fatal(err)
				}
				killLoader(t, o, name, n)
				list, err := List(o.Dir)
				if err != nil || len(list) != 1 || !list[0].Current {
					t.Fatalf("after a loader was killed before operation %d: %+v, %v", n, list, err)
				}
				if list[0].Version.Paced() {
					replaced++
				}
				rates := list[0].Rates
				isOld, isNew := slices.Equal(rates, old.Rates) && !list[0].Version.Paced(), slices.Equal(rates, killedRates)
				if name == Ratio && (!isOld && !isNew || !hasRates(t, o.Dir, list[0])) {
					t.Fatalf("after a loader was killed before operation %d: rates %v of %+v", n, rates, list[0])
				}
				deliver(t, server, client)
				if _, err := Load(name, replacing); err != nil {
					t.Fatalf("load after a loader was killed before operation %d: %v", n, err)
				}
				if list, err = List(o.Dir); err != nil || len(list) != 1 || !list[0].Version.Paced() || name == Ratio && !slices.Equal(list[0].Rates, killedRates) {
					t.Fatalf("load after a loader was killed before operation %d: %+v, %v", n, list, err)
				}
				deliver(t, server, client)
			})
			t.Logf("%d had replaced it", replaced)
		})
	}
}

// hasRates reports whether the pinned rates are those of the programs of ratio.
func hasRates(t *testing.T, dir string, of Info) bool {
	t.Helper()
	m, err := openRates(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.Info()
	if err := errors.Join(err, m.Close()); err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	maps := map[ebpf.MapID]bool{}
	for _, p := range of.Programs {
		if err := mapsOf(p, maps); err != nil {
			t.Fatal(err)
		}
	}
	return maps[id]
}

// deliver sends some segments.
func deliver(t *testing.T, from io.Writer, to net.Conn) {
	t.Helper()
	b := make([]byte, 20000)
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(b)
		sent <- err
	}()
	err := to.SetReadDeadline(time.Now().Add(10 * time.Second))
	if err == nil {
		_, err = io.ReadFull(to, make([]byte, len(b)))
	}
	if err = errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
}

// settle waits until a control is available, or is not: the kernel unregisters it a moment after
// its last reference is gone.
func settle(t testing.TB, name string, want bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); available(t, name) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s is available: %v, want %v", name, !want, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	o := testOptions(t)
	if _, err := Load("reno", o); err == nil || err.Error() == "" {
		t.Errorf("unknown control: %v", err)
	}
	elsewhere := o
	elsewhere.Dir = t.TempDir()
	if _, err := Load("lia", elsewhere); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("not a BPF file system: %v", err)
	}
	if list, err := List(filepath.Join(o.Dir, "nothing")); err != nil || len(list) != 0 {
		t.Errorf("list of nothing: %v, %v", list, err)
	}
	// What is pinned is no link of a struct_ops.
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := errors.Join(os.MkdirAll(o.Dir, 0o700), m.Pin(filepath.Join(o.Dir, "lia"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Load("lia", o); err == nil {
		t.Error("a map in place of the link is accepted")
	}
	if err := Unload(o.Dir, "lia"); err != nil {
		t.Error(err)
	}
}

// BenchmarkAck measures the programs of each control, for an acknowledgment of a connection that
// sends over several links. The kernel's own measurement of a program is part of the figure, as in
// bpftool.
func BenchmarkAck(b *testing.B) {
	for _, links := range []int{2, 8} {
		for _, name := range Names() {
			b.Run(fmt.Sprintf("%s/subflows=%d", name, links), func(b *testing.B) {
				o := testOptions(b)
				o.Prefix = fmt.Sprintf("b%d_", rand.IntN(100000))
				p := mptcptest.New(b, netnstest.New(b), netnstest.New(b), links)
				use(b, name, o, p.Server)
				// Without losses the window stays in slow start, or at its maximum.
				for i := range links {
					drop(b, p.Client, mptcptest.Link(i), 300)
				}
				start(b, p, 1)
				time.Sleep(200 * time.Millisecond)
				stop, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
				if err != nil {
					b.Fatal(err)
				}
				defer stop.Close()
				list, err := List(o.Dir)
				if err != nil {
					b.Fatal(err)
				}
				acks, run := count(b, list[0].Programs)
				for b.Loop() {
					time.Sleep(500 * time.Millisecond)
				}
				acks2, run2 := count(b, list[0].Programs)
				b.ReportMetric(float64(run2-run)/float64(acks2-acks), "ns/ack")
				b.ReportMetric(float64(acks2-acks), "acks")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// count returns the number of acknowledgments, which is that of the program in_ack_event, and the
// time of all programs.
func count(b *testing.B, programs []ebpf.ProgramID) (acks uint64, run time.Duration) {
	b.Helper()
	for _, id := range programs {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			b.Fatal(err)
		}
		info, err := p.Info()
		if err != nil {
			b.Fatal(err)
		}
		st, err := p.Stats()
		if err := errors.Join(err, p.Close()); err != nil {
			b.Fatal(err)
		}
		run += st.Runtime
		if info.Name == newrenoProgInAckEvent {
			acks = st.RunCount
		}
	}
	return acks, run
}
