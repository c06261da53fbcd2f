package lab

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/lab/labrun"
)

// sampleInterval is how often the lab reports a rate.
const sampleInterval = 100 * time.Millisecond

// screen shows the progress of a run: on a terminal a line for the run and one for each lab, which
// are overwritten; otherwise a line for each step. Log output is written through it, so that it
// does not mix with the live lines.
type screen struct {
	w io.Writer
	// columns is the width of the terminal. Lines are cut to it, because wrapped lines could
	// not be overwritten.
	columns int
	live    bool

	mu    sync.Mutex
	begun bool
	labs  map[string]*labLine
	last  labrun.Event
	drawn time.Time
	lines int // on the terminal now
}

// labLine is the current activity of a lab.
type labLine struct {
	doing string
	meter cli.RateMeter
}

func newScreen(w io.Writer, columns int) *screen {
	return &screen{w: w, columns: columns, live: columns > 0, labs: map[string]*labLine{}}
}

// Write writes log output above the live lines.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	n, err := s.w.Write(p)
	s.draw()
	return n, err
}

// clear removes the live lines.
func (s *screen) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.labs = map[string]*labLine{}
}

// event processes an event of the run.
func (s *screen) event(e labrun.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = e
	if !s.begun {
		s.begun = true
		fmt.Fprintf(s.w, "%d runs, about %s in all\n", e.Total, clock(e.ETA))
	}
	l := s.labs[e.Lab]
	if l == nil && e.Lab != "" {
		l = &labLine{}
		s.labs[e.Lab] = l
	}
	switch e.Kind {
	case labrun.LabStarting:
		l.doing = "starting"
		s.plain("starting lab %s", e.Lab)
	case labrun.LabReady:
		l.doing = "ready"
		s.plain("lab %s is ready after %s", e.Lab, clock(e.Elapsed))
	case labrun.RunStarted:
		l.doing = fmt.Sprintf("%s, trial %d", e.CellKey, e.Trial+1)
		l.meter = cli.RateMeter{}
	case labrun.RunSample:
		l.meter.Add(int64(e.Rate.SizeIn(sampleInterval)), sampleInterval)
		if s.live && time.Since(s.drawn) < cli.Redraw {
			return
		}
	case labrun.LabRestoring:
		l.doing = fmt.Sprintf("%s, trial %d: undoing its events", e.CellKey, e.Trial+1)
		l.meter = cli.RateMeter{}
	case labrun.RunDone:
		l.doing = "done"
		l.meter = cli.RateMeter{}
		s.plain("[%d/%d] %s, trial %d: %s; %s elapsed, about %s to go", e.Done, e.Total, e.CellKey, e.Trial+1, outcome(e.Run),
			clock(e.Elapsed), clock(e.ETA))
	case labrun.LabsRemoving:
		s.labs = map[string]*labLine{}
		s.plain("removing the labs")
	}
	s.erase()
	s.draw()
}

func outcome(r *result.Run) string {
	if err := r.Err(); err != nil {
		return "FAILED: " + cli.OneLine(err.Error())
	}
	if followed, ok := r.Metrics[result.EPERoute]; ok {
		return fmt.Sprintf("EPE Route after %.1f ms", 1000*followed)
	}
	if task, ok := r.Metrics[result.TaskTime]; ok {
		return fmt.Sprintf("views after %.2f s, task of %.1f s, %.0f conditions met", r.Metrics[result.Waiting], task, r.Metrics[result.Effectiveness])
	}
	return cli.Megabits(r.Metrics[result.Goodput])
}

// plain prints a line if there are no live lines.
func (s *screen) plain(format string, args ...any) {
	if !s.live {
		fmt.Fprintf(s.w, format+"\n", args...)
	}
}

// erase removes the live lines from the terminal.
func (s *screen) erase() {
	if s.lines > 0 {
		fmt.Fprintf(s.w, "\x1b[%dA\x1b[J", s.lines)
		s.lines = 0
	}
}

// draw draws the live lines on the terminal.
func (s *screen) draw() {
	if !s.live || len(s.labs) == 0 {
		return
	}
	e := s.last
	lines := []string{fmt.Sprintf("%d of %d runs done, %s elapsed, about %s to go", e.Done, e.Total, clock(e.Elapsed), clock(e.ETA))}
	for _, name := range slices.Sorted(maps.Keys(s.labs)) {
		l := s.labs[name]
		line := fmt.Sprintf("  %-16s %-36s", name, l.doing)
		if !l.meter.Empty() {
			line += fmt.Sprintf(" %14s", cli.Megabits(l.meter.Rate()))
		}
		lines = append(lines, line)
	}
	for i, line := range lines {
		if r := []rune(line); len(r) >= s.columns {
			lines[i] = string(r[:s.columns-1])
		}
	}
	fmt.Fprintln(s.w, strings.Join(lines, "\n"))
	s.lines, s.drawn = len(lines), time.Now()
}

// clock prints a time as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
