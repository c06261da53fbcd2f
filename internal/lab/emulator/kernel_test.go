package emulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
)

// ping sends n echo requests from the left to the right node and returns the replies.
func (b *bed) ping(n int) netnstest.Echoes {
	b.t.Helper()
	return b.pingLarge("10.0.0.2", n, 56)
}

func (b *bed) pingLarge(to string, n, payload int) netnstest.Echoes {
	b.t.Helper()
	e, err := netnstest.Echo(b.left, netip.MustParseAddr(to), n, payload)
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

// crosses reports whether an echo request is answered.
func (b *bed) crosses() bool { return b.ping(1).Received == 1 }

func report(t *testing.T, l *Link) Report {
	t.Helper()
	r, err := l.Report()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// stream sends n random bytes over TCP from a node to the other's address.
func (b *bed) stream(from, to, address string, n int) {
	b.t.Helper()
	var listener net.Listener
	var c net.Conn
	b.do(to, func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
		return err
	})
	defer listener.Close()
	b.do(from, func() (err error) {
		c, err = net.DialTimeout("tcp", listener.Addr().String(), 5*time.Second)
		return err
	})
	defer c.Close()
	server, err := listener.Accept()
	if err != nil {
		b.t.Fatal(err)
	}
	defer server.Close()
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- err
	}()
	server.SetDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, n)
	_, err = io.ReadFull(server, got)
	if err := errors.Join(err, <-sent, c.Close()); err != nil {
		b.t.Fatal(err)
	}
	if more, err := io.ReadAll(server); err != nil || len(more) > 0 {
		b.t.Errorf("%s to %s: %d bytes more than %d, %v", from, to, len(more), n, err)
	}
	if !bytes.Equal(got, data) {
		b.t.Errorf("%s to %s: %d bytes arrive otherwise than %d were sent", from, to, len(got), n)
	}
}

// checksumErrors returns the node's nonzero counters of received packets with wrong checksums.
func (b *bed) checksumErrors(ns string) string {
	var found []string
	b.do(ns, func() error {
		for _, file := range []string{"/proc/net/snmp", "/proc/net/snmp6"} {
			text, err := os.ReadFile(strings.Replace(file, "/proc/", "/proc/thread-self/", 1))
			if err != nil {
				return err
			}
			lines := strings.Split(string(text), "\n")
			for i, line := range lines {
				fields := strings.Fields(line)
				if len(fields) == 2 && strings.Contains(fields[0], "CsumErrors") && fields[1] != "0" {
					found = append(found, line)
				}
				if i == 0 || len(fields) < 3 {
					continue
				}
				names := strings.Fields(lines[i-1])
				for k, name := range names {
					if len(names) == len(fields) && name == "InCsumErrors" && fields[k] != "0" {
						found = append(found, fields[0]+name+" "+fields[k])
					}
				}
			}
		}
		return nil
	})
	return strings.Join(found, ", ")
}

func TestTrafficCrosses(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			b := newBed(t, mtu)
			l := b.open(Options{Config: Config{Forward: linkmodel.Profile{Delay: 3 * ms}, Backward: linkmodel.Profile{Delay: 2 * ms}}})
			b.run(l)
			for to, header := range map[string]int{"10.0.0.2": 28, "fd00::2": 48} {
				if e := b.pingLarge(to, 3, mtu-header); e.Received == 0 || e.Shortest < 5*ms {
					t.Errorf("%+v from %s, want round trips of both delays", e, to)
				}
			}
			const n = 3 << 20
			b.stream(b.left, b.right, "10.0.0.2", n)
			b.stream(b.right, b.left, "10.0.0.1", n)
			b.stream(b.left, b.right, "fd00::2", n)
			b.stream(b.right, b.left, "fd00::1", n)
			b.datagrams(b.left, b.right, "10.0.0.2")
			b.datagrams(b.right, b.left, "fd00::1")
			for _, ns := range []string{b.left, b.right} {
				if wrong := b.checksumErrors(ns); wrong != "" {
					t.Errorf("%s: %s", ns, wrong)
				}
			}
			var r Report
			until(t, "all frames are delivered", func() bool { r = report(t, l); return r.Forward.Flying+r.Backward.Flying == 0 })
			for _, s := range []Statistics{r.Forward, r.Backward} {
				if s.Drops != (Drops{}) || s.Delivered != s.Arrived || s.DeliveredBytes < 2*n {
					t.Errorf("%+v", s)
				}
				if longest := s.DeliveredBytes / s.Delivered; longest > uint64(mtu+etherHeader) {
					t.Errorf("frames of %d bytes on average", longest)
				}
			}
		})
	}
}

