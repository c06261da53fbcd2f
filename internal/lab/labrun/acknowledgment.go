package labrun

import (
	"context"
	"fmt"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/lab"
)

// duplicates counts the acknowledgments that a node receives of the data it sends from a port, and
// how often three in a row are duplicates, as fast retransmission counts them.
type duplicates struct {
	port         uint16
	last         map[pcap.Flow]*acknowledgment
	acks, triple uint64

	*segments
}

// acknowledgment is the last one of a connection, and how often it has been repeated.
type acknowledgment struct {
	number   uint32
	repeated int
}

// duplicateThreshold is how many duplicate acknowledgments begin a fast retransmission.
const duplicateThreshold = 3

// countDuplicates counts on a node from now on.
func countDuplicates(ctx context.Context, l *lab.Lab, node string, port uint16) (*duplicates, error) {
	d := &duplicates{port: port, last: map[pcap.Flow]*acknowledgment{}}
	var err error
	d.segments, err = captureSegments(ctx, l, node, d.add)
	return d, err
}

// add counts a segment that has arrived. A duplicate acknowledges the same number as the one
// before, without data. Its window is not compared: today's receivers enlarge it meanwhile, and
// Linux does not either for connections with SACK.
func (d *duplicates) add(s *pcap.Segment) {
	if s.Direction == pcap.Outbound || s.Flow.DestinationPort != d.port || s.Payload > 0 || s.Flags&(pcap.SYN|pcap.FIN|pcap.RST) != 0 || s.Flags&pcap.ACK == 0 {
		return
	}
	d.acks++
	a := d.last[s.Flow]
	if a == nil {
		a = &acknowledgment{}
		d.last[s.Flow] = a
	}
	if a.number != s.Ack {
		*a = acknowledgment{number: s.Ack}
		return
	}
	if a.repeated++; a.repeated == duplicateThreshold {
		d.triple++
	}
}

// put stops counting and adds the metric to a run.
func (d *duplicates) put(run *result.Run) error {
	if err := d.stop(); err != nil {
		return fmt.Errorf("capture at the server: %w", err)
	}
	if n := d.dropped(); n > 0 {
		run.Notes[NotePackets] = fmt.Sprintf("%d packets", n)
	}
	if d.acks > 0 {
		run.Metrics[result.TripleDuplicates] = float64(d.triple) / float64(d.acks)
	}
	return nil
}
