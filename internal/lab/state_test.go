package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/lab/labtest"
)

func TestParseStat(t *testing.T) {
	const rest = " 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0"
	for in, want := range map[string]struct {
		start uint64
		state byte
		bad   bool
	}{
		"42 (tabane) S" + rest:             {start: 4711, state: 'S'},
		"42 (a) R 1 (b) (x y)) Z" + rest:   {start: 4711, state: 'Z'},
		"42 (new\nline) S" + rest:          {start: 4711, state: 'S'},
		"42 (tabane) S 1 1":                {bad: true},
		"42 tabane S" + rest:               {bad: true},
		"42 (tabane) S" + rest[:41] + " x": {bad: true},
		"":                                 {bad: true},
	} {
		got, err := parseStat([]byte(in))
		if (err != nil) != want.bad || !want.bad && got != (stat{want.start, want.state, 1}) {
			t.Errorf("%q: got %+v, %v", in, got, err)
		}
	}
}

// A process whose first thread has exited is alive as long as another thread runs, which may be
// about to call exec.
func TestAliveWithoutItsFirstThread(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "headless")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line := readLine(t, out.(*os.File)); line != "headless" {
		t.Fatalf("it says %q", line)
	}
	st, err := procStat(cmd.Process.Pid)
	for err == nil && st.state != 'Z' { // it prints the line just before it exits the thread
		st, err = procStat(cmd.Process.Pid)
	}
	p := process{PID: cmd.Process.Pid, Start: st.start}
	if err != nil || !p.alive() {
		t.Errorf("is taken for dead: %+v, %v", st, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	if p.alive() {
		t.Error("is taken for alive when it has ended")
	}
}

// Down must not remove namespaces of a modified state file that are not a lab's.
func TestReadStateRefuses(t *testing.T) {
	labtest.NeedRoot(t)
	name := labtest.Prefix() + "state"
	if err := os.MkdirAll(dirOf(name), 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dirOf(name))
	for in, want := range map[string]string{
		"{":                                     "read state of lab",
		`{"namespaces": ["host"]}`:              `namespace "host" is not a lab's`,
		`{"namespaces": ["tabane-/../../etc"]}`: "is not a lab's",
	} {
		if err := os.WriteFile(filepath.Join(dirOf(name), stateFile), []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Down(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
}

// TestOpenWhileBuilt: a lab that is being built is no lab to remove.
func TestOpenWhileBuilt(t *testing.T) {
	labtest.NeedRoot(t)
	name := labtest.Prefix() + "built"
	if err := os.MkdirAll(dirOf(name), 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dirOf(name))
	owner, err := self()
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	s := state{Boot: boot, Owner: owner}
	if err := s.write(name); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(name); err == nil || !strings.Contains(err.Error(), "building") || strings.Contains(err.Error(), "down") {
		t.Errorf("while it is built: %v", err)
	}
	s.Owner.Start++ // another process
	if err := s.write(name); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(name); err == nil || !strings.Contains(err.Error(), "it is stale: tabane lab down") {
		t.Errorf("when its process is gone: %v", err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) R (b)) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b); err != nil && s.state != 0 {
			t.Errorf("%+v with error %v", s, err)
		}
	})
}