// congestion returns the number of packets that the node received with Congestion Experienced.
func (b *bed) congestion(ns string) int {
	return b.counters(ns, map[string]string{"netstat": "InCEPkts", "snmp6": "Ip6InCEPkts"})
}

// controlMessages returns the number of ICMPv6 packets that the node sent. The kernel sends some by
// itself in the first seconds of a link: multicast reports, router and neighbor solicitations.
func (b *bed) controlMessages(ns string) int {
	return b.counters(ns, map[string]string{"snmp6": "Icmp6OutMsgs"})
}

// counters returns the sum of a node's counters, one of each file.
func (b *bed) counters(ns string, names map[string]string) (n int) {
	b.do(ns, func() error {
		for file, name := range names {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			// A line of names is followed by one of values, or a line has both.
			lines := strings.Split(string(text), "\n")
			for i, line := range lines {
				fields := strings.Fields(line)
				at := slices.Index(fields, name)
				switch {
				case at > 0:
					fields = strings.Fields(lines[i+1])
				case at < 0 || len(fields) < 2:
					continue
				default:
					at = 1
				}
				count, err := strconv.Atoi(fields[at])
				if err != nil {
					return err
				}
				n += count
			}
		}
		return nil
	})
	return n
}

// TCP with ECN saturates a link: the queue marks and drops nothing, and the receiver counts as many
// marks as the queue. Without ECN the same queue drops.
func TestECNMarksReachTCP(t *testing.T) {
	for name, queue := range map[string]linkmodel.Queue{
		"codel": {Discipline: linkmodel.DisciplineCoDel, CoDel: linkmodel.CoDel{Target: 2 * ms, Interval: 20 * ms}},
		"red":   {Discipline: linkmodel.DisciplineRED, RED: linkmodel.RED{Min: linkmodel.Limit{Time: 2 * ms}, Max: linkmodel.Limit{Time: 20 * ms}, P: 0.1, Weight: 0.05}},
	} {
		t.Run(name, func(t *testing.T) {
			queue.Time, queue.ECN = time.Second, true
			b := newBed(t, 1500)
			// A retransmission is not ECN-capable (RFC 3168 section 6.1.5), so that the queue may
			// drop it. With ECN there must be none, however late a busy machine delivers
			// acknowledgments.
			agree := func(value string) {
				probes, timeout := "3", "200000" // as Linux
				if value == "1" {
					probes, timeout = "0", "5000000"
				}
				for _, ns := range []string{b.left, b.right} {
					b.do(ns, func() error {
						err := netns.Sysctl("net.ipv4.tcp_rto_min_us", timeout)
						if errors.Is(err, fs.ErrNotExist) { // before Linux 6.11
							err = nil
						}
						return errors.Join(err, netns.Sysctl("net.ipv4.tcp_early_retrans", probes),
							netns.Sysctl("net.ipv4.tcp_ecn", value), netns.Sysctl("net.ipv4.tcp_congestion_control", "reno"))
					})
				}
			}
			l := b.open(Options{Config: Config{Forward: linkmodel.Profile{Rate: 50 * unit.MbitPerSecond, Delay: 5 * ms, Queue: queue}}})
			b.run(l)
			for _, address := range []string{"10.0.0.2", "fd00::2"} {
				before, marks, others := report(t, l).Forward, b.congestion(b.right), b.controlMessages(b.left)
				agree("1")
				b.stream(b.left, b.right, address, 2<<20)
				after := report(t, l).Forward
				marked := after.Marked - before.Marked
				// What the kernel sends by itself meanwhile is not ECN-capable either.
				most := before.Drops
				most.RED, most.CoDel = after.Drops.RED, after.Drops.CoDel
				dropped := most.RED + most.CoDel - before.Drops.RED - before.Drops.CoDel
				if others := b.controlMessages(b.left) - others; marked == 0 || after.Drops != most || dropped > uint64(others) {
					t.Errorf("%s: %d marked, drops %+v, before %+v, and %d ICMPv6 messages", address, marked, after.Drops, before.Drops, others)
				}
				if got := b.congestion(b.right) - marks; uint64(got) != marked {
					t.Errorf("%s: %d are marked, %d arrive with a mark", address, marked, got)
				}
				agree("0")
				b.stream(b.left, b.right, address, 2<<20)
				last := report(t, l).Forward
				if last.Marked != after.Marked || last.Drops.RED+last.Drops.CoDel == after.Drops.RED+after.Drops.CoDel {
					t.Errorf("%s without ECN: %d marked, %+v dropped, before %+v", address, last.Marked-after.Marked, last.Drops, after.Drops)
				}
			}
			if wrong := b.checksumErrors(b.right); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}

// datagrams sends UDP packets of various lengths, also in one call that the kernel segments (UDP
// GSO).
func (b *bed) datagrams(from, to, address string) {
	b.t.Helper()
	var in, out *net.UDPConn
	b.do(to, func() (err error) {
		in, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)})
		return err
	})
	defer in.Close()
	b.do(from, func() (err error) {
		out, err = net.DialUDP("udp", nil, in.LocalAddr().(*net.UDPAddr))
		return err
	})
	defer out.Close()
	buffer := make([]byte, 2048)
	receive := func(want []byte) {
		b.t.Helper()
		in.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := in.Read(buffer)
		if err != nil || !bytes.Equal(buffer[:n], want) {
			b.t.Fatalf("received %d bytes, %v, want %d", n, err, len(want))
		}
	}
	for _, n := range []int{0, 1, 17, 18, 19, 500, 1452} {
		data := bytes.Repeat([]byte{byte(n)}, n)
		if _, err := out.Write(data); err != nil {
			b.t.Fatal(err)
		}
		receive(data)
	}
	const segment, count = 1000, 10
	raw, err := out.SyscallConn()
	if err != nil {
		b.t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, segment) }); e != nil || err != nil {
		b.t.Fatal(e, err)
	}
	data := make([]byte, segment*count)
	for i := range data {
		data[i] = byte(i / segment)
	}
	if _, err := out.Write(data); err != nil {
		b.t.Fatal(err)
	}
	for i := range count {
		receive(data[i*segment:][:segment])
	}
}

