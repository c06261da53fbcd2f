package pcap

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// content is what a pcapng file of one link type holds.
type content struct {
	section    Section
	interfaces []Interface
	packets    []Packet
	dropped    uint64 // by the first interface, at the time of end
	end        int64
}

func (c content) write(t rapid.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewNgWriter(&out, c.section)
	if err != nil {
		t.Fatal(err)
	}
	for want, i := range c.interfaces {
		if id, err := w.AddInterface(i); err != nil || id != want {
			t.Fatalf("interface %d has the number %d, %v", want, id, err)
		}
	}
	for _, p := range c.packets {
		if err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteDropped(0, c.end, c.dropped); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// writePcapgo writes the same file with gopacket.
func (c content) writePcapgo(t rapid.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	about := func(i Interface) pcapgo.NgInterface {
		return pcapgo.NgInterface{Name: i.Name, OS: i.OS, LinkType: layers.LinkType(i.Link), SnapLength: i.SnapLength}
	}
	w, err := pcapgo.NewNgWriterInterface(&out, about(c.interfaces[0]), pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{
		Hardware: c.section.Hardware, OS: c.section.OS, Application: c.section.Application,
	}})
	for _, i := range c.interfaces[1:] {
		if err == nil {
			_, err = w.AddInterface(about(i))
		}
	}
	for _, p := range c.packets {
		options := pcapgo.NgPacketOptions{}
		switch p.Direction {
		case DirectionUnknown:
		case Inbound:
			options.Flags = &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}
		case Outbound:
			options.Flags = &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound}
		}
		if err == nil {
			err = w.WritePacketWithOptions(gopacket.CaptureInfo{
				Timestamp: time.Unix(0, p.At), CaptureLength: len(p.Data), Length: p.Length, InterfaceIndex: p.Interface,
			}, p.Data, options)
		}
	}
	if err == nil {
		err = w.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{
			LastUpdate: time.Unix(0, c.end), PacketsReceived: pcapgo.NgNoValue64, PacketsDropped: c.dropped,
		})
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// anyTime is a time from 1970 to 2106, all that a pcap file can hold.
func anyTime(t *rapid.T) int64 { return rapid.Int64Range(1, 1<<32*1e9-1).Draw(t, "at") }

func anyPacket(t *rapid.T) Packet {
	p := Packet{At: anyTime(t), Data: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "data"), Link: LinkEthernet}
	p.Length = len(p.Data) + rapid.IntRange(0, 3000).Draw(t, "not captured")
	return p
}

func anyContent(t *rapid.T) content {
	text := rapid.StringN(0, 20, 60)
	c := content{
		section: Section{Hardware: text.Draw(t, "hardware"), OS: text.Draw(t, "os"), Application: text.Draw(t, "application")},
		dropped: rapid.Uint64Range(0, 1<<63).Draw(t, "dropped"), end: anyTime(t),
	}
	for range rapid.IntRange(1, 4).Draw(t, "interfaces") {
		c.interfaces = append(c.interfaces, Interface{
			Name: text.Draw(t, "name"), OS: text.Draw(t, "os"), Link: LinkEthernet, SnapLength: rapid.Uint32().Draw(t, "snap length"),
		})
	}
	for range rapid.IntRange(0, 10).Draw(t, "packets") {
		p := anyPacket(t)
		p.Interface = rapid.IntRange(0, len(c.interfaces)-1).Draw(t, "interface")
		p.Direction = rapid.SampledFrom([]Direction{DirectionUnknown, Inbound, Outbound}).Draw(t, "direction")
		c.packets = append(c.packets, p)
	}
	return c
}

