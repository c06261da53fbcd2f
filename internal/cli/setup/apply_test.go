package setup

import (
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
