package labrun

import (
	"testing"

	"github.com/tabane/tabane/internal/analysis/pcap"
)

// TestDuplicates: three in a row are one event, however many follow.
func TestDuplicates(t *testing.T) {
	flow := func(port uint16) pcap.Flow { return pcap.Flow{SourcePort: port, DestinationPort: 80} }
	for name, tt := range map[string]struct {
		numbers      []uint32
		acks, triple uint64
	}{
		"advancing": {[]uint32{1, 2, 3, 4}, 4, 0},
		"two":       {[]uint32{1, 1, 1, 2}, 4, 0},
		"three":     {[]uint32{1, 1, 1, 1, 2}, 5, 1},
		"six":       {[]uint32{1, 1, 1, 1, 1, 1, 1, 2}, 8, 1},
		"again":     {[]uint32{1, 1, 1, 1, 2, 2, 2, 2}, 8, 2},
	} {
		d := &duplicates{port: 80, last: map[pcap.Flow]*acknowledgment{}}
		for _, n := range tt.numbers {
			d.add(&pcap.Segment{Flow: flow(1), Flags: pcap.ACK, Ack: n})
			// Data, a reset, another connection and the other direction do not count here.
			d.add(&pcap.Segment{Flow: flow(1), Flags: pcap.ACK, Ack: n, Payload: 1})
			d.add(&pcap.Segment{Flow: flow(1), Flags: pcap.ACK | pcap.RST, Ack: n})
			d.add(&pcap.Segment{Flow: flow(1).Reverse(), Flags: pcap.ACK, Ack: 9})
		}
		d.add(&pcap.Segment{Flow: flow(2), Flags: pcap.ACK, Ack: tt.numbers[0]})
		if d.acks != tt.acks+1 || d.triple != tt.triple {
			t.Errorf("%s: %d acknowledgments, %d times three duplicates", name, d.acks, d.triple)
		}
	}
}