// reread reads all packets of a file, which must be whole.
func reread(t rapid.TB, file []byte) (packets []Packet, s Stats) {
	t.Helper()
	r, err := New(bytes.NewReader(file))
	for err == nil {
		var p Packet
		if err = r.Next(&p); err == nil {
			p.Data = bytes.Clone(p.Data)
			packets = append(packets, p)
		}
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	if s = r.Stats(); s.FaultCount > 0 || s.Cut {
		t.Fatalf("the file has faults: %v", s.Faults)
	}
	return packets, s
}

var samePackets = cmp.Options{cmpopts.IgnoreUnexported(Packet{}), cmpopts.IgnoreFields(Packet{}, "Number"), cmpopts.EquateEmpty()}

// TestNgWriter reads what is written, and compares it with the same file by gopacket.
func TestNgWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyContent(t)
		file := c.write(t)
		packets, s := reread(t, file)
		if diff := cmp.Diff(c.packets, packets, samePackets); diff != "" {
			t.Error(diff)
		}
		var names []string
		for _, i := range c.interfaces {
			names = append(names, i.Name)
		}
		if diff := cmp.Diff(names, s.Interfaces); diff != "" || s.Dropped != c.dropped {
			t.Errorf("%d dropped, want %d; interfaces: %s", s.Dropped, c.dropped, diff)
		}
		if want := c.writePcapgo(t); !bytes.Equal(file, want) {
			t.Errorf("the file is\n%x, gopacket writes\n%x", file, want)
		}
	})
}

// TestWriter does the same with pcap files.
func TestWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var file, want bytes.Buffer
		snap := rapid.Uint32().Draw(t, "snap length")
		w, err := NewWriter(&file, LinkEthernet, snap)
		if err != nil {
			t.Fatal(err)
		}
		other := pcapgo.NewWriterNanos(&want)
		if err := other.WriteFileHeader(snap, layers.LinkTypeEthernet); err != nil {
			t.Fatal(err)
		}
		// The reader takes a leap of weeks between packets for damage.
		at := rapid.Int64Range(1, 1<<31*1e9).Draw(t, "start")
		var packets []Packet
		for range rapid.IntRange(0, 10).Draw(t, "packets") {
			p := anyPacket(t)
			p.Length = max(p.Length, 1)
			at += rapid.Int64Range(0, 1e12).Draw(t, "pause")
			p.At = at
			packets = append(packets, p)
			info := gopacket.CaptureInfo{Timestamp: time.Unix(0, at), CaptureLength: len(p.Data), Length: p.Length}
			if err := other.WritePacket(info, p.Data); err != nil {
				t.Fatal(err)
			}
			if err := w.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(file.Bytes(), want.Bytes()) {
			t.Errorf("the file is\n%x, gopacket writes\n%x", file.Bytes(), want.Bytes())
		}
		got, _ := reread(t, file.Bytes())
		if diff := cmp.Diff(packets, got, samePackets); diff != "" {
			t.Error(diff)
		}
	})
}

