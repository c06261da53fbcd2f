package belief

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/netip"
	"slices"
	"time"
	"unique"
)

// Version is that of records.
const Version = 1

const (
	// MaxRecord bounds a record in bytes.
	MaxRecord = 16 << 10
	// forgetAge is the age at which what is stored of a network no longer counts.
	forgetAge = 7 * 24 * time.Hour
	// mostNumber bounds sums of bytes.
	mostNumber = 1e18
)

// Record is what is stored of a network.
type Record struct {
	Prefix netip.Prefix `json:"prefix"`
	Origin uint32       `json:"asn,omitempty"`
	Mode   Mode         `json:"mode"`
	Why    string       `json:"why,omitempty"`
	Since  time.Time    `json:"since"`
	Seen   time.Time    `json:"seen"`
	Noise  float64      `json:"noise"`
	// ApartNoise is that of connections compared with others; 0: as of a new network.
	ApartNoise float64      `json:"apart_noise,omitempty"`
	Bulk       float64      `json:"bulk_bytes"`
	Tried      float64      `json:"tried_bytes"`
	Lost       float64      `json:"lost_bytes"`
	Modes      []ModeRecord `json:"modes"`
	Related    []float32    `json:"covariance"`
}

// ModeRecord is what is stored of a mode in a network.
type ModeRecord struct {
	Mode    Mode    `json:"mode"`
	Mean    float64 `json:"mean"`
	Trials  int32   `json:"trials,omitempty"`
	Strikes uint8   `json:"strikes,omitempty"`
	// Rest is in Unix milliseconds.
	Rest int64 `json:"rest_until_ms,omitempty"`
	Brought
}

// check returns why a record is invalid, nil if it is valid.
func (r *Record) check(now time.Time) error {
	number := func(x float64) bool { return x >= 0 && x <= mostNumber }
	switch {
	case !r.Prefix.IsValid() || r.Prefix != r.Prefix.Masked() || r.Prefix.Addr().Is4In6():
		return fmt.Errorf("invalid prefix %q", r.Prefix)
	case !r.Mode.valid():
		return fmt.Errorf("invalid mode %.40q", string(r.Mode))
	case len(r.Why) > 2*maxName:
		return errors.New("reason is too long")
	case r.Seen.After(now.Add(time.Minute)) || r.Since.After(now.Add(time.Minute)):
		return fmt.Errorf("seen in the future, at %s", cmp.Or(r.Seen, r.Since).UTC().Format(time.RFC3339))
	case !(r.Noise >= leastNoise && r.Noise <= mostNoise):
		return fmt.Errorf("invalid noise %g", r.Noise)
	case r.ApartNoise != 0 && !(r.ApartNoise >= leastApartNoise && r.ApartNoise <= mostApartNoise):
		return fmt.Errorf("invalid noise %g of connections apart", r.ApartNoise)
	case !number(r.Bulk) || !number(r.Tried) || !number(r.Lost):
		return errors.New("invalid number of bytes")
	case len(r.Modes) == 0 || len(r.Modes) > MaxModes || len(r.Related) != len(r.Modes)*(len(r.Modes)+1)/2:
		return fmt.Errorf("invalid number of modes or covariances: %d, %d", len(r.Modes), len(r.Related))
	}
	for i := range r.Modes {
		m := &r.Modes[i]
		switch {
		case !m.Mode.valid() || slices.ContainsFunc(r.Modes[:i], func(o ModeRecord) bool { return o.Mode == m.Mode }):
			return fmt.Errorf("invalid mode %.40q", string(m.Mode))
		case !(math.Abs(m.Mean) <= mostLn) || m.Mode == Best && math.Abs(m.Mean) > 0:
			return fmt.Errorf("invalid mean %g", m.Mean)
		case m.Trials < 0 || m.MinRTT < 0 || m.MinRTT > mostRTT || m.RTT < 0 || m.RTT > mostRTT || !number(m.Goodput):
			return fmt.Errorf("invalid numbers of mode %q", m.Mode)
		}
	}
	return r.checkCovariance()
}

// checkCovariance checks what a covariance has by its definition.
func (r *Record) checkCovariance() error {
	n := network{covariance: r.Related}
	for i := range r.Modes {
		v := n.covarianceOf(i, i)
		if !(v >= 0 && v <= 2*mostSD*mostSD) || r.Modes[i].Mode == Best && v != 0 {
			return fmt.Errorf("invalid variance %g", v)
		}
		for j := range i {
			if c := n.covarianceOf(i, j); !(c*c <= 1.01*v*n.covarianceOf(j, j)+1e-9) {
				return fmt.Errorf("invalid covariance %g", c)
			}
		}
	}
	return nil
}

