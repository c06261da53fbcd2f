package bpf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/netns"
)

// pair is a server and a client in namespaces of their own, with a veth between them. What the server sends to the client
// from 2001:db8:1::b and from 192.0.2.1 goes to a SID, from 2001:db8:1::a as it is.
type pair struct {
	server, client string
}

func newPair(t testing.TB) pair {
	t.Helper()
	needKernel(t)
	p := pair{prefix + "server", prefix + "client"}
	for _, ns := range []string{p.server, p.client} {
		if err := netns.Create(ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netns.Delete(ns); err != nil {
				t.Error(err)
			}
		})
	}
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
rule add from 2001:db8:1::b lookup 101`, "-6")
	ip(t, p.server, "route add 198.51.100.0/24 dev eth0 src 192.0.2.1 encap seg6 mode "+encap+" segs fc00:1:4::")
	ip(t, p.client, `link set lo up
link set eth0 up
address add 2001:db8:1::2/64 dev eth0 nodad
address add 2001:db8:c::2/128 dev lo nodad
address add 198.51.100.2/32 dev lo
route add 192.0.2.0/24 dev eth0
neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev eth0
route add fc00:1:1:: encap seg6local action End.DT6 table 255 dev eth0
route add fc00:1:4:: encap seg6local action End.DX4 nh4 198.51.100.2 dev eth0`)
}

// ip runs a batch of ip commands in the namespace.
func ip(t testing.TB, ns, batch string, options ...string) {
	t.Helper()
	cmd := exec.Command("ip", append(options, "-batch", "-")...)
	cmd.Stdin = strings.NewReader(batch + "\n")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := netns.Start(ns, cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("in %s: %v: %s", ns, err, out.String())
	}
}

func inside(t testing.TB, ns string, f func() error) {
	t.Helper()
	if err := netns.Do(ns, f); err != nil {
		t.Fatal(err)
	}
}

// setOffload switches segmentation offload of eth0, so that what the interface counts are the packets of the wire, or not.
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
func counter(t testing.TB, ns string, o FlowsOptions) *Flows {
	t.Helper()
	f := newFlows(t, o)
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
func sides(t testing.TB, f *Flows) map[string]Count {
	t.Helper()
	all := map[string]Count{}
	if err := f.Each(func(k *FlowKey, c FlowCount) {
		all[fmt.Sprint(k.From(), k.To(), k.SegmentID())] = c.Count
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestAccountingIsExact has real traffic counted on both sides of a link, with every kind of framing, and compares with what
// the interfaces count.
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
			o := FlowsOptions{Legacy: tt.legacy}
			atServer, atClient := counter(t, p.server, o), counter(t, p.client, o)
			p.connect(t, tt.encap)
			counters, before := map[string]*Flows{p.server: atServer, p.client: atClient}, map[string]account{}
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

			// Both sides see the same packets, whoever made segments of them.
			sent, got := sides(t, atServer), sides(t, atClient)
			if len(sent) != 6 || len(got) != 6 {
				t.Errorf("%d flows at the server, %d at the client, want 6 each: %v, %v", len(sent), len(got), sent, got)
			}
			for flow, c := range sent {
				if got[flow] != c {
					t.Errorf("%s: %+v at the server, %+v at the client", flow, c, got[flow])
				}
			}
			// Every byte of the payload is there, and no header is missing: with timestamps a full segment has 32 bytes of
			// TCP, and all but the SYN have as much.
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

// settled returns both at a moment when no packet is under way: when they have stayed the same for a while.
func settled(t *testing.T, ns string, f *Flows) account {
	t.Helper()
	var last account
	for same := 0; ; {
		rx, tx := statistics(t, ns)
		all, err := f.Reasons()
		if err != nil {
			t.Fatal(err)
		}
		now := account{interfaces: Count{rx.Packets + tx.Packets, rx.Bytes + tx.Bytes}}
		for _, c := range all {
			now.counted.Packets += c.Packets
			now.counted.Bytes += c.Bytes
		}
		if now != last {
			same, last = 0, now
		} else if same++; same == 20 {
			return now
		}
	}
}

// TestLegacyLeavesNothing checks that cls_bpf goes with its counter, and that one which was left is replaced.
func TestLegacyLeavesNothing(t *testing.T) {
	p := newPair(t)
	f, err := NewFlows(FlowsOptions{Legacy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inside(t, p.server, func() error { return f.Attach("eth0") })
	if qdiscs, filters := classifiers(t, p.server); qdiscs != 1 || filters != 2 {
		t.Errorf("%d clsact and %d filters, want 1 and 2", qdiscs, filters)
	}
	second := counter(t, p.server, FlowsOptions{Legacy: true})
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
	f := newFlows(t, FlowsOptions{})
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
	f := newFlows(t, FlowsOptions{})
	inside(t, p.server, func() error {
		if err := f.Attach("eth9"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("attach to what is not there: %v", err)
		}
		return nil
	})
}

func TestNewFlowsRefuses(t *testing.T) {
	for _, n := range []int{-1, MaxMaxFlows + 1} {
		if _, err := NewFlows(FlowsOptions{MaxFlows: n}); err == nil {
			t.Errorf("%d flows were taken", n)
		}
	}
}

// TestEviction has more flows than there is room for, and finds all packets under Counted even so.
func TestEviction(t *testing.T) {
	f := newFlows(t, FlowsOptions{MaxFlows: 256})
	const n = 4000
	fill(t, f, n)
	all, err := f.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	if all[Counted].Packets != n {
		t.Errorf("%+v, want %d counted", all, n)
	}
	if kept := len(sides(t, f)); kept == 0 || kept > 256 {
		t.Errorf("%d flows are kept, want up to 256", kept)
	}
}

// fill has n flows of one packet each counted as sent.
func fill(t testing.TB, f *Flows, n int) {
	t.Helper()
	context := skbContext(0, 0, 0)
	for i := range n {
		packet := ethernet(0x86dd, ipv6(41, router, sid, ipv6(6, server, netip.AddrFrom16([16]byte{0x20, 1, 14: byte(i >> 16)}), tcp(80, uint16(i), 12, 1000))))
		if _, err := f.objects.Sent.Run(newRun(packet, context)); err != nil {
			t.Fatal(err)
		}
	}
}
