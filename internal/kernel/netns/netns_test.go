package netns

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tabane/tabane/internal/testkit/programs"
)

const testPrefix = "tabane-test-ns"

func TestMain(m *testing.M) {
	before := openFiles()
	code := m.Run()
	if left, err := List(testName("")); err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "namespaces left behind: %v %v\n", left, err)
		code = 1
	}
	// The runtime's poller opens files of its own at first use.
	if after := openFiles(); after > before+4 {
		fmt.Fprintf(os.Stderr, "files left open: %d before, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("TABANE_LAB") == "require" {
		t.Fatal("needs root")
	}
	t.Skip("needs root")
}

func testName(s string) string { return fmt.Sprintf("%s%d-%s", testPrefix, os.Getpid(), s) }

func newNamespace(t *testing.T, s string) string {
	t.Helper()
	needRoot(t)
	name := testName(s)
	if err := Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Delete(name); err != nil {
			t.Error(err)
		}
	})
	return name
}

func links(t *testing.T) []string {
	t.Helper()
	ifs, err := net.Interfaces()
	if err != nil {
		t.Error(err)
	}
	var names []string
	for _, i := range ifs {
		names = append(names, i.Name)
	}
	return names
}

func self(t *testing.T) string {
	t.Helper()
	s, err := os.Readlink(threadNS)
	if err != nil {
		t.Error(err)
	}
	return s
}

func TestCreateDelete(t *testing.T) {
	needRoot(t)
	home := self(t)
	name := testName("a")
	if err := Create(name); err != nil {
		t.Fatal(err)
	}
	if err := Create(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create: %v, want fs.ErrExist", err)
	}
	got, err := List(name)
	if err != nil || !slices.Equal(got, []string{name}) {
		t.Errorf("List = %v, %v", got, err)
	}
	if err := Delete(name); err != nil {
		t.Fatal(err)
	}
	if err := Delete(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("second Delete: %v, want fs.ErrNotExist", err)
	}
	if err := Do(name, func() error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Do in a deleted namespace: %v, want fs.ErrNotExist", err)
	}
	if self(t) != home {
		t.Error("the calling thread changed its namespace")
	}
}

func TestDeleteHalfMade(t *testing.T) {
	needRoot(t)
	name := testName("half")
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := Do(name, func() error { return nil }); err == nil {
		t.Error("entered a plain file")
	}
	if err := Delete(name); err != nil {
		t.Error(err)
	}
}

// Namespaces made here are the ones of `ip netns`, and the other way round.
func TestIproute2(t *testing.T) {
	name := newNamespace(t, "ip")
	ip := programs.Need(t, "ip")
	out, err := exec.Command(ip, "netns", "exec", name, ip, "-o", "link").CombinedOutput()
	if err != nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "lo:") {
		t.Errorf("ip netns exec: %v\n%s", err, out)
	}
	other := testName("ip2")
	if out, err := exec.Command(ip, "netns", "add", other).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := Do(other, func() error { return nil }); err != nil {
		t.Error(err)
	}
	if err := Delete(other); err != nil {
		t.Error(err)
	}
}

func TestDo(t *testing.T) {
	name := newNamespace(t, "do")
	home := self(t)
	boom := errors.New("boom")
	err := Do(name, func() error {
		if got := links(t); !slices.Equal(got, []string{"lo"}) {
			t.Errorf("links inside: %v", got)
		}
		if self(t) == home {
			t.Error("not inside")
		}
		return boom
	})
	if err != boom {
		t.Errorf("Do = %v, want f's own error", err)
	}

	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if err := Do(name, func() error {
				if self(t) == home {
					return errors.New("not inside")
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			if self(t) != home {
				t.Error("a thread was reused inside the namespace")
			}
		})
	}
	wg.Wait()
}

func TestDoPanicAndGoexit(t *testing.T) {
	name := newNamespace(t, "panic")
	home := self(t)
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = Do(name, func() error { panic("boom") })
	}()
	reached := false
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = Do(name, func() error { t.SkipNow(); return nil })
		reached = true
	})
	wg.Wait()
	if reached {
		t.Error("Goexit in f did not end the caller")
	}
	if self(t) != home {
		t.Error("left inside")
	}
}

func TestStart(t *testing.T) {
	name := newNamespace(t, "start")
	var inside string
	if err := Do(name, func() error { inside = self(t); return nil }); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command("readlink", "/proc/self/ns/net")
	cmd.Stdout = &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := Start(name, cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != inside || inside == self(t) {
		t.Errorf("command ran in %s, want %s", got, inside)
	}
	if err := Start(name, exec.Command("/does/not/exist")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}
}

func TestSysctl(t *testing.T) {
	name := newNamespace(t, "sysctl")
	const key = "net.ipv6.conf.all.forwarding"
	outside, err := ReadSysctl(key)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"0": "1", "1": "0"}[outside]
	err = Do(name, func() error {
		if err := Sysctl(key, want); err != nil {
			return err
		}
		got, err := ReadSysctl("net/ipv6/conf/all/forwarding")
		if err == nil && got != want {
			err = fmt.Errorf("read %q, want %q", got, want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if got, _ := ReadSysctl(key); got != outside {
		t.Errorf("the outside changed: %s", got)
	}
	if err := Sysctl("net.ipv6.conf.none.forwarding", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing key: %v", err)
	}
	if err := Do(name, func() error { return Sysctl(key, "many") }); err == nil {
		t.Error("nonsense accepted")
	}
}

func TestSysctlPath(t *testing.T) {
	for _, tc := range []struct{ key, want string }{
		{"net.mptcp.enabled", "/proc/sys/net/mptcp/enabled"},
		{"net.ipv6.conf.eth0.forwarding", "/proc/sys/net/ipv6/conf/eth0/forwarding"},
		{"net.ipv6.conf.eth0.100.forwarding", "/proc/sys/net/ipv6/conf/eth0.100/forwarding"},
		{"net.ipv6.conf.eth0/100.forwarding", "/proc/sys/net/ipv6/conf/eth0.100/forwarding"},
		{"net/ipv6/conf/eth0.100/forwarding", "/proc/sys/net/ipv6/conf/eth0.100/forwarding"},
		{"net.ipv4.neigh.a.b.c.base_reachable_time", "/proc/sys/net/ipv4/neigh/a.b.c/base_reachable_time"},
		{"", ""}, {"net", ""}, {"net..x", ""}, {"/net/x", ""}, {"net/../../etc/passwd", ""}, {"net.//.x", ""},
		{"net.ipv6.conf...forwarding", ""},
	} {
		got, err := sysctlPath(tc.key)
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("%q: %q, %v, want %q", tc.key, got, err, tc.want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "../x", strings.Repeat("x", 65), "a b", "a\n", "a\x00b", "\xff"} {
		for verb, err := range map[string]error{"create": Create(name), "delete": Delete(name), "do": Do(name, nil)} {
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s %q: %v, want a refusal", verb, name, err)
			}
		}
	}
	if err := checkName(strings.Repeat("x", 64)); err != nil {
		t.Error(err)
	}
}
