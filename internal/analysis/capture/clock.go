package capture

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
)

// ClockStep is a step of the clock of a capturing host. Times after it are shifted so that they
// continue those before it.
type ClockStep struct {
	// Interface is the interface whose times stepped, from 0.
	Interface int `json:"interface"`
	// Packet is the first packet after the step.
	Packet uint64 `json:"packet"`
	// By is how far the clock was set forward; it is negative for a step back. A step forward is
	// measured by TCP timestamps, to a few milliseconds; a step back by the time between two
	// packets, so that it may have been a little larger.
	By time.Duration `json:"by_ns"`
	// After is the file that this one continues, if the step was between the two.
	After string `json:"after,omitempty"`
}

func (s ClockStep) String() string {
	way, by := "forward", s.By
	if by < 0 {
		way, by = "back", -by
	}
	where := fmt.Sprintf("at packet %d", s.Packet)
	if s.After != "" {
		where = fmt.Sprintf("between the end of %s and packet %d", s.After, s.Packet)
	}
	return fmt.Sprintf("the clock stepped %s by %v %s: later times are shifted to continue earlier ones", way, by.Round(10*time.Microsecond), where)
}

// mark is what a segment says about its place in the order of a flow.
type mark struct {
	at       int64
	end, ack uint32 // the sequence number behind the segment, and its acknowledgment
	stamp    uint32 // the value of its TCP timestamp
	stamped  bool
}

func markOf(s *pcap.Segment, at int64) mark {
	m := mark{at: at, end: s.Seq + uint32(s.Payload), ack: s.Ack}
	m.stamp, m.stamped = stampOf(s.Options)
	return m
}

// stampOf returns the value of the timestamp option (RFC 7323, section 3.2).
func stampOf(b []byte) (uint32, bool) {
	const end, nop, timestamps, length = 0, 1, 8, 10
	for len(b) > 0 {
		switch {
		case b[0] == end:
			return 0, false
		case b[0] == nop:
			b = b[1:]
			continue
		case len(b) < 2 || b[1] < 2 || int(b[1]) > len(b):
			return 0, false
		case b[0] == timestamps && b[1] == length:
			return binary.BigEndian.Uint32(b[2:]), true
		}
		b = b[b[1]:]
	}
	return 0, false
}

// follows returns 1 if the segment of m was sent after that of o in the same direction of a flow,
// -1 if it was sent before, and 0 if that cannot be said. Retransmissions have new timestamps.
func (m *mark) follows(o *mark) int {
	if m.stamped && o.stamped && m.stamp != o.stamp {
		return cmp.Compare(int32(m.stamp-o.stamp), 0)
	}
	if m.end != o.end {
		return cmp.Compare(int32(m.end-o.end), 0)
	}
	return cmp.Compare(int32(m.ack-o.ack), 0)
}

const (
	// maxMarks is the number of segments of a flow that are compared on each side of a step.
	maxMarks = 8
	// maxWatched bounds the flows of an interface that are watched.
	maxWatched = 1 << 16
	// minAhead is the shortest gap between packets that may be a step of the clock.
	minAhead = 10 * time.Millisecond
	// sureVotes is the number of segments after which a step back is certain.
	sureVotes = 16
)

// beat is the history of one direction of a flow.
type beat struct {
	first, latest mark // the latest is that with the highest time
	head, tail    []mark
	segments      int
}

func (b *beat) add(m mark) {
	if b.segments++; b.segments == 1 {
		b.first, b.latest = m, m
	} else if m.at >= b.latest.at {
		b.latest = m
	}
	if len(b.head) < maxMarks {
		b.head = append(b.head, m)
	}
	if len(b.tail) == maxMarks {
		copy(b.tail, b.tail[1:])
		b.tail = b.tail[:maxMarks-1]
	}
	b.tail = append(b.tail, m)
}

// tick returns the unit of the sender's timestamps, 0 if it is not known: the usual one nearest to
// what was measured.
func (b *beat) tick() time.Duration {
	const enough = 20 // ticks
	n := int32(b.latest.stamp - b.first.stamp)
	if !b.first.stamped || !b.latest.stamped || n < enough {
		return 0
	}
	measured := float64(b.latest.at-b.first.at) / float64(n)
	// A queue that fills while the flow starts stretches the time between arrivals.
	for _, unit := range [...]time.Duration{time.Microsecond, time.Millisecond, 4 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond} {
		if r := measured / float64(unit); r > 0.6 && r < 1.6 {
			return unit
		}
	}
	return 0
}

