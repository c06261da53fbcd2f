package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/kernel/contain"
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
	// the order of time, a clock stepped, or flows were captured at several points.
	ErrAgain = errors.New("it must be read twice and is not a regular file")
)

// Read analyzes the files as one capture, merged by the times of their packets: one file for each
// path or interface, or one file of all, and the files of a capture with rotation in any order. If
// the same segments of a flow were captured at several points, each direction is measured at the
// point nearest to its receiver; points with different segments are merged. Copies of a packet at
// one point count once, and steps of a clock are removed. In these cases, and if packets are not in
// the order of time, the files are read again. An error is a *FileError, or that of ctx; damaged
// parts of files are listed in the report.
func Read(ctx context.Context, names []string, o Options) (Report, error) {
	pipe, err := checkNames(names)
	if err != nil {
		return Report{}, err
	}
	o.names = names
	if o.SortMemory == 0 {
		o.SortMemory = DefaultSortMemory
	}
	watched := make([]clocks, len(names))
	for i := range watched {
		watched[i] = clocks{}
	}
	a, files, err := pass(ctx, input{names: names, clocks: watched}, o, nil)
	if err != nil {
		return Report{}, err
	}
	in := input{names: names, times: timelineOf(names, watched)}
	if pipe != "" && (a.several || a.m.MaxBack >= minBack || in.times.stepped()) {
		return Report{}, &FileError{pipe, ErrAgain}
	}
	if in.times.stepped() {
		if a, files, err = pass(ctx, in, o, nil); err != nil {
			return Report{}, err
		}
	}
	sorting := a.m.MaxBack >= minBack
	if a.several {
		if o.excluded, err = survey(ctx, in); err != nil {
			return Report{}, err
		}
		o.surveyed = true
	}
	if a.several || sorting {
		var sorted *sorter
		if sorting {
			sorted = &sorter{back: a.m.MaxBack, memory: o.SortMemory, payload: a.summed}
		}
		if a, files, err = pass(ctx, in, o, sorted); err != nil {
			return Report{}, err
		}
	}
	for i := range files {
		files[i].ClockSteps = in.times.steps[i]
	}
	var r Report
	if err := contain.Do(contain.Capture, nil, nil, func() { r = a.Report() }); err != nil {
		return Report{}, &FileError{strings.Join(names, ", "), err}
	}
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
	unread map[pcap.LinkType]uint64
	clocks clocks // nil if the times are not watched
	shifts shifts
}

// input is what is read: the files, with the corrections of their times.
type input struct {
	names  []string
	times  *timeline
	clocks []clocks // if not nil, they watch the times
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
		if v == pcap.UnknownLink {
			if s.unread == nil {
				s.unread = map[pcap.LinkType]uint64{}
			}
			s.unread[s.packet.Link]++
		}
		if v == pcap.TCP {
			if s.clocks != nil {
				s.clocks.add(&s.next)
			}
			s.next.At += int64(s.shifts.correct(s.next.Number, s.next.Interface))
			// A cooked capture of all interfaces (SLL) has no interface names, but a
			// router's packets pass in and out.
			s.at = pointOf(&s.next, place{s.index, s.next.Interface, s.next.Index, s.packet.Link == pcap.LinkSLL && s.next.Direction == pcap.Outbound})
			return nil
		}
	}
}

// panicked returns the error of a panic that the file's last packet caused. s is nil if no file was
// read yet.
func (s *source) panicked(value any) error {
	fault := contain.Caught(value, contain.Capture, nil, nil)
	if s == nil {
		return fault
	}
	return &FileError{s.name, fmt.Errorf("packet %d: %w", s.packet.Number, fault)}
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
	for link, n := range s.unread {
		if f.UnreadLinks == nil {
			f.UnreadLinks = map[string]uint64{}
		}
		f.UnreadLinks[link.String()] = n
	}
	return f
}

// each calls do for all segments of the files, merged by time, until do returns an error.
func each(ctx context.Context, in input, do func(*pcap.Segment, point) error) (files []File, err error) {
	var all, open []*source
	var current *source
	defer func() {
		if value := recover(); value != nil {
			err = current.panicked(value)
		}
	}()
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.file.Close())
		}
	}()
	for i, name := range in.names {
		s, err := openSource(name, i)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
		current = s
		s.shifts = in.times.of(i)
		if in.clocks != nil {
			s.clocks = in.clocks[i]
		}
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
		current = first
		contain.Point(contain.Capture, nil)
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
func pass(ctx context.Context, in input, o Options, t *sorter) (*Analysis, []File, error) {
	a := New(o)
	do := a.add
	if t != nil {
		t.do = a.add
		do = t.add
	}
	files, err := each(ctx, in, func(s *pcap.Segment, at point) error {
		do(s, at)
		if t != nil && t.full {
			return &FileError{in.names[at.file], ErrDisorder}
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

// maxSteps is the number of steps of a clock that are described.
const maxSteps = 4

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
		for i, step := range f.ClockSteps {
			if n := len(f.ClockSteps) - i; i == maxSteps && n > 1 {
				list = append(list, fmt.Sprintf("%s: %d more steps of its clock", f.Name, n))
				break
			}
			list = append(list, fmt.Sprintf("%s: %v", f.Name, step))
		}
		for _, link := range slices.Sorted(maps.Keys(f.UnreadLinks)) {
			list = append(list, fmt.Sprintf("%s: %s of link type %s, which is not read", f.Name, count(f.UnreadLinks[link], "packet"), link))
		}
		for v := range pcap.Verdicts {
			if n := f.Others[v.String()]; n > 0 && v != pcap.UnknownLink {
				list = append(list, fmt.Sprintf("%s: %s %s", f.Name, count(n, "packet"), v))
			}
		}
	}
	return list
}
