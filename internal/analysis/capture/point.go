package capture

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
)

// place is where packets were captured.
type place struct {
	file, iface int
	index       uint32
	out         bool // distinguishes a router's packets in cooked captures of all interfaces
}

// point is a capture point: a place, and what distinguishes a packet before and after a router,
// both of which a mirror port or a capture of all interfaces can deliver.
type point struct {
	place
	vlan     uint32
	hops     uint8 // the hop limit
	tunneled bool
}

func pointOf(s *pcap.Segment, at place) point {
	return point{place: at, vlan: s.VLAN, hops: s.HopLimit, tunneled: s.Tunneled}
}

// copies remembers recent segments, to recognize copies of them. A newer segment replaces an older
// one with the same slot.
type copies struct {
	seed  maphash.Seed
	slots []original
}

// original is a segment that copies are compared with.
type original struct {
	identity uint64
	at       time.Duration
	point    point
	tunnel   [16]byte
	used     bool
}

const (
	copySlots = 1 << 15
	// copyTime is the longest time between copies whose IP identification is equal, plainCopyTime
	// that of copies without one (IPv6, and IPv4 with 0): a retransmission takes a round-trip
	// time.
	copyTime      = time.Second
	plainCopyTime = time.Millisecond
)

func newCopies() *copies {
	return &copies{seed: maphash.MakeSeed(), slots: make([]original, copySlots)}
}

// identity has the fields of a segment that do not change on its way.
type identity struct {
	flow     pcap.Flow
	seq, ack uint32
	payload  int
	window   uint16
	id       uint16
	flags    uint8
	options  uint64
}

// find returns the earlier copy of a segment, nil without, and remembers the segment.
func (c *copies) find(now time.Duration, s *pcap.Segment, at point) *original {
	id := maphash.Comparable(c.seed, identity{s.Flow, s.Seq, s.Ack, s.Payload, s.Window, s.ID, s.Flags, digestOf(s.Options)})
	o := &c.slots[id%copySlots]
	if o.used && o.identity == id && now-o.at <= copyTime {
		return o
	}
	*o = original{id, now, at, s.Tunnel, true}
	return nil
}

// copied reports whether a segment is a copy of an earlier one, which does not count again.
func (a *Analysis) copied(h *half, s *pcap.Segment, at point) bool {
	o := a.copies.find(a.now, s, at)
	if o == nil {
		return false
	}
	later := a.now - o.at
	if s.ID == 0 {
		limit := plainCopyTime
		if rtt := h.sub.rtt(); rtt > 0 {
			limit = min(limit, rtt/2)
		}
		// Acknowledgments without data may be equal, too.
		distinct := s.Payload > 0 || s.Flags&(pcap.SYN|pcap.FIN) != 0
		if later > limit || !distinct && h.copies+h.other.copies == 0 {
			o.at = a.now
			return false
		}
	}
	switch {
	case o.point != at && !a.o.surveyed:
		a.several = true
		return false
	case o.point != at:
		a.m.Elsewhere++
	case o.tunnel != s.Tunnel:
		return false // the sender sent it over several paths
	default:
		h.copies++
		a.m.Copies++
		a.m.MaxCopy = max(a.m.MaxCopy, later)
	}
	h.tunnel(s)
	return true
}

// sightings are the capture points of a flow, and a sample of what was captured at each.
type sightings struct {
	points []point
	// later counts, for each point, the samples that had been captured at another point before.
	later []int
	seen  map[sample][]uint16
	// Only samples whose hash has these bits clear are kept.
	mask uint64
	top  uint64 // the end of the highest segment, extended to 64 bits
	any  bool
}

// sample is a part of a flow: the bytes at a position, however they are divided into segments, or a
// segment without data.
type sample struct {
	at    uint64
	block bool
}

const (
	// maxSamples is the number of samples of a flow that are compared between capture points.
	maxSamples = 1024
	// sampleBlock is the distance of the positions that are sampled, in bytes.
	sampleBlock = 512
	maxBlocks   = 256 // of one segment
	// maxPoints bounds the points of a flow that are compared, maxPointsOfSample those of a
	// sample. Segments of further points are used.
	maxPoints         = 1024
	maxPointsOfSample = 16
)