// shiftOf returns how much later the segments of after were captured than those of before suggest,
// by the timestamps of their sender: the clocks of both hosts go on, and delay in the network only
// adds, so the smallest difference counts. gap bounds the result.
func shiftOf(before, after []mark, tick, gap time.Duration) (shift time.Duration, ok bool) {
	if tick == 0 || len(before) == 0 || len(after) == 0 || gap/tick > math.MaxInt32/2 {
		return 0, false
	}
	origin := before[0]
	floor := func(marks []mark) int64 {
		least := int64(math.MaxInt64)
		for _, m := range marks {
			if m.stamped {
				least = min(least, m.at-origin.at-int64(int32(m.stamp-origin.stamp))*int64(tick))
			}
		}
		return least
	}
	x, y := floor(before), floor(after)
	if !origin.stamped || x == math.MaxInt64 || y == math.MaxInt64 {
		return 0, false
	}
	return time.Duration(y - x), true
}

// verdict collects what the directions of flows say about a gap of the times: it is a step of the
// clock if the timestamps of both ends of a connection do not confirm it, and none does.
type verdict struct {
	gap time.Duration
	// largest is that of the shifts: a sender that had paused before a burst seems to confirm a
	// part of the gap.
	largest    time.Duration
	agree      map[pcap.Flow]bool
	both, none bool
}

func newVerdict(gap time.Duration) verdict { return verdict{gap: gap, agree: map[pcap.Flow]bool{}} }

func (v *verdict) add(flow pcap.Flow, before, after []mark, tick time.Duration) {
	shift, ok := shiftOf(before, after, tick, v.gap)
	const accuracy = 4 * time.Millisecond
	switch {
	case !ok:
	case shift < v.gap/4:
		v.none = true
	case shift >= v.gap/2 && shift > 3*tick+accuracy:
		if shift+2*tick >= v.gap {
			shift = v.gap // within the accuracy of the timestamps, no time passed
		}
		v.largest = max(v.largest, shift)
		v.agree[flow] = true
		v.both = v.both || v.agree[flow.Reverse()]
	}
}

// step returns how far the clock was set forward; 0 if it was not.
func (v *verdict) step() time.Duration {
	if !v.both || v.none {
		return 0
	}
	return v.largest
}

// clock watches the times of one interface in the order of the file. It distinguishes packets that
// are not in the order of time from a clock that was set back: in the first case the segments of a
// flow are in the order of their times, in the second in the order of the file.
type clock struct {
	number int // of the interface
	offset int64
	max    int64 // the highest time; as all times here, with offset
	first  int64 // the time of the first packet
	any    bool
	flows  map[pcap.Flow]*beat
	steps  []ClockStep

	back  *backward
	ahead *forward
}

// backward is a time that ran back, until it is known why.
type backward struct {
	packet         uint64
	by             time.Duration
	max            int64 // the highest time since then
	step, disorder int   // segments that follow the earlier ones of their flow, or precede them
}

// forward is a gap of the times, until it is known why.
type forward struct {
	packet  uint64
	gap     time.Duration
	start   int64
	count   int
	flows   map[pcap.Flow][]mark
	pending []seen
}

// seen is a segment whose time is not certain yet.
type seen struct {
	flow pcap.Flow
	mark mark
}

func newClock(number int) *clock { return &clock{number: number, flows: map[pcap.Flow]*beat{}} }

// add adds the next segment of the interface.
func (c *clock) add(s *pcap.Segment) {
	at := s.At + c.offset
	if !c.any {
		c.any, c.max, c.first = true, at, at
	}
	if b := c.back; b != nil && (at >= c.max || at < b.max-int64(minBack) || b.step >= sureVotes && b.step > 3*b.disorder) {
		at += c.judgeBack()
	}
	if at < c.max-int64(minBack) {
		at += c.judgeAhead()
		if at < c.max-int64(minBack) {
			c.doubt(s, at)
			return
		}
	}
	gap := time.Duration(at - c.max)
	if f := c.ahead; f != nil && (f.count >= 8*maxMarks || at-f.start > int64(time.Second) || gap > f.gap) {
		at += c.judgeAhead()
	}
	if c.ahead == nil && gap >= minAhead {
		c.ahead = &forward{packet: s.Number, gap: gap, start: at, flows: map[pcap.Flow][]mark{}}
	}
	c.max = max(c.max, at)
	m := markOf(s, at)
	if f := c.ahead; f != nil {
		f.count++
		if len(f.flows[s.Flow]) < maxMarks {
			f.flows[s.Flow] = append(f.flows[s.Flow], m)
		}
		f.pending = append(f.pending, seen{s.Flow, m})
		return
	}
	c.note(s.Flow, m)
}

// note adds a segment to the history of its flow.
func (c *clock) note(flow pcap.Flow, m mark) {
	b := c.flows[flow]
	if b == nil {
		if len(c.flows) == maxWatched {
			return
		}
		b = &beat{}
		c.flows[flow] = b
	}
	b.add(m)
}