// record returns what is stored of a network.
func (t *Table) record(n *network) Record {
	r := Record{
		Prefix: t.prefix(n), Origin: n.origin, Mode: t.mode(n.mode), Why: n.reason.Value(), Since: n.since.time(), Seen: n.seen.time(),
		Noise: n.noise, ApartNoise: n.apartNoise, Bulk: n.bulk, Tried: n.tried, Lost: n.lost, Related: slices.Clone(n.covariance),
	}
	for i, a := range n.arms {
		r.Modes = append(r.Modes, ModeRecord{t.mode(a.mode), float64(a.mean), a.trials, a.strikes, int64(a.rest) * 1000, n.total(i)})
	}
	return r
}

// ClearChanged reports whether anything changed since it was last called.
func (t *Table) ClearChanged() (changed bool) {
	changed, t.changed = t.changed, false
	return changed
}

// SetChanged has ClearChanged report a change that could not be stored.
func (t *Table) SetChanged() { t.touch() }

// Prefixes returns all networks, the oldest first.
func (t *Table) Prefixes() []netip.Prefix {
	list := make([]netip.Prefix, 0, t.Len())
	for at := t.oldest; at != 0; {
		n := t.network(at)
		list, at = append(list, t.prefix(n)), n.later
	}
	return list
}

// RecordsOf returns the records of these networks, without those that nothing is known of.
func (t *Table) RecordsOf(prefixes []netip.Prefix) (list []Record) {
	for _, p := range prefixes {
		if n := t.find(p); n != nil && len(n.arms) > 0 {
			list = append(list, t.record(n))
		}
	}
	return list
}

// Restore adds a record, or replaces what is known of its network if the record was seen later. It
// reports whether it did. What is older than a week is ignored.
func (t *Table) Restore(now time.Time, r *Record) (bool, error) {
	if err := r.check(now); err != nil {
		return false, err
	}
	old := t.find(r.Prefix)
	if now.Sub(r.Seen) > forgetAge || old != nil && instantOf(r.Seen) <= old.seen {
		return false, nil
	}
	n := t.at(now, r.Prefix, r.Origin, r.Mode)
	t.setMode(&n.mode, r.Mode)
	n.origin, n.reason, n.since, n.seen, n.noise = r.Origin, unique.Make(r.Why), instantOf(r.Since), instantOf(r.Seen), r.Noise
	n.bulk, n.tried, n.lost = r.Bulk, r.Tried, r.Lost
	n.apartNoise = cmp.Or(r.ApartNoise, startApartNoise)
	n.aged = n.seen
	t.releaseArms(n)
	n.arms, n.covariance, n.brought = make([]arm, len(r.Modes)), slices.Clone(r.Related), nil
	for i, m := range r.Modes {
		n.arms[i] = arm{mode: modeID(t.modes.Use(m.Mode)), mean: float32(m.Mean), trials: m.Trials, strikes: m.Strikes, rest: secondsAfter(time.UnixMilli(m.Rest))}
		if m.Brought != (Brought{}) {
			n.brought = append(n.brought, achieved{i, m.Brought})
		}
	}
	t.voteAll(n)
	t.age(n, now)
	return true, nil
}

// header is the first line of a file.
type header struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

const format = "tabane networks"

// Write writes records as Read accepts them: a header, then one line of JSON for each.
func Write(w io.Writer, list iter.Seq[*Record]) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	if err := e.Encode(header{format, Version}); err != nil {
		return err
	}
	for r := range list {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return b.Flush()
}

// ErrFormat means that a file is none of this version.
var ErrFormat = errors.New("not a file of networks")

// Read adds the records of a file. Invalid ones are ignored: their number and what is wrong with
// the first are the error. One that wraps ErrFormat means that nothing was read.
func (t *Table) Read(now time.Time, r io.Reader) (read int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxRecord)
	var h header
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &h) != nil || h.Format != format {
		return 0, fmt.Errorf("%w: it has no header", ErrFormat)
	}
	if h.Version != Version {
		return 0, fmt.Errorf("%w: version %d, want %d", ErrFormat, h.Version, Version)
	}
	invalid, number := 0, 1
	var first error
	for lines.Scan() {
		number++
		fresh, err := t.Decode(now, lines.Bytes())
		if err != nil {
			invalid++
			first = cmp.Or(first, fmt.Errorf("line %d: %w", number, err))
		}
		if fresh {
			read++
		}
	}
	if err := lines.Err(); err != nil {
		invalid++
		first = cmp.Or(first, fmt.Errorf("line %d: %w", number+1, err))
	}
	if invalid > 0 {
		return read, fmt.Errorf("ignored %d invalid records; %w", invalid, first)
	}
	return read, nil
}

// Decode adds a record in JSON, as Restore does.
func (t *Table) Decode(now time.Time, line []byte) (bool, error) {
	var r Record
	if len(line) > MaxRecord {
		return false, fmt.Errorf("record of %d bytes", len(line))
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return false, err
	}
	return t.Restore(now, &r)
}
