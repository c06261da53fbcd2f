package flowcount

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// pair is a server and a client in namespaces of their own, with a veth between them. What the
// server sends to the client from 2001:db8:1::b and from 192.0.2.1 goes to a SID, from
// 2001:db8:1::a as it is.
type pair struct {
	server, client string
}

func newPair(t testing.TB) pair {
	t.Helper()
	p := pair{netnstest.New(t), netnstest.New(t)}
	for _, ns := range []string{p.server, p.client} {
		inside(t, ns, func() error {
			for file, value := range map[string]string{
				"ipv6/conf/all/seg6_enabled": "1", "ipv6/conf/default/seg6_enabled": "1", "ipv6/conf/all/forwarding": "1",
				"ipv6/conf/default/accept_dad": "0", "ipv6/conf/all/accept_dad": "0", "ipv4/conf/all/rp_filter": "0",
			} {
				if err := os.WriteFile("/proc/sys/net/"+file, []byte(value), 0); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ip(t, p.server, `link add eth0 address 02:00:00:00:00:01 type veth peer name eth0 address 02:00:00:00:00:02 netns `+p.client)
	return p
}

// connect brings the link up.
func (p pair) connect(t testing.TB, encap string) {
	ip(t, p.server, "address add 192.0.2.1/32 dev eth0")
	ip(t, p.server, `link set lo up
link set eth0 up
address add 2001:db8:1::1/64 dev eth0 nodad
address add 2001:db8:1::a/128 dev eth0 nodad
address add 2001:db8:1::b/128 dev eth0 nodad
route add 2001:db8:c::/64 via 2001:db8:1::2 dev eth0
route add fc00:1::/32 via 2001:db8:1::2 dev eth0
route add 2001:db8:c::/64 encap seg6 mode `+encap+` segs fc00:1:1:: dev eth0 table 101
rule add from 2001:db8:1::b lookup 101`)
	ip(t, p.server, "route add 198.51.100.0/24 dev eth0 src 192.0.2.1 encap seg6 mode "+encap+" segs fc00:1:4::")
	ip(t, p.client, `link set lo up
link set eth0 up
address add 2001:db8:1::2/64 dev eth0 nodad
address add 2001:db8:c::2/128 dev lo nodad
address add 198.51.100.2/32 dev lo
route add 192.0.2.0/24 dev eth0
neighbor add 192.0.2.1 lladdr 02:00:00:00:00:01 dev eth0
route add fc00:1:1:: encap seg6local action End.DT6 table 255 dev eth0
route add fc00:1:4:: encap seg6local action End.DX4 nh4 198.51.100.2 dev eth0`)
}

// ip runs commands of iproute2 in the namespace.
func ip(t testing.TB, ns, batch string) {
	t.Helper()
	if _, err := netnstest.TryIP(t, ns, batch); err != nil {
		t.Fatal(err)
	}
}

func inside(t testing.TB, ns string, f func() error) {
	t.Helper()
	if err := netns.Do(ns, f); err != nil {
		t.Fatal(err)
	}
}

// setOffload switches segmentation offload of eth0, so that what the interface counts are the
// packets of the wire, or not.
func setOffload(t testing.TB, ns string, on uint32) {
	t.Helper()
	inside(t, ns, func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		for _, command := range []uint32{unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO} {
			value := struct{ command, data uint32 }{command, on}
			request := struct {
				name [unix.IFNAMSIZ]byte
				data unsafe.Pointer
				_    [16]byte
			}{data: unsafe.Pointer(&value)}
			copy(request.name[:], "eth0")
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
				return fmt.Errorf("switch offload %#x: %w", command, errno)
			}
		}
		return nil
	})
}

// counter returns a flow counter on eth0 of the namespace.
func counter(t testing.TB, ns string, o Options) *Counter {
	t.Helper()
	f := newCounter(t, o)
	inside(t, ns, func() error { return f.Attach("eth0") })
	return f
}

// statistics are what eth0 itself has counted.
func statistics(t testing.TB, ns string) (received, sent Count) {
	t.Helper()
	inside(t, ns, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		s := l.Attrs().Statistics
		received, sent = Count{s.RxPackets, s.RxBytes}, Count{s.TxPackets, s.TxBytes}
		return nil
	})
	return received, sent
}

// transfer has the client fetch so many bytes over TCP from the address of the server.
func (p pair) transfer(t testing.TB, from netip.AddrPort, client netip.Addr, size int) {
	t.Helper()
	var l net.Listener
	inside(t, p.server, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(t.Context(), "tcp", from.String())
		return err
	})
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = c.Write(make([]byte, size))
			err = errors.Join(err, c.Close())
		}
		served <- errors.Join(err, l.Close())
	}()
	var c net.Conn
	inside(t, p.client, func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: client.AsSlice()}}
		c, err = d.DialContext(t.Context(), "tcp", from.String())
		return err
	})
	n, err := io.Copy(io.Discard, c)
	if err := errors.Join(err, c.Close(), <-served); err != nil || n != int64(size) {
		t.Fatalf("%d bytes came, %v", n, err)
	}
}

