package capture

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
)

// frame is a packet of a capture with times in nanoseconds.
type frame struct {
	at     int64
	length int // on the link
	data   []byte
}

// frames returns the packets of a little-endian pcap file with nanoseconds.
func frames(file []byte) (all []frame) {
	for _, r := range records(file) {
		u := func(at int) int64 { return int64(binary.LittleEndian.Uint32(r[at:])) }
		all = append(all, frame{u(0)*1e9 + u(4), int(u(12)), r[16:]})
	}
	return all
}

// pcapOf returns a capture of frames.
func pcapOf(link pcap.LinkType, all []frame) []byte {
	b := slices.Concat([]byte{0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0}, make([]byte, 8), []byte{0, 0, 4, 0})
	b = binary.LittleEndian.AppendUint32(b, uint32(link))
	for _, f := range all {
		for _, v := range []int64{f.at / 1e9, f.at % 1e9, int64(len(f.data)), int64(f.length)} {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
		b = append(b, f.data...)
	}
	return b
}

// pcapngOf returns a capture of several interfaces; iface returns that of a frame.
func pcapngOf(interfaces int, all []frame, iface func(i int) int) []byte {
	le := binary.LittleEndian
	block := func(kind uint32, body []byte) []byte {
		body = append(body, make([]byte, -len(body)&3)...)
		b := le.AppendUint32(le.AppendUint32(nil, kind), uint32(len(body)+12))
		return le.AppendUint32(append(b, body...), uint32(len(body)+12))
	}
	b := block(0x0a0d0d0a, []byte{0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255})
	for range interfaces {
		b = append(b, block(1, []byte{1, 0, 0, 0, 0, 0, 4, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0})...)
	}
	for i, f := range all {
		body := le.AppendUint32(nil, uint32(iface(i)))
		for _, v := range []uint32{uint32(f.at >> 32), uint32(f.at), uint32(len(f.data)), uint32(f.length)} {
			body = le.AppendUint32(body, v)
		}
		b = append(b, block(6, append(body, f.data...))...)
	}
	return b
}

// shifted returns the frames with those from a position on at other times.
func shifted(all []frame, from int, by time.Duration) []frame {
	all = slices.Clone(all)
	for i := range all[from:] {
		all[from+i].at += int64(by)
	}
	return all
}

// routed returns a frame behind a router: with a lower TTL, and in a VLAN if it is not 0.
func routed(f frame, later time.Duration, hops byte, vlan uint16) frame {
	d := slices.Clone(f.data)
	if binary.BigEndian.Uint16(d[12:]) == 0x0800 {
		d[14+8] -= hops
	}
	if vlan > 0 {
		d = slices.Insert(d, 12, 0x81, 0, byte(vlan>>8), byte(vlan))
		f.length += 4
	}
	return frame{f.at + int64(later), f.length, d}
}

func inOrder(all []frame) []frame {
	slices.SortStableFunc(all, func(x, y frame) int { return int(x.at - y.at) })
	return all
}

// TestOneFlowHoweverCaptured: the same packets give the same result, whether one file has them or
// several, with steps of the clock, with copies, and on other link layers.
func TestOneFlowHoweverCaptured(t *testing.T) {
	mirror := frames(unzip(t, "mirror.pcap.gz"))
	var base []frame
	for i := 0; i < len(mirror); i += 2 {
		base = append(base, mirror[i])
	}
	var ip []frame
	for _, f := range base {
		if binary.BigEndian.Uint16(f.data[12:]) == 0x0800 {
			ip = append(ip, f)
		}
	}
	wrapped := func(header ...byte) (all []frame) {
		for _, f := range ip {
			all = append(all, frame{f.at, f.length - 14 + len(header), append(slices.Clone(header), f.data[14:]...)})
		}
		return all
	}
	each := func(f func(frame) []frame) (all []frame) {
		for _, x := range base {
			all = append(all, f(x)...)
		}
		return inOrder(all)
	}
	half, third := len(base)/2, len(base)/3
	some := func(keep func(i int) bool, from []frame) (all []frame) {
		for i, f := range from {
			if keep(i) {
				all = append(all, f)
			}
		}
		return all
	}
	random := rand.New(rand.NewPCG(1, 2))
	lines := make([]int, len(base))
	for i := range lines {
		lines[i] = random.IntN(3)
	}
	line := func(n int) []frame { return some(func(i int) bool { return lines[i] == n }, base) }
	ether := func(all ...[]frame) (files [][]byte) {
		for _, f := range all {
			files = append(files, pcapOf(pcap.LinkEthernet, f))
		}
		return files
	}
	behind := func(all []frame, hops byte) (others []frame) {
		for _, f := range all {
			others = append(others, routed(f, -2*time.Millisecond, -hops, 0))
		}
		return others
	}
	want := busiest(read(t, write(t, "base.pcap", pcapOf(pcap.LinkEthernet, base))))
	if want.ToClient.Bytes != 1_159_408 {
		t.Fatalf("%d bytes to the client, want 1159408", want.ToClient.Bytes)
	}
	var cases []howCaptured
	add := func(name string, said []string, delta time.Duration, files ...[]byte) {
		cases = append(cases, howCaptured{name, files, said, delta})
	}
	const exact, measured = 250 * time.Microsecond, 4 * time.Millisecond // of the duration of the transfer
	add("a mirror port", []string{"1398 segments that are copies"}, exact, ether(mirror)...)
	add("copies in two VLANs", []string{"1398 segments also captured elsewhere"}, exact, ether(each(func(f frame) []frame { return []frame{f, routed(f, 40*time.Microsecond, 0, 7)} }))...)
	add("before and after a router", []string{"1398 segments also captured elsewhere"}, exact, ether(each(func(f frame) []frame {
		return []frame{routed(f, -60*time.Microsecond, 255, 0), f}
	}))...)
	add("two mirrored points", []string{"2796 segments also captured elsewhere", "1398 segments that are copies"}, exact, ether(each(func(f frame) []frame {
		before := routed(f, -60*time.Microsecond, 255, 3)
		return []frame{before, before, f, f}
	}))...)
	for _, by := range []time.Duration{-20 * time.Millisecond, -time.Hour} {
		add(fmt.Sprint("a step back in a file by ", -by), []string{"the clock stepped back by " + (-by).String()}, exact, ether(shifted(base, half, by))...)
		add(fmt.Sprint("a step back between files by ", -by), []string{"the clock stepped back by " + (-by).String(), "between the end of"}, exact, ether(shifted(base, half, by)[half:], base[:half])...)
	}
	for _, by := range []time.Duration{25 * time.Millisecond, time.Hour} {
		add(fmt.Sprint("a step forward in a file by ", by), []string{"the clock stepped forward by"}, measured, ether(shifted(base, half, by))...)
		add(fmt.Sprint("a step forward between files by ", by), []string{"the clock stepped forward by", "between the end of"}, measured, ether(shifted(base, half, by)[half:], base[:half])...)
	}
	add("steps back and forward", []string{"stepped back", "stepped forward"}, measured, ether(shifted(shifted(base, third, -3*time.Second), 2*third, 4*time.Second))...)
	add("rotated files in another order", nil, exact, ether(base[2*third:], base[:third], base[third:2*third])...)
	add("rotated files with a step in the first", []string{"the clock stepped back by 20ms"}, exact, ether(shifted(base, third, -20*time.Millisecond)[2*third:], shifted(base, third, -20*time.Millisecond)[:2*third])...)
	add("three lines", nil, exact, ether(line(2), line(0), line(1))...)
	add("three interfaces of a file", nil, exact, pcapngOf(3, base, func(i int) int { return lines[i] }))
	add("three lines at both ends", []string{"1398 segments also captured elsewhere"}, exact, ether(behind(line(0), 2), line(0), line(1), behind(line(1), 1), line(2), behind(line(2), 3))...)
	add("three lines and their LAN", []string{"1398 segments also captured elsewhere"}, exact, ether(behind(base, 1), line(0), line(1), line(2))...)
	add("rotated, and at the other end", []string{"1398 segments also captured elsewhere"}, exact, ether(base[half:], behind(base, 4), base[:half])...)
	add("PPP", nil, exact, pcapOf(pcap.LinkPPP, wrapped(0, 0x21)))
	add("HDLC of Cisco", nil, exact, pcapOf(pcap.LinkCHDLC, wrapped(0x0f, 0, 8, 0)))
	add("raw", nil, exact, pcapOf(pcap.LinkRaw, wrapped()))
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, want) })
	}
}

