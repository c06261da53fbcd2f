package mptcpify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func uintptrTo(v *int32) uintptr { return uintptr(unsafe.Pointer(v)) }

// patience bounds every wait for another process.
const patience = 20 * time.Second

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}

// supervisors returns the process IDs of the processes that belong to a program: the supervisor
// first.
func supervisors(program int) (all []int) {
	lists, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	parents := map[int]int{}
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		args := strings.Split(string(b), "\x00")
		if len(args) < 3 || args[0] != processName || args[2] != strconv.Itoa(program) {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(l, "/")[2])
		stat, _ := os.ReadFile(filepath.Dir(l) + "/stat")
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[0] != "Z" {
			parents[pid], _ = strconv.Atoi(fields[1])
			all = append(all, pid)
		}
	}
	slices.SortFunc(all, func(a, b int) int {
		switch {
		case parents[b] == a:
			return -1
		case parents[a] == b:
			return 1
		}
		return 0
	})
	return all
}

// spareOf returns the spare of a supervisor when it has started, or 0.
func spareOf(supervisor int) int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", supervisor))
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, child := range strings.Fields(string(b)) {
			// Package os starts children of other names, to try the kernel.
			if name, _ := os.ReadFile("/proc/" + child + "/comm"); string(name) == spareName+"\n" {
				pid, _ := strconv.Atoi(child)
				return pid
			}
		}
	}
	return 0
}

// protocols checks what opened has reported.
func protocols(t *testing.T, all []socket) {
	t.Helper()
	changed := 0
	for _, s := range all[:len(all)-1] {
		tcp := s.Domain != unix.AF_UNIX && s.Type&typeMask == unix.SOCK_STREAM && s.Protocol != unix.IPPROTO_UDP
		want, errno := s.Protocol, syscall.Errno(0)
		switch {
		case s.Type&(1<<20) != 0:
			errno = unix.EINVAL
		case s.Domain == -1:
			errno = unix.EAFNOSUPPORT
		case s.Domain == unix.AF_UNIX:
			if want = 0; s.Protocol != 0 {
				errno = unix.EPROTONOSUPPORT
			}
		case tcp:
			want = unix.IPPROTO_MPTCP
			changed++
		case s.Type&typeMask == unix.SOCK_DGRAM && s.Protocol != unix.IPPROTO_TCP:
			want = unix.IPPROTO_UDP
		default:
			errno = unix.EPROTONOSUPPORT
		}
		switch {
		case s.Errno != errno:
			t.Errorf("%+v: error %v, want %v", s, s.Errno, errno)
		case errno == 0 && (s.Got != want || s.Number != s.Free || s.CloseOnExec != (s.Type&unix.SOCK_CLOEXEC != 0) || s.NonBlocking != (s.Type&unix.SOCK_NONBLOCK != 0)):
			t.Errorf("%+v: want protocol %d and the flags of the type", s, want)
		}
	}
	if changed == 0 {
		t.Error("no socket was changed")
	}
	if last := all[len(all)-1]; last.Errno != unix.EMFILE {
		t.Errorf("without a free file descriptor: %+v", last)
	}
}

func TestSockets(t *testing.T) {
	need(t)
	protocols(t, output[[]socket](t, command("sockets")))
}

func TestChild(t *testing.T) {
	need(t)
	protocols(t, output[[]socket](t, command("child")))
	if s := open(unix.AF_INET, unix.SOCK_STREAM, 0); s.Got != unix.IPPROTO_TCP {
		t.Errorf("the parent's socket: %+v", s)
	}
}

