package capture

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

// unzip returns the content of a capture in testdata.
func unzip(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// busiest returns the connection with the most bytes.
func busiest(r Report) *Connection { return r.Largest()[0] }

func TestRealCaptures(t *testing.T) {
	for _, tt := range []struct {
		files    []string
		subflows int
		bytes    uint64 // including the response header
		tunnels  int
		missed   string
	}{
		{[]string{"receiver-any.pcap.gz"}, 2, 500_200, 0, ""},
		{[]string{"receiver-1.pcap.gz", "receiver-2.pcap.gz"}, 3, 300_200, 0, ""},
		{[]string{"sender-any.pcap.gz"}, 3, 300_200, 0, "captured at the sender"},
		{[]string{"sender-any.pcap.gz", "receiver-2.pcap.gz", "receiver-1.pcap.gz"}, 3, 300_200, 0, ""},
		{[]string{"reinjection.pcap.gz"}, 2, 400_200, 0, ""},
		{[]string{"tcp.pcap.gz"}, 1, 150_200, 0, ""},
		{[]string{"srv6-client.pcapng.gz"}, 3, 300_200, 0, "GRO or TSO"},
		{[]string{"srv6-server.pcapng.gz"}, 3, 300_200, 2, "captured at the sender"},
		{[]string{"srv6-server.pcapng.gz", "srv6-client.pcapng.gz"}, 3, 300_200, 2, "GRO or TSO"},
	} {
		t.Run(strings.Join(tt.files, " "), func(t *testing.T) {
			names := make([]string, len(tt.files))
			for i, f := range tt.files {
				names[i] = "testdata/" + f
			}
			c := busiest(read(t, names...))
			d := c.ToClient
			if len(c.Subflows) != tt.subflows || d.Bytes != tt.bytes || d.Uncaptured != 0 || !d.Finished {
				t.Errorf("%d subflows, %d bytes, %d uncaptured, finished %v; want %d, %d, 0, true", len(c.Subflows), d.Bytes, d.Uncaptured, d.Finished, tt.subflows, tt.bytes)
			}
			tunnels := 0
			for _, s := range c.Subflows {
				tunnels += len(s.ToClient.Tunnels)
			}
			if tunnels != tt.tunnels {
				t.Errorf("%d tunnels, want %d", tunnels, tt.tunnels)
			}
			if all := strings.Join(c.Missed, "; "); tt.missed == "" && strings.Contains(all, "sender") || !strings.Contains(all, tt.missed) {
				t.Errorf("missed %q, want %q", all, tt.missed)
			}
		})
	}
}

// TestBothSides: with the captures of both sides, the results are those of the receiver's.
func TestBothSides(t *testing.T) {
	receiver := busiest(read(t, "testdata/srv6-client.pcapng.gz"))
	both := busiest(read(t, "testdata/srv6-server.pcapng.gz", "testdata/srv6-client.pcapng.gz"))
	if a, b := fmt.Sprint(receiver.ToClient.Delay, receiver.ToClient.Bursts, receiver.ToClient.PeakOccupancy), fmt.Sprint(both.ToClient.Delay, both.ToClient.Bursts, both.ToClient.PeakOccupancy); a != b {
		t.Errorf("with the sender's capture %s, alone %s", b, a)
	}
}

// records returns the packets of a pcap file with their headers.
func records(file []byte) (packets [][]byte) {
	for b := file[24:]; len(b) > 0; {
		n := 16 + int(b[8]) + int(b[9])<<8
		packets, b = append(packets, b[:n]), b[n:]
	}
	return packets
}

// TestDisorder: a file whose packets are not in the order of their times yields the same results as
// the sorted file.
func TestDisorder(t *testing.T) {
	whole := unzip(t, "receiver-any.pcap.gz")
	packets := records(whole)
	half := len(packets) / 2
	mixed := slices.Concat(append([][]byte{whole[:24]}, append(slices.Clone(packets[half:]), packets[:half]...)...)...)
	got, want := busiest(read(t, write(t, "mixed.pcap", mixed))), busiest(read(t, "testdata/receiver-any.pcap.gz"))
	if a, b := fmt.Sprint(got.ToClient.Delay), fmt.Sprint(want.ToClient.Delay); a != b || got.ToClient.Bytes != want.ToClient.Bytes {
		t.Errorf("in disorder %s, in order %s", a, b)
	}
}

// TestSortMemory: the memory of sorting depends on how far times run backwards, not on the size of
// the file, and exceeding the limit is an error.
func TestSortMemory(t *testing.T) {
	whole := unzip(t, "receiver-any.pcap.gz")
	want := busiest(read(t, "testdata/receiver-any.pcap.gz"))
	packets := records(whole)
	for i := 0; i+8 <= len(packets); i += 8 { // swap packets that are near each other
		slices.Reverse(packets[i : i+8])
	}
	path := write(t, "near.pcap", slices.Concat(append([][]byte{whole[:24]}, packets...)...))
	for _, tt := range []struct {
		memory int
		want   error
	}{{100_000, nil}, {3_000, ErrDisorder}} {
		r, err := Read(context.Background(), []string{path}, Options{SortMemory: tt.memory})
		var file *FileError
		if !errors.Is(err, tt.want) || err != nil && (!errors.As(err, &file) || file.Name != path) {
			t.Fatalf("with %d bytes: got %v, want %v", tt.memory, err, tt.want)
		}
		if err == nil {
			if got := busiest(r); fmt.Sprint(got.ToClient.Delay, got.ToClient.Bursts) != fmt.Sprint(want.ToClient.Delay, want.ToClient.Bursts) {
				t.Errorf("sorted %+v, in order %+v", got.ToClient.Delay, want.ToClient.Delay)
			}
		}
	}
}

// TestPropertySorter: segments added in any order are delivered in the order of their times, and
// those with equal times in the order in which they were added.
func TestPropertySorter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOf(rapid.Int64Range(0, 50)).Draw(t, "times")
		var back, latest int64
		for i, at := range times {
			if i == 0 || at > latest {
				latest = at
			}
			back = max(back, latest-at)
		}
		var got []pcap.Segment
		q := sorter{back: time.Duration(back), memory: 1 << 20, do: func(s *pcap.Segment, _ point) { got = append(got, *s) }}
		want := make([]pcap.Segment, len(times))
		for i, at := range times {
			want[i] = pcap.Segment{At: at, Number: uint64(i)}
			q.add(&want[i], point{})
		}
		q.flush()
		slices.SortStableFunc(want, func(x, y pcap.Segment) int { return cmp.Compare(x.At, y.At) })
		for i := range want {
			if i >= len(got) || got[i].At != want[i].At || got[i].Number != want[i].Number {
				t.Fatalf("of %v segment %d is %+v, want %+v", times, i, got, want[i])
			}
		}
		if q.used != 0 || len(q.heap) != 0 {
			t.Fatalf("%d bytes in %d segments are left", q.used, len(q.heap))
		}
	})
}