// sides are the flows that a counter has, by where they come from, where they go and their SID.
func sides(t testing.TB, f *Counter) map[string]Count {
	t.Helper()
	all := map[string]Count{}
	f.Each(func(_ int, k *Key, c Count) {
		all[fmt.Sprint(k.Src(), k.Dst(), k.SID())] = c
	})
	return all
}

// TestAccountingIsExact has real traffic counted on both sides of a link, with every kind of
// framing, and compares with what the interfaces count.
func TestAccountingIsExact(t *testing.T) {
	const size = 3 << 20
	for _, tt := range []struct {
		name, encap string
		offload     uint32
		legacy      bool
	}{
		{"without srh", "encap.red", 0, false},
		{"with srh", "encap", 0, false},
		{"segments by the link", "encap.red", 1, false},
		{"cls_bpf", "encap.red", 0, true},
		{"cls_bpf, segments by the link", "encap", 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t)
			setOffload(t, p.server, tt.offload)
			setOffload(t, p.client, tt.offload)
			o := Options{Legacy: tt.legacy}
			atServer, atClient := counter(t, p.server, o), counter(t, p.client, o)
			p.connect(t, tt.encap)
			counters, before := map[string]*Counter{p.server: atServer, p.client: atClient}, map[string]account{}
			for ns, f := range counters {
				before[ns] = settled(t, ns, f)
			}
			for _, from := range []string{"[2001:db8:1::a]:80", "[2001:db8:1::b]:80"} {
				p.transfer(t, netip.MustParseAddrPort(from), netip.MustParseAddr("2001:db8:c::2"), size)
			}
			p.transfer(t, netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddr("198.51.100.2"), size)
			for ns, f := range counters {
				settled(t, ns, f)
			}

			// Both sides see the same packets, whichever side segmented them.
			sent, got := sides(t, atServer), sides(t, atClient)
			if len(sent) != 6 || len(got) != 6 {
				t.Errorf("%d flows at the server, %d at the client, want 6 each: %v, %v", len(sent), len(got), sent, got)
			}
			for flow, c := range sent {
				if got[flow] != c {
					t.Errorf("%s: %+v at the server, %+v at the client", flow, c, got[flow])
				}
			}
			// Every byte of the payload is there, and no header is missing: with timestamps a full
			// segment has 32 bytes of TCP, and all but the SYN have as much.
			outer := map[string]uint64{"encap.red": 40, "encap": 64}[tt.encap]
			for flow, headers := range map[string]uint64{
				"[2001:db8:1::a]:80": 14 + 40 + 32, "[2001:db8:1::b]:80": 14 + outer + 40 + 32, "192.0.2.1:80": 14 + outer + 20 + 32,
			} {
				found := false
				for name, c := range sent {
					if !strings.HasPrefix(name, flow) {
						continue
					}
					found = true
					if wantSID := !strings.HasPrefix(flow, "[2001:db8:1::a]"); strings.Contains(name, "fc00:1:") != wantSID {
						t.Errorf("%s: wrong SID", name)
					}
					// Some of it may have been sent again, but no packet is larger than the link's.
					if least := size + c.Packets*headers; c.Bytes < least || c.Bytes > c.Packets*(14+1500) {
						t.Errorf("%s: %+v, want at least %d bytes in packets of up to 1514", name, c, least)
					}
				}
				if !found {
					t.Errorf("no flow from %s in %v", flow, sent)
				}
			}
			if tt.offload != 0 {
				return
			}
			for ns, f := range counters {
				want := settled(t, ns, f)
				want.interfaces = want.interfaces.minus(before[ns].interfaces)
				want.counted = want.counted.minus(before[ns].counted)
				if want.interfaces != want.counted || want.counted.Bytes < 3*size {
					t.Errorf("in %s %+v were counted, the interface has %+v", ns, want.counted, want.interfaces)
				}
			}
		})
	}
}

