package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/tabane/tabane/internal/pcap"
)

// FileError is a file that could not be read.
type FileError struct {
	Name string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("read capture %q: %v", e.Name, e.Err) }

func (e *FileError) Unwrap() error { return e.Err }

// Errors of files that are valid captures.
var (
	// ErrTwice means that a file was named twice.
	ErrTwice = errors.New("it is named twice")
	// ErrAgain means that a pipe would have to be read twice, because its packets are not in
	// the order of time or flows were captured at several points.
	ErrAgain = errors.New("it must be read twice and is not a regular file")
)

// Read analyzes the files as one capture, merged by the times of their packets: one file for each
// path or interface, or one file of all. If a flow was captured at several points, each direction
// is measured at the point nearest to its receiver. In that case, and if packets are not in the
// order of time, the files are read twice. An error is a *FileError, or that of ctx; damaged parts
// of files are listed in the report.
func Read(ctx context.Context, names []string, o Options) (Report, error) {
	pipe, err := checkNames(names)
	if err != nil {
		return Report{}, err
	}
	o.names = names
	if o.SortMemory == 0 {
		o.SortMemory = DefaultSortMemory
	}
	a, files, err := pass(ctx, names, o, nil)
	if err != nil {
		return Report{}, err
	}
	sorting := a.m.MaxBack >= minBack
	if pipe != "" && (a.several || sorting) {
		return Report{}, &FileError{pipe, ErrAgain}
	}
	if a.several {
		places, err := survey(ctx, names)
		if err != nil {
			return Report{}, err
		}
		o.chosen = places
	}
	if a.several || sorting {
		var sorted *sorter
		if sorting {
			sorted = &sorter{back: a.m.MaxBack, memory: o.SortMemory, payload: a.summed}
		}
		if a, files, err = pass(ctx, names, o, sorted); err != nil {
			return Report{}, err
		}
	}
	r := a.Report()
	r.Files = files
	r.Missed = append(missedOf(files), r.Missed...)
	return r, nil
}

// checkNames returns the first name that is not a regular file, such as a pipe.
func checkNames(names []string) (pipe string, err error) {
	var seen []os.FileInfo
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return "", &FileError{name, err}
		}
		for _, s := range seen {
			if os.SameFile(s, info) {
				return "", &FileError{name, ErrTwice}
			}
		}
		seen = append(seen, info)
		if pipe == "" && !info.Mode().IsRegular() {
			pipe = name
		}
	}
	return pipe, nil
}

// source is a file with its next segment.
type source struct {
	name   string
	index  int
	file   *os.File
	reader *pcap.Reader
	packet pcap.Packet
	next   pcap.Segment
	at     point
	others [pcap.Verdicts]uint64
}

func openSource(name string, index int) (*source, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, &FileError{name, err}
	}
	r, err := pcap.New(f)
	if err != nil {
		f.Close()
		return nil, &FileError{name, err}
	}
	return &source{name: name, index: index, file: f, reader: r}, nil
}

// advance reads up to the next TCP segment; io.EOF is the end.
func (s *source) advance() error {
	for {
		if err := s.reader.Next(&s.packet); err != nil {
			if !errors.Is(err, io.EOF) {
				return &FileError{s.name, err}
			}
			return io.EOF
		}
		v := pcap.Decode(&s.packet, &s.next)
		s.others[v]++
		if v == pcap.TCP {
			// A cooked capture of all interfaces (SLL) has no interface names, but a
			// router's packets pass in and out.
			s.at = point{s.index, s.next.Interface, s.next.Index, s.packet.Link == pcap.LinkSLL && s.next.Direction == pcap.Outbound}
			return nil
		}
	}
}

func (s *source) report() File {
	st := s.reader.Stats()
	f := File{Name: s.name, Format: st.Format, Packets: st.Packets, Dropped: st.Dropped, Cut: st.Cut, faults: st.Faults, more: st.FaultCount - len(st.Faults)}
	for _, x := range st.Faults {
		f.LostBytes += x.Skipped
	}
	for v, n := range s.others {
		if n > 0 && pcap.Verdict(v) != pcap.TCP {
			if f.Others == nil {
				f.Others = map[string]uint64{}
			}
			f.Others[pcap.Verdict(v).String()] = n
		}
	}
	return f
}

