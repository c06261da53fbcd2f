package mptcp

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// fullSocketAnswer is socketAnswer with the attributes that only Sockets requests.
func fullSocketAnswer() []byte {
	b := socketAnswer()
	b[diagOffsetState] = tcpEstablished
	native := binary.NativeEndian
	info := b[diagMessageLen+unix.SizeofNlAttr:]
	for offset, v := range map[int]uint32{16: 1364, 80: 44, 88: 17, 100: 5, tcpInfoReordSeen: 3, tcpInfoSendWindow: 3 << 20, 144: 950_000, 148: 9800} {
		native.PutUint32(info[offset:], v)
	}
	info[7] = 1
	for offset, v := range map[int]uint64{104: 5 << 20, 160: 4 << 20, 168: 3_000_000, 176: 2_000_000, 184: 1_000_000} {
		native.PutUint64(info[offset:], v)
	}
	return append(b, attrs(func(ae *netlink.AttributeEncoder) { ae.String(diagAttrCongestion, "cubic") })...)
}

func TestDecodeSocket(t *testing.T) {
	// Both answers have the same subflow fields.
	subflow, ok, err := decodeSubflow(fullSocketAnswer())
	if !ok || err != nil {
		t.Fatal(err)
	}
	subflow.Window, subflow.SegmentSize, subflow.MinRTT, subflow.NotSent, subflow.SendWindow = 44, 1364, 9800*time.Microsecond, 950_000, 3<<20
	want := Socket{
		Subflow: subflow, State: tcpEstablished, Congestion: "cubic", DeliveryRate: 4 << 20, Retransmitted: 5,
		Reordering: 17, Reordered: 3, PacingRate: 5 << 20, AppLimited: true,
		WindowLimited: 2 * time.Second, BufferLimited: time.Second,
	}
	b := fullSocketAnswer()
	names := map[string]string{}
	got, err := decodeSocket(b, names)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if len(names) != 1 {
		t.Errorf("names %v", names)
	}
	for n := range diagMessageLen + unix.SizeofNlAttr + tcpInfoLen {
		if _, err := decodeSocket(b[:n], names); err == nil {
			t.Fatalf("%d bytes are accepted", n)
		}
	}
	if s := State(tcpEstablished).String(); s != "established" {
		t.Errorf("state %q", s)
	}
	if s := State(200).String(); s != "state 200" {
		t.Errorf("state %q", s)
	}
}

func TestDecodeSocketOfIPv4(t *testing.T) {
	b := fullSocketAnswer()
	b[0] = byte(IPv4)
	copy(b[8:], []byte{192, 0, 2, 1})
	copy(b[24:], []byte{192, 0, 2, 2})
	s, err := decodeSocket(b, map[string]string{})
	if err != nil || s.Local != netip.MustParseAddrPort("192.0.2.1:80") || s.Remote != netip.MustParseAddrPort("192.0.2.2:4711") {
		t.Errorf("%v, %v, %v", s.Local, s.Remote, err)
	}
}

// storedAnswer is fullSocketAnswer with a value that an eBPF program keeps.
func storedAnswer() []byte {
	return append(fullSocketAnswer(), attrs(func(ae *netlink.AttributeEncoder) {
		ae.Nested(diagAttrStorages, func(ae *netlink.AttributeEncoder) error {
			ae.Nested(1, func(ae *netlink.AttributeEncoder) error {
				ae.Uint32(storageMap, 77)
				ae.Bytes(storageValue, []byte{1, 2, 3, 4, 5, 6, 7, 8})
				return nil
			})
			return nil
		})
	})...)
}

