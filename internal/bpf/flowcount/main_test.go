package flowcount

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/netns"
)

// prefix is how the namespaces of these tests begin.
const prefix = "tabane-test-flowcount-"

func TestMain(m *testing.M) {
	files, _ := openFiles()
	code := m.Run()
	left, err := netns.List(prefix)
	if len(left) > 0 || err != nil {
		fmt.Fprintln(os.Stderr, "namespaces are left behind:", left, err)
		code = 1
	}
	after, kernel := openFiles()
	for _, name := range kernel {
		fmt.Fprintln(os.Stderr, "left open:", name)
		code = 1
	}
	// The runtime's poller keeps two descriptors from its first use on, fuzzing some of its own.
	if after > files+2 && flag.Lookup("test.fuzz").Value.String() == "" {
		fmt.Fprintf(os.Stderr, "%d files are left open\n", after-files)
		code = 1
	}
	os.Exit(code)
}

// openFiles counts the open files and names those of them that are programs, maps and links: the
// kernel keeps what is in it as long as they are open.
func openFiles() (n int, kernel []string) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, nil
	}
	for _, f := range files {
		name, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err == nil && strings.HasPrefix(name, "anon_inode:bpf") {
			kernel = append(kernel, name)
		}
	}
	return len(files), kernel
}

// needKernel skips a test that needs privileges, unless that is forbidden.
func needKernel(t testing.TB) {
	t.Helper()
	if unix.Geteuid() == 0 {
		return
	}
	if os.Getenv("TABANE_LAB") == "require" {
		t.Fatal("needs root")
	}
	t.Skip("needs root")
}

func newCounter(t testing.TB, o Options) *Counter {
	t.Helper()
	needKernel(t)
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}
