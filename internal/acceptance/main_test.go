// Package acceptance tests the built binary as users run it: in a lab with real BGP, SRv6 and
// MPTCP, real clients, and faults. It imports none of the daemons' packages.
package acceptance

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// labsPerProcessor is how many labs run side by side for each processor. A lab mostly waits: for
// timers of BGP, for a daemon that was killed, for a constant rate. Tests that judge times or lost
// packets, or use what the whole host has, run alone before the others.
const labsPerProcessor = 2

// program is the binary under test, beside which is tabane-lab.
var program string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tabane-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "tabane")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", dir+"/", "../../cmd/tabane", "../../cmd/tabane-lab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	// The command line is parsed later, so that its -parallel holds.
	if err := flag.Set("test.parallel", strconv.Itoa(labsPerProcessor*runtime.NumCPU())); err != nil {
		panic("BUG: " + err.Error())
	}
	code := m.Run()
	if left := leftovers(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "left behind: %s\n", strings.Join(left, ", "))
		return 1
	}
	return code
}

// leftovers are traces of this process's labs.
func leftovers() []string {
	var left []string
	for _, pattern := range []string{"/run/netns/tabane-" + labPrefix() + "*", "/run/tabane/lab/" + labPrefix() + "*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		left = append(left, found...)
	}
	return left
}

func labPrefix() string { return fmt.Sprintf("test%d", os.Getpid()) }

// lab is a running lab.
type lab struct {
	t    *testing.T
	name string
	// lowered are the IPv6 addresses of the interfaces that the test has set down, by node and
	// interface.
	lowered map[string][]netlink.Addr
}

// epe brings the network of epe-steady up for one test, with pieces of its scenario replaced: old,
// new, old, new ...
func epe(t *testing.T, replace ...string) *lab {
	t.Helper()
	scenario := "epe-steady"
	if len(replace) > 0 {
		scenario = variant(t, scenario, replace...)
	}
	return up(t, scenario, "server.edge.log", "asbr1.asbr.log", "reflector.reflector.log")
}

// made counts the labs of this process.
var made atomic.Int64

// up brings the network of a scenario up for one test, which shows the logs when it fails.
func up(t *testing.T, scenario string, logs ...string) *lab {
	t.Helper()
	needLab(t)
	// The number makes long names distinct after they are cut.
	l := &lab{t: t, name: fmt.Sprintf("%sn%d", labPrefix(), made.Add(1)) + strings.ToLower(strings.NewReplacer("/", "", "_", "").Replace(t.Name()))[4:]}
	l.name = l.name[:min(len(l.name), 24)]
	isUp := false
	t.Cleanup(func() {
		if t.Failed() {
			for _, log := range logs {
				b, _ := os.ReadFile(filepath.Join("/run/tabane/lab", l.name, log))
				t.Logf("%s:\n%s", log, b)
			}
		}
		// A lab that is not ready in time is kept; one that could not be made is not there.
		if out, err := exec.Command(program, "lab", "down", l.name).CombinedOutput(); err != nil && isUp {
			t.Errorf("lab down: %v\n%s", err, out)
		}
	})
	out, err := exec.Command(program, "lab", "up", scenario, "--name", l.name).CombinedOutput()
	if err != nil {
		t.Fatalf("lab up: %v\n%s", err, out)
	}
	isUp = true
	return l
}

// needLab skips, or fails where labs are required, when this process cannot make labs.
func needLab(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("TABANE_LAB") == "require" {
		t.Fatal("needs root")
	}
	t.Skip("needs root")
}

func (l *lab) namespace(node string) string { return "tabane-" + l.name + "-" + node }

// ip runs commands of iproute2 on a node and returns what they show.
func (l *lab) ip(node, commands string) string {
	l.t.Helper()
	out, err := netnstest.TryIP(l.t, l.namespace(node), commands)
	if err != nil {
		l.t.Fatalf("on %s: %v", node, err)
	}
	return out
}

// shows is an eventually condition on what a command of iproute2 shows.
func (l *lab) shows(want bool, text, node, command string) func() (bool, string) {
	return func() (bool, string) {
		out, err := netnstest.TryIP(l.t, l.namespace(node), command)
		return err == nil && strings.Contains(out, text) == want, fmt.Sprint(out, err)
	}
}

// sockets lists the TCP sockets of a node in a state, subflows among them.
func (l *lab) sockets(node, state string) ([]netnstest.Socket, string) {
	l.t.Helper()
	sockets, err := netnstest.Sockets(l.t, l.namespace(node), state)
	return sockets, fmt.Sprintf("%+v, %v", sockets, err)
}

// socket is an eventually condition: the node has a TCP socket in that state, whose local address
// and port end so.
func (l *lab) socket(node, state, local string) func() (bool, string) {
	return func() (bool, string) {
		sockets, text := l.sockets(node, state)
		return slices.ContainsFunc(sockets, func(s netnstest.Socket) bool { return strings.HasSuffix(s.Local.String(), local) }), text
	}
}