// TestProcess checks that the program is the process that was started, with all that it inherits,
// and nothing else.
func TestProcess(t *testing.T) {
	need(t)
	want := inheritance(t, "process")
	got := inheritance(t, "exec")
	if !slices.Equal(got.Files, want.Files) || !slices.Equal(got.Args[1:], want.Args[1:]) {
		t.Errorf("files %q and arguments %q, want %q and %q", got.Files, got.Args, want.Files, want.Args)
	}
	eventually(t, "the supervisor and its spare end", func() bool { return len(supervisors(got.PID)) == 0 })
	got.PID, got.Files, got.Args = want.PID, nil, nil
	want.Files, want.Args = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// inheritance runs the program process and checks its process ID, its exit code, and that its files
// end with it.
func inheritance(t *testing.T, how string) (a attributes) {
	t.Helper()
	theirs, request, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	answer, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The program is to inherit from the shell that it ignores signals, and the limit.
	const script = `trap "" HUP INT; ulimit -n 4000; exec "$0" "$@"`
	cmd := exec.Command("sh", "-c", script, self)
	if how == "exec" {
		cmd.Args = append(cmd.Args, "process") // it becomes the name
	}
	cmd.Args = append(cmd.Args, "one", "two three")
	cmd.Env = append(os.Environ(), played+"="+how, howKey+"="+string(Seccomp))
	cmd.ExtraFiles = []*os.File{theirs, ours}
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGUSR2}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runtime.LockOSThread() // the parent is the thread
	defer runtime.UnlockOSThread()
	if err := errors.Join(cmd.Start(), theirs.Close(), ours.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = request.WriteString("abc")
	if err := errors.Join(err, request.Close()); err != nil {
		t.Error(err)
	}
	// Both pipes end although the supervisor may still be there.
	if b, err := io.ReadAll(answer); err != nil || string(b) != "abcabc" {
		t.Errorf("the program answered %q, %v", b, err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("the program ended with %v, want exit code 7: %s", err, stderr.String())
	}
	if err := json.Unmarshal(stdout.Bytes(), &a); err != nil {
		t.Fatalf("%v: %q", err, stdout.Bytes())
	}
	if a.PID != cmd.Process.Pid || a.ParentDeath != int(syscall.SIGUSR2) || !a.IgnoresHangup || !a.IgnoresInterrupt || a.Children || a.OpenFiles != 4000 {
		t.Errorf("%+v, want process %d", a, cmd.Process.Pid)
	}
	a.Dir = "" // one of each run
	return a
}

// lingering starts a program that ends and leaves a child behind. end has the child open a socket,
// which must be MPTCP, and end, and waits for the supervisor and its spare.
func lingering(t *testing.T) (processes []int, end func()) {
	t.Helper()
	cmd := command("linger")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Not Wait, which would close the pipes.
	if _, err := cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	program := cmd.Process.Pid
	if processes = supervisors(program); len(processes) != 2 {
		t.Fatalf("processes %d while a child lives, want a supervisor and a spare", processes)
	}
	eventually(t, "the spare has started", func() bool { return spareOf(processes[0]) == processes[1] })
	return processes, func() {
		t.Helper()
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		var s socket
		if err := json.NewDecoder(out).Decode(&s); err != nil || s.Got != unix.IPPROTO_MPTCP {
			t.Errorf("the child's socket: %+v, %v", s, err)
		}
		_ = out.Close()
		eventually(t, "the supervisor and its spare end", func() bool { return len(supervisors(program)) == 0 })
	}
}

// TestSupervisorEnds checks that the supervisor lives as long as the last child of the program,
// whatever a service manager sends to all processes of a service, or a terminal that is closed.
func TestSupervisorEnds(t *testing.T) {
	need(t)
	processes, end := lingering(t)
	for _, pid := range processes {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
			if err := unix.Kill(pid, s); err != nil {
				t.Error(err)
			}
		}
	}
	end()
}

// TestOwner checks that a socket is in the network namespace of the thread that asks for it, and
// belongs to its user.
func TestOwner(t *testing.T) {
	need(t)
	if os.Geteuid() != 0 {
		t.Skip("changing the network namespace needs root")
	}
	all := output[[]identity](t, command("leave"))
	for i, s := range all {
		user := uint32(0)
		if i == 2 {
			user = 1
		}
		if s.Namespace != s.Here || s.User != user || s.Protocol != unix.IPPROTO_MPTCP {
			t.Errorf("socket %d: %+v, want user %d", i, s, user)
		}
	}
	if len(all) != 3 || all[0].Here == all[1].Here {
		t.Errorf("the program did not leave its namespace: %+v", all)
	}
}

// TestKill kills the supervisor a hundred times, at moments that the program does not know.
func TestKill(t *testing.T) {
	need(t)
	cmd := command("stress")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	program := cmd.Process.Pid
	// A program that hangs ends the test.
	hung := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	decoder := json.NewDecoder(out)
	if err := decoder.Decode(new(bool)); err != nil {
		t.Fatalf("the program has not started: %v: %s", err, stderr.String())
	}
	all := supervisors(program)
	if len(all) != 2 {
		t.Fatalf("processes %d, want a supervisor and a spare", all)
	}
	const kills = 100
	for range kills {
		if err := unix.Kill(all[0], unix.SIGKILL); err != nil {
			t.Error(err)
		}
		var spare int
		eventually(t, "the spare is the supervisor and has a spare", func() bool {
			spare = spareOf(all[1])
			return spare > 0
		})
		all = []int{all[1], spare}
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	var r stressed
	if err := errors.Join(decoder.Decode(&r), cmd.Wait()); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	t.Logf("%d supervisors killed, %d sockets, the longest call took %s", kills, r.Sockets, r.Longest)
	if len(r.Errors)+len(r.Wrong) > 0 || r.MPTCP != r.Sockets || r.Sockets == 0 {
		t.Errorf("%d sockets, %d of them MPTCP; errors %q, wrong file descriptors %q", r.Sockets, r.MPTCP, r.Errors, r.Wrong)
	}
	eventually(t, "the supervisor and its spare end", func() bool { return len(supervisors(program)) == 0 })
}

// TestKillSpare checks that a spare which dies is replaced.
func TestKillSpare(t *testing.T) {
	need(t)
	processes, end := lingering(t)
	supervisor, spare := processes[0], processes[1]
	if err := unix.Kill(spare, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	eventually(t, "there is another spare", func() bool {
		other := spareOf(supervisor)
		return other != 0 && other != spare
	})
	if err := unix.Kill(supervisor, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	end()
}

// BenchmarkSocket measures how long a program waits for a socket, and BenchmarkCall for another
// system call.
func BenchmarkSocket(b *testing.B) { compare(b, "socket") }

func BenchmarkCall(b *testing.B) { compare(b, "call") }

// compare has a program measure something b.N times, with Exec and without, and reports the
// quantiles.
func compare(b *testing.B, what string) {
	need(b)
	plain := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = append(os.Environ(), played+"="+program)
		return cmd
	}
	for name, run := range map[string]func(string, ...string) *exec.Cmd{"plain": plain, "mptcpify": command} {
		b.Run(name, func(b *testing.B) {
			took := output[[]int64](b, run("time", what, strconv.Itoa(b.N)))
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/1000, "median-us")
			b.ReportMetric(float64(took[len(took)*95/100])/1000, "p95-us")
		})
	}
}
