package pcap

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"
)

// withPcapgo reads all packets that gopacket's reader gets out of a file, and what ended it.
func withPcapgo(file []byte) (packets int, err error) {
	var r interface {
		ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	}
	if binary.LittleEndian.Uint32(file) == blockSection {
		r, err = pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	} else {
		r, err = pcapgo.NewReader(bytes.NewReader(file))
	}
	for err == nil {
		if _, _, err = r.ZeroCopyReadPacketData(); err == nil {
			packets++
		}
	}
	return packets, err
}

// withReader does the same with the reader of this package.
func withReader(file []byte) (packets int) {
	r, err := New(bytes.NewReader(file))
	if err != nil {
		return 0
	}
	var p Packet
	for r.Next(&p) == nil {
		packets++
	}
	return packets
}

// TestDamageBesidePcapgo compares damaged files with pcapgo: of files with a few changed bytes this
// reader returns most packets, pcapgo only those before the first serious fault. The package
// comment has the shares.
func TestDamageBesidePcapgo(t *testing.T) {
	for _, name := range []string{"receiver-any.pcap.gz", "srv6-client.pcapng.gz"} {
		f, err := os.Open("../capture/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		there, _ := withPcapgo(whole)
		if n := withReader(whole); n != there {
			t.Fatalf("%s: %d packets, pcapgo reads %d", name, n, there)
		}
		here, beside := 0, 0
		const files = 200
		for seed := range uint64(files) {
			random := rand.New(rand.NewPCG(seed, 1))
			damaged := slices.Clone(whole)
			for range 20 {
				damaged[100+random.IntN(len(damaged)-100)] ^= 1 << random.IntN(8)
			}
			n, _ := withPcapgo(damaged)
			beside += n
			here += withReader(damaged)
		}
		share := func(n int) float64 { return 100 * float64(n) / float64(there*files) }
		t.Logf("%s with 20 changed bits, %d files: %.1f %% of the packets here, %.1f %% with pcapgo", name, files, share(here), share(beside))
		if share(here) < 80 || here < beside+there*files/5 {
			t.Errorf("%s: %.1f %% of the packets, want 80 %% and a fifth more than the %.1f %% of pcapgo", name, share(here), share(beside))
		}
	}
}

func BenchmarkBesidePcapgo(b *testing.B) {
	segment := ethernet(ethIPv6, nil, ip6(41, "fc00::1", "fc00:1:1::", segment6))
	ng := slices.Concat(sectionBlock(binary.LittleEndian), interfaceBlock(binary.LittleEndian, 1, ngOption(binary.LittleEndian, 9, 9)))
	for range 100_000 {
		ng = append(ng, packetBlock(binary.LittleEndian, 0, 1_700_000_000_000_000_000, segment)...)
	}
	for _, f := range []struct {
		name string
		file []byte
	}{{"pcap", pcapFile(binary.LittleEndian, true, 1, slices.Repeat([][]byte{segment}, 100_000)...)}, {"pcapng", ng}} {
		b.Run(f.name+"/here", func(b *testing.B) {
			for range b.N {
				if withReader(f.file) != 100_000 {
					b.Fatal("packets are missing")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/packet")
		})
		b.Run(f.name+"/pcapgo", func(b *testing.B) {
			for range b.N {
				if n, _ := withPcapgo(f.file); n != 100_000 {
					b.Fatal("packets are missing")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/packet")
		})
	}
}
