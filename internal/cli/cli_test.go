package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/config"
	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/labrun"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/unit"
	"github.com/tabane/tabane/scenarios"
)

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		code int
		text string
	}{
		{"nothing wrong", nil, 0, ""},
		{"does not hold", fmt.Errorf("run: %w", errUnmet), 1, ""},
		{"failure", &failure{what: "serve", on: "port", why: errors.New("taken"), do: "choose another"}, 2, "tabane: serve, on port: taken; choose another\n"},
		{"failure of a path", fileFailure("read", "a", &os.PathError{Op: "open", Path: "a", Err: os.ErrNotExist}), 2, "tabane: read, on a: file does not exist; check the path\n"},
		{"several lines", errors.Join(errors.New("a"), errors.New("b")), 2, "tabane: a; b\n"},
		{"faults", &config.Error{File: "f", Faults: []config.Fault{
			{Line: 1, Column: 2, Fault: fault.Fault{Path: "p", Message: "m"}}, {Fault: fault.Fault{Message: "n"}},
		}}, 2, "f:1:2: p: m\nf: n\n"},
	} {
		var out bytes.Buffer
		a := &app{err: &out}
		if got := a.finish(tt.err); got != tt.code || out.String() != tt.text {
			t.Errorf("%s: exit code %d and %q, want %d and %q", tt.name, got, out.String(), tt.code, tt.text)
		}
	}
}

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

func TestPrintStatus(t *testing.T) {
	const body = `{"role":"edge","ready":true,"asn":65000,"none":null,"locators":["fc00::/16","fd00::/16"],
		"peers":[{"name":"a","routes":2},{"name":"bcd","routes":10,"last_error":"gone"}],"mptcp":{"subflows":8},"refused":{},
		"sessions":[{"neighbor":"a","faults":{"ignored":0},"messages_sent":{"open":1}},{"neighbor":"b","faults":{"ignored":0},"messages_sent":{"open":1,"keepalive":0,"update":3}}],
		"odd":[[1]]}`
	var out bytes.Buffer
	if err := printStatus(&out, source{"edge", netip.MustParseAddrPort("[::1]:9117")}, []byte(body), false); err != nil {
		t.Fatal(err)
	}
	want := `edge at [::1]:9117
  role      edge
  ready     yes
  asn       65000
  none      -
  locators  fc00::/16, fd00::/16
  refused   -
  peers
    NAME  ROUTES  LAST ERROR
    a     2       
    bcd   10      gone
  mptcp
    subflows  8
  sessions
    NEIGHBOR  MESSAGES SENT
    a         1 open
    b         1 open, 3 update
  odd
    [[1]]
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	overview, err := selectKeys([]byte(body), withoutMessages)
	if err != nil || string(overview) != strings.NewReplacer(`,"messages_sent":{"open":1}`, "", `,"messages_sent":{"open":1,"keepalive":0,"update":3}`, "", "\n\t\t", "").Replace(body) {
		t.Errorf("overview %s: %v", overview, err)
	}
	for _, bad := range []string{"", "[]", "hello", `{"a":`} {
		if err := printStatus(io.Discard, source{}, []byte(bad), false); err == nil {
			t.Errorf("%q was printed", bad)
		}
	}
}

// fakeMachine runs until its context ends, or fails.
type fakeMachine struct{ fail error }

func (m fakeMachine) Run(ctx context.Context) error {
	if m.fail != nil {
		return m.fail
	}
	<-ctx.Done()
	return ctx.Err()
}

func (fakeMachine) Status() any {
	return struct {
		Ready bool `json:"ready"`
	}{true}
}

func TestMonitor(t *testing.T) {
	l, err := listen(t.Context(), netip.MustParseAddrPort("[::1]:0"))
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- monitor(ctx, slog.New(slog.DiscardHandler), netip.AddrPort{}, l, "edge", "1.2", fakeMachine{})
	}()

	body, err := ask(t.Context(), at, "/status")
	if err != nil || string(body) != "{\"ready\":true}\n" {
		t.Errorf("status: got %q, %v", body, err)
	}
	resp, err := http.Get("http://" + at.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`tabane_build_info{role="edge",version="1.2"} 1`, "tabane_ready 1", "go_goroutines", "process_open_fds"} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stopped: got %v", err)
	}
	if c, err := net.Dial("tcp", at.String()); err == nil {
		c.Close()
		t.Error("the status is still served")
	}

	// If the machine fails, monitor ends and returns its error.
	l, err = listen(t.Context(), netip.MustParseAddrPort("[::1]:0"))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := monitor(t.Context(), slog.New(slog.DiscardHandler), netip.AddrPort{}, l, "edge", "1.2", fakeMachine{fail: broken}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
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

func TestRateMeter(t *testing.T) {
	var m rateMeter
	if got := m.rate(); got != 0 {
		t.Errorf("nothing: got %v", got)
	}
	for range 20 {
		m.add(0, 100*time.Millisecond)
	}
	for range 10 {
		m.add(125_000, 100*time.Millisecond) // 10 Mbit/s for the last second
	}
	if got := m.rate(); got != 10e6 {
		t.Errorf("got %v", got)
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
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %v, %v", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		// Not the files that an example names: a gateway's key is nobody else's.
		if _, err := config.Parse(f, text); err != nil {
			t.Error(err)
		}
	}
}
