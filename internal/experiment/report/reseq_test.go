package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"image/png"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/tabane/tabane/internal/analysis/capture"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// ordered is a connection to whose client so many segments of 1000 bytes came over two subflows,
// the second 20 ms late.
func ordered(segments int) *capture.Connection {
	c := &capture.Connection{Number: 3, Protocol: "mptcp", Version: 1, Client: netip.MustParseAddrPort("10.0.0.1:4000"), Server: netip.MustParseAddrPort("10.0.0.2:80")}
	for i := range 2 {
		c.Subflows = append(c.Subflows, capture.Subflow{Number: i + 1, Client: c.Client, Server: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 2}), 80)})
	}
	c.Subflows[1].ToClient.Tunnels = []netip.Addr{netip.MustParseAddr("fc00:2:1::")}
	d := &c.ToClient
	d.First, d.Bytes, d.Segments = time.Second, uint64(segments)*1000, uint64(segments)
	d.ConnectionLevel.Count = uint64(segments)
	for i := range segments {
		at := time.Second + time.Duration(i)*time.Millisecond
		r := capture.Record{Arrived: at, Ordered: at, Released: at, Subflow: i % 2, Seq: uint64(i) * 1000, Length: 1000}
		if i%2 == 0 {
			r.Released += 20 * time.Millisecond
		}
		d.Records = append(d.Records, r)
		d.Series = append(d.Series, reseq.Burst{At: r.Released, Segments: 1 + i%5, Bytes: 1000 * (1 + i%5)})
		d.Occupancy = append(d.Occupancy, capture.Occupancy{At: at, Bytes: uint64(i%20) * 1000})
	}
	d.Last = time.Second + time.Duration(segments)*time.Millisecond
	return c
}

func TestReseqFigures(t *testing.T) {
	dir := t.TempDir()
	names, err := ReseqFigures(dir, []*capture.Connection{ordered(10_000), {Number: 4}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"connection-3-to-client-sequence", "connection-3-to-client-delay", "connection-3-to-client-bursts", "connection-3-to-client-buffer"}
	if !slices.Equal(names, want) {
		t.Fatalf("got %q, want %q: a connection without data has no figures", names, want)
	}
	for i, says := range [][]string{
		{"Data over time, connection 3 to the client", "2: from 10.0.1.2 via fc00:2:1::", "2000 of 10000 segments", "Data sequence (MB)"},
		{"Resequencing delay", "at the connection level", "Delay (ms)"}, {"Segments released at once"}, {"Buffered (kB)", "mean"},
	} {
		svg, err := os.ReadFile(filepath.Join(dir, names[i]+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range says {
			if !strings.Contains(string(svg), s) {
				t.Errorf("%s.svg does not say %q", names[i], s)
			}
		}
		if strings.Contains(string(svg), "NaN") || len(svg) > 2<<20 {
			t.Errorf("%s.svg has %d bytes, or NaN in it", names[i], len(svg))
		}
		b, err := os.ReadFile(filepath.Join(dir, names[i]+".png"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(bytes.NewReader(b)); err != nil {
			t.Errorf("%s.png: %v", names[i], err)
		}
	}
}

func TestReseqFiguresOfOneSegment(t *testing.T) {
	if _, err := ReseqFigures(t.TempDir(), []*capture.Connection{ordered(1)}); err != nil {
		t.Error(err)
	}
}

func TestReseqTables(t *testing.T) {
	dir := t.TempDir()
	names, err := ReseqTables(dir, []*capture.Connection{ordered(10)})
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]int{}
	for _, name := range names {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all, err := csv.NewReader(f).ReadAll() // which checks that all lines are as long as the header
		f.Close()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines[name] = len(all) - 1
	}
	want := map[string]int{
		"connections.csv": 2, "subflows.csv": 4, "connection-3-to-client-segments.csv": 10, "connection-3-to-client-bursts.csv": 10, "connection-3-to-client-occupancy.csv": 10,
	}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", lines, want)
	}
}

func TestHighest(t *testing.T) {
	var points plotter.XYs
	for i := range 10_000 {
		points = append(points, plotter.XY{X: float64(i) / 10_000, Y: float64(i % 7)})
	}
	kept := highest(points, 1, true)
	if len(kept) > 1200 || kept[len(kept)-1] != points[len(points)-1] {
		t.Errorf("%d points are kept, the last %v", len(kept), kept[len(kept)-1])
	}
	for _, p := range highest(points, 1, false) {
		if p.Y < 6 {
			t.Fatalf("%v is not the highest of its column", p)
		}
	}
}
