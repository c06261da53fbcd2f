package selection

import (
	"cmp"
	"container/list"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

const (
	// rememberFor is how long what was learned of a path is used.
	rememberFor = 10 * time.Minute
	// stallRest is how long a path rests that stalled once, as long as the path manager waits until
	// it announces the address again.
	stallRest = time.Second
	// brokenFor is how long a path that carries no data rests: each trial costs data a pause, and a
	// middlebox or a link with a smaller MTU stays.
	brokenFor = time.Hour
	// MaxEntries bounds a Memory; the oldest entries are removed first.
	MaxEntries = 16384
	// MaxMemorySize bounds the encoding of a Memory in bytes.
	MaxMemorySize = 400 * MaxEntries

	// The bounds of valid entries: 8 bit/s to 10 Tbit/s, a minute, and more rests than lengthen a
	// rest.
	leastRate, mostRate = 1, 10e12 / 8
	mostRTT             = time.Minute
	mostRests           = 64
)

// Key identifies a path across connections: the EPE address of its egress peer, and the prefix of
// its client.
type Key struct {
	Peer   netip.Addr   `json:"peer"`
	Client netip.Prefix `json:"client"`
}

// KeyOf returns the key of a path. Clients of a /48 (IPv4: /24) share what is learned, as it is the
// longest prefix that is usually routed.
func KeyOf(peer, client netip.Addr) Key {
	client = client.Unmap().WithZone("")
	bits := 48
	if client.Is4() {
		bits = 24
	}
	prefix, _ := client.Prefix(bits)
	return Key{peer.Unmap(), prefix}
}

// Past is what was learned of a path.
type Past struct {
	// Rate is what the path carried while it was saturated, for all subflows that shared it, in
	// bytes/s; 0: not known.
	Rate float64
	// Burst is the rate at which the last burst left that had a queue, in bytes/s; 0: none had.
	Burst float64
	// MinRTT is the least round-trip time, and RTT the least smoothed one, which has the jitter of the
	// path and waits for its slots; 0: not known.
	MinRTT, RTT time.Duration
	// Verdict is why the path last rested, Unused if it helped since; Rests is how many times in a
	// row it did not help, and Rest how long it still rests.
	Verdict Reason
	Rests   int
	Rest    time.Duration
	// Left is how long this information still counts.
	Left time.Duration
}

// Stall returns what is known of a path after it made no progress: the rate that was measured no
// longer counts, and it rests.
func (p Past) Stall() Past {
	return Past{MinRTT: p.MinRTT, RTT: p.RTT, Verdict: Stalled, Rests: p.Rests + 1, Rest: rest(stallRest, p.Rests), Left: rememberFor}
}

// usual returns the round-trip time that a short transfer meets, 0 if it is not known.
func (p Past) usual() time.Duration { return max(p.RTT, p.MinRTT) }

// Entry is what a Memory holds of a path.
type Entry struct {
	Key
	// Learned is the time of the last measurement or verdict.
	Learned time.Time `json:"learned"`
	// Rate and Burst are in bytes/s, MinRTT and RTT in nanoseconds; 0: not known.
	Rate   float64       `json:"rate_bytes_per_second,omitempty"`
	Burst  float64       `json:"burst_bytes_per_second,omitempty"`
	MinRTT time.Duration `json:"min_rtt_ns,omitempty"`
	RTT    time.Duration `json:"rtt_ns,omitempty"`
	// Verdict is why the path last rested, Rests how many times in a row it did not help. It rests
	// until RestUntil.
	Verdict   Reason    `json:"verdict"`
	Rests     int       `json:"rests,omitempty"`
	RestUntil time.Time `json:"rest_until,omitzero"`
}

// check returns why an entry is invalid, nil if it is valid.
func (e *Entry) check(now time.Time) error {
	switch {
	case !e.Peer.IsValid() || !e.Client.IsValid() || KeyOf(e.Peer, e.Client.Addr()) != e.Key:
		return fmt.Errorf("invalid path from peer %q to client %q", e.Peer, e.Client)
	case e.Learned.After(now):
		return fmt.Errorf("learned in the future, at %s", e.Learned)
	case !validRate(e.Rate) || !validRate(e.Burst):
		return fmt.Errorf("invalid rate of %g bytes/s, or %g in bursts", e.Rate, e.Burst)
	case e.MinRTT < 0 || e.MinRTT > mostRTT || e.RTT < 0 || e.RTT > mostRTT:
		return fmt.Errorf("invalid round-trip time of %s, or %s at least", e.RTT, e.MinRTT)
	case e.Verdict.Open() || e.Verdict > Broken:
		return fmt.Errorf("invalid verdict %q", e.Verdict)
	case e.Rests < 0 || e.Rests > mostRests || e.RestUntil.Sub(e.Learned) > e.Verdict.restMost():
		return fmt.Errorf("invalid rest: %d in a row, until %s", e.Rests, e.RestUntil)
	}
	return nil
}

// validRate reports whether a rate in bytes/s is not known, or within the bounds.
func validRate(r float64) bool { return r == 0 || r >= leastRate && r <= mostRate }

// restMost returns the longest rest for a reason.
func (r Reason) restMost() time.Duration {
	if r == Broken {
		return brokenFor
	}
	return restMost
}

// left returns how long an entry still counts: while the path rests, and for rememberFor. It does
// not if the clock was set back.
func (e *Entry) left(now time.Time) time.Duration {
	if now.Before(e.Learned) {
		return 0
	}
	return max(e.Learned.Add(rememberFor).Sub(now), e.RestUntil.Sub(now))
}

// Memory is what connections learned of paths, for the next ones. The zero value is empty. It is
// not safe for concurrent use. Times are those of the wall clock. It forgets what is 10 minutes
// old, and that a path is broken after an hour.
type Memory struct {
	byKey   map[Key]*list.Element
	order   list.List // of *Entry, the oldest first
	version uint64
}

// Version changes whenever something is learned.
func (m *Memory) Version() uint64 { return m.version }

// Len returns the number of paths, with those that no longer count and were not removed yet.
func (m *Memory) Len() int { return m.order.Len() }

// Recall returns what was learned of a path, the zero value if nothing was.
func (m *Memory) Recall(now time.Time, k Key) Past {
	at := m.byKey[k]
	if at == nil {
		return Past{}
	}
	e := at.Value.(*Entry)
	left := e.left(now)
	if left <= 0 {
		return Past{}
	}
	return Past{Rate: e.Rate, Burst: e.Burst, MinRTT: e.MinRTT, RTT: e.RTT, Verdict: e.Verdict, Rests: e.Rests, Rest: max(e.RestUntil.Sub(now), 0), Left: left}
}

// Learn replaces what is known of a path. That a path is broken, only a rate disproves.
func (m *Memory) Learn(now time.Time, k Key, p Past) {
	if p.Rate == 0 && m.Recall(now, k).Verdict == Broken {
		return
	}
	e := &Entry{Key: k, Learned: now, Rate: p.Rate, Burst: p.Burst, MinRTT: p.MinRTT, RTT: p.RTT, Verdict: p.Verdict, Rests: min(p.Rests, mostRests)}
	if p.Rest > 0 {
		e.RestUntil = now.Add(p.Rest)
	}
	if e.check(now) == nil {
		m.put(e)
		m.version++
	}
	m.expire(now)
}

// Clear removes everything.
func (m *Memory) Clear() { *m = Memory{version: m.version + 1} }

// Stalled records that a path made no progress: the rate that was measured no longer counts, and it
// rests.
func (m *Memory) Stalled(now time.Time, k Key) {
	m.Learn(now, k, m.Recall(now, k).Stall())
}

// Broken records that a path carries no data, for an hour.
func (m *Memory) Broken(now time.Time, k Key) {
	m.Learn(now, k, Past{Verdict: Broken, Rest: brokenFor})
}

func (m *Memory) put(e *Entry) {
	if m.byKey == nil {
		m.byKey = map[Key]*list.Element{}
	}
	if at := m.byKey[e.Key]; at != nil {
		at.Value = e
		m.order.MoveToBack(at)
	} else {
		m.byKey[e.Key] = m.order.PushBack(e)
	}
	if m.order.Len() > MaxEntries {
		m.remove(m.order.Front())
	}
}

func (m *Memory) remove(at *list.Element) {
	delete(m.byKey, at.Value.(*Entry).Key)
	m.order.Remove(at)
}

// expire removes the oldest entries, up to one that counts.
func (m *Memory) expire(now time.Time) {
	for at := m.order.Front(); at != nil && now.Sub(at.Value.(*Entry).Learned) >= rememberFor && at.Value.(*Entry).left(now) <= 0; at = m.order.Front() {
		m.remove(at)
	}
}

// Entries returns what counts, the oldest first.
func (m *Memory) Entries(now time.Time) []Entry {
	m.expire(now)
	all := make([]Entry, 0, m.order.Len())
	for at := m.order.Front(); at != nil; at = at.Next() {
		if e := at.Value.(*Entry); now.Before(e.Learned) || e.left(now) > 0 {
			all = append(all, *e)
		}
	}
	return all
}

// encoding is a Memory in JSON.
type encoding struct {
	Version int     `json:"version"`
	Paths   []Entry `json:"paths"`
}

// Encode returns entries as Load accepts them.
func Encode(entries []Entry) ([]byte, error) { return json.Marshal(encoding{1, entries}) }

// Load adds what a previous instance learned. Invalid entries are ignored, and the error has their
// number and what is wrong with the first. Any other error means that nothing was added.
func (m *Memory) Load(now time.Time, text []byte) error {
	var read encoding
	if len(text) > MaxMemorySize {
		return fmt.Errorf("larger than %d bytes", MaxMemorySize)
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	if read.Version != 1 {
		return fmt.Errorf("version %d, want 1", read.Version)
	}
	slices.SortStableFunc(read.Paths, func(a, b Entry) int { return a.Learned.Compare(b.Learned) })
	var first error
	invalid := 0
	for i := range read.Paths {
		e := &read.Paths[i]
		if err := e.check(now); err != nil {
			first = cmp.Or(first, err)
			invalid++
			continue
		}
		m.put(e)
	}
	m.expire(now)
	if first != nil {
		return fmt.Errorf("ignored %d of %d paths: %w", invalid, len(read.Paths), first)
	}
	return nil
}

// MarshalText returns the name of the reason.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText accepts the name of a reason.
func (r *Reason) UnmarshalText(text []byte) error {
	i := slices.Index(reasons[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown reason %.40q", text)
	}
	*r = Reason(i)
	return nil
}
