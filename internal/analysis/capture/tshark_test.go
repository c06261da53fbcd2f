package capture

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// row holds tshark's fields of one TCP segment.
type row struct {
	at                  int64 // nanoseconds since the epoch
	from, to            netip.AddrPort
	stream, mptcp       string
	seq                 uint64 // relative to the initial one
	length              int
	dsn, subflow, mlen  []uint64
	token               []string
	retransmitted, late bool
	reinjected          bool
}

// dissect runs tshark over a file.
func dissect(t *testing.T, file string) []row {
	t.Helper()
	fields := []string{
		"frame.time_epoch", "ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "tcp.srcport", "tcp.dstport", "tcp.stream", "mptcp.stream", "tcp.seq", "tcp.len",
		"tcp.options.mptcp.rawdataseqno", "tcp.options.mptcp.subflowseqno", "tcp.options.mptcp.datalvllen", "mptcp.expected_token",
		"tcp.analysis.retransmission", "tcp.analysis.out_of_order", "mptcp.reinjection_of", "tcp.options.mptcp.datafin.flag",
	}
	args := []string{"-r", file, "-Y", "tcp", "-T", "fields", "-E", "separator=;", "-o", "mptcp.analyze_mappings:TRUE", "-o", "mptcp.intersubflows_retransmission:TRUE"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(programs.Need(t, "tshark"), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, &stderr)
	}
	var rows []row
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ";")
		if len(f) != len(fields) {
			t.Fatalf("tshark says %q: %d fields, want %d", line, len(f), len(fields))
		}
		r := row{stream: f[7], mptcp: f[8], retransmitted: f[15] != "", late: f[16] != "", reinjected: f[17] != ""}
		seconds, fraction, _ := strings.Cut(f[0], ".")
		r.at = int64(number(t, seconds))*1e9 + int64(number(t, (fraction + "000000000")[:9]))
		address := func(four, six, port string) netip.AddrPort {
			if four == "" {
				all := strings.Split(six, ",") // in a tunnel, the last is inner
				four = all[len(all)-1]
			}
			return netip.AddrPortFrom(netip.MustParseAddr(four), uint16(number(t, port)))
		}
		r.from, r.to = address(f[1], f[3], f[5]), address(f[2], f[4], f[6])
		r.seq, r.length = number(t, f[9]), int(number(t, f[10]))
		list := func(s string) (all []uint64) {
			for _, x := range strings.Split(s, ",") {
				if x != "" {
					all = append(all, number(t, x))
				}
			}
			return all
		}
		r.dsn, r.subflow, r.mlen = list(f[11]), list(f[12]), list(f[13])
		if f[18] == "1" && len(r.mlen) > 0 {
			r.mlen[0]-- // DATA_FIN counts in the mapping only
		}
		if f[14] != "" {
			r.token = strings.Split(f[14], ",")
		}
		rows = append(rows, r)
	}
	return rows
}

