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

func TestKeep(t *testing.T) {
	if os.Getenv(child) != "" {
		if err := Keep(NetAdmin, BPF); errors.Is(err, syscall.ENOTSUP) {
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
			for _, want := range []string{"CapPrm:\t0000008000001000\n", "CapEff:\t0000008000001000\n", "CapInh:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
				if !strings.Contains(string(b), want) {
					t.Errorf("thread %s lacks %q in:\n%s", task.Name(), want, b)
				}
			}
		}
		// Neither does a program that it executes gain them, although its user is root.
		out, err := exec.Command("cat", "/proc/self/status").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "CapEff:\t0000008000001000\n") {
			t.Errorf("a child has %s, %v", out, err)
		}
		// What is dropped cannot be kept.
		if err := Keep(SysAdmin); err != nil {
			t.Fatal(err)
		}
		if lacking, err := Lacking(NetAdmin, SysAdmin); err != nil || len(lacking) != 2 {
			t.Errorf("lacks %v, %v", lacking, err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=TestKeep", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
