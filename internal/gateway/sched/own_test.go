package sched

import (
	"os"
	"strings"
	"testing"
)

// The schedulers of docs/own.md, as they are there.

// own: newest fills the path with the longest round-trip time, others only when that has no room.
type newest struct{}

func (newest) Next(paths []Path, s Segment) Set {
	may, best := candidates(paths), -1
	for i := range paths {
		if may.Has(i) && paths[i].open(s.Size) && (best < 0 || paths[i].SRTT > paths[best].SRTT) {
			best = i
		}
	}
	if best < 0 {
		return 0 // wait
	}
	return One(best)
}

// own: twice sends two packets in a row on each path, whatever the paths are.
type twice struct{ sent int }

func (p *twice) Next(paths []Path, s Segment) Set {
	may := candidates(paths)
	for range len(paths) + 1 {
		if i := p.sent / 2 % len(paths); may.Has(i) && paths[i].open(s.Size) {
			p.sent++
			return One(i)
		}
		p.sent += 2 - p.sent%2 // the next path
	}
	return 0
}

// TestOwn: the rows of docs/own.md make a scheduler and a discipline of the types above, which do
// what the page says, and the page has the code of this file.
func TestOwn(t *testing.T) {
	before := schedulers
	defer func() { schedulers = before }()
	schedulers = append(schedulers[:len(schedulers):len(schedulers)],
		descriptor{name: "newest", use: connections, make: func(Options) Scheduler { return newest{} }},
		descriptor{name: "twice", use: packets, make: func(Options) Scheduler { return &twice{} }})
	slow, fast := open(), open()
	slow.SRTT, fast.SRTT = 50*ms, 10*ms
	full := slow
	full.Room = 0
	for _, tt := range []struct {
		name, want string
		paths      []Path
	}{
		{"newest", "0000", []Path{slow, fast}}, {"newest", "1111", []Path{full, fast}},
		{"twice", "00110011", []Path{slow, fast}}, {"twice", "1111", []Path{full, fast}},
	} {
		if got := drive(scheduler(t, tt.name, Options{}), tt.paths, len(tt.want)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	page, err := os.ReadFile("../../../docs/own.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("own_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(code), "// own: ")[1:3] {
		_, part, _ = strings.Cut(part, "\n")
		part, _, _ = strings.Cut(part, "\n\n//")
		if !strings.Contains(string(page), strings.TrimSpace(part)) {
			t.Errorf("docs/own.md does not have\n%s", part)
		}
	}
	for line := range strings.Lines(string(code)) {
		if row, ok := strings.CutPrefix(strings.TrimSpace(line), "descriptor{"); ok && !strings.Contains(string(page), "{"+strings.TrimRight(row, "),")) {
			t.Errorf("docs/own.md does not have the row {%s", row)
		}
	}
}
