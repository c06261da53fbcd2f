// Package netnstest gives tests network namespaces of their own and fails a test run that leaves
// anything behind, and has traffic between them measured. It gives them no interfaces.
package netnstest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
)

// pollerFiles is how many files the runtime's poller opens at its first use and keeps.
const pollerFiles = 4

// maxSuffix keeps names of namespaces within the limit of package netns, 64 bytes.
const maxSuffix = 36

// Main runs a package's tests. A namespace, a file, or a BPF program, map or link that they leave
// behind fails the run.
func Main(m *testing.M) {
	before, _, _ := openFiles()
	code := m.Run()
	if left, err := netns.List(prefix()); err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "network namespaces left behind: %q %v\n", left, err)
		code = 1
	}
	after, names, bpf := openFiles()
	if len(bpf) > 0 {
		fmt.Fprintf(os.Stderr, "BPF objects left open: %q\n", bpf)
		code = 1
	}
	// Fuzzing opens files of its own.
	if after > before+pollerFiles && flag.Lookup("test.fuzz").Value.String() == "" {
		fmt.Fprintf(os.Stderr, "files left open: %d before the tests, %d after: %q\n", before, after, names)
		code = 1
	}
	os.Exit(code)
}

// openFiles counts and names the open files, and the BPF objects among them.
func openFiles() (n int, names, bpf []string) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, nil, nil
	}
	for _, f := range files {
		name, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err != nil {
			continue // the directory itself
		}
		names = append(names, name)
		if strings.HasPrefix(name, "anon_inode:bpf") {
			bpf = append(bpf, name)
		}
	}
	return len(files), names, bpf
}

func prefix() string { return fmt.Sprintf("tabane-test-%d-", os.Getpid()) }

// Need skips the test when this process cannot make namespaces; where TABANE_LAB=require it fails
// instead.
func Need(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("TABANE_LAB") == "require" {
		t.Fatal("making network namespaces needs root")
	}
	t.Skip("making network namespaces needs root")
}

// New makes a namespace and returns its name. It is deleted when the test ends.
func New(t testing.TB) string {
	t.Helper()
	Need(t)
	suffix := strings.NewReplacer("/", "-", "#", "-", "=", "-", ",", "-").Replace(strings.ToLower(t.Name()))
	suffix = suffix[:min(len(suffix), maxSuffix)]
	name := prefix() + suffix
	for i := 2; exists(t, name); i++ {
		name = fmt.Sprintf("%s%s.%d", prefix(), suffix, i)
	}
	if err := netns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(name); err != nil {
			t.Error(err)
		}
	})
	return name
}

func exists(t testing.TB, name string) bool {
	t.Helper()
	names, err := netns.List(name)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(names, name)
}

// Enter moves the calling test to a thread of its own in a new namespace, whose name it returns.
// The thread ends with the test's goroutine: no other ever runs in this namespace.
func Enter(t *testing.T) string {
	t.Helper()
	name := New(t)
	runtime.LockOSThread()
	f, err := os.Open("/run/netns/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatalf("enter network namespace %q: %v", name, err)
	}
	return name
}

// Do calls f in a namespace; its error fails the test.
func Do(t testing.TB, namespace string, f func() error) {
	t.Helper()
	if err := netns.Do(namespace, f); err != nil {
		t.Fatal(err)
	}
}

// Start starts a program in a namespace. It and its children are killed when the test ends.
func Start(t testing.TB, namespace string, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := netns.Start(namespace, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
}
