// Package tc limits the rate at which a network interface sends, with the kernel's token bucket
// filter (TBF) as root queueing discipline.
//
// It works in the network namespace of the calling thread. It does not police received traffic or
// configure classes, and touches a root qdisc of another kind only to replace it.
package tc

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/base/unit"
)

// ErrNotShaped means that the interface has no token bucket filter as root.
var ErrNotShaped = errors.New("link has no token bucket filter")

// Rate is how a link sends. What counts is the packet from the link layer's header on: on Ethernet
// and veth, 14 bytes more than the IP packet, without preamble, FCS and gap.
type Rate struct {
	// Rate is the long-run limit, a whole number of bytes per second, and at least 8 kbit/s: below,
	// one packet of 1500 bytes takes longer than a second.
	Rate unit.Bandwidth
	// Burst is how much may be sent at once after the link was idle. It must hold the link's
	// largest packet, or that packet would never be sent. 0 means DefaultBurst, but no less than
	// one packet.
	Burst unit.Size
	// Queue is the maximum queueing delay of a packet; packets that would exceed it are
	// dropped. 0 means DefaultQueue.
	Queue time.Duration
}

// minRate is the least Rate.Rate.
const minRate = 8 * unit.KbitPerSecond

// DefaultQueue is the default of Rate.Queue: half the RTT of a long path, what one flow of Reno or
// Cubic needs to fill the link while it recovers from a loss, and short enough not to hide the
// path's own delay.
const DefaultQueue = 50 * time.Millisecond

// DefaultBurst is the default of Rate.Burst: 2 ms of the rate, which covers late timers, and no
// less than 32 KiB, some 20 packets, so that GSO packets up to that size pass without the filter
// cutting them up.
func DefaultBurst(rate unit.Bandwidth) unit.Size {
	return max(32*unit.KiB, rate.SizeIn(2*time.Millisecond))
}

// SetRate limits what the link sends. A rate that the link already has from SetRate is changed in
// place: packets that wait stay, in their order. It returns a *feature.Error when the kernel has no
// TBF.
func SetRate(link string, r Rate) error {
	if err := setRate(link, r); err != nil {
		return fmt.Errorf("set rate of link %q: %w", link, err)
	}
	return nil
}

func setRate(name string, r Rate) error {
	link, root, err := find(name)
	if err != nil {
		return err
	}
	tbf, err := r.on(link)
	if err != nil {
		return err
	}
	if live, ok := root.(*netlink.Tbf); ok {
		tbf.Handle = live.Handle
		return refusal(netlink.QdiscChange(tbf))
	}
	return refusal(netlink.QdiscReplace(tbf))
}

// refusal turns ENOENT into a *feature.Error: the kernel does not know the kind of qdisc
// (qdisc_create).
func refusal(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return &feature.Error{Feature: "token bucket filter", Err: err, Remedy: "modprobe sch_tbf, or use a kernel with CONFIG_NET_SCH_TBF"}
	}
	return err
}

// on returns the root discipline that gives the link the rate.
func (r Rate) on(link netlink.Link) (*netlink.Tbf, error) {
	// The tick comes from /proc/net/psched; without it the library would send a bucket of no size.
	ticksPerMicrosecond := netlink.TickInUsec()
	if ticksPerMicrosecond <= 0 {
		return nil, errors.New("read tick of the packet scheduler from /proc/net/psched: not there")
	}
	tbf, err := r.tbf(link.Attrs().MTU, ticksPerMicrosecond)
	if err != nil {
		return nil, err
	}
	tbf.LinkIndex, tbf.Parent, tbf.Handle = link.Attrs().Index, netlink.HANDLE_ROOT, netlink.MakeHandle(1, 0)
	return tbf, nil
}

// linkHeader is the length of the Ethernet header that a packet carries beyond the MTU.
const linkHeader = 14

