package labrun

import (
	"context"
	"errors"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/lab"
)

// segmentSnap is the number of bytes captured of a packet: its headers, including those of a
// tunnel.
const segmentSnap = 512

// NotePackets is the note with the number of packets that a full buffer dropped.
const NotePackets = "packets_missed"

// segments is a capture of the TCP segments of a node.
type segments struct {
	packets *lab.Packets
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // once done is closed
}

// captureSegments passes each segment that a node sends or receives from now on to take, until
// stop. It is valid during the call.
func captureSegments(ctx context.Context, l *lab.Lab, node string, take func(*pcap.Segment)) (*segments, error) {
	n, err := l.Node(node)
	if err != nil {
		return nil, err
	}
	s := &segments{done: make(chan struct{})}
	if s.packets, err = n.Packets("", segmentSnap); err != nil {
		return nil, err
	}
	var (
		raw     = pcap.Packet{Link: pcap.LinkEthernet}
		segment pcap.Segment
	)
	decode := func(p afpacket.Packet) error {
		raw.At, raw.Data, raw.Length, raw.Interface = p.At.UnixNano(), p.Data, p.Length, p.Interface
		raw.Direction = pcap.Inbound
		if p.Sent {
			raw.Direction = pcap.Outbound
		}
		if pcap.Decode(&raw, &segment) == pcap.TCP {
			take(&segment)
		}
		return nil
	}
	ctx, s.cancel = context.WithCancel(ctx)
	go func() {
		defer close(s.done)
		s.err = errors.Join(s.packets.Run(ctx, afpacket.Handler{Packet: decode}), s.packets.Close())
	}()
	return s, nil
}

// stop ends the capture, once or more often, and returns its error.
func (s *segments) stop() error {
	s.cancel()
	<-s.done
	return s.err
}

// dropped returns the number of packets that a full buffer dropped.
func (s *segments) dropped() uint64 { return s.packets.Stats().Dropped }
