package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/files"
	"github.com/tabane/tabane/internal/experiment/report"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/lab/labrun"
	"github.com/tabane/tabane/scenarios"
)

func TestResultDirectory(t *testing.T) {
	for _, tt := range []struct {
		name    string
		have    []string
		refused bool
		// left are the entries after a run that failed, replaced those after one that wrote a result.
		left, replaced []string
	}{
		{name: "missing", replaced: []string{"figures", "result.json"}},
		{name: "empty", have: []string{}, left: []string{}, replaced: []string{"figures", "result.json"}},
		{
			name: "result", have: []string{"result.json", "report.html", "series/1.csv", "figures/a.svg", "notes.txt"},
			left:     []string{"figures", "notes.txt", "report.html", "result.json", "series"},
			replaced: []string{"figures", "notes.txt", "result.json"},
		},
		{
			name: "killed while it replaced one", have: []string{".result-1/result.json", "series/1.csv"},
			left: []string{".result-1", "series"}, replaced: []string{".result-1", "figures", "result.json"},
		},
		{name: "foreign", have: []string{"notes.txt", "series/1.csv"}, refused: true, left: []string{"notes.txt", "series"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			put := func(dir, text string, names ...string) {
				t.Helper()
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				for _, name := range names {
					path := filepath.Join(dir, name)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := func(what string, names []string) {
				t.Helper()
				var got []string
				entries, err := os.ReadDir(dir)
				if (err != nil) != (names == nil) {
					t.Fatalf("%s: read directory: %v", what, err)
				}
				for _, e := range entries {
					got = append(got, e.Name())
				}
				if !slices.Equal(got, names) {
					t.Errorf("%s: got %q, want %q", what, got, names)
				}
			}
			if tt.have != nil {
				put(dir, "old", tt.have...)
			}
			made, err := resultDirectory(dir)
			if (err != nil) != tt.refused {
				t.Fatalf("got %v", err)
			}
			if tt.refused {
				want("refused", tt.left)
				return
			}
			err = replaceResult(dir, func(dir string) error {
				put(dir, "new", "figures/b.svg")
				return &fs.PathError{Op: "write", Path: filepath.Join(dir, ".x"), Err: syscall.ENOSPC}
			})
			if text := fmt.Sprintf("write report to %q: no space left on device; free space there, or name another path", dir); err == nil || err.Error() != text {
				t.Errorf("got %v, want %s", err, text)
			}
			made.leave()
			want("failed", tt.left)

			if made, err = resultDirectory(dir); err != nil {
				t.Fatal(err)
			}
			if err := replaceResult(dir, func(dir string) error { put(dir, "new", "figures/b.svg", "result.json"); return nil }); err != nil {
				t.Fatal(err)
			}
			made.leave()
			want("replaced", tt.replaced)
			if b, err := os.ReadFile(filepath.Join(dir, "result.json")); err != nil || string(b) != "new" {
				t.Errorf("result.json: got %q, %v, want new", b, err)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := resultDirectory(file); err == nil {
		t.Error("a file was taken for a directory")
	}
}

// TestResultIsKept: where the report cannot be written, the result alone is in a temporary file.
func TestResultIsKept(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	spec, err := loadScenario("epe-steady")
	if err != nil {
		t.Fatal(err)
	}
	o := labOutcome{spec: spec, lab: result.Result{Schema: result.Schema, Scenario: "epe-steady", Backend: result.BackendLab, Runs: []result.Run{
		{CellKey: result.CellKey{Case: "1.1", Traffic: "bi", Transport: "tcp"}, Metrics: map[string]float64{result.Goodput: 1e6}}}}}
	err = o.write(filepath.Join(t.TempDir(), "gone"), report.Extra{})
	if err == nil {
		t.Fatal("no error")
	}
	_, kept, _ := strings.Cut(err.Error(), "figures is in ")
	kept, _, _ = strings.Cut(kept, ",")
	if r, err := readResult(kept); err != nil || len(r.Runs) != 1 {
		t.Errorf("%q: %v, %d runs", kept, err, len(r.Runs))
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

// TestListLabsWidth: the table of labs fits into a terminal, and is not broken elsewhere.
func TestListLabsWidth(t *testing.T) {
	infos := []lab.Info{
		{Name: "epe-clients", Condition: lab.Running, Scenario: "epe-clients", Nodes: strings.Fields("asbr1 asbr2 asbr3 client client-isp reflector server transit-a transit-b transit-c")},
		{Name: "two", Condition: lab.Stale, Scenario: "gateway-pair"},
	}
	for width, lines := range map[int]int{0: 3, 80: 5} {
		var b strings.Builder
		if err := listLabs(&b, infos, width); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(b.String(), "\n"); got != lines {
			t.Errorf("width %d: %d lines, want %d:\n%s", width, got, lines, b.String())
		}
		for line := range strings.Lines(b.String()) {
			if width > 0 && len(strings.TrimRight(line, " \n")) > width {
				t.Errorf("wider than %d: %s", width, line)
			}
		}
		if strings.Count(b.String(), "transit-c") != 1 {
			t.Errorf("width %d: nodes are missing:\n%s", width, b.String())
		}
	}
}

// TestKilledRun: what a killed run has saved is moved beside the directory of the next one, where lab
// merge reads it, and nothing is moved otherwise.
func TestKilledRun(t *testing.T) {
	var messages bytes.Buffer
	a := &app{cli.NewApp(cli.Options{Out: io.Discard, Err: &messages})}
	dir := filepath.Join(t.TempDir(), "steady")
	if _, err := resultDirectory(dir); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := (result.Result{Schema: result.Schema, Scenario: "steady"}).Encode(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, savedFile), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := resultDirectory(dir); err != nil {
		t.Errorf("the next run is refused: %v", err)
	}
	for range 2 {
		if err := a.setKilledAside(dir); err != nil {
			t.Fatal(err)
		}
	}
	part := dir + "-part1"
	if r, err := readResult(part); err != nil || r.Scenario != "steady" {
		t.Errorf("it reads %q, %v", r.Scenario, err)
	}
	if got := messages.String(); strings.Count(got, part) != 1 {
		t.Errorf("it says %q", got)
	}
	if _, err := os.Lstat(dir + "-part2"); err == nil {
		t.Error("nothing was moved twice")
	}
}
