package acceptance

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestKilledWebRun: of an experiment with browsers that is killed, `lab down` leaves nothing
// behind: neither namespaces nor processes nor what the browsers have in the directory for
// temporary files.
func TestKilledWebRun(t *testing.T) {
	needLab(t)
	programs.Need(t, "chromium")
	unlock, err := bpftest.LockNames()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	temporary, name := t.TempDir(), labPrefix()+"web"
	command := func(args ...string) *exec.Cmd {
		c := exec.Command(program, args...)
		c.Env = append(os.Environ(), "TMPDIR="+temporary)
		return c
	}
	run := command("lab", "run", "webqoe", "--quick", "--case", "env3", "--traffic", "map", "--transport", "lia", "--name", name, "--out", filepath.Join(t.TempDir(), "out"))
	var output bytes.Buffer
	run.Stdout, run.Stderr = &output, &output
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	down := func() {
		t.Helper()
		if out, err := command("lab", "down", name).CombinedOutput(); err != nil {
			t.Errorf("lab down: %v\n%s", err, out)
		}
	}
	for begun := time.Now(); len(browsersIn(t, temporary)) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			_ = run.Process.Kill()
			_ = run.Wait()
			down()
			t.Fatalf("no browser has started:\n%s", output.String())
		}
	}
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait() // killed
	down()
	for _, p := range browsersIn(t, temporary) {
		t.Errorf("process left: %s", p)
	}
	left, err := os.ReadDir(temporary)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("left behind: %s", e.Name())
	}
}

// browsersIn returns the command lines of processes whose profile is in a directory.
func browsersIn(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		text, _ := os.ReadFile(path) // an error means that it has exited
		if words := strings.ReplaceAll(string(text), "\x00", " "); strings.Contains(words, "--user-data-dir="+dir) {
			found = append(found, words)
		}
	}
	return found
}