func number(t *testing.T, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func read(t *testing.T, names ...string) Report {
	t.Helper()
	r, err := Read(context.Background(), names, Options{Record: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAgainstTshark compares the results for real captures with the fields of Wireshark's
// dissectors, and every release with a reference model that works on these fields byte by byte.
func TestAgainstTshark(t *testing.T) {
	for _, name := range []string{"receiver-any.pcap.gz", "reinjection.pcap.gz", "tcp.pcap.gz", "srv6-server.pcapng.gz"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := "testdata/" + name
			rows := dissect(t, file)
			compare(t, read(t, file), rows)
		})
	}
}

func TestFilesTogetherAgainstTshark(t *testing.T) {
	t.Parallel()
	one, two := "testdata/receiver-1.pcap.gz", "testdata/receiver-2.pcap.gz"
	a, b := dissect(t, one), dissect(t, two)
	for i := range b {
		b[i].stream = "second file " + b[i].stream
		b[i].mptcp = "" // tshark numbers connections separately in each file
	}
	for i := range a {
		a[i].mptcp = ""
	}
	compare(t, read(t, one), a)
	rows := append(a, b...)
	slices.SortStableFunc(rows, func(x, y row) int { return cmp.Compare(x.at, y.at) })
	r := read(t, one, two)
	if n := len(r.Connections); n != 1 || len(r.Connections[0].Subflows) != 3 || !r.Connections[0].FromStart {
		t.Fatalf("%d connections, want 1 with 3 subflows", n)
	}
	compare(t, r, rows)
	// The files are not named in the order of their packets.
	other := read(t, two, one)
	if x, y := fmt.Sprint(other.Connections[0].ToClient.Delay), fmt.Sprint(r.Connections[0].ToClient.Delay); x != y {
		t.Errorf("the files in another order: %s, want %s", x, y)
	}
}

type ends struct{ from, to netip.AddrPort }

func compare(t *testing.T, r Report, rows []row) {
	t.Helper()
	type seen struct {
		packets, segments   uint64
		have                map[uint64]bool
		retransmitted       int
		reinjected          map[uint64]bool
		connection, subflow int
		direction           *SubflowDirection
		all                 *Direction
		arrivals            []arrival
	}
	halves := map[ends]*seen{}
	of := map[string]map[int]bool{} // our connections for each connection of tshark
	for i := range r.Connections {
		c := &r.Connections[i]
		for j := range c.Subflows {
			s := &c.Subflows[j]
			halves[ends{s.Client, s.Server}] = &seen{have: map[uint64]bool{}, reinjected: map[uint64]bool{}, connection: c.Number, subflow: j, direction: &s.ToServer, all: &c.ToServer}
			halves[ends{s.Server, s.Client}] = &seen{have: map[uint64]bool{}, reinjected: map[uint64]bool{}, connection: c.Number, subflow: j, direction: &s.ToClient, all: &c.ToClient}
		}
	}
	tokens := map[string]bool{}
	mappings := map[*Direction]map[sent]bool{}
	for _, x := range rows {
		h := halves[ends{x.from, x.to}]
		if h == nil {
			t.Fatalf("tshark has segments from %v to %v, and we have not", x.from, x.to)
		}
		if x.mptcp != "" {
			if of[x.mptcp] == nil {
				of[x.mptcp] = map[int]bool{}
			}
			of[x.mptcp][h.connection] = true
		}
		for _, k := range x.token {
			tokens[hex32(uint32(number(t, k)))] = true
		}
		h.packets++
		if x.length > 0 {
			h.segments++
			for i := range x.length {
				at := x.seq + uint64(i)
				if x.reinjected && !h.have[at] {
					h.reinjected[at] = true
				}
				h.have[at] = true
			}
			h.arrivals = append(h.arrivals, arrival{at: time.Duration(x.at), subflow: h.subflow, seq: x.seq, length: x.length})
			if x.retransmitted || x.late {
				h.retransmitted++
			}
		}
		for i := range x.dsn {
			if i < len(x.mlen) && i < len(x.subflow) && x.subflow[i] > 0 {
				if mappings[h.all] == nil {
					mappings[h.all] = map[sent]bool{}
				}
				mappings[h.all][sent{h.subflow, x.subflow[i], x.dsn[i], int(x.mlen[i])}] = true
			}
		}
	}
	for stream, ours := range of {
		if len(ours) != 1 {
			t.Errorf("tshark's connection %s is connections %v here", stream, slices.Sorted(maps.Keys(ours)))
		}
	}
	got := map[string]bool{}
	for i := range r.Connections {
		for _, k := range r.Connections[i].Tokens {
			if k != "" {
				got[k] = true
			}
		}
	}
	if !maps.Equal(got, tokens) {
		t.Errorf("tokens %v, tshark has %v", got, tokens)
	}
	arrivals, duplicate := map[*Direction][]arrival{}, map[*Direction]int64{}
	for e, h := range halves {
		d := h.direction
		if d.Packets != h.packets || d.Segments != h.segments || d.Bytes != uint64(len(h.have)) {
			t.Errorf("%v to %v: %d packets, %d segments, %d bytes; tshark has %d, %d, %d", e.from, e.to, d.Packets, d.Segments, d.Bytes, h.packets, h.segments, len(h.have))
		}
		// tshark detects one that fills no gap of the capture by its acknowledgements only.
		if ours := int(d.Retransmitted.Segments + d.Reordered.Segments); ours > h.retransmitted || ours+1 < h.retransmitted {
			t.Errorf("%v to %v: %d retransmitted or reordered, tshark has %d", e.from, e.to, ours, h.retransmitted)
		}
		// Of two copies, tshark counts the one that arrives later as duplicate; the
		// analysis counts the one that is released later at the subflow level.
		duplicate[h.all] += int64(d.DuplicateData) - int64(len(h.reinjected))
		arrivals[h.all] = append(arrivals[h.all], h.arrivals...)
	}
	for _, n := range duplicate {
		if n < 0 {
			t.Errorf("%d bytes that came on another subflow before, according to tshark, are no duplicates here", -n)
		}
	}
	for d, maps := range mappings {
		if d.Uncaptured == 0 { // these fields do not include what another path carried
			compareReleases(t, r, d, arrivals[d], maps)
		}
	}
}

// compareReleases compares the records of a direction with those that follow from tshark's fields.
func compareReleases(t *testing.T, r Report, d *Direction, arrivals []arrival, maps map[sent]bool) {
	t.Helper()
	first := ^uint64(0)
	for m := range maps {
		first = min(first, m.offset)
	}
	var all []sent
	bytes := 0
	for m := range maps {
		m.offset -= first
		all = append(all, m)
		bytes = max(bytes, int(m.offset)+m.length)
	}
	for i := range arrivals {
		arrivals[i].at -= time.Duration(r.Start.UnixNano())
	}
	release := naiveRelease(arrivals, all, bytes)
	var covered uint64
	for _, rec := range d.Records {
		last := int(rec.Seq) + rec.Length - 1
		if last >= bytes {
			t.Fatalf("%+v is beyond the %d bytes that tshark has", rec, bytes)
		}
		if rec.Released != release[last] {
			t.Fatalf("%+v: released at %v, want %v", rec, rec.Released, release[last])
		}
		covered += uint64(rec.Length)
	}
	var released uint64
	for _, at := range release {
		if at < never {
			released++
		}
	}
	if d.Bytes != released || covered < released {
		t.Errorf("%d bytes in order, %d in records; from tshark's fields %d", d.Bytes, covered, released)
	}
}