// survey finds, for each flow captured at several points, those that are not used because their
// segments were also captured at a better one.
func survey(ctx context.Context, in input) (map[pcap.Flow][]point, error) {
	flows := map[pcap.Flow]*sightings{}
	_, err := each(ctx, in, func(s *pcap.Segment, at point) error {
		f := flows[s.Flow]
		if f == nil {
			if len(flows) >= 2*maxSubflows {
				return nil
			}
			f = &sightings{seen: map[sample][]uint16{}}
			flows[s.Flow] = f
		}
		f.add(s, at)
		return nil
	})
	if err != nil {
		return nil, err
	}
	excluded := map[pcap.Flow][]point{}
	for flow, f := range flows {
		if len(f.points) > 1 {
			excluded[flow] = f.excluded()
		}
	}
	return excluded, nil
}

func (f *sightings) add(s *pcap.Segment, at point) {
	i := slices.Index(f.points, at)
	if i < 0 {
		if len(f.points) == maxPoints {
			return
		}
		i = len(f.points)
		f.points, f.later = append(f.points, at), append(f.later, 0)
	}
	if s.Payload == 0 {
		f.sample(i, sample{at: digestOf(s.Options) ^ uint64(s.Seq)<<32 ^ uint64(s.Ack) ^ uint64(s.Flags)<<56 ^ uint64(s.ID)<<16})
		return
	}
	if !f.any {
		f.any, f.top = true, unplaced|uint64(s.Seq)
	}
	start := f.top + uint64(int64(int32(s.Seq-uint32(f.top))))
	end := start + uint64(s.Payload)
	f.top = max(f.top, end)
	block := (start + sampleBlock - 1) / sampleBlock
	if block*sampleBlock >= end {
		f.sample(i, sample{at: start})
	}
	for n := 0; block*sampleBlock < end && n < maxBlocks; n++ {
		f.sample(i, sample{block, true})
		block++
	}
}

// sample notes that a sample was seen at a point. When there are too many, half of them are
// dropped, so that those of the whole flow are represented.
func (f *sightings) sample(i int, k sample) {
	if mix(k.at)&f.mask != 0 {
		return
	}
	all := f.seen[k]
	if slices.Contains(all, uint16(i)) || len(all) == maxPointsOfSample {
		return
	}
	f.later[i] += len(all)
	f.seen[k] = append(all, uint16(i))
	for len(f.seen) > maxSamples {
		f.mask = f.mask<<1 | 1
		for k := range f.seen {
			if mix(k.at)&f.mask != 0 {
				delete(f.seen, k)
			}
		}
	}
}

// mix is the finalizer of SplitMix64: each bit of the result depends on all of v.
func mix(v uint64) uint64 {
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// excluded returns the points that are not used. Points that share segments are alternatives, the
// others complement each other. Preferred are the points nearest to the receiver: those with the
// lowest hop limit or, if these are equal, where segments are captured last. If these have less
// than half of the segments, as after a change of the path, the points with most segments are used.
func (f *sightings) excluded() []point {
	items := make([]int, len(f.points))
	shared := map[[2]uint16]int{}
	for _, all := range f.seen {
		for n, i := range all {
			items[i]++
			for _, j := range all[:n] {
				shared[[2]uint16{min(i, j), max(i, j)}]++
			}
		}
	}
	linked := func(i, j int) bool {
		n := shared[[2]uint16{uint16(min(i, j)), uint16(max(i, j))}]
		return n > 0 && 2*n >= min(items[i], items[j])
	}
	nearest := make([]int, len(f.points))
	for i := range nearest {
		nearest[i] = i
	}
	slices.SortStableFunc(nearest, func(i, j int) int {
		return cmp.Or(cmp.Compare(f.points[i].hops, f.points[j].hops), cmp.Compare(f.later[j], f.later[i]), cmp.Compare(items[j], items[i]))
	})
	most := slices.Clone(nearest)
	slices.SortStableFunc(most, func(i, j int) int { return cmp.Compare(items[j], items[i]) })
	choose := func(order []int) (chosen []int, covered int) {
		for _, i := range order {
			if !slices.ContainsFunc(chosen, func(j int) bool { return linked(i, j) }) {
				chosen = append(chosen, i)
				covered += items[i]
			}
		}
		return chosen, covered
	}
	chosen, covered := choose(nearest)
	if other, n := choose(most); 2*covered < n {
		chosen = other
	}
	var excluded []point
	for i, p := range f.points {
		if !slices.Contains(chosen, i) {
			excluded = append(excluded, p)
		}
	}
	return excluded
}

// digestOf returns the FNV-1a hash of b.
func digestOf(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}