// counter reads a counter of a node's kernel from the table of that name in /proc/net/netstat.
func (l *lab) counter(node, table, name string) int {
	l.t.Helper()
	var names []string
	for line := range strings.Lines(l.must(node, "cat", "/proc/net/netstat")) {
		fields := strings.Fields(line)
		if fields[0] != table {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if i := slices.Index(names, name); i >= 0 && i < len(fields) {
			n, err := strconv.Atoi(fields[i])
			if err != nil {
				l.t.Fatal(err)
			}
			return n
		}
	}
	l.t.Fatalf("%s has no counter %s%s", node, table, name)
	return 0
}

// command is a command on a node.
func (l *lab) command(node string, argv ...string) *exec.Cmd {
	return exec.Command(program, append([]string{"lab", "exec", "--lab", l.name, node, "--"}, argv...)...)
}

// try runs a command on a node and returns what it printed.
func (l *lab) try(node string, argv ...string) (string, error) {
	var out, diag bytes.Buffer
	cmd := l.command(node, argv...)
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s", node, strings.Join(argv, " "), err, diag.String())
	}
	return out.String(), nil
}

func (l *lab) must(node string, argv ...string) string {
	l.t.Helper()
	out, err := l.try(node, argv...)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// set changes a link of the lab. It is no command of a node: one that first emulates a link makes a
// namespace, which others see only if it was not made inside of a node.
func (l *lab) set(link string, changes ...string) {
	l.t.Helper()
	if out, err := exec.Command(program, append([]string{"lab", "set", "--lab", l.name, link}, changes...)...).CombinedOutput(); err != nil {
		l.t.Fatalf("set link %s: %v: %s", link, err, out)
	}
}

// eventually waits until ok holds; when it does not within the time, the test fails with what it
// last said. On a machine with more to do than it has processors, it waits up to busy times as
// long.
func (l *lab) eventually(what string, within time.Duration, ok func() (bool, string)) {
	l.t.Helper()
	const busy = 4
	var last string
	for begun := time.Now(); time.Since(begun) < within ||
		time.Since(begun) < busy*within && loadAverage(l.t) > 1.5*float64(runtime.NumCPU()); time.Sleep(20 * time.Millisecond) {
		var done bool
		if done, last = ok(); done {
			return
		}
	}
	l.t.Fatalf("not within %s: %s; last:\n%s", within, what, last)
}

// contains is an eventually condition on what a command prints. How wide its columns are does not
// count.
func (l *lab) contains(want bool, text, node string, argv ...string) func() (bool, string) {
	return func() (bool, string) {
		out, err := l.try(node, argv...)
		// tabane status exits with 1 while a daemon is degraded.
		var exit *exec.ExitError
		ran := err == nil || errors.As(err, &exit) && exit.ExitCode() == 1
		return ran && strings.Contains(blanks.ReplaceAllString(out, " "), blanks.ReplaceAllString(text, " ")) == want, fmt.Sprint(out, err)
	}
}

// blanks are between words, also where a status is broken at 80 columns.
var blanks = regexp.MustCompile(`\s+`)

// report is what `tabane fetch --json` says.
type report struct {
	Bytes      int64         `json:"bytes"`
	UsedMPTCP  bool          `json:"used_mptcp"`
	LongestGap time.Duration `json:"longest_gap_ns"`
}

func (l *lab) fetch(args ...string) report {
	l.t.Helper()
	out := strings.TrimSpace(l.must("client", append([]string{program, "fetch", "--json"}, args...)...))
	lines := strings.Split(out, "\n")
	var r report
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		l.t.Fatalf("%v in %q", err, out)
	}
	return r
}

// process is a daemon of a lab.
type process struct {
	PID        int
	Node, Role string
}

func (l *lab) process(node, role string) process {
	l.t.Helper()
	b, err := os.ReadFile(filepath.Join("/run/tabane/lab", l.name, "state.json"))
	if err != nil {
		l.t.Fatal(err)
	}
	var s struct{ Processes []process }
	if err := json.Unmarshal(b, &s); err != nil {
		l.t.Fatal(err)
	}
	i := slices.IndexFunc(s.Processes, func(p process) bool { return p.Node == node && p.Role == role })
	if i < 0 {
		l.t.Fatalf("no %s on %s in %s", role, node, b)
	}
	return s.Processes[i]
}

// end sends a signal to a daemon and waits until it is gone.
func (l *lab) end(node, role string, sig syscall.Signal) {
	l.t.Helper()
	p := l.process(node, role)
	if err := syscall.Kill(p.PID, sig); err != nil {
		l.t.Fatal(err)
	}
	l.eventually(role+" ends", 10*time.Second, func() (bool, string) {
		stat, gone := ended(p.PID)
		return gone, stat
	})
}

// start starts a daemon on a node with the lab's own configuration and log file, until the test
// ends, and returns it.
func (l *lab) start(node, role string) *exec.Cmd {
	l.t.Helper()
	cmd := l.command(node, program, role, "-c", filepath.Join("/run/tabane/lab", l.name, node+".yaml"))
	log, err := os.OpenFile(filepath.Join("/run/tabane/lab", l.name, node+"."+role+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	var diag bytes.Buffer
	cmd.Stderr = io.MultiWriter(&diag, log)
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
		if l.t.Failed() {
			l.t.Logf("%s on %s, started again:\n%s", role, node, diag.String())
		}
	})
	return cmd
}

// variant is the file of a scenario with pieces replaced, each of which must be there.
func variant(t *testing.T, scenario string, replace ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../scenarios", scenario, "scenario.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(replace, 2) {
		if !bytes.Contains(b, []byte(pair[0])) {
			t.Fatalf("the scenario has no %q", pair[0])
		}
		b = bytes.Replace(b, []byte(pair[0]), []byte(pair[1]), 1)
	}
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
