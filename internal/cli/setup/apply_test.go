package setup

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestDaemonElsewhere: a daemon whose process is known runs, whatever network namespace it is in at
// that moment; one that is searched for is not found in others.
func TestDaemonElsewhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	cmd := exec.Command("sh", "-c", "read line", "sh", "gateway", "-c", file)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	netnstest.Do(t, netnstest.New(t), cmd.Start)
	defer func() {
		_ = input.Close()
		_ = cmd.Wait()
	}()
	for end := time.Now().Add(10 * time.Second); !(&Daemon{File: file, PID: cmd.Process.Pid}).Running(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon does not run")
		}
	}
	if (&Daemon{File: file}).Running() {
		t.Error("a daemon of another network namespace was found")
	}
}

// TestDirectory: a directory that the setup has made is removed with the rest, one that was there,
// or that has something of others by then, stays.
func TestDirectory(t *testing.T) {
	for name, tt := range map[string]struct{ before, others, stays bool }{
		"made":      {false, false, false},
		"was there": {true, false, true},
		"of others": {false, true, true},
	} {
		dir := filepath.Join(t.TempDir(), "tabane")
		if tt.before {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		r, err := NewRecord(filepath.Join(dir, "setup.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"gateway.yaml", "other.yaml"} {
			if err := r.Apply(Step{File: &File{Path: filepath.Join(dir, file), Text: "x"}}); err != nil {
				t.Fatal(err)
			}
		}
		if tt.others {
			if err := os.WriteFile(filepath.Join(dir, "gateway.quota"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if r, err = ReadRecord(filepath.Join(dir, "setup.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := r.UndoAll(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); (err == nil) != tt.stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnitDoesNotStart: the error of a unit that does not start has the reason that its daemon gave,
// if the journal has one.
func TestUnitDoesNotStart(t *testing.T) {
	for _, tt := range []struct{ journal, want string }{
		{"tabane: start gateway with \"g.yaml\": no such device", "start tabane-gateway.service: its last message: tabane: start gateway with \"g.yaml\": no such device"},
		{"", "systemctl enable --now tabane-gateway.service: exit status 1: Job failed."},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"systemctl": "echo Job failed.; exit 1", "journalctl": "printf '%s\\n' '" + tt.journal + "'"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir)
		if err := (&Daemon{Unit: true}).start(); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}