// TestFromAnyPacketOn: if any number of packets is missing at the start, no data is invented and
// none is held forever for data sent before the capture.
func TestFromAnyPacketOn(t *testing.T) {
	whole := unzip(t, "receiver-any.pcap.gz")
	var at []int
	for i := 24; i < len(whole); {
		at = append(at, i)
		i += 16 + int(whole[i+8]) + int(whole[i+9])<<8
	}
	for _, from := range []int{1, 2, 3, 5, 9, 12, 20, 50, 101, 300, 500} {
		path := write(t, "part.pcap", append(slices.Clone(whole[:24]), whole[at[from]:]...))
		r := read(t, path)
		var bytes, brought uint64
		for i := range r.Connections {
			d := &r.Connections[i].ToClient
			bytes += d.Bytes
			for _, s := range r.Connections[i].Subflows {
				brought += s.ToClient.Bytes
			}
			if d.Unreleased > 0 {
				t.Errorf("from packet %d: %d bytes are still held", from, d.Unreleased)
			}
		}
		if len(r.Connections) != 1 || bytes > brought || brought-bytes > 70_000 {
			t.Errorf("from packet %d: %d connections, %d bytes in order of %d", from, len(r.Connections), bytes, brought)
		}
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	empty := write(t, "empty.pcap", nil)
	text := write(t, "notes.txt", []byte("this is no capture at all"))
	good := "testdata/tcp.pcap.gz"
	for _, tt := range []struct {
		files []string
		want  error
	}{
		{[]string{empty}, pcap.ErrEmpty}, {[]string{good, text}, pcap.ErrNotCapture}, {[]string{filepath.Join(t.TempDir(), "none")}, os.ErrNotExist}, {[]string{good, good}, ErrTwice},
	} {
		_, err := Read(context.Background(), tt.files, Options{})
		var file *FileError
		if !errors.Is(err, tt.want) || !errors.As(err, &file) || file.Name != tt.files[len(tt.files)-1] {
			t.Errorf("%v: got %v, want %v of the last file", tt.files, err, tt.want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, []string{good}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
}

func TestCutFileIsReportedAndUsed(t *testing.T) {
	whole := unzip(t, "receiver-any.pcap.gz")
	r := read(t, write(t, "cut.pcap", whole[:40_011]))
	if len(r.Missed) == 0 || !strings.Contains(r.Missed[0], "ends in the middle") || !r.Files[0].Cut {
		t.Errorf("missed %q", r.Missed)
	}
	if c := busiest(r); len(c.Subflows) != 2 || c.ToClient.Bytes == 0 || c.ToClient.Finished && c.ToClient.Bytes > 400_000 {
		t.Errorf("got %+v", c.ToClient)
	}
}

func TestSnapshotLengthThatCutsOptions(t *testing.T) {
	whole := unzip(t, "tcp.pcap.gz")
	cut := slices.Clone(whole[:24])
	for b := whole[24:]; len(b) > 0; {
		n := int(b[8]) + int(b[9])<<8
		short := min(n, 60)
		head := slices.Clone(b[:16])
		head[8], head[9] = byte(short), 0
		cut = append(append(cut, head...), b[16:16+short]...)
		b = b[16+n:]
	}
	r := read(t, write(t, "short.pcap", cut))
	if !strings.Contains(strings.Join(r.Missed, ";"), "larger snapshot length") {
		t.Errorf("missed %q", r.Missed)
	}
	if d := busiest(r).ToClient; d.Bytes != 150_200 {
		t.Errorf("%d bytes, want 150200: the headers say it", d.Bytes)
	}
}

// hostile makes segments from arbitrary bytes: of few flows and with close sequence numbers, so
// that they affect each other.
func hostile(b []byte, do func(*pcap.Segment)) {
	at := int64(1e18)
	for len(b) >= 12 {
		var s pcap.Segment
		at += int64(int8(b[0])) * 1e5
		s.At = at
		s.Flow = pcap.Flow{Source: [16]byte{1, b[1] & 3}, Destination: [16]byte{2}, SourcePort: 1000 + uint16(b[1]&12), DestinationPort: 80}
		if b[1]&16 != 0 {
			s.Flow = s.Flow.Reverse()
		}
		s.Interface = int(b[1] >> 7)
		s.Flags = b[2]
		s.Seq = uint32(int32(int8(b[3]))*100) + uint32(b[4])<<24
		s.Ack = uint32(int32(int8(b[5]))*100) + uint32(b[6])<<24
		s.Payload = int(b[7]) * 100 >> (b[8] & 7)
		s.OptionsCut = b[8]&128 != 0
		s.Tunneled = b[8]&64 != 0
		n := min(int(b[9]&63), 40, len(b)-12)
		s.Options = b[12 : 12+n]
		s.Data = b[:min(len(b), s.Payload)]
		b = b[12+n:]
		do(&s)
	}
}

func FuzzAnalysis(f *testing.F) {
	seed := func(parts ...[]byte) {
		var b []byte
		for i, o := range parts {
			b = append(append(b, 10, 16, pcap.ACK, byte(i*5), 0, 1, 0, 5, 0, byte(len(o)), 0, 0), o...)
		}
		f.Add(b)
	}
	s := newScene(1, Options{})
	m := func(offset uint64, start uint32, length uint16) []byte {
		return signalOption{hasAck: true, ack: 5, hasMap: true, dsn: s.idsn(1) + 1 + offset, subflow: start, length: length}.bytes()
	}
	seed(capableOption(1), capableOption(1, 1), capableOption(1, 1, 2), m(0, 1, 500), m(500, 501, 500))
	seed(joinOption(1, false), m(0, 1, 500), m(1000, 501, 1500), m(500, 2001, 0), nil, nil)
	sums := func(offset uint64, start uint32, length uint16) []byte {
		return signalOption{hasMap: true, dsn: s.idsn(1) + 1 + offset, subflow: start, length: length, checksum: true, sum: 1}.bytes()
	}
	seed(capableOption(1), capableOption(1, 1), capableOption(1, 1, 2), sums(0, 1, 500), sums(500, 501, 700), sums(1200, 1201, 500), sums(0, 0, 1))
	seed(m(0, 1, 500), signalOption{hasAck: true, ack: s.idsn(1)}.bytes(), m(500, 501, 500), signalOption{hasMap: true, short: true, length: 7}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		a := New(Options{Record: true, MaxRecords: 10_000})
		hostile(b, a.Add)
		if a.early < 0 || a.early > maxEarly {
			t.Fatalf("%d bytes of payload are kept", a.early)
		}
		r := a.Report()
		accessor.Call(t, r)
		plausible(t, r)
	})
}

// plausible checks the invariants of every report, whatever the capture contains.
func plausible(t *testing.T, r Report) {
	t.Helper()
	for i := range r.Connections {
		c := &r.Connections[i]
		if len(c.Subflows) == 0 {
			t.Fatalf("connection %d has no subflows", c.Number)
		}
		for _, e := range c.Events {
			if e.Subflow < 0 || e.Subflow >= len(c.Subflows) {
				t.Fatalf("event %+v of %d subflows", e, len(c.Subflows))
			}
		}
		for _, d := range []*Direction{&c.ToClient, &c.ToServer} {
			if d.Delay.Max < 0 || d.Delay.Max > r.Duration || d.MeanOccupancy < 0 || d.MeanOccupancy > float64(d.PeakOccupancy.Bytes)*1.001 {
				t.Fatalf("a delay up to %v in a capture of %v, %v held on average of at most %d", d.Delay.Max, r.Duration, d.MeanOccupancy, d.PeakOccupancy.Bytes)
			}
			if d.Unreleased > d.PeakOccupancy.Bytes {
				t.Fatalf("%d bytes are held at the end, at most %d before", d.Unreleased, d.PeakOccupancy.Bytes)
			}
			for _, x := range d.Records {
				if x.Arrived > x.Ordered || x.Ordered > x.Released || x.Length <= 0 || x.Subflow >= len(c.Subflows) {
					t.Fatalf("%+v is not possible", x)
				}
			}
		}
	}
}

// small lists captures of every kind in testdata that take little time to read.
var small = []string{
	"receiver-any.pcap.gz", "receiver-1.pcap.gz", "receiver-2.pcap.gz", "sender-any.pcap.gz", "reinjection.pcap.gz", "tcp.pcap.gz",
	"srv6-client.pcapng.gz", "srv6-server.pcapng.gz", "join-of-several.pcap.gz",
}

// flipped reads a capture with the given number of bytes changed.
func flipped(t *testing.T, whole []byte, seed uint64, flips int) {
	random := rand.New(rand.NewPCG(seed, uint64(flips)))
	damaged := slices.Clone(whole)
	for range flips {
		damaged[random.IntN(len(damaged))] ^= 1 << random.IntN(8)
	}
	path := write(t, "flipped", damaged)
	r, err := Read(context.Background(), []string{path}, Options{Record: true, MaxRecords: 10_000, SortMemory: 64 << 20})
	if errors.Is(err, pcap.ErrNotCapture) || errors.Is(err, pcap.ErrEmpty) || errors.Is(err, ErrDisorder) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	plausible(t, r)
}

// TestFlippedBytes: captures with changed bytes are read, and the report is plausible.
func TestFlippedBytes(t *testing.T) {
	for _, name := range small {
		whole := unzip(t, name)
		for seed := range uint64(4) {
			for _, flips := range []int{3, 300} {
				flipped(t, whole, seed, flips)
			}
		}
	}
}

// FuzzFlippedBytes searches for captures with changed bytes that cannot be read. Its inputs select
// the bytes of a real capture to change, since mutations of the file itself seldom keep it
// readable.
func FuzzFlippedBytes(f *testing.F) {
	whole := make([][]byte, len(small))
	for i, name := range small {
		whole[i] = unzip(f, name)
		f.Add(uint8(i), uint64(i), uint16(100))
	}
	f.Fuzz(func(t *testing.T, file uint8, seed uint64, flips uint16) {
		flipped(t, whole[int(file)%len(whole)], seed, int(flips%2000))
	})
}

// TestJoinOfSeveral: the SYN of a subflow is captured after its data. The connection that the SYN
// joins then includes all subflows that had been merged with that one.
func TestJoinOfSeveral(t *testing.T) {
	r := read(t, "testdata/join-of-several.pcap.gz")
	plausible(t, r)
	if len(r.Connections) != 1 || len(r.Connections[0].Subflows) != 3 {
		t.Errorf("%d connections, of which the first has %d subflows; want 1 with 3", len(r.Connections), len(r.Connections[0].Subflows))
	}
}

// TestJoinThatContradicts: a SYN of the initial subflow of one connection has the token of another,
// as after corruption. Data that was resequenced stays in its connection.
func TestJoinThatContradicts(t *testing.T) {
	s := newScene(1, Options{Record: true})
	first := s.open(0)
	s.data(10*ms, first, 1, 500, mapped{offset: 0, start: 1, length: 500})
	s.data(11*ms, first, 1001, 500, mapped{offset: 1000, start: 1001, length: 500})
	s.key = [2]uint64{77, 78}
	s.open(20 * ms)
	s.packet(30*ms, first, 0, pcap.SYN, 0, 0, 0, joinOption(s.token(1), false))
	s.key = newScene(1, Options{}).key
	s.data(40*ms, first, 501, 500, mapped{offset: 500, start: 501, length: 500})
	r := s.a.Report()
	plausible(t, r)
	if d := r.Connections[0].ToClient; len(r.Connections) != 2 || d.Bytes != 1500 {
		t.Errorf("%d connections, %d bytes in the first; want 2, 1500", len(r.Connections), d.Bytes)
	}
	if all := strings.Join(r.Connections[1].Missed, "; "); !strings.Contains(all, "1 join with its token") {
		t.Errorf("missed %q, want the join that was not followed", all)
	}
}

// BenchmarkAnalysis measures the analysis of segments of MPTCP connections, without reading a file.
func BenchmarkAnalysis(b *testing.B) {
	b.Run("two subflows with losses", func(b *testing.B) {
		segments := decoded(b, "receiver-any.pcap.gz")
		b.ReportAllocs()
		for n := 0; n < b.N; {
			a := New(Options{})
			for i := range segments {
				a.Add(&segments[i])
			}
			n += len(segments)
		}
	})
	b.Run("many connections", func(b *testing.B) {
		b.ReportAllocs()
		const connections = 1000
		a := New(Options{})
		segments := make([]pcap.Segment, connections)
		s := newScene(1, Options{})
		s.a = a
		for i := range connections {
			s.key = [2]uint64{uint64(i)*2 + 1, uint64(i)*2 + 2}
			k := s.open(0)
			f := s.subflows[k]
			_, idsn := digest(1, s.key[1])
			segments[i] = pcap.Segment{
				At: 1e18, Flow: f.flow.Reverse(), Flags: pcap.ACK, Seq: f.isn[1] + 1, Ack: f.isn[0] + 1, Payload: 1400,
				Options: signalOption{hasAck: true, ack: s.idsn(0) + 1, hasMap: true, dsn: idsn + 1, subflow: 1, length: 1400}.bytes(),
			}
		}
		b.ResetTimer()
		for i := range b.N {
			g := &segments[i%connections]
			g.At += 1000
			a.Add(g)
			// The next mapping of this connection.
			g.Seq += 1400
			o := g.Options
			put(o[12:20], get(o[12:20])+1400)
			put(o[20:24], get(o[20:24])+1400)
		}
	})
}

// decoded returns all segments of a capture in testdata.
func decoded(b *testing.B, name string) (all []pcap.Segment) {
	r, err := pcap.New(bytes.NewReader(unzip(b, name)))
	if err != nil {
		b.Fatal(err)
	}
	var p pcap.Packet
	var s pcap.Segment
	for r.Next(&p) == nil {
		if pcap.Decode(&p, &s) == pcap.TCP {
			s.Options = slices.Clone(s.Options)
			all = append(all, s)
		}
	}
	return all
}

func get(b []byte) (v uint64) {
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

func put(b []byte, v uint64) {
	for i := range b {
		b[len(b)-1-i] = byte(v >> (8 * i))
	}
}