// doubt adds a segment whose time is earlier than that of a previous one.
func (c *clock) doubt(s *pcap.Segment, at int64) {
	if c.back == nil {
		c.back = &backward{packet: s.Number, by: time.Duration(c.max - at), max: at}
	}
	c.back.max = max(c.back.max, at)
	b := c.flows[s.Flow]
	if b == nil || b.latest.at <= at {
		return
	}
	m := markOf(s, at)
	switch m.follows(&b.latest) {
	case 1:
		c.back.step++
	case -1:
		c.back.disorder++
	}
}

// judgeBack decides about a time that ran back, and returns by how much later times change.
func (c *clock) judgeBack() int64 {
	b := c.back
	c.back = nil
	if b == nil || b.step == 0 || b.step < 3*b.disorder {
		return 0
	}
	c.steps = append(c.steps, ClockStep{Interface: c.number, Packet: b.packet, By: -b.by})
	c.offset += int64(b.by)
	c.max = max(c.max, b.max+int64(b.by))
	return int64(b.by)
}

// judgeAhead decides about a gap, and returns by how much later times change.
func (c *clock) judgeAhead() int64 {
	f := c.ahead
	if f == nil {
		return 0
	}
	c.ahead = nil
	v := newVerdict(f.gap)
	for flow, after := range f.flows {
		if b := c.flows[flow]; b != nil {
			v.add(flow, b.tail, after, b.tick())
		}
	}
	by := v.step()
	if by > 0 {
		c.steps = append(c.steps, ClockStep{Interface: c.number, Packet: f.packet, By: by})
		c.offset -= int64(by)
		c.max -= int64(by)
	}
	for _, s := range f.pending {
		s.mark.at -= int64(by)
		c.note(s.flow, s.mark)
	}
	return -int64(by)
}

// end decides what is open at the end of the file.
func (c *clock) end() {
	c.judgeBack()
	c.judgeAhead()
}

// clocks are those of a file by the number of the interface.
type clocks map[int]*clock

func (c clocks) add(s *pcap.Segment) {
	k := c[s.Interface]
	if k == nil {
		k = newClock(s.Interface)
		c[s.Interface] = k
	}
	k.add(s)
}

// shifts are the corrections of the times of a file.
type shifts struct {
	// start applies from the first packet on: the clock stepped between two files.
	start time.Duration
	// steps of all interfaces, in the order of the file.
	steps []ClockStep
	// next and now follow the file as it is read.
	next int
	now  map[int]time.Duration
}

// correct returns the correction of a packet's time. Packets must come in the order of the file.
func (s *shifts) correct(packet uint64, iface int) time.Duration {
	if len(s.steps) == 0 {
		return s.start
	}
	for s.next < len(s.steps) && s.steps[s.next].Packet <= packet {
		step := s.steps[s.next]
		s.now[step.Interface] -= step.By
		s.next++
	}
	return s.start + s.now[iface]
}

// timeline is what is known about the clocks of all files.
type timeline struct {
	steps  [][]ClockStep   // of each file, in its order
	starts []time.Duration // by how much all times of the file change
}

// of returns the corrections of a file, for one reading of it. A nil timeline has none.
func (t *timeline) of(file int) shifts {
	if t == nil {
		return shifts{}
	}
	steps := slices.DeleteFunc(slices.Clone(t.steps[file]), func(s ClockStep) bool { return s.After != "" })
	return shifts{start: t.starts[file], steps: steps, now: map[int]time.Duration{}}
}

func (t *timeline) stepped() bool {
	return slices.ContainsFunc(t.steps, func(s []ClockStep) bool { return len(s) > 0 })
}

// timelineOf finds the steps of the clocks in the files and between files that continue others.
func timelineOf(names []string, files []clocks) *timeline {
	t := &timeline{steps: make([][]ClockStep, len(files)), starts: make([]time.Duration, len(files))}
	for i, c := range files {
		for _, k := range c {
			k.end()
			t.steps[i] = append(t.steps[i], k.steps...)
		}
		slices.SortFunc(t.steps[i], func(x, y ClockStep) int { return cmp.Compare(x.Packet, y.Packet) })
	}
	ends := make([]time.Duration, len(files))
	for i, steps := range t.steps {
		ends[i] = total(steps)
	}
	s := sequenceOf(files, ends)
	for _, i := range s.order() {
		before := s.before[i]
		if before < 0 {
			continue
		}
		end := t.starts[before] + ends[before]
		by := s.joints[[2]int{before, i}].step()
		t.starts[i] = end - by
		if by != 0 {
			t.steps[i] = slices.Insert(t.steps[i], 0, ClockStep{Packet: 1, By: by, After: names[before]})
		}
	}
	return t
}