type howCaptured struct {
	name  string
	files [][]byte
	said  []string
	delta time.Duration
}

func (tt *howCaptured) check(t *testing.T, want *Connection) {
	directory := t.TempDir()
	var names []string
	for i, f := range tt.files {
		names = append(names, write(t, filepath.Base(fmt.Sprintf("%s-%d.pcap", directory, i)), f))
	}
	r := read(t, names...)
	if len(r.Connections) != 1 {
		t.Fatalf("%d connections, want 1", len(r.Connections))
	}
	got := &r.Connections[0]
	x, y := got.Subflows[0].ToClient, want.Subflows[0].ToClient
	if got.ToClient.Bytes != want.ToClient.Bytes || got.ToServer.Bytes != want.ToServer.Bytes || got.ToClient.Uncaptured != 0 || x.Segments != y.Segments || x.Packets != y.Packets {
		t.Errorf("%d and %d bytes, %d uncaptured, %d segments of %d packets; want %d and %d, 0, %d of %d",
			got.ToClient.Bytes, got.ToServer.Bytes, got.ToClient.Uncaptured, x.Segments, x.Packets, want.ToClient.Bytes, want.ToServer.Bytes, y.Segments, y.Packets)
	}
	if x.Retransmitted != y.Retransmitted || x.Reordered != y.Reordered {
		t.Errorf("retransmitted %v, reordered %v; want %v, %v", x.Retransmitted, x.Reordered, y.Retransmitted, y.Reordered)
	}
	if d := (got.ToClient.Last - got.ToClient.First) - (want.ToClient.Last - want.ToClient.First); d.Abs() > tt.delta {
		t.Errorf("the transfer takes %v longer than in the file as captured", d)
	}
	if d := got.ToClient.Delay.Max - want.ToClient.Delay.Max; d.Abs() > tt.delta {
		t.Errorf("a resequencing delay of up to %v, want %v", got.ToClient.Delay.Max, want.ToClient.Delay.Max)
	}
	all := strings.Join(r.Missed, "\n")
	for _, s := range tt.said {
		if !strings.Contains(all, s) {
			t.Errorf("missed %q, want %q", all, s)
		}
	}
	if len(tt.said) == 0 && strings.Contains(all, "clock") || strings.Contains(all, "that are copies") && !strings.Contains(strings.Join(tt.said, " "), "copies") {
		t.Errorf("missed %q, which is not so", all)
	}
}