// tbf returns the parameters of the kernel for a link with the MTU.
func (r Rate) tbf(mtu int, ticksPerMicrosecond float64) (*netlink.Tbf, error) {
	packet := unit.Size(mtu) + linkHeader
	if r.Burst == 0 {
		r.Burst = max(DefaultBurst(r.Rate), packet)
	}
	if r.Queue == 0 {
		r.Queue = DefaultQueue
	}
	switch {
	case r.Rate < minRate:
		return nil, fmt.Errorf("rate must be at least %s, got %s", minRate, r.Rate)
	case r.Rate%8 != 0:
		return nil, fmt.Errorf("rate must be a whole number of bytes per second, got %s", r.Rate)
	case r.Burst < packet:
		return nil, fmt.Errorf("burst must be at least one packet of the link, %s, got %s", packet, r.Burst)
	case r.Queue < 0:
		return nil, fmt.Errorf("queue must be > 0, got %s", r.Queue)
	}
	// What waits for r.Queue at most is what the bucket lets go at once and what the rate carries
	// meanwhile (tbf(8)).
	queue := r.Rate.SizeIn(r.Queue)
	if queue > math.MaxUint32-r.Burst || r.Burst > math.MaxUint32 {
		return nil, fmt.Errorf("queue of %s and burst of %s hold more than %d bytes", r.Queue, r.Burst, uint32(math.MaxUint32))
	}
	// The kernel takes the burst as the time in which it is sent. Rounded up, so that it is never
	// less than asked. The library's Xmittime rounds down to microseconds, at 10 Gbit/s by more
	// than a packet.
	buffer := math.Ceil(float64(r.Rate.TimeFor(r.Burst)) / float64(time.Microsecond) * ticksPerMicrosecond)
	if buffer > math.MaxUint32 {
		return nil, fmt.Errorf("burst must be sent in %s at most, got %s at %s", time.Duration(math.MaxUint32/ticksPerMicrosecond)*time.Microsecond, r.Burst, r.Rate)
	}
	return &netlink.Tbf{
		Rate:   uint64(r.Rate / 8), // in bytes per second
		Limit:  uint32(queue + r.Burst),
		Buffer: uint32(buffer),
	}, nil
}

// ClearRate removes the limit that SetRate made; the link then has its default discipline. A link
// without one is left as it is.
func ClearRate(link string) error {
	if err := clearRate(link); err != nil {
		return fmt.Errorf("clear rate of link %q: %w", link, err)
	}
	return nil
}

func clearRate(name string) error {
	_, root, err := find(name)
	if err != nil {
		return err
	}
	if tbf, ok := root.(*netlink.Tbf); ok {
		return netlink.QdiscDel(tbf)
	}
	return nil
}

// Statistics are the counters of a link's token bucket filter since it was added, and its backlog.
type Statistics struct {
	// Rate, Burst and Queue are what the kernel shapes with; Burst and Queue are rounded to its
	// ticks and to bytes.
	Rate
	// Blocked is whether Block drops all that the link is to send; Queue has no meaning then.
	Blocked bool
	// Sent counts what was sent, in bytes from the link layer's header on.
	Sent unit.Size
	// Packets counts what was sent. A GSO packet counts for each of its segments.
	Packets uint64
	// Drops counts packets that found the queue full.
	Drops uint64
	// Overlimits counts packets that had to wait for tokens.
	Overlimits uint64
	// Backlog is the length of the queue in bytes.
	Backlog unit.Size
	// Waiting is the length of the queue in packets.
	Waiting uint64
}

// Stats returns the statistics of the link. Counters of the kernel wrap at 2^32 and those of Sent
// at 2^64. The error wraps ErrNotShaped when the link has no TBF as root.
func Stats(link string) (Statistics, error) {
	s, err := stats(link)
	if err != nil {
		return Statistics{}, fmt.Errorf("read statistics of link %q: %w", link, err)
	}
	return s, nil
}

func stats(name string) (Statistics, error) {
	_, root, err := find(name)
	if err != nil {
		return Statistics{}, err
	}
	tbf, ok := root.(*netlink.Tbf)
	if !ok {
		return Statistics{}, ErrNotShaped
	}
	s := Statistics{Rate: rateOf(tbf, netlink.TickInUsec()), Blocked: tbf.Limit == noRoom}
	counted := tbf.Statistics
	if counted == nil || counted.Basic == nil || counted.Queue == nil {
		return Statistics{}, errors.New("kernel gives none")
	}
	s.Sent = unit.Size(counted.Basic.Bytes)
	s.Packets = uint64(counted.Basic.Packets)
	s.Drops = uint64(counted.Queue.Drops)
	s.Overlimits = uint64(counted.Queue.Overlimits)
	s.Backlog = unit.Size(counted.Queue.Backlog)
	s.Waiting = uint64(counted.Queue.Qlen)
	return s, nil
}

// rateOf is the inverse of Rate.tbf.
func rateOf(tbf *netlink.Tbf, ticksPerMicrosecond float64) Rate {
	r := Rate{Rate: 8 * unit.Bandwidth(tbf.Rate)}
	if ticksPerMicrosecond > 0 {
		r.Burst = r.Rate.SizeIn(time.Duration(float64(tbf.Buffer) / ticksPerMicrosecond * float64(time.Microsecond)))
	}
	r.Queue = r.Rate.TimeFor(unit.Size(tbf.Limit) - r.Burst)
	return r
}

// find returns the link of that name and its root discipline, as rootQdisc does.
func find(name string) (netlink.Link, netlink.Qdisc, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, nil, err
	}
	root, err := rootQdisc(link)
	return link, root, err
}

// rootQdisc returns the root discipline of the link, or nil when it has none of its own.
func rootQdisc(link netlink.Link) (netlink.Qdisc, error) {
	qdiscs, err := netlink.QdiscList(link)
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			return q, nil
		}
	}
	return nil, nil
}