// TestWriterTshark has tshark say what the files hold.
func TestWriterTshark(t *testing.T) {
	tshark := programs.Need(t, "tshark")
	segment := ethernet(ethIPv6, nil, ip6(6, "2001:db8::1", "2001:db8::2", tcpBytes(nil, 10)))
	c := content{
		section:    Section{Hardware: "amd64", OS: "linux", Application: "tabane"},
		interfaces: []Interface{{Name: "wan", OS: "linux", Link: LinkEthernet, SnapLength: 1 << 18}, {Name: "lan7", Link: LinkEthernet}},
		packets: []Packet{
			{At: 1_700_000_000_123_456_789, Data: segment, Length: len(segment), Direction: Inbound},
			{At: 1_700_000_001_000_000_001, Data: segment[:57], Length: len(segment), Interface: 1, Direction: Outbound},
			{At: 1_700_000_002_000_000_000, Data: segment, Length: len(segment) + 5, Interface: 1},
		},
	}
	show := func(name string, file []byte, fields ...string) []string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"-r", path, "-T", "fields", "-E", "separator=/s"}
		for _, f := range fields {
			args = append(args, "-e", f)
		}
		cmd := exec.Command(tshark, args...)
		var problems strings.Builder
		cmd.Stderr = &problems
		out, err := cmd.Output()
		if err != nil || strings.Contains(problems.String(), path) {
			t.Fatalf("%v: %s", err, problems.String())
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	whole, cut := len(segment), 57
	want := []string{
		fmt.Sprintf("wan 1700000000.123456789 %d %d 0x00000001 1", whole, whole),
		fmt.Sprintf("lan7 1700000001.000000001 %d %d 0x00000002 1", whole, cut),
		fmt.Sprintf("lan7 1700000002.000000000 %d %d  1", whole+5, whole),
	}
	got := show("c.pcapng", c.write(t), "frame.interface_name", "frame.time_epoch", "frame.len", "frame.cap_len", "frame.packet_flags", "frame.encap_type")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var file bytes.Buffer
	w, err := NewWriter(&file, LinkEthernet, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range c.packets {
		if err := w.Write(p); err != nil {
			t.Fatal(err)
		}
		want[i] = fmt.Sprintf("%d.%09d %d %d 1", p.At/1e9, p.At%1e9, p.Length, len(p.Data))
	}
	if diff := cmp.Diff(want, show("c.pcap", file.Bytes(), "frame.time_epoch", "frame.len", "frame.cap_len", "frame.encap_type")); diff != "" {
		t.Error(diff)
	}
}

// TestUnwritable writes what a file cannot hold, and nothing of it.
func TestUnwritable(t *testing.T) {
	c := content{interfaces: []Interface{{Name: "wan", Link: LinkEthernet}}}
	var ng, plain bytes.Buffer
	w, err := NewNgWriter(&ng, c.section)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.AddInterface(c.interfaces[0]); err != nil {
		t.Fatal(err)
	}
	p, err := NewWriter(&plain, LinkEthernet, 100)
	if err != nil {
		t.Fatal(err)
	}
	long := Packet{Data: make([]byte, 11), Length: 10}
	for name, tt := range map[string]struct {
		got  error
		want string
	}{
		"longer":           {w.Write(long), "write packet: 11 bytes were captured of 10"},
		"longer, in pcap":  {p.Write(long), "write packet: 11 bytes were captured of 10"},
		"interface":        {w.Write(Packet{Interface: 1}), "write block of interface 1: it is not one of the 1 that are described"},
		"below interfaces": {w.Write(Packet{Interface: -1}), "write block of interface -1: it is not one of the 1 that are described"},
		"statistics":       {w.WriteDropped(2, 0, 0), "write block of interface 2: it is not one of the 1 that are described"},
	} {
		if tt.got == nil || tt.got.Error() != tt.want {
			t.Errorf("%s: %v, want %s", name, tt.got, tt.want)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if packets, _ := reread(t, ng.Bytes()); len(packets) > 0 || plain.Len() != fileHeader {
		t.Errorf("%d packets, and a pcap file of %d bytes", len(packets), plain.Len())
	}
}

// BenchmarkWriteBesidePcapgo writes packets of 1,500 bytes.
func BenchmarkWriteBesidePcapgo(b *testing.B) {
	p := Packet{At: 1_700_000_000_000_000_000, Data: make([]byte, 1500), Length: 1500, Direction: Inbound}
	b.Run("here", func(b *testing.B) {
		w, err := NewNgWriter(io.Discard, Section{})
		if err == nil {
			_, err = w.AddInterface(Interface{Link: LinkEthernet})
		}
		b.ReportAllocs()
		for range b.N {
			if err == nil {
				err = w.Write(p)
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	})
	b.Run("pcapgo", func(b *testing.B) {
		w, err := pcapgo.NewNgWriter(io.Discard, layers.LinkTypeEthernet)
		options := pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}}
		info := gopacket.CaptureInfo{Timestamp: time.Unix(0, p.At), CaptureLength: len(p.Data), Length: p.Length}
		b.ReportAllocs()
		for range b.N {
			if err == nil {
				err = w.WritePacketWithOptions(info, p.Data, options)
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	})
}