// TestTwoLinesAgainstTshark: a flow over two lines, captured at each, gives what Wireshark's
// dissectors find in a file of both.
func TestTwoLinesAgainstTshark(t *testing.T) {
	t.Parallel()
	one, two := unzip(t, "plain-line1.pcap.gz"), unzip(t, "plain-line2.pcap.gz")
	both := write(t, "both.pcap", pcapOf(pcap.LinkEthernet, inOrder(append(frames(one), frames(two)...))))
	compare(t, read(t, write(t, "two.pcap", two), write(t, "one.pcap", one)), dissect(t, both))
}

// stamped returns frames whose timestamp values and echoes are later by a number of ticks.
func stamped(all []frame, from int, ticks uint32) []frame {
	all = slices.Clone(all)
	for i := range all[from:] {
		f := &all[from+i]
		at := strings.Index(string(f.data), "\x01\x01\x08\x0a")
		if at < 0 {
			continue
		}
		f.data = slices.Clone(f.data)
		for _, v := range [][]byte{f.data[at+4 : at+8], f.data[at+8 : at+12]} {
			binary.BigEndian.PutUint32(v, binary.BigEndian.Uint32(v)+ticks)
		}
	}
	return all
}

// TestNoClockStep: pauses, outages of a line and another path are no steps of a clock.
func TestNoClockStep(t *testing.T) {
	mirror := frames(unzip(t, "mirror.pcap.gz"))
	var base []frame
	for i := 0; i < len(mirror); i += 2 {
		base = append(base, mirror[i])
	}
	half := len(base) / 2
	server := func(f frame) bool { return binary.BigEndian.Uint16(f.data[12:]) == 0x0800 && f.data[26+1] == 1 }
	// The segments of the server were in a queue while the line was out; the client's are new.
	outage := shifted(base, half, 3*time.Second)
	for i, f := range stamped(base, half, 3000)[half:] {
		if !server(f) {
			outage[half+i].data = f.data
		}
	}
	faster := slices.Clone(base[half:])
	for i := range faster {
		if server(faster[i]) {
			faster[i].at -= int64(20 * time.Millisecond)
		}
	}
	for name, files := range map[string][][]frame{
		"a pause of an hour":             {stamped(shifted(base, half, time.Hour), half, 3_600_000)},
		"a pause of an hour, two files":  {stamped(shifted(base, half, time.Hour), half, 3_600_000)[half:], base[:half]},
		"an outage":                      {outage},
		"a second path with less delay":  {base[:half], inOrder(faster)},
		"as captured":                    {base},
		"two halves, in the wrong order": {slices.Concat(base[half:], base[:half])},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for i, f := range files {
				names = append(names, write(t, fmt.Sprint(i), pcapOf(pcap.LinkEthernet, f)))
			}
			r := read(t, names...)
			for _, f := range r.Files {
				if len(f.ClockSteps) > 0 {
					t.Errorf("steps %v, want none", f.ClockSteps)
				}
			}
			if c := busiest(r); c.ToClient.Bytes != 1_159_408 {
				t.Errorf("%d bytes, want 1159408", c.ToClient.Bytes)
			}
		})
	}
}

