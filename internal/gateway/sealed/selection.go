package sealed

import (
	"encoding/binary"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/pathset"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// selection has what the peer reports about all paths together, by which the discipline auto
// selects those that it uses (package pathset).
type selection struct {
	peer     *peer
	meter    pathset.Meter
	selector pathset.Selector
	decision pathset.Decision
	state    [tunnel.MaxPaths]pathset.Path
	// delivered is the last total of reported bytes without copies, lost that of lost packets, late
	// that of late ones, and copied the bytes of copies sent.
	delivered, copied uint64
	lost, late        uint64
	// elastic counts packets of senders that slow down when packets are lost or late, flows has
	// what is known of the TCP connections in each lane for that.
	elastic uint64
	flows   [tunnel.Lanes]flowEnd
	// version is Segment.Version of the paths.
	version uint64
}

// flowEnd is the end of the data of a TCP connection.
type flowEnd struct{ flow, seq uint32 }

// fullSize is the least size of packets whose sender may have more to send: QUIC's full ones have
// at least 1200 bytes (RFC 9000, section 14.1).
const fullSize = 1200

// full reports whether count packets have at least fullSize on average; length is that of all.
func full(count, length int) bool { return length >= count*fullSize }

// transfers reports whether packets may be of a flow that transfers data: neither fragments nor
// ICMP.
func transfers(h *inet.Header) bool {
	return h.Transport != 0 && !h.Fragment && h.Protocol != unix.IPPROTO_ICMP && h.Protocol != unix.IPPROTO_ICMPV6
}

// sent counts the packets of a frame that begins with head; length is that of all. Segments of TCP
// count as elastic if they are retransmitted. QUIC and tunnels inside hide that, so all their large
// packets do.
func (x *selection) sent(h *inet.Header, head []byte, count, length int) {
	t := head[min(h.Transport, len(head)):]
	switch {
	case !transfers(h):
	case h.Protocol != unix.IPPROTO_TCP:
		if full(count, length) {
			x.elastic += uint64(count)
		}
	case len(t) >= inet.TCPLen:
		f := &x.flows[uint8(h.Flow)]
		data := length - count*(h.Transport+int(t[12]>>4)*4)
		end := binary.BigEndian.Uint32(t[4:]) + uint32(data)
		switch flags := t[13]; {
		case f.flow != h.Flow || flags&inet.FlagSYN != 0:
			*f = flowEnd{h.Flow, end}
		case data <= 0 || flags&inet.FlagFIN != 0:
		case int32(end-f.seq) > 0:
			f.seq = end
		default:
			x.elastic++
		}
	}
}

// af13 is the highest DSCP of classes that do not ask for low delay: best effort, LE, CS1 and AF1x
// (RFC 4594, section 2.3; RFC 8622).
const af13 = 14

// kindOf returns what matters to the packets of a frame. Bulk are those of TCP except a first SYN
// and, with ack, segments that only acknowledge; and full ones of other protocols.
func kindOf(h *inet.Header, head []byte, ack bool, count, length int) sched.Kind {
	t := head[min(h.Transport, len(head)):]
	switch {
	case h.DSCP > af13 || !transfers(h):
	case ack:
		return sched.Acks
	case h.Protocol != unix.IPPROTO_TCP:
		if full(count, length) {
			return sched.Bulk
		}
	case len(t) >= inet.TCPLen && t[13]&(inet.FlagSYN|inet.FlagACK) != inet.FlagSYN:
		return sched.Bulk
	}
	return sched.Prompt
}

// busyWait is the least wait in the queue of a busy path.
const busyWait = time.Millisecond

// update selects the paths of auto if a window has ended.
func (x *selection) update(now time.Duration) {
	if x.peer.conf.Mode.Open() {
		return // what is delivered is not reported, and auto is not used
	}
	paths := x.peer.scheduling.paths[:tunnel.MaxPaths]
	reported, busy := uint64(0), true
	for i := range x.peer.links {
		l, p := &x.peer.links[i], &paths[i]
		x.state[i] = pathset.Path{Usable: p.Usable, Rate: p.Rate, Delay: p.Delay, Jitter: p.Jitter, Loss: p.Loss}
		reported += l.reports.last.Bytes
		if p.Usable && x.decision.Use.Has(i) && x.peer.scheduling.wait(i, now) < busyWait {
			busy = false
		}
	}
	// Copies are counted when they are sent and reported when they arrive.
	x.delivered = max(x.delivered, reported-min(reported, x.copied))
	_, rtt := x.peer.links.roundTrips()
	if rtt == math.MaxInt64 {
		rtt = 0 // no path answers
	}
	x.overflow(paths, now)
	window, ok := x.meter.AddSample(now, pathset.Totals{Delivered: unit.Size(x.delivered), Lost: x.lost, Late: x.late, Elastic: x.elastic}, busy, rtt)
	if !ok {
		return
	}
	d := x.selector.Update(now, x.state[:], window)
	if d == x.decision {
		return
	}
	x.decision = d
	for i := range paths {
		paths[i].Resting = d.Use != 0 && !d.Use.Has(i)
	}
	x.version++
	if d.Reason != pathset.Begin && d.Reason != pathset.NoPath {
		names := x.peer.links.names()
		x.peer.log.Info("auto selects paths", "peer", x.peer.conf.Name, "use", d.Use.List(names), "because", d.Explain(names))
	}
}

// overflow decides whether backups for full paths carry packets.
func (x *selection) overflow(paths []sched.Path, now time.Duration) {
	full, others, kept := true, unit.Bandwidth(0), false
	for i := range paths {
		u := x.peer.uses.of(i)
		switch {
		case u.Backup:
			kept = kept || u.Full
		case paths[i].Usable && paths[i].Rate > 0:
			others += paths[i].Rate
			full = full && x.peer.scheduling.wait(i, now) >= busyWait
		}
	}
	if kept && x.peer.uses.overflow.AddSample(now, full && others > 0, unit.Size(x.delivered), others) {
		x.peer.log.Info("backups for full paths", "peer", x.peer.conf.Name, "carry", x.peer.uses.overflow.Carries())
		x.peer.scheduling.refresh()
	}
}

// sample updates the capacity of a path by its latest report.
func (x *selection) sample(i int, now time.Duration) {
	l := &x.peer.links[i]
	if x.peer.conf.Mode.Open() {
		l.rates.limit = 0 // only the configured rate is known
		return
	}
	if rate := l.configuredRate(); rate != l.rates.limit {
		l.rates.limit = rate
		l.beginRate()
	}
	l.rates.capacity.Ceil(l.ceiling())
	l.rates.capacity.AddReport(now, l.reports.at, l.sent.value().Bytes, l.reports.last.Bytes, x.peer.scheduling.wait(i, now) > busyWait,
		quality.Delays{RTT: l.probing.rtt.SRTT, Standing: l.reports.last.Standing, Jitter: l.reports.last.Jitter, Loss: l.reports.loss.Share})
}

// expire has a path be paced to its estimate again if no report comes of a probe of a higher rate.
// The control loop calls it at least as often as a path that carries packets is probed.
func (x *selection) expire(i int, now time.Duration) {
	if x.peer.links[i].rates.capacity.Expire(now) {
		x.peer.scheduling.outdated = true
	}
}