// Frames from an end without Prepare are dropped if they are not as on a wire, and the log has the
// remedy.
func TestUnpreparedEnd(t *testing.T) {
	b := newBed(t, 1500)
	b.do(b.left, func() error {
		end, err := netlink.LinkByName("end")
		if err != nil {
			return err
		}
		// A new pair has its offloads on.
		return netlink.LinkDel(end)
	})
	b.pair(b.left, "ra", 1, 1500)
	log := &lines{}
	l := b.open(Options{Log: log.logger()})
	b.run(l)
	b.do(b.left, func() error {
		c, err := net.Dial("udp", "10.0.0.2:9")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
	until(t, "a frame without checksum is counted", func() bool { return report(t, l).Forward.Drops.Checksum > 0 })
	if !strings.Contains(log.String(), "offloads of the sending node's interface are on") {
		t.Errorf("log does not say why:\n%s", log)
	}
}

// Frames keep their VLAN tags, although the kernel removes them from the data in the ring.
func TestVLANTags(t *testing.T) {
	b := newBed(t, 1500)
	l := b.open(Options{})
	b.run(l)
	open := func(ns string) *port {
		var p *port
		b.do(ns, func() error {
			end, err := netlink.LinkByName("end")
			if err != nil {
				return err
			}
			p, err = openPort("end", end.Attrs().Index, 1600)
			return err
		})
		t.Cleanup(func() {
			if err := p.close(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	from, to := open(b.left), open(b.right)
	// The maximum frame length with each kind of tag.
	for protocol, length := range map[uint16]int{unix.ETH_P_8021Q: 1518, unix.ETH_P_8021AD: 1514} {
		sent := make([]byte, length)
		for i := range sent {
			sent[i] = byte(i)
		}
		copy(sent, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, byte(protocol >> 8), byte(protocol & 0xff), 0x6f, 0xa1, 0x88, 0xb5})
		from.stage(0, sent)
		if n, err := from.send(0, 1); n != 1 || err != nil {
			t.Fatalf("sent %d: %v", n, err)
		}
		found := false
		until(t, "the frame arrives", func() bool {
			for !found {
				f, ok := to.peek()
				if !ok {
					return false
				}
				got := make([]byte, 2000)
				got = got[:f.copyTo(got)]
				to.done(f)
				if len(got) != len(sent) {
					continue // sent by the kernel itself
				}
				if found = true; !bytes.Equal(got, sent) {
					t.Errorf("sent %x..., got %x...", sent[:20], got[:20])
				}
			}
			return true
		})
	}
}

func TestChangesOfALiveLink(t *testing.T) {
	b := newBed(t, 1500)
	l := b.open(Options{Config: Config{Seed: 1}})
	b.run(l)
	if e := b.ping(2); e.Received == 0 {
		t.Fatal("no answer")
	}
	all := linkmodel.Loss{Kind: linkmodel.Random, P: 1}
	if err := l.Set(linkmodel.Backward, linkmodel.Change{Loss: &all}); err != nil {
		t.Fatal(err)
	}
	if e := b.ping(2); e.Received > 0 {
		t.Errorf("crosses a link that loses everything: %+v", e)
	}
	r := report(t, l)
	if r.Backward.Drops.Loss == 0 || r.Backward.Drops.Loss+r.Backward.Delivered != r.Backward.Arrived || r.Forward.Drops != (Drops{}) {
		t.Errorf("%+v", r)
	}
	delay := 30 * ms
	twice := 1.0
	server := httptest.NewServer(l.Handler())
	defer server.Close()
	post := func(path, body string, want int, says string) {
		t.Helper()
		resp, err := http.Post(server.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want || !strings.Contains(string(text), says) {
			t.Errorf("POST %s %s: %d %s, %v; want %d %q", path, body, resp.StatusCode, text, err, want, says)
		}
	}
	post("/set", `{"loss":{}}`, 204, "")
	if e := b.ping(2); e.Received == 0 {
		t.Error("no answer")
	}
	post("/set", `{"rate":"1bit/s"}`, 400, "rate: must be at least")
	post("/set", `{"rat":"1Mbit/s"}`, 400, "unknown field")
	post("/set", `{"direction":"up","rate":"1Mbit/s"}`, 400, "none of forward")
	post("/set", `{}`, 400, "changes nothing")
	post("/set", `{"at":5,"duplicate":1}`, 400, "at must be 0")
	post("/set", `{"duplicate":1}{}`, 400, "more than one")
	post("/schedule", `[{"at":-1,"duplicate":1}]`, 400, "[0].at: must be >= 0s")
	post("/schedule", `[{"at":0,"direction":"forward","rate":"15Mbit/s"},{"at":1000000,"delay":30000000},{"at":3600000000000,"duplicate":1}]`, 204, "")
	until(t, "two steps are done", func() bool { return report(t, l).Steps == 2 })
	r = report(t, l)
	if r.Forward.Profile != (linkmodel.Profile{Rate: 15 * unit.MbitPerSecond, Delay: delay}) || r.Backward.Profile != (linkmodel.Profile{Delay: delay}) {
		t.Errorf("profiles are %+v and %+v", r.Forward.Profile, r.Backward.Profile)
	}
	// A change that is valid by itself, but not with the pending steps.
	if err := l.Play(linkmodel.Schedule{{At: time.Hour, Change: linkmodel.Change{Jitter: &linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: delay}}}}); err != nil {
		t.Fatal(err)
	}
	none := time.Duration(0)
	if err := l.Set(linkmodel.Forward, linkmodel.Change{Delay: &none}); err == nil || !strings.Contains(err.Error(), "step of the schedule") {
		t.Errorf("error %v", err)
	}
	if err := l.Set(linkmodel.Both, linkmodel.Change{Duplicate: &twice}); err != nil {
		t.Error(err)
	}
	if e := b.ping(2); e.Duplicates == 0 {
		t.Errorf("no duplicates: %+v", e)
	}
}

// carrier reports whether the node's interface has a carrier (IFF_LOWER_UP).
func (b *bed) carrier(ns string) bool { return b.end(ns).RawFlags&unix.IFF_LOWER_UP != 0 }

func (b *bed) turn(ns string, up bool) {
	b.t.Helper()
	b.do(ns, func() error {
		end, err := netlink.LinkByName("end")
		if err != nil {
			return err
		}
		if up {
			return netlink.LinkSetUp(end)
		}
		return netlink.LinkSetDown(end)
	})
}

func TestCarrierLoss(t *testing.T) {
	b := newBed(t, 1500)
	log := &lines{}
	l := b.open(Options{Log: log.logger()})
	b.run(l)
	for i, ns := range []string{b.left, b.right} {
		other := []string{b.right, b.left}[i]
		b.turn(ns, false)
		until(t, "the other node has no carrier", func() bool { return !b.carrier(other) })
		until(t, "the cut is reported", func() bool { r := report(t, l); return !r.Connected && r.Cuts == uint64(i+1) })
		b.turn(ns, true)
		until(t, "the other node has its carrier back", func() bool { return b.carrier(other) && b.carrier(ns) })
		until(t, "traffic crosses again", b.crosses)
	}
	// Both interfaces go down at once, and come up in either order.
	for _, first := range []string{b.left, b.right} {
		b.turn(b.left, false)
		b.turn(b.right, false)
		until(t, "the cut is reported", func() bool { return !report(t, l).Connected })
		second := map[string]string{b.left: b.right, b.right: b.left}[first]
		b.turn(first, true)
		b.turn(second, true)
		until(t, "traffic crosses again", b.crosses)
	}
	if !strings.Contains(log.String(), "link is cut") || !strings.Contains(log.String(), "link is connected") {
		t.Errorf("neither is logged:\n%s", log)
	}
}

func TestStopAndStartAgain(t *testing.T) {
	b := newBed(t, 1500)
	l := b.open(Options{})
	stop := b.run(l)
	if e := b.ping(2); e.Received == 0 {
		t.Fatal("no answer")
	}
	stop()
	if b.carrier(b.left) || b.carrier(b.right) {
		t.Error("the nodes have a carrier after the end")
	}
	if r := report(t, l); r.Forward.Delivered < 2 {
		t.Errorf("no statistics after the end: %+v", r)
	}
	if err := l.Set(linkmodel.Both, linkmodel.Change{Delay: new(time.Duration)}); !errors.Is(err, ErrClosed) {
		t.Errorf("Set after the end: %v", err)
	}
	if err := l.Run(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("second Run: %v", err)
	}
	b.run(b.open(Options{}))
	until(t, "traffic crosses again", b.crosses)
}

func TestInterfaceIsRemoved(t *testing.T) {
	b := newBed(t, 1500)
	l := b.open(Options{})
	done := make(chan error, 1)
	go func() { done <- l.Run(context.Background()) }()
	until(t, "the link runs", b.crosses)
	b.do(b.left, func() error {
		end, err := netlink.LinkByName("end")
		if err != nil {
			return err
		}
		return netlink.LinkDel(end)
	})
	if err := <-done; err == nil || !strings.Contains(err.Error(), `"ra"`) {
		t.Errorf("error %v", err)
	}
}

// The link does not receive the frames that it sends, and its namespace sends no frames of its own.
func TestLinkSendsNothingOfItsOwn(t *testing.T) {
	b := newBed(t, 1500)
	l := b.open(Options{})
	b.run(l)
	if e := b.ping(10); e.Received == 0 {
		t.Fatal("no answer")
	}
	r := report(t, l)
	for i, ns := range []string{b.left, b.right} {
		sent := r.Forward.Arrived
		if i == 1 {
			sent = r.Backward.Arrived
		}
		s := b.end(ns).Statistics
		// The node may have sent something since.
		if sent > s.TxPackets {
			t.Errorf("%d frames arrive from %s, which sent %d", sent, ns, s.TxPackets)
		}
	}
	b.do(b.middle, func() error {
		for _, end := range []string{"ra", "rb"} {
			if v, err := netns.ReadSysctl("net.ipv6.conf." + end + ".disable_ipv6"); err != nil || v != "1" {
				t.Errorf("IPv6 of %s: disabled is %q, %v", end, v, err)
			}
		}
		return nil
	})
}

func TestNewRefuses(t *testing.T) {
	b := newBed(t, 1500)
	for name, tt := range map[string]struct {
		prepare func() error
		options Options
		says    string
	}{
		"no such interface": {nil, Options{Config: Config{A: "ra", B: "rx"}}, `find interface "rx"`},
		"wrong profile":     {nil, Options{Config: Config{A: "ra", B: "rb", Forward: linkmodel.Profile{Delay: -1}}}, "forward.delay: must be from 0s"},
		"two MTUs": {func() error {
			end, err := netlink.LinkByName("ra")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(end, 1400)
		}, Options{Config: Config{A: "ra", B: "rb"}}, "must have one MTU, got 1400 and 1500"},
	} {
		b.do(b.middle, func() error {
			if tt.prepare != nil {
				if err := tt.prepare(); err != nil {
					return err
				}
			}
			if _, err := New(tt.options); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: error %v, want %q", name, err, tt.says)
			}
			return nil
		})
	}
	if err := offload.Prepare("no-such-if"); err == nil {
		t.Error("Prepare accepts an interface that does not exist")
	}
}