// TestCopies: a copy has the IP identification of its original, or follows it at once; a
// retransmission has not, and a copy on another path is one that the sender sent.
func TestCopies(t *testing.T) {
	for _, tt := range []struct {
		name    string
		id, and uint16
		later   time.Duration
		tunnel  byte
		copies  uint64
		segment uint64
	}{
		{"copy", 7, 7, 3 * time.Microsecond, 0, 1, 1},
		{"copy behind a queue", 7, 7, 30 * ms, 0, 1, 1},
		{"retransmission", 7, 8, 3 * time.Microsecond, 0, 0, 2},
		{"copy without identification", 0, 0, 3 * time.Microsecond, 0, 1, 1},
		{"retransmission without identification", 0, 0, 30 * ms, 0, 0, 2},
		{"identification used again", 7, 7, 2 * time.Second, 0, 0, 2},
		{"sent over two paths", 7, 7, 3 * time.Microsecond, 1, 0, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(1, Options{})
			s.open(0)
			g := pcap.Segment{At: 1e18 + int64(50*ms), Flow: s.subflows[0].flow.Reverse(), Flags: pcap.ACK, Seq: s.subflows[0].isn[1] + 1, Ack: s.subflows[0].isn[0] + 1, Payload: 1000, ID: tt.id, Tunneled: true}
			s.a.Add(&g)
			g.At, g.ID, g.Tunnel = g.At+int64(tt.later), tt.and, [16]byte{15: tt.tunnel}
			s.a.Add(&g)
			r := s.a.Report()
			if got := r.Connections[0].Subflows[0].ToClient; s.a.m.Copies != tt.copies || got.Segments != tt.segment || got.Bytes != 1000 {
				t.Errorf("%d copies, %d segments, %d bytes; want %d, %d, 1000", s.a.m.Copies, got.Segments, got.Bytes, tt.copies, tt.segment)
			}
		})
	}
}