func TestDecodeStorages(t *testing.T) {
	got, err := decodeStorages(storedAnswer()[diagMessageLen:], nil)
	want := []Storage{{Map: 77, Value: []byte{1, 2, 3, 4, 5, 6, 7, 8}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	short := attrs(func(ae *netlink.AttributeEncoder) {
		ae.Nested(diagAttrStorages, func(ae *netlink.AttributeEncoder) error {
			ae.Nested(1, func(ae *netlink.AttributeEncoder) error { ae.Uint16(storageMap, 77); return nil })
			return nil
		})
	})
	if _, err := decodeStorages(short, nil); err == nil {
		t.Error("an ID of two bytes is accepted")
	}
}

func TestDecodeConnection(t *testing.T) {
	info := make([]byte, 96)
	info[0], info[1], info[2] = 3, 2, 1
	native := binary.NativeEndian
	native.PutUint32(info[12:], 7)
	native.PutUint64(info[16:], 1<<63+9000) // mptcpi_write_seq
	native.PutUint64(info[24:], 1<<63+4000) // mptcpi_snd_una
	native.PutUint64(info[48:], 500)        // mptcpi_bytes_retrans
	native.PutUint64(info[56:], 3000)       // mptcpi_bytes_sent
	native.PutUint64(info[72:], 1000)       // mptcpi_bytes_acked
	known := Connection{Token: 7, Subflows: 3, Announced: 2, Accepted: 1}
	counted := known
	counted.Counted, counted.Acked, counted.Outstanding, counted.Reinjected, counted.Written = true, 1000, 2000, 500, 6000
	for length, want := range map[int]Connection{96: counted, 80: counted, 79: known, 16: known} {
		body := append(make([]byte, diagMessageLen), attrs(func(ae *netlink.AttributeEncoder) { ae.Bytes(diagAttrInfo, info[:length]) })...)
		if got, err := decodeConnection(body); err != nil || got != want {
			t.Errorf("mptcp_info of %d bytes: %+v, %v, want %+v", length, got, err, want)
		}
	}
	body := append(make([]byte, diagMessageLen), attrs(func(ae *netlink.AttributeEncoder) { ae.Bytes(diagAttrInfo, info[:15]) })...)
	if _, err := decodeConnection(body); err == nil {
		t.Error("mptcp_info without a token is accepted")
	}
	for used, full := range map[[2]uint32]bool{{3000, 0}: false, {3000, 2000}: false, {3000, 2001}: true, {3000, 4000}: true, {0, math.MaxUint32}: true} {
		memory := make([]byte, 36)
		native.PutUint32(memory[12:], used[0]) // SK_MEMINFO_SNDBUF
		native.PutUint32(memory[20:], used[1]) // SK_MEMINFO_WMEM_QUEUED
		body := append(make([]byte, diagMessageLen), attrs(func(ae *netlink.AttributeEncoder) { ae.Bytes(diagAttrMemory, memory) })...)
		if got, err := decodeConnection(body); err != nil || got.Full != full {
			t.Errorf("%d bytes of a send buffer of %d: full %v, %v", used[1], used[0], got.Full, err)
		}
	}
}

func FuzzDecodeSocket(f *testing.F) {
	f.Add(fullSocketAnswer())
	f.Add(storedAnswer())
	f.Add(socketAnswer()[:diagMessageLen])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeConnection(b)
		_, _ = decodeStorages(b[min(len(b), diagMessageLen):], nil)
		s, err := decodeSocket(b, map[string]string{})
		accessor.Call(t, s)
		if err == nil && (!s.Local.IsValid() || s.Local.Addr().Is4In6()) {
			t.Errorf("socket %+v", s)
		}
	})
}

func FuzzDump(f *testing.F) {
	message := make([]byte, unix.NLMSG_HDRLEN)
	binary.NativeEndian.PutUint16(message[4:], unix.SOCK_DIAG_BY_FAMILY)
	message = append(message, fullSocketAnswer()...)
	binary.NativeEndian.PutUint32(message, uint32(len(message)))
	f.Add(message)
	f.Add(message[:unix.NLMSG_HDRLEN+2])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = eachMessage(b, 0, func(body []byte) error {
			_, err := decodeSocket(body, map[string]string{})
			return err
		})
	})
}

// TestSockets checks both ends of a connection over loopback and their counters.
func TestSockets(t *testing.T) {
	d, err := DialDiag()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	const size = 5000
	if _, err := client.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	at := client.LocalAddr().(*net.TCPAddr).AddrPort()
	found := map[netip.AddrPort]Socket{}
	if err := d.Sockets(IPv4, func(s *Socket) { found[s.Local] = *s }); err != nil {
		t.Fatal(err)
	}
	s, ok := found[at]
	if !ok || s.Remote != l.Addr().(*net.TCPAddr).AddrPort() || s.State != tcpEstablished || s.Token != 0 || s.Window == 0 || s.Congestion == "" || s.RTT == 0 {
		t.Errorf("socket %+v, %t", s, ok)
	}
	if _, ok := found[s.Remote]; !ok {
		t.Errorf("the other end is not in %v", found)
	}
}

// TestInfoOffsets compares the offsets in tcp_info with those of the kernel's structure.
func TestInfoOffsets(t *testing.T) {
	var i unix.TCPInfo
	for got, want := range map[uintptr]uintptr{
		unsafe.Offsetof(i.Pacing_rate): 104, unsafe.Offsetof(i.Notsent_bytes): 144, unsafe.Offsetof(i.Min_rtt): 148, unsafe.Offsetof(i.Busy_time): 168,
		unsafe.Offsetof(i.Rwnd_limited): 176, unsafe.Offsetof(i.Sndbuf_limited): 184, unsafe.Offsetof(i.Snd_wnd): tcpInfoSendWindow,
		unsafe.Offsetof(i.Reord_seen): tcpInfoReordSeen,
	} {
		if got != want {
			t.Errorf("offset %d, want %d", got, want)
		}
	}
}

// TestDecodeEndedSocket: the kernel reports what it keeps of a socket after its end as FIN-WAIT-2,
// without tcp_info. Without it, a socket that is open is an error.
func TestDecodeEndedSocket(t *testing.T) {
	body := make([]byte, diagMessageLen)
	body[diagOffsetState] = byte(finWait2)
	if _, err := decodeSocket(body, map[string]string{}); !errors.Is(err, errTimeWait) {
		t.Errorf("ended: %v", err)
	}
	body[diagOffsetState] = 1
	if _, err := decodeSocket(body, map[string]string{}); err == nil || errors.Is(err, errTimeWait) {
		t.Errorf("open: %v", err)
	}
}
