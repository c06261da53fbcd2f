package privilege

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// child is set in the process that drops its capabilities: it cannot have them back.
const child = "TABANE_TEST_DROP"

func TestKeepNetAdmin(t *testing.T) {
	if os.Getenv(child) != "" {
		if err := KeepNetAdmin(false); errors.Is(err, syscall.ENOTSUP) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		// Every thread has dropped them.
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil || len(tasks) < 2 {
			t.Fatalf("%d threads, %v", len(tasks), err)
		}
		for _, task := range tasks {
			b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"CapPrm:\t0000000000001000\n", "CapEff:\t0000000000001000\n", "CapInh:\t0000000000000000\n"} {
				if !strings.Contains(string(b), want) {
					t.Errorf("thread %s lacks %q in:\n%s", task.Name(), want, b)
				}
			}
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=TestKeepNetAdmin", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
