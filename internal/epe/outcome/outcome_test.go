package outcome

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/clock"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/testkit/accessor"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func encode(r programReport) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r))
}

func TestDecode(t *testing.T) {
	mapped := netip.MustParseAddr("::ffff:192.0.2.1").As16()
	b := encode(programReport{
		Acked: 1000, DurationUs: 4000, BusyUs: 2000, WindowUs: 1000, BufferUs: 500, SrttUs: 300, MinRttUs: ^uint32(0), Sent: 5, Retransmitted: 1, Retries: 2,
		Local: mapped, Remote: netip.MustParseAddr("2001:db8::1").As16(), LocalPort: 80, RemotePort: 40000, Kind: 2,
	})
	got, err := decode(b)
	want := Report{
		Kind: Timeout, Local: netip.MustParseAddrPort("192.0.2.1:80"), Remote: netip.MustParseAddrPort("[2001:db8::1]:40000"), Acked: 1000,
		Duration: 4 * time.Millisecond, Busy: 2 * time.Millisecond, Window: time.Millisecond, Buffer: 500 * time.Microsecond, RTT: 300 * time.Microsecond,
		Sent: 5, Retransmitted: 1, Retries: 2,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); err != nil || diff != "" || got.Goodput() != 500_000 {
		t.Errorf("%v, %g, (-want +got):\n%s", err, got.Goodput(), diff)
	}
	if _, err := decode(b[:len(b)-1]); err == nil {
		t.Error("a short report is accepted")
	}
	if _, err := decode(encode(programReport{Kind: uint32(kinds)})); err == nil {
		t.Error("an unknown kind is accepted")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(programReport{Kind: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		accessor.Call(t, r)
		if err == nil && (r.Remote.Addr().Is4In6() || r.Duration < 0 || r.Goodput() < 0) {
			t.Errorf("report %+v", r)
		}
	})
}

// watching is a Watcher of a network namespace with its reports.
type watching struct {
	t       testing.TB
	ns      string
	watcher *Watcher
	reports chan Report
	// processor is the processor time of the thread that receives them, in ns.
	processor atomic.Int64
}

func watch(t testing.TB) *watching { return watchIn(t, nil) }

// watchIn watches the connections of processes in a control group; nil is the root.
func watchIn(t testing.TB, group *os.File) *watching { return watchOn(t, group) }

// watchOn watches flows of UDP on links as well.
func watchOn(t testing.TB, group *os.File, links ...string) *watching {
	t.Helper()
	netnstest.Need(t)
	w := &watching{t: t, ns: netnstest.New(t), reports: make(chan Report, 1<<16)}
	netnstest.IP(t, w.ns, "link set lo up")
	netnstest.Do(t, w.ns, func() (err error) {
		w.watcher, err = New(Options{Bulk: 1 << 20, Groups: group, Links: links})
		return err
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for {
			before := clock.Thread()
			list, lost, err := w.watcher.Receive()
			w.processor.Add(int64(clock.Thread() - before))
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil || lost > 0 {
				t.Errorf("receive: %v, %d lost", err, lost)
				return
			}
			for _, r := range list {
				w.reports <- r
			}
		}
	}()
	t.Cleanup(func() {
		if err := w.watcher.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return w
}

// download has a server in the namespace send bytes to a client, which then closes.
func (w *watching) download(ns, address string, size int, pause time.Duration) (server netip.AddrPort) {
	w.t.Helper()
	var l net.Listener
	var client net.Conn
	netnstest.Do(w.t, ns, func() (err error) {
		if l, err = net.Listen("tcp", address); err != nil {
			return err
		}
		client, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		defer c.Close()
		b := make([]byte, 64<<10)
		for left := size; left > 0; left -= len(b) {
			if _, err := c.Write(b[:min(left, len(b))]); err != nil {
				w.t.Error(err)
				return
			}
			time.Sleep(pause)
		}
	})
	if n, err := io.Copy(io.Discard, client); n != int64(size) || err != nil {
		w.t.Errorf("received %d of %d bytes: %v", n, size, err)
	}
	sending.Wait()
	client.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// next returns the next report of a kind from the server's end.
func (w *watching) next(k Kind, server netip.AddrPort) Report {
	w.t.Helper()
	for patience := time.After(20 * time.Second); ; {
		select {
		case r := <-w.reports:
			if r.Kind == k && r.Local == server {
				return r
			}
		case <-patience:
			w.t.Fatalf("no report of kind %s", k)
		}
	}
}

func TestConnections(t *testing.T) {
	w := watch(t)
	other := netnstest.New(t)
	netnstest.IP(t, other, "link set lo up")
	for _, address := range []string{"[::1]:0", "127.0.0.1:0"} {
		const size = 3 << 20
		w.download(other, address, size, 0)
		server := w.download(w.ns, address, size, 0)
		bulk := w.next(Bulk, server)
		if bulk.Acked < 1<<20 || bulk.Acked > size || bulk.Remote.Addr() != server.Addr() {
			t.Errorf("bulk: %+v", bulk)
		}
		closed := w.next(Closed, server)
		if closed.Remote != bulk.Remote || closed.Acked < size || closed.Acked > size+1 || closed.Sent == 0 || closed.RTT <= 0 || closed.MinRTT <= 0 || closed.Duration < bulk.Duration || closed.Busy > closed.Duration+time.Second {
			t.Errorf("closed: %+v", closed)
		}
		server = w.download(w.ns, address, 256<<10, 20*time.Millisecond)
		if slow := w.next(Closed, server); slow.Busy > slow.Duration/2 {
			t.Errorf("the application paused, and yet the connection was busy %v of %v", slow.Busy, slow.Duration)
		}
	}
	if n := len(w.reports); n > 8 {
		t.Errorf("%d more reports", n)
	}
}

// TestManyConnections: connections that are open at a time are each reported, and no entry of the
// table is left.
func TestManyConnections(t *testing.T) {
	const many = 2000
	w := watch(t)
	var l net.Listener
	var conns []net.Conn
	netnstest.Do(t, w.ns, func() (err error) {
		if l, err = net.Listen("tcp", "[::1]:0"); err != nil {
			return err
		}
		for range many {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return err
			}
			s, err := l.Accept()
			if err != nil {
				return err
			}
			conns = append(conns, c, s)
		}
		return nil
	})
	used := func() (n int) {
		t.Helper()
		table := w.watcher.objects.Connections
		keys, values := make([]uint32, table.MaxEntries()), make([]programBegan, table.MaxEntries())
		var at ebpf.MapBatchCursor
		if _, err := table.BatchLookup(&at, keys, values, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
		for _, v := range values {
			if v.Sk != 0 {
				n++
			}
		}
		return n
	}
	defer l.Close()
	if n := used(); n != 2*many {
		t.Errorf("%d entries with %d connections", n, many)
	}
	for _, c := range conns {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	remotes := map[netip.AddrPort]bool{}
	for range many {
		remotes[w.next(Closed, l.Addr().(*net.TCPAddr).AddrPort()).Remote] = true
	}
	if len(remotes) != many {
		t.Errorf("reports of %d connections, want %d", len(remotes), many)
	}
	if n := used(); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// TestObjects: what an object took is reported of a connection that goes on, now and then.
func TestObjects(t *testing.T) {
	w := watch(t)
	for _, address := range []string{"[::1]:0", "127.0.0.1:0"} {
		const size, pause = 100_000, 150 * time.Millisecond
		var l net.Listener
		var client net.Conn
		netnstest.Do(t, w.ns, func() (err error) {
			if l, err = net.Listen("tcp", address); err != nil {
				return err
			}
			client, err = net.Dial("tcp", l.Addr().String())
			return err
		})
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for time.Since(began) < 5*time.Second {
			if len(w.reports) > 0 && time.Since(began) > 3*time.Second {
				break
			}
			for _, way := range []struct {
				from, to net.Conn
				bytes    int
			}{{client, c, 100}, {c, client, size}} {
				if _, err := way.from.Write(make([]byte, way.bytes)); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(way.to, make([]byte, way.bytes)); err != nil {
					t.Fatal(err)
				}
			}
			if time.Since(began) < time.Second {
				time.Sleep(pause) // ten of them are more than a bulk connection
			} else {
				time.Sleep(5 * pause)
			}
		}
		server := l.Addr().(*net.TCPAddr).AddrPort()
		r := w.next(Object, server)
		if r.Acked < size/4 || r.Acked > 2*size || // what its first acknowledgment and that of the next one cover varies
			r.Duration < r.Busy || r.Duration > time.Second || r.Busy > 100*time.Millisecond || r.MinRTT <= 0 {
			t.Errorf("object: %+v", r)
		}
		if r.Carried < 2*size { // several came before it
			t.Errorf("object: %d bytes carried", r.Carried)
		}
		carried := r.Carried
		for len(w.reports) > 0 {
			if r := <-w.reports; r.Kind == Object && r.Local == server {
				carried += r.Carried
			}
		}
		if err := errors.Join(client.Close(), c.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		if r := w.next(Closed, server); !r.Objects || r.Acked < 5*size || r.Carried != r.Acked-carried {
			t.Errorf("closed after %d bytes: %+v", carried, r)
		}
	}
}

// slowPair returns the ends of a connection and shape, which limits the rate of loopback: without it
// the first acknowledgment of an object is of all of it.
func (w *watching) slowPair() (server, client *net.TCPConn, shape func()) {
	w.t.Helper()
	tc := programs.Need(w.t, "tc")
	var l net.Listener
	var c net.Conn
	netnstest.Do(w.t, w.ns, func() (err error) {
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		c, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	defer l.Close()
	s, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return s.(*net.TCPConn), c.(*net.TCPConn), func() {
		netnstest.Do(w.t, w.ns, func() error {
			return exec.Command(tc, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "400mbit", "burst", "100kb", "latency", "1s").Run()
		})
	}
}

// objects has a server send objects of these sizes in turn for a while, or until one is reported.
func (w *watching) objects(server, client net.Conn, sizes []int, most time.Duration) (r Report, ok bool) {
	w.t.Helper()
	for began, i := time.Now(), 0; time.Since(began) < most; i++ {
		b := make([]byte, sizes[i%len(sizes)])
		if _, err := server.Write(b); err != nil {
			w.t.Fatal(err)
		}
		if _, err := io.ReadFull(client, b); err != nil {
			w.t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		for len(w.reports) > 0 {
			if r = <-w.reports; r.Kind == Object {
				return r, true
			}
		}
	}
	return r, false
}

// TestObjectsAfterMuch: an object of a connection that has carried more than 4 GiB has its own bytes.
func TestObjectsAfterMuch(t *testing.T) {
	w := watch(t)
	const much, size = 4<<30 + 1<<20, 500_000
	server, client, shape := w.slowPair()
	memory, err := unix.MemfdCreate("much", 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(memory), "much")
	defer file.Close()
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	raw, err := client.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	received := 0
	read := make(chan error, 1)
	go func() {
		b := make([]byte, 1<<20)
		read <- raw.Read(func(fd uintptr) bool {
			for received < much {
				n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_TRUNC) // copies nothing
				if err != nil || n == 0 {
					return !errors.Is(err, unix.EAGAIN)
				}
				received += n
			}
			return true
		})
	}()
	for sent := 0; sent < much; sent += 1 << 20 {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(server, file); err != nil { // by sendfile
			t.Fatal(err)
		}
	}
	if err := <-read; err != nil || received != much {
		t.Fatalf("%d bytes received, %v", received, err)
	}
	shape()
	var all []Report // the first ones may be of what came before
	for range 5 {
		r, ok := w.objects(server, client, []int{size}, 5*time.Second)
		if ok && r.Acked <= 2*size {
			return
		}
		all = append(all, r)
	}
	t.Errorf("no object of %d bytes: %+v", size, all)
}

// TestObjectsAcknowledgedAtOnce: what begins after an object whose first acknowledgment was of all of
// it is not reported as one that took no time.
func TestObjectsAcknowledgedAtOnce(t *testing.T) {
	w := watch(t)
	server, client, shape := w.slowPair()
	shape()
	for range 2 {
		if r, ok := w.objects(server, client, []int{30_000, 500_000}, 4*time.Second); ok && r.Busy == 0 {
			t.Errorf("object: %+v", r)
		}
	}
	if r, ok := w.objects(server, client, []int{500_000}, 10*time.Second); !ok || r.Busy == 0 {
		t.Errorf("object: %t, %+v", ok, r)
	}
}

// TestBusy: of a connection that always has data to send, which its client reads slowly, the
// interval that has not ended counts, and nothing counts twice.
func TestBusy(t *testing.T) {
	w := watch(t)
	var l net.Listener
	var client net.Conn
	netnstest.Do(t, w.ns, func() (err error) {
		if l, err = net.Listen("tcp", "[::1]:0"); err != nil {
			return err
		}
		client, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 3<<20))
		sent <- errors.Join(err, c.Close())
	}()
	for b := make([]byte, 64<<10); err == nil; _, err = io.ReadFull(client, b) {
		time.Sleep(5 * time.Millisecond)
	}
	if err := errors.Join(<-sent, client.Close()); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []Kind{Bulk, Closed} {
		r := w.next(kind, l.Addr().(*net.TCPAddr).AddrPort())
		if r.Busy <= 0 || r.Busy > r.Duration || r.Window+r.Buffer > r.Busy || r.Goodput() < float64(r.Acked)/r.Duration.Seconds() {
			t.Errorf("%s: %+v, %g bytes/s", kind, r, r.Goodput())
		}
	}
}

// TestTimeout: the timer of a connection whose path fails is reported, with each retry.
func TestTimeout(t *testing.T) {
	w := watch(t)
	other := netnstest.New(t)
	netnstest.IP(t, w.ns, "link add eth0 type veth peer name eth0 netns "+other+`
link set eth0 up
address add 192.0.2.1/24 dev eth0`)
	netnstest.IP(t, other, "link set eth0 up\naddress add 192.0.2.2/24 dev eth0")
	var l net.Listener
	netnstest.Do(t, w.ns, func() (err error) {
		l, err = net.Listen("tcp", "192.0.2.1:0")
		return err
	})
	defer l.Close()
	var client net.Conn
	netnstest.Do(t, other, func() (err error) {
		client, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	at := server.LocalAddr().(*net.TCPAddr).AddrPort()
	netnstest.IP(t, other, "address delete 192.0.2.2/24 dev eth0")
	if _, err := server.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	first, second := w.next(Timeout, at), w.next(Timeout, at)
	if second.Retries <= first.Retries {
		t.Errorf("retries %d, then %d", first.Retries, second.Retries)
	}
}

// TestUnanswered: a SYN-ACK that is not acknowledged is reported when it is sent again, and the
// socket diagnosis has the request until then, in both versions of IP.
func TestUnanswered(t *testing.T) {
	w := watch(t)
	other := netnstest.New(t)
	// What the server sends has an Ethernet address that nobody has.
	netnstest.IP(t, w.ns, "link add eth0 address 02:00:00:00:00:01 type veth peer name eth0 netns "+other+`
link set eth0 up
address add 192.0.2.1/24 dev eth0
address add 2001:db8::1/64 dev eth0 nodad
neighbor add 192.0.2.2 lladdr 02:00:00:00:00:03 dev eth0 nud permanent
neighbor add 2001:db8::2 lladdr 02:00:00:00:00:03 dev eth0 nud permanent`)
	netnstest.IP(t, other, `link set eth0 up
address add 192.0.2.2/24 dev eth0
address add 2001:db8::2/64 dev eth0 nodad
neighbor add 192.0.2.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent
neighbor add 2001:db8::1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent`)
	var diag *mptcp.Diag
	netnstest.Do(t, w.ns, func() (err error) {
		diag, err = mptcp.DialDiag()
		return err
	})
	defer diag.Close()
	for _, family := range []struct {
		listen, from string
		family       mptcp.Family
	}{{"192.0.2.1:0", "192.0.2.2", mptcp.IPv4}, {"[2001:db8::1]:0", "2001:db8::2", mptcp.IPv6}, {"[::]:0", "192.0.2.2", mptcp.IPv6}} {
		var l net.Listener
		netnstest.Do(t, w.ns, func() (err error) {
			l, err = net.Listen("tcp", family.listen)
			return err
		})
		to := l.Addr().(*net.TCPAddr).AddrPort()
		if to.Addr().IsUnspecified() {
			to = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), to.Port())
		}
		ctx, cancel := context.WithCancel(t.Context())
		dialing := make(chan struct{})
		go func() {
			defer close(dialing)
			_ = netns.Do(other, func() error {
				_, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
				return err // it is canceled
			})
		}()
		r := w.next(Unanswered, to)
		if r.Remote.Addr() != netip.MustParseAddr(family.from) || r.Remote.Port() == 0 || r.Acked != 0 || r.RTT != 0 || r.MinRTT != 0 {
			t.Errorf("%s: %+v", family.listen, r)
		}
		found := false
		if err := diag.Pending(family.family, func(q mptcp.Pending) {
			found = found || q.Local == to && q.Remote == r.Remote && q.Retransmitted > 0
		}); err != nil || !found {
			t.Errorf("%s: the request is not listed: %v", family.listen, err)
		}
		cancel()
		<-dialing
		l.Close()
	}
}

// ownGroup moves the process into a control group of its own, of which other tests see nothing.
func ownGroup(t *testing.T) *os.File {
	t.Helper()
	netnstest.Need(t)
	root, err := bpf.Groups()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	join := func(dir string) error {
		return os.WriteFile(dir+"/cgroup.procs", []byte(fmt.Sprint(os.Getpid())), 0)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, before, _ := strings.Cut("\n"+string(own), "\n0::")
	before, _, _ = strings.Cut(before, "\n")
	dir := fmt.Sprintf("%s/tabane-test-%d", bpf.GroupPath(root), os.Getpid())
	if err := errors.Join(os.Mkdir(dir, 0o755), join(dir)); err != nil {
		t.Fatal(err)
	}
	group, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		root, err := bpf.Groups()
		if err == nil {
			err = errors.Join(join(bpf.GroupPath(root)+before), group.Close(), os.Remove(fmt.Sprintf("%s/tabane-test-%d", bpf.GroupPath(root), os.Getpid())), root.Close())
		}
		if err != nil {
			t.Error(err)
		}
	})
	return group
}

// another attaches a sock_ops program of another owner that sets all flags of a connection that is
// established.
func another(t *testing.T, group *os.File, attachFlags uint32) (detach func()) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SockOps, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1), asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.JNE.Imm(asm.R2, 5, "end"),
			asm.Mov.Imm(asm.R2, 4), asm.FnSockOpsCbFlagsSet.Call(), // BPF_SOCK_OPS_STATE_CB_FLAG
			asm.Mov.Imm(asm.R0, 1).WithSymbol("end"), asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(group.Fd()), Program: p, Attach: ebpf.AttachCGroupSockOps, Flags: attachFlags}); err != nil {
		t.Fatal(err)
	}
	detach = sync.OnceFunc(func() {
		if err := errors.Join(link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(group.Fd()), Program: p, Attach: ebpf.AttachCGroupSockOps}), p.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(detach)
	return detach
}

// TestBesideOtherPrograms: programs of others at the same control group that exclude ours, switch
// off its callbacks, or detach it, are noticed.
func TestBesideOtherPrograms(t *testing.T) {
	group := ownGroup(t)
	const multi = 1 << 1 // BPF_F_ALLOW_MULTI
	detach := another(t, group, 0)
	ns := netnstest.New(t)
	netnstest.IP(t, ns, "link set lo up")
	var refused *feature.Error
	netnstest.Do(t, ns, func() error {
		if _, err := New(Options{Bulk: 1 << 20, Groups: group}); !errors.As(err, &refused) || !strings.Contains(refused.Remedy, "BPF_F_ALLOW_MULTI") {
			t.Errorf("beside one that excludes others: %v", err)
		}
		return nil
	})
	detach()

	w := watchIn(t, group)
	silenced := func() (n uint64) {
		t.Helper()
		n, err := w.watcher.Silenced()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const size = 3 << 20
	w.next(Closed, w.download(w.ns, "[::1]:0", size, 0))
	if n := silenced(); n != 0 {
		t.Errorf("%d silenced connections without another program", n)
	}
	detach = another(t, group, multi)
	w.next(Closed, w.download(w.ns, "[::1]:0", size, 0))
	if silenced() == 0 {
		t.Error("another program switches off callbacks, which is not noticed")
	}
	detach()

	if detached, err := w.watcher.Detached(); detached || err != nil {
		t.Errorf("detached %v, %v", detached, err)
	}
	if err := w.watcher.callbacks.Detach(); err != nil { // as bpftool link detach
		t.Fatal(err)
	}
	if detached, err := w.watcher.Detached(); !detached || err != nil {
		t.Errorf("after it was detached: %v, %v", detached, err)
	}
	if err := w.watcher.Attach(); err != nil {
		t.Fatal(err)
	}
	if detached, err := w.watcher.Detached(); detached || err != nil {
		t.Errorf("attached again: detached %v, %v", detached, err)
	}
	w.next(Bulk, w.download(w.ns, "[::1]:0", size, 0))
}

// BenchmarkConnections measures what each short connection costs: without and with the program, and
// with it the time of the program, at both ends, which are in the same control group, and of the
// thread that receives reports. What is reported is of one end, as a server has. Its own measuring
// takes the kernel some 40 ns a run.
func BenchmarkConnections(b *testing.B) {
	b.Run("without", func(b *testing.B) {
		ns := netnstest.New(b)
		netnstest.IP(b, ns, "link set lo up")
		connections(b, ns)
	})
	b.Run("with", func(b *testing.B) {
		w := watch(b)
		stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
		if err != nil {
			b.Skip(err)
		}
		defer stats.Close()
		go func() {
			for range w.reports {
			}
		}()
		ends := float64(2 * connections(b, w.ns))
		var took time.Duration
		var runs uint64
		for _, p := range []*ebpf.Program{w.watcher.objects.Observe, w.watcher.objects.Closed} {
			s, err := p.Stats()
			if err != nil {
				b.Fatal(err)
			}
			took, runs = took+s.Runtime, runs+s.RunCount
		}
		time.Sleep(2 * together)
		b.ReportMetric(float64(took.Nanoseconds())/ends, "program-ns/end")
		b.ReportMetric(float64(runs)/ends, "runs/end")
		b.ReportMetric(float64(w.processor.Load())/ends, "receive-ns/end")
	})
}

// connections opens short connections in a namespace, one after the other, and returns how many.
func connections(b *testing.B, ns string) (n int) {
	var l net.Listener
	netnstest.Do(b, ns, func() (err error) {
		l, err = net.Listen("tcp", "[::1]:0")
		return err
	})
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Write(make([]byte, 20_000))
				c.Close()
			}()
		}
	}()
	netnstest.Do(b, ns, func() error {
		for b.Loop() {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, c)
			c.Close()
			n++
		}
		return nil
	})
	return n
}

// BenchmarkDecode measures what reading a report costs.
func BenchmarkDecode(b *testing.B) {
	record := encode(programReport{Kind: 1, Remote: netip.MustParseAddr("2001:db8::1").As16()})
	for b.Loop() {
		if _, err := decode(record); err != nil {
			b.Fatal(err)
		}
	}
}

// TestUnacknowledged: a flow of UDP is reported when its sender probes as QUIC does that gets no
// acknowledgments, and no other one.
func TestUnacknowledged(t *testing.T) {
	w := watchOn(t, nil, "lo")
	for _, to := range []string{"[::1]:4433", "127.0.0.1:4433"} {
		var c net.Conn
		netnstest.Do(t, w.ns, func() (err error) {
			c, err = net.Dial("udp", to)
			return err
		})
		defer c.Close()
		packet := make([]byte, 1200)
		send := func(n int) {
			for range n {
				_, _ = c.Write(packet) // nobody listens: it may fail
			}
		}
		var r Report
		for until := time.Now().Add(time.Minute); r.Kind != Unacknowledged; {
			send(200)
			// On a busy machine a pause may be longer than wanted, and the next one not twice as long: then
			// from the start.
			last, gap := time.Now(), 25*time.Millisecond
			for range 3 {
				gap *= 2
				time.Sleep(time.Until(last.Add(gap)))
				now := time.Now()
				gap, last = now.Sub(last), now
				send(2)
			}
			select {
			case r = <-w.reports:
			case <-time.After(time.Second): // what is sent earlier ends what a late report is about
			}
			if time.Now().After(until) {
				t.Fatal("no report")
			}
		}
		own := func(r Report) bool {
			return r.Kind == Unacknowledged && r.Local == c.LocalAddr().(*net.UDPAddr).AddrPort() && r.Remote.String() == to && r.Retries >= 2
		}
		if !own(r) {
			t.Errorf("report %+v", r)
		}
		waits := 0
		if err := w.watcher.Flows(func(f Flow) {
			if f.Local == r.Local && f.Remote == r.Remote && f.Waits && f.Progress > 10 {
				waits++
			}
		}); err != nil || waits != 1 {
			t.Errorf("%d such flows, %v", waits, err)
		}
		// A report that comes late, or a pause that was long, has others of the same flow follow.
		for len(w.reports) > 0 {
			if r := <-w.reports; !own(r) {
				t.Errorf("another report: %+v", r)
			}
		}
	}
}

// TestUnread: an interface that is made again, and a filter that another program has removed, are
// found, and flows are read there again.
func TestUnread(t *testing.T) {
	const lan = "link add lan type veth peer name peer\nlink set lan up"
	netnstest.Need(t)
	ns := netnstest.New(t)
	netnstest.IP(t, ns, lan)
	netnstest.Do(t, ns, func() error {
		w, err := New(Options{Bulk: 1 << 20, Links: []string{"lan"}})
		if err != nil {
			return err
		}
		unread := func(when string, want ...string) {
			t.Helper()
			if links, err := w.Unread(); err != nil || !slices.Equal(links, want) {
				t.Errorf("%s: not read on %v, %v, want %v", when, links, err, want)
			}
		}
		read := func() {
			t.Helper()
			if err := w.Read(); err != nil {
				t.Error(err)
			}
			unread("read again")
		}
		unread("at the start")
		detachEgress(t, "lan")
		unread("detached", "lan")
		read()
		netnstest.IP(t, ns, "link delete lan")
		unread("without the interface")
		netnstest.IP(t, ns, lan)
		unread("made again", "lan")
		read()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		unread("closed")
		return w.Read()
	})
}

// detachEgress detaches all tcx programs at egress of an interface of the calling thread's network
// namespace.
func detachEgress(t *testing.T, name string) {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	list, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: ebpf.AttachTCXEgress})
	if err != nil || len(list.Programs) == 0 {
		t.Skipf("no tcx programs: %v", err)
	}
	for _, p := range list.Programs {
		id, ok := p.LinkID()
		if !ok {
			t.Fatalf("program %d has no link", p.ID)
		}
		l, err := link.NewFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.Detach(), l.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFits: packets of QUIC that would not fit with the header that has a SID are lost without it, in
// connections that began with a handshake, and no others.
func TestFits(t *testing.T) {
	w := watchOn(t, nil, "lo")
	for _, tt := range []struct {
		name    string
		address string
		begins  []byte // of the first datagram
		fits    int    // bytes of an IP packet
		payload int
		gso     bool // three datagrams at once
		arrives bool
	}{
		{"fits", "[::1]:0", []byte{0xc3, 0, 0, 0, 1}, 1460, 1412, false, true},
		{"a byte more", "[::1]:0", []byte{0xc3, 0, 0, 0, 1}, 1460, 1413, false, false},
		{"IPv4 fits", "127.0.0.1:0", []byte{0xc3, 0, 0, 0, 1}, 1460, 1432, false, true},
		{"IPv4, a byte more", "127.0.0.1:0", []byte{0xc3, 0, 0, 0, 1}, 1460, 1433, false, false},
		{"version 2", "[::1]:0", []byte{0xd3, 0x6b, 0x33, 0x43, 0xcf}, 1460, 1413, false, false},
		{"segments fit", "[::1]:0", []byte{0xc3, 0, 0, 0, 1}, 1460, 1412, true, true},
		{"segments, a byte more", "[::1]:0", []byte{0xc3, 0, 0, 0, 1}, 1460, 1413, true, false},
		{"began before", "[::1]:0", []byte{0x43, 0, 0, 0, 1}, 1460, 1413, false, true},
		{"another protocol", "[::1]:0", []byte{0xc3, 0, 0, 0, 4}, 1460, 1413, false, true},
		{"all fit", "[::1]:0", []byte{0xc3, 0, 0, 0, 1}, 0, 1413, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := w.watcher.SetFits(tt.fits); err != nil {
				t.Fatal(err)
			}
			var to net.PacketConn
			var from net.Conn
			netnstest.Do(t, w.ns, func() (err error) {
				if to, err = net.ListenPacket("udp", tt.address); err != nil {
					return err
				}
				from, err = net.Dial("udp", to.LocalAddr().String())
				return err
			})
			defer to.Close()
			defer from.Close()
			datagram := make([]byte, 1200)
			copy(datagram, tt.begins)
			if _, err := from.Write(datagram); err != nil {
				t.Fatal(err)
			}
			long := make([]byte, tt.payload)
			if tt.gso {
				long = make([]byte, 3*tt.payload)
				raw, err := from.(*net.UDPConn).SyscallConn()
				if err = errors.Join(err, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, tt.payload) }), err); err != nil {
					t.Fatal(err)
				}
			}
			// The last one shows that nothing is under way any more.
			if _, err := from.Write(long); err != nil {
				t.Fatal(err)
			}
			if _, err := from.Write([]byte("end")); err != nil {
				t.Fatal(err)
			}
			arrived := false
			for b := make([]byte, 1<<16); ; {
				if err := to.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
					t.Fatal(err)
				}
				n, _, err := to.ReadFrom(b)
				if err != nil {
					t.Fatal(err)
				}
				arrived = arrived || n == tt.payload
				if string(b[:n]) == "end" {
					break
				}
			}
			if arrived != tt.arrives {
				t.Errorf("%d bytes arrive: %t", tt.payload, arrived)
			}
		})
	}
}

