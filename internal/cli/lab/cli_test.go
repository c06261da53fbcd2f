package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/cli/files"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/lab/labrun"
	"github.com/tabane/tabane/scenarios"
)

func TestFreshen(t *testing.T) {
	for _, tt := range []struct {
		name        string
		have        []string
		refused     bool
		left, taken []string
	}{
		{name: "missing"},
		{name: "empty", have: []string{}},
		{name: "result", have: []string{"result.json", "report.html", "series/1.csv", "figures/a.svg", "notes.txt"},
			left: []string{"notes.txt"}, taken: []string{"result.json", "report.html", "series", "figures"}},
		{name: "interrupted", have: []string{"series/1.csv"}, taken: []string{"series"}},
		{name: "foreign", have: []string{"notes.txt"}, refused: true, left: []string{"notes.txt"}},
		{name: "foreign with series", have: []string{"notes.txt", "series/1.csv"}, refused: true, left: []string{"notes.txt", "series/1.csv"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			if tt.have != nil {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range tt.have {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err := clearResult(dir)
			if (err != nil) != tt.refused {
				t.Fatalf("got %v", err)
			}
			for _, name := range tt.left {
				if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
					t.Errorf("%s is gone: %v", name, err)
				}
			}
			for _, name := range tt.taken {
				if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
					t.Errorf("%s is still there", name)
				}
			}
			if _, err := os.Stat(dir); err != nil {
				t.Error(err)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := clearResult(file); err == nil {
		t.Error("a file was taken for a directory")
	}
}

func TestScreen(t *testing.T) {
	key := result.CellKey{Case: "1.1", Traffic: "bi", Transport: "tcp"}
	events := []labrun.Event{
		{Kind: labrun.LabStarting, Lab: "x", Total: 2, ETA: 95 * time.Second},
		{Kind: labrun.LabReady, Lab: "x", Total: 2, Elapsed: time.Second},
		{Kind: labrun.RunStarted, Lab: "x", CellKey: key, Total: 2, ETA: 90 * time.Second},
		{Kind: labrun.RunSample, Lab: "x", CellKey: key, Total: 2, Rate: 20 * unit.MbitPerSecond},
		{Kind: labrun.RunDone, Lab: "x", CellKey: key, Done: 1, Total: 2, Elapsed: 62 * time.Second, ETA: time.Minute,
			Run: &result.Run{CellKey: key, Metrics: map[string]float64{result.Goodput: 28.5e6}}},
		{Kind: labrun.RunDone, Lab: "x", CellKey: key, Trial: 1, Done: 2, Total: 2,
			Run: &result.Run{CellKey: key, Notes: map[string]string{result.NoteError: "no\nroute"}}},
		{Kind: labrun.LabsRemoving, Done: 2, Total: 2},
	}
	var out bytes.Buffer
	s := newScreen(&out, 0)
	for _, e := range events {
		s.event(e)
	}
	want := `2 runs, about 1:35 in all
starting lab x
lab x is ready after 0:01
[1/2] 1.1 bi tcp, trial 1: 28.50 Mbit/s; 1:02 elapsed, about 1:00 to go
[2/2] 1.1 bi tcp, trial 2: FAILED: no; route; 0:00 elapsed, about 0:00 to go
removing the labs
`
	if out.String() != want {
		t.Errorf("plain: got\n%s\nwant\n%s", out.String(), want)
	}

	out.Reset()
	s = newScreen(&out, 60)
	for _, e := range events[:4] {
		s.event(e)
		s.drawn = time.Time{}
	}
	if text := out.String(); !strings.Contains(text, "0 of 2 runs done") || !strings.Contains(text, "1.1 bi tcp, trial 1") {
		t.Errorf("live: got %q", text)
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if text := line[strings.LastIndex(line, "\x1b[J")+1:]; len(strings.TrimPrefix(text, "[J")) >= 60 {
			t.Errorf("live: a line wraps: %q", line)
		}
	}
	out.Reset()
	if _, err := s.Write([]byte("log line\n")); err != nil {
		t.Fatal(err)
	}
	// The live lines are erased, the log line is printed, and the live lines are drawn below
	// it.
	if text := out.String(); !strings.HasPrefix(text, "\x1b[2A\x1b[Jlog line\n0 of 2") {
		t.Errorf("log: got %q", text)
	}
	out.Reset()
	s.clear()
	s.event(events[6])
	if text := out.String(); text != "\x1b[2A\x1b[J" {
		t.Errorf("cleared: got %q", text)
	}
}

// TestScenarios loads every embedded scenario.
func TestScenarios(t *testing.T) {
	names := scenarios.Names()
	if len(names) == 0 {
		t.Fatal("there are none")
	}
	for _, name := range names {
		spec, err := loadScenario(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if spec.Name != name {
			t.Errorf("%s calls itself %q", name, spec.Name)
		}
	}
	for _, name := range []string{"../x", "", ".", "epe-steady\x00"} {
		if _, err := scenarios.Read(name); err == nil {
			t.Errorf("%q was read", name)
		}
	}
}

// TestExamples checks that the shipped examples are valid.
func TestExamples(t *testing.T) {
	examples, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("got %v, %v", examples, err)
	}
	for _, f := range examples {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		// Not the files that an example names: a gateway's key is nobody else's.
		if _, err := files.Parse(f, text); err != nil {
			t.Error(err)
		}
	}
}