func (c Count) minus(o Count) Count { return Count{c.Packets - o.Packets, c.Bytes - o.Bytes} }

// account is what an interface has counted itself, and what the counter has.
type account struct {
	interfaces, counted Count
}

// settled returns both at a moment when no packet is under way: when they have stayed the same for
// a while.
func settled(t *testing.T, ns string, f *Counter) account {
	t.Helper()
	var last account
	for same := 0; ; {
		rx, tx := statistics(t, ns)
		all, err := f.Reasons()
		if err != nil {
			t.Fatal(err)
		}
		now := account{interfaces: Count{rx.Packets + tx.Packets, rx.Bytes + tx.Bytes}}
		add := func(c Count) {
			now.counted.Packets += c.Packets
			now.counted.Bytes += c.Bytes
		}
		for _, c := range all {
			add(c)
		}
		f.Each(func(_ int, _ *Key, c Count) { add(c) })
		if now != last {
			same, last = 0, now
		} else if same++; same == 20 {
			return now
		}
	}
}

// TestLegacyLeavesNothing checks that cls_bpf goes with its counter, and that one which was left is
// replaced.
func TestLegacyLeavesNothing(t *testing.T) {
	p := newPair(t)
	f, err := New(Options{Legacy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inside(t, p.server, func() error { return f.Attach("eth0") })
	if qdiscs, filters := classifiers(t, p.server); qdiscs != 1 || filters != 2 {
		t.Errorf("%d clsact and %d filters, want 1 and 2", qdiscs, filters)
	}
	second := counter(t, p.server, Options{Legacy: true})
	if qdiscs, filters := classifiers(t, p.server); qdiscs != 1 || filters != 2 {
		t.Errorf("after a second one: %d clsact and %d filters, want 1 and 2", qdiscs, filters)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if qdiscs, filters := classifiers(t, p.server); qdiscs != 0 || filters != 0 {
		t.Errorf("%d clsact and %d filters are left", qdiscs, filters)
	}
}

func classifiers(t *testing.T, ns string) (qdiscs, filters int) {
	t.Helper()
	inside(t, ns, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		all, err := netlink.QdiscList(l)
		if err != nil {
			return err
		}
		for _, q := range all {
			if q.Type() == "clsact" {
				qdiscs++
			}
		}
		if qdiscs == 0 {
			return nil
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			list, err := netlink.FilterList(l, parent)
			if err != nil {
				return err
			}
			filters += len(list)
		}
		return nil
	})
	return qdiscs, filters
}

// TestRawLink counts on a link without Ethernet.
func TestRawLink(t *testing.T) {
	p := newPair(t)
	f := newCounter(t, Options{})
	var tun *os.File
	inside(t, p.server, func() error {
		l := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN, Queues: 1, Flags: netlink.TUNTAP_NO_PI}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		tun = l.Fds[0]
		if err := f.Attach("tun0"); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	defer tun.Close()
	packet := ipv6(41, router, sid, ipv6(17, server, client, udp(80, 40000, 9)))
	packet4 := ipv4(6, 0, v4from, v4to, tcp(80, 40000, 0, 9))
	for _, b := range [][]byte{packet, packet4, packet4} {
		if _, err := tun.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	got := sides(t, f)
	for flow, want := range map[string]Count{
		"[2001:db8:1::a]:80 [2001:db8:c::2]:40000 fc00:1:1::": {1, uint64(len(packet))},
		"192.0.2.1:80 198.51.100.2:40000 invalid IP":          {2, 2 * uint64(len(packet4))},
	} {
		if got[flow] != want {
			t.Errorf("%s: %+v, want %+v, of %v", flow, got[flow], want, got)
		}
	}
}

func TestAttachRefuses(t *testing.T) {
	p := newPair(t)
	f := newCounter(t, Options{})
	inside(t, p.server, func() error {
		if err := f.Attach("eth9"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no such interface") {
			t.Errorf("attach to what is not there: %v", err)
		}
		return nil
	})
}

func TestNewRefuses(t *testing.T) {
	for _, n := range []int{-1, MaxMaxFlows + 1} {
		if _, err := New(Options{MaxFlows: n}); err == nil {
			t.Errorf("%d flows were taken", n)
		}
	}
}

// TestFull has more flows than there is room for, finds every packet in a flow or under Full, and
// room for others once some are gone.
func TestFull(t *testing.T) {
	const n, room = 4000, 256
	f := newCounter(t, Options{MaxFlows: room})
	check := func(flows int, counted, full uint64) {
		t.Helper()
		all, err := f.Reasons()
		if err != nil {
			t.Fatal(err)
		}
		kept := sides(t, f)
		var sum uint64
		for _, c := range kept {
			sum += c.Packets
		}
		if sum != counted || all[Full].Packets != full {
			t.Errorf("%d in flows, others %+v, want %d counted and %d without room", sum, all, counted, full)
		}
		if len(kept) != flows {
			t.Errorf("%d flows are kept, want %d", len(kept), flows)
		}
	}
	fill(t, f, n)
	check(room, room, n-room)
	// A flow that is removed has its slot until that is reused.
	var slots []int
	f.Each(func(slot int, _ *Key, _ Count) {
		if len(slots) < 10 {
			slots = append(slots, slot)
		}
	})
	for _, slot := range slots {
		if err := f.Remove(slot); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, f, 10)
	check(room, room, n-room+10)
	for _, slot := range slots {
		if err := f.Reuse(slot); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, f, 20)
	// What the ten had counted went with them.
	check(room, room-10+20, n-room+10)
}

// TestSlotsAreNotShared has flows counted on all CPUs at once while their slots change owners all
// the time, and finds in every slot what was counted of its flow alone.
func TestSlotsAreNotShared(t *testing.T) {
	const flows, rounds, room = 64, 200, 100
	f := newCounter(t, Options{MaxFlows: room})
	// Each flow's packets have a size of their own, so that one in the wrong slot shows. Those of
	// TCP are led by hints.
	packet := func(i int) []byte {
		if i%4 == 0 {
			return ethernet(0x86dd, ipv6(41, router, sid, ipv6(17, server, client, udp(uint16(1000+i), 53, 10+i))))
		}
		return ethernet(0x86dd, ipv6(41, router, sid, ipv6(6, server, client, tcp(uint16(1000+i), 53, 0, 10+i))))
	}
	stop := make(chan struct{})
	sent := make(chan uint64)
	const senders = 4
	for s := range senders {
		go func() {
			var n uint64
			defer func() { sent <- n }()
			for i := s * flows / senders; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := f.objects.Received.Run(newRun(packet(i%flows), nil)); err != nil {
					t.Error(err)
					return
				}
				n++
			}
		}()
	}
	size := func(key *Key) uint64 { return uint64(len(packet(int(key.SourcePort) - 1000))) }
	var taken Count
	take := func(key *Key, c Count) {
		if c.Bytes != c.Packets*size(key) {
			t.Errorf("flow from %v has %+v, in packets of %d", key.Src(), c, size(key))
		}
		taken.Packets += c.Packets
		taken.Bytes += c.Bytes
	}
	removed := map[int]Key{}
	for range rounds {
		f.Each(func(slot int, key *Key, c Count) {
			if c.Bytes%size(key) != 0 {
				t.Errorf("flow from %v has %+v, in packets of %d", key.Src(), c, size(key))
			}
			was, ok := removed[slot]
			if !ok {
				return
			}
			is := *key
			if is.Removed = 0; was != is {
				t.Errorf("slot %d of %v went to %v before it was given back", slot, was.Src(), key.Src())
			}
			take(key, c)
			if err := f.Reuse(slot); err != nil {
				t.Error(err)
			}
		})
		clear(removed)
		f.Each(func(slot int, key *Key, _ Count) {
			if slot%3 == 0 {
				removed[slot] = *key
			}
		})
		for slot := range removed {
			if err := f.Remove(slot); err != nil {
				t.Fatal(err)
			}
		}
		// Removed flows keep their slots until no program that began before can still run.
		waitForPrograms(t)
	}
	close(stop)
	var want uint64
	for range senders {
		want += <-sent
	}
	f.Each(func(_ int, key *Key, c Count) { take(key, c) })
	if taken.Packets != want {
		t.Errorf("%d packets were sent, flows have %+v", want, taken)
	}
	// No slot got lost: others can have all that are left.
	fill(t, f, room)
	for slot := range room {
		if f.slots[slot].Count.Packets == 0 {
			t.Errorf("slot %d is not in use", slot)
		}
	}
}

// TestEntryOfAnother has the program find the entry of another flow, as when the kernel reuses one
// that was just looked up: the packet must not be counted there, and no slot may leak.
func TestEntryOfAnother(t *testing.T) {
	const room = 4
	f := newCounter(t, Options{MaxFlows: room})
	packet := ethernet(0x86dd, ipv6(17, server, client, udp(1000, 53, 10)))
	receive := func() {
		t.Helper()
		if _, err := f.objects.Received.Run(newRun(packet, nil)); err != nil {
			t.Fatal(err)
		}
	}
	receive()
	var key Key
	f.Each(func(_ int, k *Key, _ Count) { key = *k })
	forgetHints(t, f)
	mark := f.slots[0].Owner.Mark
	if err := f.objects.Places.Put(&key, uint64(mark^1)<<32); err != nil {
		t.Fatal(err)
	}
	receive()
	all, err := f.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	if c := f.slots[0].Count; c.Packets != 1 || all[Full].Packets != 1 {
		t.Errorf("slot of another has %+v, without one are %+v", c, all[Full])
	}
	fill(t, f, room)
	for slot := range room {
		if c := f.slots[slot].Count; c.Packets != 1 {
			t.Errorf("slot %d has %+v", slot, c)
		}
	}
}

// forgetHints has the program look up the next packet of every flow.
func forgetHints(t *testing.T, f *Counter) {
	t.Helper()
	row := bytes.Repeat([]byte{0xff}, int(f.objects.Hints.ValueSize()))
	for i := range f.objects.Hints.MaxEntries() {
		if err := f.objects.Hints.Put(i, row); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKnownFlows has flows that have a slot recognized without being looked up, and no longer once
// they are removed.
func TestKnownFlows(t *testing.T) {
	f := newCounter(t, Options{MaxFlows: 8})
	inner := ipv6(6, server, client, tcp(80, 40000, 12, 100))
	left := segments(41, []netip.Addr{sid, router}, inner)
	left[3] = 1
	for _, tt := range []struct {
		name   string
		packet []byte
	}{
		{"plain", ethernet(0x86dd, inner)},
		{"no payload", ethernet(0x86dd, ipv6(6, server, client, tcp(80, 40000, 12, 0)))},
		{"without srh", ethernet(0x86dd, ipv6(41, router, sid, inner))},
		{"with srh", ethernet(0x86dd, ipv6(43, router, sid, segments(41, []netip.Addr{sid}, inner)))},
		{"with segments left", ethernet(0x86dd, ipv6(43, router, sid, left))},
		{"udp", ethernet(0x86dd, ipv6(17, server, client, udp(80, 40000, 100)))},
		{"ipv4", ethernet(0x0800, ipv4(6, 0, v4from, v4to, tcp(80, 40000, 12, 100)))},
		{"vlan", ethernet(0x8100, vlan(7, 0x86dd, inner))},
		{"srh inserted", ethernet(0x86dd, ipv6(43, server, client, segments(6, []netip.Addr{client}, tcp(80, 40000, 0, 20))))},
	} {
		receive := func(program *ebpf.Program, times int) {
			t.Helper()
			for range times {
				if _, err := program.Run(newRun(tt.packet, nil)); err != nil {
					t.Fatal(err)
				}
			}
		}
		receive(f.objects.Received, 1)
		var first int
		var key Key
		f.Each(func(slot int, k *Key, _ Count) { first, key = slot, *k })
		// A flow that cannot be looked up and still is counted was recognized.
		if err := f.objects.Places.Delete(&key); err != nil {
			t.Fatal(err)
		}
		receive(f.objects.Received, 3)
		if got := f.slots[first].Count.Packets; got != 4 {
			t.Errorf("%s: %d packets in the first slot", tt.name, got)
		}
		// What differs in the direction alone is another flow.
		receive(f.objects.Sent, 2)
		f.slots[first].Owner.Key.Removed = 1
		receive(f.objects.Received, 1)
		var counts []uint64
		f.Each(func(slot int, _ *Key, c Count) { counts = append(counts, c.Packets) })
		slices.Sort(counts)
		if want := []uint64{1, 2, 4}; !slices.Equal(counts, want) {
			t.Errorf("%s: %v packets, want %v", tt.name, counts, want)
		}
		var slots []int
		f.Each(func(slot int, _ *Key, _ Count) { slots = append(slots, slot) })
		for _, slot := range slots {
			if slot != first {
				if err := f.Remove(slot); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Reuse(slot); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestMoreFlowsThanHints has every packet counted where flows share hints.
func TestMoreFlowsThanHints(t *testing.T) {
	const n = 20000
	f := newCounter(t, Options{})
	for range 2 {
		fill(t, f, n)
	}
	flows := 0
	f.Each(func(_ int, k *Key, c Count) {
		if flows++; c.Packets != 2 {
			t.Errorf("flow %+v: %+v", k, c)
		}
	})
	if flows != n {
		t.Errorf("%d flows, want %d", flows, n)
	}
}

// TestPartlyWrittenOwner has a flow whose owner is not written to the end yet.
func TestPartlyWrittenOwner(t *testing.T) {
	f := newCounter(t, Options{MaxFlows: 4})
	fill(t, f, 1)
	whole := f.slots[0].Owner
	f.slots[0].Owner.Key.SourcePort = 0
	f.Each(func(_ int, k *Key, _ Count) { t.Errorf("flow %+v", k) })
	f.slots[0].Owner = whole
	if n := len(sides(t, f)); n != 1 {
		t.Errorf("%d flows, want 1", n)
	}
}

// TestCPUsAddUp has several CPUs count packets of one flow at the same time.
func TestCPUsAddUp(t *testing.T) {
	f := newCounter(t, Options{})
	const senders, packets = 4, 1 << 18
	packet := ethernet(0x86dd, ipv6(17, server, client, udp(1000, 53, 10)))
	var sending sync.WaitGroup
	for range senders {
		sending.Go(func() {
			if _, _, err := f.objects.Received.Benchmark(packet, packets, nil); err != nil {
				t.Error(err)
			}
		})
	}
	sending.Wait()
	n := 0
	f.Each(func(_ int, _ *Key, c Count) {
		n++
		if want := (Count{senders * packets, senders * packets * uint64(len(packet))}); c != want {
			t.Errorf("%+v, want %+v", c, want)
		}
	})
	if n != 1 {
		t.Errorf("%d flows, want 1", n)
	}
}

// waitForPrograms returns when all programs that now run have ended.
func waitForPrograms(t *testing.T) {
	t.Helper()
	const global = 1 // MEMBARRIER_CMD_GLOBAL waits for what the kernel calls a grace period
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		t.Skipf("no grace period can be waited for: %v", errno)
	}
}

// fill has n flows of one packet each counted as sent.
func fill(t testing.TB, f *Counter, n int) {
	t.Helper()
	context := skbContext(0, 0, 0)
	for i := range n {
		packet := ethernet(0x86dd, ipv6(41, router, sid, ipv6(6, server, netip.AddrFrom16([16]byte{0x20, 1, 14: byte(i >> 16)}), tcp(80, uint16(i), 12, 1000))))
		if _, err := f.objects.Sent.Run(newRun(packet, context)); err != nil {
			t.Fatal(err)
		}
	}
}
