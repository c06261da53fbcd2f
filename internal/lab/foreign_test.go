package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labtest"
)

// TestKeepUnready: with KeepUnready, a lab that is not ready in time stays up, reports what is
// missing, and can be used.
func TestKeepUnready(t *testing.T) {
	t.Setenv(labtest.FakeRouter, "never")
	o := options(t, "unready", labtest.Routed())
	o.Timeout, o.KeepUnready, o.Detach = 300*time.Millisecond, true, true
	l, err := Up(t.Context(), o)
	if l != nil {
		t.Cleanup(func() {
			if err := l.Down(context.Background()); err != nil {
				t.Error(err)
			}
			labtest.NothingLeft(t, o.Name)
		})
	}
	if !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "b (router): session with nobody is idle") {
		t.Fatalf("got %v", err)
	}
	opened, err := Open(o.Name)
	if err != nil {
		t.Fatal(err)
	}
	labtest.Run(t, opened, "a", "true")
	v, err := opened.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.Condition != NotReady || v.Nodes[1].Daemons[0].Problem != "session with nobody is idle" || v.Nodes[1].Daemons[0].PID == 0 {
		t.Errorf("view %+v", v)
	}
}

// TestNotAwaited: a lab does not wait for a node with "ready: false", even if its daemon exits.
func TestNotAwaited(t *testing.T) {
	no := false
	for _, how := range []string{"never", "exit"} {
		t.Setenv(labtest.FakeRouter, how)
		s := labtest.Routed()
		s.Nodes["b"].Ready = &no
		start(t, options(t, how, s))
	}
}

// TestInheritedDescriptors: daemons do not inherit the open files of the process that made the lab.
func TestInheritedDescriptors(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// As with a shell's redirection: child processes inherit it.
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	s := labtest.Routed()
	s.Nodes["c"].Exec = "sleep 1000"
	l := start(t, options(t, "fds", s))
	for _, c := range l.daemons.children.all() {
		await(t, func() bool { // Enter has executed the daemon
			line, err := os.ReadFile("/proc/" + strconv.Itoa(c.PID) + "/cmdline")
			return err == nil && !strings.Contains(string(line), Verb)
		})
		fds, err := os.ReadDir("/proc/" + strconv.Itoa(c.PID) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/" + strconv.Itoa(c.PID) + "/fd/" + fd.Name()); to == file.Name() {
				t.Errorf("%s has %s open", c.daemon, to)
			}
		}
	}
	if len(l.daemons.children.all()) != 2 {
		t.Errorf("%d daemons", len(l.daemons.children.all()))
	}
}

func await(t *testing.T, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !condition(); time.Sleep(look) {
		if time.Now().After(end) {
			t.Fatal("waited for 10 s")
		}
	}
}

// TestExec: a node's command runs in the directory of its files, and its exit is reported.
func TestExec(t *testing.T) {
	s := labtest.Plain()
	s.Nodes["a"].Exec, s.Nodes["a"].Files = "sh script", map[string]string{"script": "echo started >out; exec sleep 1000"}
	l := start(t, options(t, "exec", s))
	await(t, func() bool {
		b, err := os.ReadFile(filepath.Join(filesDir(dirOf(l.name), "a"), "out"))
		return err == nil && string(b) == "started\n"
	})
	if err := l.Daemons().Stop(t.Context(), scenario.Daemon{Node: "a", Role: RoleExec}, unix.SIGTERM); err != nil {
		t.Error(err)
	}
	v, err := l.View(t.Context())
	if err != nil || v.Nodes[0].Daemons[0].Problem != "does not run" {
		t.Errorf("view %+v, %v", v.Nodes[0], err)
	}
	s = labtest.Plain()
	s.Nodes["a"].Exec = "no-such-program-here"
	l = start(t, options(t, "noexec", s))
	await(t, func() bool { return l.Daemons().Exited() != nil })
	if err := l.Daemons().Exited(); !strings.Contains(err.Error(), "no-such-program-here") {
		t.Errorf("got %v", err)
	}
}

// TestView checks the views of links that are changed while the lab runs.
func TestView(t *testing.T) {
	l := start(t, options(t, "view", labtest.Plain()))
	shape := func(link string) string {
		t.Helper()
		v, err := l.Links().View(t.Context(), link)
		if err != nil {
			t.Fatal(err)
		}
		return v.Kind + " " + v.Text
	}
	if wire, lan := shape("wire"), shape("lan"); wire != "wire rate=10Mbit/s" || lan != "switch rate=unlimited" {
		t.Errorf("wire is %q, lan %q", wire, lan)
	}
	for want, s := range map[string]scenario.Shape{
		"wire rate=5Mbit/s queue=20ms": {Rate: 5 * unit.MbitPerSecond, Queue: 20 * time.Millisecond},
		"wire rate=unlimited":          {},
	} {
		if err := l.Links().Set("wire", s); err != nil {
			t.Fatal(err)
		}
		if got := shape("wire"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if err := l.Links().Blackhole(scenario.Hole{Node: "a", Interface: "wire", Direction: scenario.Out}); err != nil {
		t.Fatal(err)
	}
	if v, err := l.Links().View(t.Context(), "wire"); err != nil || len(v.Blackholes) != 1 || v.Blackholes[0] != (scenario.Port{Node: "a", Interface: "wire"}) {
		t.Errorf("black holes of %+v, %v", v, err)
	}
	if err := l.Links().Clear(scenario.Port{Node: "a", Interface: "wire"}); err != nil {
		t.Fatal(err)
	}
	delay := 7 * time.Millisecond
	want := scenario.Shape{Rate: 8 * unit.MbitPerSecond, Delay: 5 * time.Millisecond, Loss: &linkmodel.Loss{Kind: linkmodel.Random, P: 0.25}, Backward: &linkmodel.Change{Delay: &delay}}
	if err := l.Links().Set("wire", want); err != nil {
		t.Fatal(err)
	}
	if got := shape("wire"); got != "emulated "+want.String() {
		t.Errorf("got %q, want %q", got, want)
	}
	v, err := l.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a := v.Nodes[0].Interfaces; len(a) != 2 || len(a[0].Addresses)+len(a[1].Addresses) != 3 || !a[0].Up {
		t.Errorf("interfaces of a: %+v", a)
	}
}