// BenchmarkSent is the program that reads what leaves, for a segment of TCP and a datagram.
// TestUnfit: a flow whose handshake was not seen, and that sends short headers of QUIC in packets that
// would not fit with a SID, is reported, and no other one.
func TestUnfit(t *testing.T) {
	w := watchOn(t, nil, "lo")
	for _, tt := range []struct {
		name    string
		begins  byte // the first byte of the first datagram
		first   byte // that of the others
		fits    int
		payload int
		reports int
	}{
		{"unseen", 0x40, 0x4f, 1460, 1413, 1},
		{"fits", 0x40, 0x4f, 1460, 1412, 0},
		{"all fit", 0x40, 0x4f, 0, 1413, 0},
		{"seen", 0xc3, 0x4f, 1460, 1413, 0},
		{"another protocol", 4, 4, 1460, 1413, 0},
	} {
		if err := w.watcher.SetFits(tt.fits); err != nil {
			t.Fatal(err)
		}
		var from net.Conn
		netnstest.Do(t, w.ns, func() (err error) {
			from, err = net.Dial("udp", "[::1]:9")
			return err
		})
		datagram := make([]byte, 1200)
		copy(datagram, []byte{tt.begins, 0, 0, 0, 1})
		_, _ = from.Write(datagram) // nobody listens: it may fail
		long := make([]byte, tt.payload)
		long[0] = tt.first
		for range 5 {
			_, _ = from.Write(long)
		}
		time.Sleep(2 * together)
		n := 0
		for len(w.reports) > 0 {
			if r := <-w.reports; r.Kind == Unfit && r.Local == from.LocalAddr().(*net.UDPAddr).AddrPort() {
				n++
			}
		}
		if n != tt.reports {
			t.Errorf("%s: %d reports, want %d", tt.name, n, tt.reports)
		}
		if err := from.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkSent(b *testing.B) {
	w := watchOn(b, nil)
	for name, protocol := range map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP} {
		b.Run(name, func(b *testing.B) {
			frame := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0x05, 0, protocol, 64)
			frame = append(frame, make([]byte, 32+1280)...)
			frame[14+40+12] = 5 << 4
			var d time.Duration
			for range b.N {
				ret, each, err := w.watcher.objects.Sent.Benchmark(frame, 100_000, nil)
				if err != nil || int32(ret) != -1 {
					b.Fatal(ret, err)
				}
				d += each
			}
			b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), "ns/packet")
		})
	}
}