// each calls do for all segments of the files, merged by time, until do returns an error.
func each(ctx context.Context, names []string, do func(*pcap.Segment, point) error) (files []File, err error) {
	var all, open []*source
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.file.Close())
		}
	}()
	for i, name := range names {
		s, err := openSource(name, i)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
		switch err := s.advance(); {
		case err == nil:
			open = append(open, s)
		case !errors.Is(err, io.EOF):
			return nil, err
		}
	}
	for n := 0; len(open) > 0; n++ {
		if n%8192 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		first := open[0]
		for _, s := range open[1:] {
			if s.next.At < first.next.At {
				first = s
			}
		}
		if err := do(&first.next, first.at); err != nil {
			return nil, err
		}
		if err := first.advance(); errors.Is(err, io.EOF) {
			open = slices.DeleteFunc(open, func(s *source) bool { return s == first })
		} else if err != nil {
			return nil, err
		}
	}
	for _, s := range all {
		files = append(files, s.report())
	}
	return files, nil
}

// pass analyzes the files once; if t is not nil, it sorts the segments by time.
func pass(ctx context.Context, names []string, o Options, t *sorter) (*Analysis, []File, error) {
	a := New(o)
	do := a.add
	if t != nil {
		t.do = a.add
		do = t.add
	}
	files, err := each(ctx, names, func(s *pcap.Segment, at point) error {
		do(s, at)
		if t != nil && t.full {
			return &FileError{names[at.file], ErrDisorder}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if t != nil {
		t.flush()
	}
	return a, files, nil
}

// sightings are the capture points of a flow.
type sightings struct {
	points []point
	hops   []uint8
	// later counts, for each point, the segments that had been captured at another point
	// before.
	later []int
	count []int
	seen  map[sighting]int
}

// sighting identifies a segment by fields that do not change on the path and differ between
// segments.
type sighting struct {
	seq, ack uint32
	payload  int
	flags    uint8
	options  uint64
}

// maxSightings is the number of segments of a flow that are compared between capture points.
const maxSightings = 512

// survey finds, for each flow captured at several points, the one nearest to the receiver: the one
// with the lowest hop limit or, if these are equal, the one where segments are captured last.
func survey(ctx context.Context, names []string) (map[pcap.Flow]point, error) {
	flows := map[pcap.Flow]*sightings{}
	_, err := each(ctx, names, func(s *pcap.Segment, at point) error {
		f := flows[s.Flow]
		if f == nil {
			f = &sightings{seen: map[sighting]int{}}
			flows[s.Flow] = f
		}
		i := slices.Index(f.points, at)
		if i < 0 {
			i = len(f.points)
			f.points, f.hops, f.later, f.count = append(f.points, at), append(f.hops, s.HopLimit), append(f.later, 0), append(f.count, 0)
		}
		f.count[i]++
		if s.HopLimit < f.hops[i] {
			f.hops[i] = s.HopLimit
		}
		k := sighting{s.Seq, s.Ack, s.Payload, s.Flags, digestOf(s.Options)}
		if n, ok := f.seen[k]; ok {
			f.later[i] += n
			f.seen[k]++
		} else if len(f.seen) < maxSightings {
			f.seen[k] = 1
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	chosen := map[pcap.Flow]point{}
	for flow, f := range flows {
		if len(f.points) < 2 {
			continue
		}
		best := 0
		for i := range f.points {
			// A point with few of the segments captured the flow only while its path
			// was different, and is not preferred.
			few, were := f.count[i]*2 < f.count[best], f.count[best]*2 < f.count[i]
			switch {
			case few:
			case were, f.hops[i] < f.hops[best], f.hops[i] == f.hops[best] && f.later[i] > f.later[best]:
				best = i
			}
		}
		chosen[flow] = f.points[best]
	}
	return chosen, nil
}

// digestOf returns the FNV-1a hash of b.
func digestOf(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// missedOf describes the parts of the files that could not be used.
func missedOf(files []File) []string {
	var list []string
	for _, f := range files {
		for _, x := range f.faults {
			list = append(list, fmt.Sprintf("%s: %v", f.Name, x))
		}
		if f.more > 0 {
			list = append(list, fmt.Sprintf("%s: %d more damaged parts", f.Name, f.more))
		}
		if f.Dropped > 0 {
			list = append(list, fmt.Sprintf("%s: the capturing program dropped %s", f.Name, count(f.Dropped, "packet")))
		}
		for v := range pcap.Verdicts {
			if n := f.Others[v.String()]; n > 0 {
				list = append(list, fmt.Sprintf("%s: %s %s", f.Name, count(n, "packet"), v))
			}
		}
	}
	return list
}