// total returns the correction of the times at the end of a file with these steps.
func total(steps []ClockStep) (by time.Duration) {
	for _, s := range steps {
		if s.Interface == steps[len(steps)-1].Interface {
			by -= s.By
		}
	}
	return by
}

// joint is what the flows that two files have in common say about their order: the second is a
// continuation of the first if each flow in the second follows that in the first.
type joint struct {
	follows, precedes int
	// inverted has the flows that follow, although their times precede: both directions of a
	// connection do after a step, and one if a path has less delay than that before it.
	inverted map[pcap.Flow]bool
	both     bool
	back     time.Duration // from the start of the second file to the end of the first
	ahead    verdict
}

// minInverted is the number of segments in each file that a flow must have to be evidence of a
// step.
const minInverted = 4

func (j *joint) continues() bool { return j.follows > 0 && j.precedes == 0 }

// step returns how far the clock was set between the two files.
func (j *joint) step() time.Duration {
	if j.both && j.back >= minBack {
		return -j.back
	}
	return j.ahead.step()
}

// sequence is the order of files that continue others, such as those of a capture with rotation.
type sequence struct {
	joints map[[2]int]*joint
	before []int // the file that each continues; -1 without
	spans  []span
}

// span has the first and the last time of a file, in nanoseconds.
type span struct{ first, last time.Duration }

func (c clocks) span() span {
	s := span{math.MaxInt64, math.MinInt64}
	for _, k := range c {
		s.first, s.last = min(s.first, time.Duration(k.first)), max(s.last, time.Duration(k.max))
	}
	return s
}

// fileBeat is a flow in a file.
type fileBeat struct {
	file int
	*beat
}

// sequenceOf finds which files continue others; ends are the corrections of the times at their
// ends, which apply to what continues them.
func sequenceOf(files []clocks, ends []time.Duration) *sequence {
	s := &sequence{joints: map[[2]int]*joint{}, before: make([]int, len(files))}
	flows := map[pcap.Flow][]fileBeat{}
	for i, c := range files {
		s.spans = append(s.spans, c.span())
		for _, k := range c {
			for flow, b := range k.flows {
				flows[flow] = append(flows[flow], fileBeat{i, b})
			}
		}
	}
	for flow, all := range flows {
		for _, x := range all {
			for _, y := range all {
				if x.file != y.file {
					s.join(flow, x, y, ends[x.file])
				}
			}
		}
	}
	for i := range s.before {
		s.before[i] = -1
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.joints), func(x, y [2]int) int { return slices.Compare(x[:], y[:]) }) {
		from, to := k[0], k[1]
		if !s.continues(from, to) || s.continues(to, from) {
			continue
		}
		if old := s.before[to]; old < 0 || s.continues(old, from) {
			s.before[to] = from
		}
	}
	return s
}

func (s *sequence) continues(from, to int) bool {
	j := s.joints[[2]int{from, to}]
	return j != nil && j.continues()
}

// join compares a flow at the end of one file with the same flow at the start of another, whose
// times change by end.
func (s *sequence) join(flow pcap.Flow, x, y fileBeat, end time.Duration) {
	k := [2]int{x.file, y.file}
	j := s.joints[k]
	if j == nil {
		j = &joint{inverted: map[pcap.Flow]bool{}, back: s.spans[x.file].last - s.spans[y.file].first - end}
		s.joints[k] = j
	}
	switch order(x.tail, y.head) {
	case 1:
		j.follows++
	case -1:
		j.precedes++
	}
	if time.Duration(y.head[0].at-x.latest.at)+end <= 0 {
		if min(x.segments, y.segments) >= minInverted {
			j.inverted[flow] = true
			j.both = j.both || j.inverted[flow.Reverse()]
		}
		return
	}
	if -j.back < minAhead {
		return
	}
	if j.ahead.agree == nil {
		j.ahead = newVerdict(-j.back)
	}
	tick := x.tick()
	if tick == 0 {
		tick = y.tick()
	}
	after := slices.Clone(y.head)
	for i := range after {
		after[i].at += int64(end)
	}
	j.ahead.add(flow, x.tail, after, tick)
}

// order returns 1 if most of the segments of y follow those of x, and -1 if most precede them.
func order(x, y []mark) int {
	sum := 0
	for i := range x {
		for j := range y {
			sum += y[j].follows(&x[i])
		}
	}
	return cmp.Compare(sum, 0)
}

// order returns the files so that each one is behind that which it continues.
func (s *sequence) order() []int {
	var order []int
	done := make([]bool, len(s.before))
	var visit func(i int)
	visit = func(i int) {
		if done[i] {
			return
		}
		done[i] = true
		if s.before[i] >= 0 {
			visit(s.before[i])
		}
		order = append(order, i)
	}
	for i := range s.before {
		visit(i)
	}
	return order
}