// TestWindowProbes: the byte of a probe is data only if the receiver accepts it.
func TestWindowProbes(t *testing.T) {
	for _, tt := range []struct {
		name                           string
		after                          func(*plainScene)
		bytes, probes, again, segments uint64
	}{
		{"the window opens", func(s *plainScene) { s.data(150*ms, 1001, 500); s.ack(151*ms, 1501, 9) }, 1500, 2, 0, 2},
		{"the byte is accepted", func(s *plainScene) { s.ack(131*ms, 1002, 0); s.data(150*ms, 1002, 499) }, 1500, 2, 0, 3},
		{"keep-alive", func(s *plainScene) { s.ack(140*ms, 1001, 9); s.data(150*ms, 1000, 1); s.data(160*ms, 1001, 500) }, 1500, 3, 0, 2},
		{"a byte of data", func(s *plainScene) { s.ack(140*ms, 1001, 9); s.data(150*ms, 1001, 1) }, 1001, 2, 0, 2},
		{"a retransmission", func(s *plainScene) { s.data(150*ms, 1, 1000) }, 1000, 2, 1, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newPlainScene()
			s.data(110*ms, 1, 1000)
			s.ack(111*ms, 1001, 0)
			s.data(120*ms, 1001, 1)
			s.ack(121*ms, 1001, 0)
			s.data(130*ms, 1001, 1)
			tt.after(s)
			r := s.a.Report()
			d := r.Connections[0].Subflows[0].ToClient
			if d.Bytes != tt.bytes || d.Probes != tt.probes || d.Retransmitted.Segments != tt.again || d.Segments != tt.segments || d.Uncaptured != 0 {
				t.Errorf("%d bytes, %d probes, %d retransmitted, %d segments, %d uncaptured; want %d, %d, %d, %d, 0", d.Bytes, d.Probes, d.Retransmitted.Segments, d.Segments, d.Uncaptured, tt.bytes, tt.probes, tt.again, tt.segments)
			}
		})
	}
}

// plainScene is a TCP connection whose server sends.
type plainScene struct{ *scene }

func newPlainScene() *plainScene {
	s := &plainScene{newScene(1, Options{})}
	i := s.add()
	s.packet(0, i, 0, pcap.SYN, 0, 0, 0)
	s.packet(1*ms, i, 1, pcap.SYN|pcap.ACK, 0, 1, 0)
	s.packet(1*ms, i, 0, pcap.ACK, 1, 1, 0)
	return s
}

func (s *plainScene) data(at time.Duration, seq uint32, payload int) {
	s.packet(at, 0, 1, pcap.ACK, seq, 1, payload)
}

func (s *plainScene) ack(at time.Duration, ack uint32, window uint16) {
	f := s.subflows[0]
	s.a.Add(&pcap.Segment{At: int64(at) + 1e18, Flow: f.flow, Flags: pcap.ACK, Seq: f.isn[0] + 1, Ack: f.isn[1] + ack, HopLimit: 60, Window: window})
}

// TestFloodOfJoins: joins without an answer are one line, and no connections.
func TestFloodOfJoins(t *testing.T) {
	s := newScene(1, Options{})
	s.open(0)
	for n := range uint32(5000) {
		i := s.add()
		s.subflows[i].flow.Source[13] = byte(n >> 8)
		s.packet(time.Duration(10+2*n)*ms, i, 0, pcap.SYN, 0, 0, 0, joinOption(n%4000, false))
		if n%2 == 0 {
			s.packet(time.Duration(11+2*n)*ms, i, 1, pcap.RST|pcap.ACK, 0, 1, 0)
		}
	}
	r := s.a.Report()
	if len(r.Connections) != 1 {
		t.Errorf("%d connections, want 1", len(r.Connections))
	}
	if want := "5000 joins with 4000 tokens of connections that were not captured, from 5000 addresses and without an answer: not listed"; len(r.Missed) != 1 || r.Missed[0] != want {
		t.Errorf("missed %q, want %q", r.Missed, want)
	}
}

// TestLinkTypeThatIsNotRead: it is named.
func TestLinkTypeThatIsNotRead(t *testing.T) {
	for link, want := range map[pcap.LinkType]string{189: "2 packets of link type 189 (USB_LINUX), which is not read", 9999: "2 packets of link type 9999, which is not read"} {
		r := read(t, write(t, "other.pcap", pcapOf(link, []frame{{1e18, 64, make([]byte, 64)}, {1e18, 64, make([]byte, 64)}})))
		if len(r.Missed) != 1 || !strings.HasSuffix(r.Missed[0], want) {
			t.Errorf("missed %q, want %q", r.Missed, want)
		}
	}
}
