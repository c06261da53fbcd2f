package capture

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/analysis/pcap"
)

// only returns the single connection of a report.
func only(t rapid.TB, r Report) *Connection {
	t.Helper()
	if len(r.Connections) != 1 {
		t.Fatalf("%d connections, want 1: %+v", len(r.Connections), r.Connections)
	}
	return &r.Connections[0]
}

func TestTwoSubflows(t *testing.T) {
	for _, version := range []int{0, 1} {
		for _, short := range []bool{false, true} {
			s := newScene(version, Options{Record: true})
			s.short, s.checksum = short, version == 0
			s.open(0)
			s.join(2 * ms)
			s.data(10*ms, 1, 1, 1000, mapped{start: 1, offset: 1000, length: 1000})
			s.data(12*ms, 1, 1001, 1000, mapped{start: 1001, offset: 2000, length: 1000})
			s.data(20*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
			s.ack(20*ms, 0, 1001, 3000)
			s.data(21*ms, 0, 1001, 500, mapped{start: 1001, offset: 3000, length: 501, fin: true})
			c := only(t, s.a.Report())
			if c.Protocol != "mptcp" || c.Version != version || c.Tokens != [2]string{hex32(s.token(0)), hex32(s.token(1))} || !c.FromStart || len(c.Subflows) != 2 || c.Missed != nil {
				t.Errorf("version %d: got %+v", version, c)
			}
			d := c.ToClient
			if d.Bytes != 3500 || d.Segments != 4 || d.Delay.Max != 10*ms || d.Delay.Mean != 18*ms/4 || d.SubflowLevel.Max != 0 || d.ConnectionLevel.Max != 10*ms || d.Bursts.Max != 3 ||
				d.Bursts.MaxBytes != 3000 || d.PeakOccupancy != (SegmentCount{2, 2000}) || !d.Finished || d.Uncaptured != 0 || d.Unreleased != 0 {
				t.Errorf("version %d, short %v: got %+v", version, short, d)
			}
			if s := c.Subflows[1]; s.Start != "join" || s.ToClient.Bytes != 2000 || s.ToClient.Delay.Mean != 9*ms || s.RTT != ms {
				t.Errorf("second subflow: got %+v", s)
			}
		}
	}
}

func TestDigest(t *testing.T) {
	const key = 0x1122334455667788
	for version, want := range []struct {
		token uint32
		idsn  uint64
	}{{0xbdc04c09, 15011795807459873237}, {0x1dce6604, 7098050234200811941}} {
		if token, idsn := digest(version, key); token != want.token || idsn != want.idsn {
			t.Errorf("version %d: got %08x, %d; want %08x, %d", version, token, idsn, want.token, want.idsn)
		}
	}
}

func TestDelayOfLossAndOfOtherSubflows(t *testing.T) {
	s := newScene(1, Options{Record: true})
	s.open(0)
	s.join(2 * ms)
	// Subflow 0 lost its first segment, which is retransmitted after 30 ms; the data after that
	// also waits for subflow 1.
	s.data(10*ms, 0, 101, 100, mapped{start: 101, offset: 200, length: 100})
	s.data(40*ms, 0, 1, 100, mapped{start: 1, offset: 0, length: 100})
	s.data(50*ms, 1, 1, 100, mapped{start: 1, offset: 100, length: 100})
	d := only(t, s.a.Report()).ToClient
	want := []Record{
		{Arrived: 40 * ms, Ordered: 40 * ms, Released: 40 * ms, Subflow: 0, Seq: 0, Length: 100},
		{Arrived: 50 * ms, Ordered: 50 * ms, Released: 50 * ms, Subflow: 1, Seq: 100, Length: 100},
		{Arrived: 10 * ms, Ordered: 40 * ms, Released: 50 * ms, Subflow: 0, Seq: 200, Length: 100},
	}
	if !slices.Equal(d.Records, want) {
		t.Errorf("got %v, want %v", d.Records, want)
	}
	if d.SubflowLevel.Max != 30*ms || d.ConnectionLevel.Max != 10*ms || d.Delay.Max != 40*ms {
		t.Errorf("delays up to %v, %v own, %v others; want 40ms, 30ms, 10ms", d.Delay.Max, d.SubflowLevel.Max, d.ConnectionLevel.Max)
	}
	if r := only(t, s.a.Report()).Subflows[0].ToClient.Retransmitted; r != (SegmentCount{1, 100}) {
		t.Errorf("retransmitted %+v, want 1 segment of 100", r)
	}
}

func TestMappings(t *testing.T) {
	tests := []struct {
		name string
		send func(s *scene)
		want uint64 // bytes in order
		then func(t *testing.T, c *Connection)
	}{
		{"one mapping for several segments, on each of them", func(s *scene) {
			m := mapped{start: 1, offset: 0, length: 3000}
			s.data(10*ms, 0, 1, 1000, m)
			s.data(11*ms, 0, 2001, 1000, m)
			s.data(12*ms, 0, 1001, 1000, m)
		}, 3000, nil},
		{"only on the first", func(s *scene) {
			s.data(10*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 3000})
			s.data(11*ms, 0, 1001, 1000, mapped{})
			s.data(12*ms, 0, 2001, 1000, mapped{})
		}, 3000, nil},
		{"only on the last", func(s *scene) {
			s.data(10*ms, 0, 1, 1000, mapped{})
			s.data(11*ms, 0, 1001, 1000, mapped{})
			s.data(12*ms, 0, 2001, 1000, mapped{start: 1, offset: 0, length: 3000})
		}, 3000, func(t *testing.T, c *Connection) {
			if c.ToClient.Delay.Max != 2*ms {
				t.Errorf("largest delay %v, want 2ms: what has no mapping cannot be released", c.ToClient.Delay.Max)
			}
		}},
		{"of the data of the next segment", func(s *scene) {
			s.data(10*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
			s.packet(11*ms, 0, 1, pcap.ACK, 1001, 1, 0, signalOption{hasMap: true, dsn: s.idsn(1) + 1001, subflow: 1001, length: 1000}.bytes())
			s.data(12*ms, 0, 1001, 1000, mapped{})
		}, 2000, nil},
		{"infinite", func(s *scene) {
			s.data(10*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
			s.packet(11*ms, 0, 1, pcap.ACK, 1001, 1, 1000, signalOption{hasMap: true, dsn: s.idsn(1) + 1001, subflow: 1001}.bytes())
			s.data(12*ms, 0, 2001, 1000, mapped{})
		}, 3000, func(t *testing.T, c *Connection) {
			if !strings.Contains(c.Fallback, "infinite") {
				t.Errorf("fallback %q", c.Fallback)
			}
		}},
		{"none for some bytes", func(s *scene) {
			s.data(10*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
			s.data(11*ms, 0, 1001, 500, mapped{})
			s.data(12*ms, 0, 1501, 1000, mapped{start: 1501, offset: 1000, length: 1000})
		}, 2000, func(t *testing.T, c *Connection) {
			if got := c.Subflows[0].ToClient.Unmapped; got != 500 {
				t.Errorf("%d bytes without a mapping, want 500", got)
			}
		}},
		{"contradicting", func(s *scene) {
			s.data(10*ms, 0, 1, 500, mapped{start: 1, offset: 0, length: 1000})
			s.data(11*ms, 0, 501, 500, mapped{start: 501, offset: 7000, length: 500})
		}, 1000, func(t *testing.T, c *Connection) {
			if !slices.ContainsFunc(c.Missed, func(s string) bool { return strings.Contains(s, "1 mapping") }) {
				t.Errorf("missed %q", c.Missed)
			}
		}},
		{"of DATA_FIN alone", func(s *scene) {
			s.data(10*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
			s.packet(11*ms, 0, 1, pcap.ACK, 1001, 1, 0, signalOption{hasMap: true, dsn: s.idsn(1) + 1001, length: 1, fin: true}.bytes())
			s.ack(12*ms, 0, 1001, 1001)
		}, 1000, func(t *testing.T, c *Connection) {
			if !c.ToClient.Finished || c.ToClient.Uncaptured != 0 {
				t.Errorf("finished %v, %d uncaptured; want true, 0", c.ToClient.Finished, c.ToClient.Uncaptured)
			}
		}},
		{"of DATA_FIN with data, and what comes again behind it", func(s *scene) {
			s.data(10*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1001, fin: true})
			s.data(11*ms, 0, 1001, 500, mapped{start: 1001, offset: 500, length: 500})
		}, 1000, func(t *testing.T, c *Connection) {
			if x := c.Subflows[0].ToClient; x.Unmapped != 0 || x.Reinjected != 500 || len(c.Missed) > 0 {
				t.Errorf("%d unmapped, %d reinjected, missed %q; want 0, 500, nothing", x.Unmapped, x.Reinjected, c.Missed)
			}
		}},
		{"that comes again over another subflow", func(s *scene) {
			s.data(10*ms, 1, 1, 1000, mapped{start: 1, offset: 1000, length: 1000})
			s.data(11*ms, 1, 1001, 1000, mapped{start: 1001, offset: 0, length: 1000})
			s.data(12*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
		}, 2000, func(t *testing.T, c *Connection) {
			if a, b := c.Subflows[0].ToClient, c.Subflows[1].ToClient; b.Reinjected != 1000 || a.DuplicateData != 1000 || a.Reinjected != 0 || c.ToClient.Duplicate != 1000 {
				t.Errorf("reinjected %d and %d, duplicate %d; want 0, 1000, 1000", a.Reinjected, b.Reinjected, a.DuplicateData)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(1, Options{})
			s.open(0)
			s.join(2 * ms)
			tt.send(s)
			c := only(t, s.a.Report())
			if c.ToClient.Bytes != tt.want {
				t.Errorf("%d bytes in order, want %d", c.ToClient.Bytes, tt.want)
			}
			if tt.then != nil {
				tt.then(t, c)
			}
		})
	}
}

func TestCaptureOfVersion1WithDataInTheThirdPacket(t *testing.T) {
	s := newScene(1, Options{})
	i := s.add()
	s.packet(0, i, 0, pcap.SYN, 0, 0, 0, capableOption(1))
	s.packet(ms, i, 1, pcap.SYN|pcap.ACK, 0, 1, 0, capableOption(1, s.key[1]))
	s.packet(ms, i, 0, pcap.ACK, 1, 1, 300, option(subCapable, 1, slices.Concat([]byte{1}, be64(s.key[0]), be64(s.key[1]), be16(300))...))
	if c := only(t, s.a.Report()); c.ToServer.Bytes != 300 || c.Fallback != "" || c.Subflows[0].ToServer.Unmapped != 0 {
		t.Errorf("got %+v", c)
	}
}

func TestFallback(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(s *scene)
		want string
	}{
		{"the server has no MPTCP", func(s *scene) {
			i := s.add()
			s.packet(0, i, 0, pcap.SYN, 0, 0, 0, capableOption(1))
			s.packet(ms, i, 1, pcap.SYN|pcap.ACK, 0, 1, 0)
			s.packet(ms, i, 0, pcap.ACK, 1, 1, 0)
			s.data(5*ms, i, 1, 1000, mapped{})
			s.data(9*ms, i, 1001, 1000, mapped{})
		}, "did not answer"},
		{"a box on the way takes options off", func(s *scene) {
			i := s.open(0)
			s.data(5*ms, i, 1, 1000, mapped{})
			s.data(9*ms, i, 1001, 1000, mapped{})
		}, "no data sequence signal"},
	} {
		s := newScene(1, Options{Record: true})
		tt.send(s)
		c := only(t, s.a.Report())
		if !strings.Contains(c.Fallback, tt.want) || c.ToClient.Bytes != 2000 || len(c.ToClient.Records) != 2 || c.ToClient.Delay.Max != 0 || c.Protocol != "mptcp" {
			t.Errorf("%s: got %+v", tt.name, c)
		}
	}
}

func TestEvents(t *testing.T) {
	s := newScene(0, Options{})
	s.open(0)
	add4 := option(subAddAddr, 4, slices.Concat([]byte{3}, []byte{192, 0, 2, 1})...)
	add6 := option(subAddAddr, 0, slices.Concat([]byte{4, 0x20, 1}, make([]byte, 13), []byte{9}, be16(8080), make([]byte, 8))...)
	s.packet(5*ms, 0, 1, pcap.ACK, 1, 1, 0, add4)
	s.packet(6*ms, 0, 1, pcap.ACK, 1, 1, 0, add6)
	s.packet(7*ms, 0, 0, pcap.ACK, 1, 1, 0, option(subAddAddr, 1, 4, 192, 0, 2, 1)) // an echo is no event
	s.packet(8*ms, 0, 0, pcap.ACK, 1, 1, 0, option(subRemoveAddr, 0, 3, 4))
	s.packet(9*ms, 0, 1, pcap.ACK, 1, 1, 0, option(subPrio, 1))
	s.packet(10*ms, 0, 1, pcap.ACK, 1, 1, 0, option(subFail, 0, append([]byte{0}, be64(77)...)...))
	s.packet(11*ms, 0, 0, pcap.RST, 1, 1, 0, option(subReset, 0, 5))
	s.packet(12*ms, 0, 1, pcap.RST, 1, 1, 0, option(subFastclose, 0, append([]byte{0}, be64(s.key[0])...)...))
	want := []string{
		"server: ADD_ADDR 3: 192.0.2.1", "server: ADD_ADDR 4: [2001::9]:8080", "client: REMOVE_ADDR 3 4", "server: MP_PRIO: the subflow is a backup",
		"server: MP_FAIL: a checksum was wrong at data sequence number 77", "client: MP_TCPRST: reason 5 (unacceptable performance)",
		"server: MP_FASTCLOSE: the connection is closed at once",
	}
	var got []string
	for _, e := range only(t, s.a.Report()).Events {
		from := "server: "
		if e.FromClient {
			from = "client: "
		}
		got = append(got, from+e.What)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCaptureThatBeginsInTheMiddle(t *testing.T) {
	for _, short := range []bool{false, true} {
		s := newScene(1, Options{Record: true})
		s.short = short
		s.add()
		s.add()
		// An acknowledgement locates the data; the offset of each subflow follows from a
		// mapping of one segment.
		const offset = 5_000_000
		s.ack(0, 0, 9001, offset)
		s.data(1*ms, 0, 9001, 1000, mapped{start: 9001, offset: offset + 1000, length: 1000})
		s.data(3*ms, 1, 7001, 1000, mapped{start: 7001, offset: offset, length: 1000})
		s.data(4*ms, 1, 8001, 500, mapped{start: 8001, offset: offset + 2000, length: 500})
		c := only(t, s.a.Report())
		d := c.ToClient
		if len(c.Subflows) != 2 || c.FromStart || d.Bytes != 2500 || d.Delay.Max != 2*ms || d.Bursts.Max != 2 || d.Uncaptured != 0 {
			t.Errorf("short %v: got %+v", short, c)
		}
		if len(c.Missed) < 2 {
			t.Errorf("missed %q, want that the beginning and the keys were not captured", c.Missed)
		}
	}
}

// TestOneWayFromTheMiddle: without acknowledgements, the data starts at the highest first number of
// the subflows that are present at the start: data below it may have been sent before the capture.
func TestOneWayFromTheMiddle(t *testing.T) {
	for _, acknowledged := range []bool{false, true} {
		s := newScene(1, Options{})
		s.add()
		s.add()
		const lead, n = 10_000, 300
		if acknowledged {
			s.ack(0, 0, 1, 0)
		}
		for i := range n {
			at := time.Duration(i+1) * ms
			seq := uint32(1000*i + 1)
			s.data(at, 0, seq, 1000, mapped{start: seq, offset: uint64(2000*i + 1000 + lead), length: 1000})
			s.data(at, 1, seq, 1000, mapped{start: seq, offset: uint64(2000 * i), length: 1000})
			if acknowledged {
				s.ack(at, 0, 1, uint64(2000*i+1000))
			}
		}
		c := only(t, s.a.Report())
		want := uint64(2000*n - 1000 - lead)
		if acknowledged {
			want = 2000*n - lead/2 // includes earlier data of the slow subflow
		}
		if d := c.ToClient; d.Bytes != want || d.Uncaptured != 0 || d.Unreleased != lead/2 || d.Duplicate != 0 {
			t.Errorf("acknowledged %v: %d bytes in order, %d uncaptured, %d held, %d twice; want %d, 0, %d, 0", acknowledged, d.Bytes, d.Uncaptured, d.Unreleased, d.Duplicate, want, lead/2)
		}
	}
}

func TestMiddleOfAMappingOfManySegments(t *testing.T) {
	s := newScene(1, Options{})
	s.add()
	s.ack(0, 0, 2001, 2000)
	// The first mapping started before the capture, so its start is unknown until the next
	// mapping follows it.
	s.data(1*ms, 0, 2001, 1000, mapped{start: 1, offset: 0, length: 4000})
	s.data(2*ms, 0, 3001, 1000, mapped{start: 1, offset: 0, length: 4000})
	s.data(3*ms, 0, 4001, 1000, mapped{start: 4001, offset: 4000, length: 2000})
	s.data(4*ms, 0, 5001, 1000, mapped{start: 4001, offset: 4000, length: 2000})
	c := only(t, s.a.Report())
	if c.ToClient.Bytes != 4000 || c.Subflows[0].ToClient.Unmapped != 0 || c.ToClient.Unreleased != 0 {
		t.Errorf("%d bytes in order, %d unmapped, want 4000, 0: %q", c.ToClient.Bytes, c.Subflows[0].ToClient.Unmapped, c.Missed)
	}
}

func TestJoinsOfAConnectionThatWasNotCaptured(t *testing.T) {
	s := newScene(1, Options{})
	s.add() // its handshake is not captured
	s.join(0)
	s.join(0)
	s.data(10*ms, 1, 1, 1000, mapped{start: 1, offset: 1000, length: 1000})
	s.data(11*ms, 2, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
	s.ack(12*ms, 1, 1001, 2000)
	c := only(t, s.a.Report())
	if len(c.Subflows) != 2 || c.ToClient.Bytes != 2000 || !strings.Contains(strings.Join(c.Missed, "; "), hex32(s.token(1))) {
		t.Errorf("got %+v", c)
	}
}

func TestWhatTheCaptureLost(t *testing.T) {
	s := newScene(1, Options{})
	s.open(0)
	s.join(2 * ms)
	s.data(10*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
	// Offsets 1000 to 2000 were sent on subflow 1 and not captured.
	s.data(12*ms, 0, 1001, 1000, mapped{start: 1001, offset: 2000, length: 1000})
	s.ack(20*ms, 1, 1001, 3000)
	c := only(t, s.a.Report())
	d := c.ToClient
	if d.Uncaptured != 1000 || d.Bytes != 2000 || d.Unreleased != 0 || d.Delay.Max != 8*ms {
		t.Errorf("%d uncaptured, %d in order, delay up to %v; want 1000, 2000, 8ms", d.Uncaptured, d.Bytes, d.Delay.Max)
	}
	if !strings.Contains(strings.Join(c.Missed, ";"), "not captured") {
		t.Errorf("missed %q", c.Missed)
	}
	// The same on a single subflow.
	s = newScene(1, Options{})
	s.open(0)
	s.data(10*ms, 0, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
	s.data(12*ms, 0, 2001, 1000, mapped{start: 2001, offset: 2000, length: 1000})
	s.ack(20*ms, 0, 3001, 3000)
	c = only(t, s.a.Report())
	if c.ToClient.Uncaptured != 1000 || c.ToClient.Bytes != 2000 || c.Subflows[0].ToClient.Uncaptured != 1000 {
		t.Errorf("%d uncaptured, %d on the subflow, %d in order; want 1000, 1000, 2000", c.ToClient.Uncaptured, c.Subflows[0].ToClient.Uncaptured, c.ToClient.Bytes)
	}
}

func TestPortsThatAreUsedAgain(t *testing.T) {
	s := newScene(1, Options{})
	for range 2 {
		i := s.open(0)
		s.data(10*ms, i, 1, 1000, mapped{start: 1, offset: 0, length: 1000})
		s.subflows = nil
		s.key[0]++
		s.key[1]++
	}
	// The second has the same initial sequence numbers, like a retransmitted SYN: there is one
	// connection.
	if n := len(s.a.Report().Connections); n != 1 {
		t.Errorf("%d connections after the SYN came again, want 1", n)
	}
	s.add()
	s.subflows[0].isn[0] += 12345
	s.packet(50*ms, 0, 0, pcap.SYN, 0, 0, 0)
	s.packet(51*ms, 0, 1, pcap.SYN|pcap.ACK, 0, 1, 0)
	r := s.a.Report()
	if len(r.Connections) != 2 || r.Connections[1].Protocol != "tcp" {
		t.Errorf("%d connections, want 2, the second of TCP", len(r.Connections))
	}
}

func TestPlainTCP(t *testing.T) {
	s := newScene(1, Options{Record: true})
	i := s.add()
	s.packet(0, i, 0, pcap.SYN, 0, 0, 0)
	s.packet(ms, i, 1, pcap.SYN|pcap.ACK, 0, 1, 0)
	s.packet(ms, i, 0, pcap.ACK, 1, 1, 0)
	s.data(10*ms, i, 1001, 1000, mapped{})
	s.data(10*ms+200*time.Microsecond, i, 1, 1000, mapped{}) // reordered
	s.data(11*ms, i, 1, 1000, mapped{})                      // duplicate
	s.data(12*ms, i, 3001, 1000, mapped{})
	s.data(25*ms, i, 2001, 1000, mapped{}) // lost and retransmitted
	c := only(t, s.a.Report())
	h := c.Subflows[0].ToClient
	if c.Protocol != "tcp" || c.ToClient.Bytes != 4000 || h.Reordered != (SegmentCount{1, 1000}) || h.Retransmitted != (SegmentCount{2, 2000}) || c.ToClient.Delay.Max != 13*ms ||
		c.ToClient.Bursts.Max != 2 || c.ToClient.PeakOccupancy.Bytes != 1000 || len(c.ToClient.Records) != 4 || c.ToClient.LongestGap != 13*ms {
		t.Errorf("got %+v\nsubflow %+v", c.ToClient, h)
	}
}

// TestAnyConnection sends data over subflows at random, with losses, retransmissions, reinjections
// and any kind of mappings, and compares each release with a reference model that works byte by
// byte.
func TestAnyConnection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScene(rapid.IntRange(0, 1).Draw(t, "version"), Options{Record: true})
		s.short, s.checksum = rapid.Bool().Draw(t, "short"), rapid.Bool().Draw(t, "checksum")
		s.open(0)
		subflows := rapid.IntRange(1, 4).Draw(t, "subflows")
		for range subflows - 1 {
			s.join(2 * ms)
		}
		everywhere := rapid.Bool().Draw(t, "everywhere") // else only on the first segment
		type packet struct {
			arrival
			m mapped
		}
		var packets []packet
		var maps []sent
		next := make([]uint64, subflows) // bytes sent on each
		bytes := 0
		for range rapid.IntRange(1, 60).Draw(t, "blocks") {
			i := rapid.IntRange(0, subflows-1).Draw(t, "subflow")
			offset, length := bytes, 0
			segments := rapid.SliceOfN(rapid.IntRange(1, 40), 1, 4).Draw(t, "segments")
			for _, n := range segments {
				length += n
			}
			if bytes > 0 && rapid.IntRange(0, 9).Draw(t, "reinject") == 0 {
				offset = rapid.IntRange(max(0, bytes-200), bytes-1).Draw(t, "from")
			}
			m := mapped{start: uint32(next[i]) + 1, offset: uint64(offset), length: uint16(length)}
			maps = append(maps, sent{subflow: i, start: next[i] + 1, offset: uint64(offset), length: length})
			for j, n := range segments {
				p := packet{arrival: arrival{at: time.Duration(rapid.IntRange(40, 3000).Draw(t, "at")) * ms / 10, subflow: i, seq: next[i] + 1, length: n}}
				if j == 0 || everywhere {
					p.m = m
				}
				packets = append(packets, p)
				if rapid.IntRange(0, 9).Draw(t, "again") == 0 {
					p.at += ms * 7
					packets = append(packets, p)
				}
				next[i] += uint64(n)
			}
			bytes = max(bytes, offset+length)
		}
		slices.SortStableFunc(packets, func(a, b packet) int { return int(a.at - b.at) })
		arrivals := make([]arrival, len(packets))
		for i, p := range packets {
			arrivals[i] = p.arrival
			s.data(p.at, p.subflow, uint32(p.seq), p.length, p.m)
		}
		// Data that arrives before its mapping also waits for the mapping, which the model
		// does not include.
		release := naiveRelease(arrivals, maps, bytes)
		late := slices.ContainsFunc(packets, func(p packet) bool { return p.m.length == 0 })

		c := only(t, s.a.Report())
		var released uint64
		for _, r := range c.ToClient.Records {
			last := int(r.Seq) + r.Length - 1
			if !late && r.Released != release[last] {
				t.Fatalf("%+v: released at %v, want %v", r, r.Released, release[last])
			}
			if r.Released < release[last] || r.Ordered < r.Arrived || r.Released < r.Ordered {
				t.Fatalf("%+v: times are not possible, its last byte can be released at %v", r, release[last])
			}
		}
		for _, at := range release {
			if at < never {
				released++
			}
		}
		if c.ToClient.Bytes != released || released != uint64(bytes) {
			t.Fatalf("%d bytes in order, want %d of %d", c.ToClient.Bytes, released, bytes)
		}
		if c.ToClient.Unreleased != 0 {
			t.Fatalf("%d bytes are held after all", c.ToClient.Unreleased)
		}
	})
}
