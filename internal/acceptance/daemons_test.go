package acceptance

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// daemons are the processes of a lab in a test that kills and starts them, by node and role, such
// as "asbr1 asbr".
type daemons struct {
	*lab
	all map[string]*instance
}

// instance is the present process of a daemon. One that the test started is its child.
type instance struct {
	pid     int
	started time.Time
	wait    func()
	log     string // its file
}

func (l *lab) daemons(names ...string) *daemons {
	l.t.Helper()
	d := &daemons{lab: l, all: map[string]*instance{}}
	for _, name := range names {
		node, role, _ := strings.Cut(name, " ")
		d.all[name] = &instance{pid: l.process(node, role).PID, started: time.Now().Add(-time.Hour), log: filepath.Join("/run/tabane/lab", l.name, node+"."+role+".log")}
	}
	return d
}

// signal sends a signal to a daemon.
func (d *daemons) signal(name string, sig syscall.Signal) {
	d.t.Helper()
	if err := syscall.Kill(d.all[name].pid, sig); err != nil {
		d.t.Fatalf("%s: %v", name, err)
	}
}

// end ends a daemon by a signal and waits until it is gone.
func (d *daemons) end(name string, sig syscall.Signal) {
	d.t.Helper()
	d.signal(name, sig)
	i := d.all[name]
	if i.wait != nil {
		i.wait()
		return
	}
	d.eventually(name+" ends", 10*time.Second, func() (bool, string) {
		stat, gone := ended(i.pid)
		return gone, stat
	})
}

// start starts the next instance of a daemon with its file in the lab, until the test ends. The
// test may send it SIGHUP at once, which has no effect before it reads the file, as the parent
// ignores it.
func (d *daemons) start(name string) {
	d.t.Helper()
	node, role, _ := strings.Cut(name, " ")
	cmd := d.command(node, program, role, "-c", filepath.Join("/run/tabane/lab", d.lab.name, node+".yaml"))
	i := &instance{started: time.Now()}
	i.log = filepath.Join("/run/tabane/lab", d.lab.name, fmt.Sprintf("%s.%s.%d.log", node, role, i.started.UnixNano()))
	file, err := os.Create(i.log)
	if err != nil {
		d.t.Fatal(err)
	}
	defer file.Close()
	cmd.Stderr = file
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	i.pid, i.wait = cmd.Process.Pid, sync.OnceFunc(func() { _ = cmd.Wait() })
	d.all[name] = i
	d.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		i.wait()
		if d.t.Failed() {
			d.t.Logf("%s, an instance that was started again:\n%s", name, i.logged(2000))
		}
	})
}

// running starts the next instance of a daemon and waits until it answers, where the time until the
// network is as desired again counts from then.
func (d *daemons) running(name string) {
	d.t.Helper()
	d.start(name)
	node, role, _ := strings.Cut(name, " ")
	d.eventually(name+" answers", 10*time.Second, d.contains(true, `"role"`, node, program, "status", "--json", role))
}

// thoughts are the status of all daemons and the last lines that they logged.
func (d *daemons) thoughts() string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(d.all)) {
		node, role, _ := strings.Cut(name, " ")
		status, err := d.try(node, program, "status", "--json", role) // fails while degraded
		if status == "" {
			status = fmt.Sprint(err)
		}
		fmt.Fprintf(&text, "%s:\n%s\n%s\n", name, status, d.all[name].logged(4000))
	}
	return text.String()
}

// logged returns the last bytes that the process logged.
func (i *instance) logged(most int) string {
	b, err := os.ReadFile(i.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// ended reports whether a process is gone, and what the kernel says of it. The files of a process
// are closed when the last of its threads has ended.
func ended(pid int) (stat string, gone bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return string(b), errors.Is(err, os.ErrNotExist) || strings.Contains(string(b), ") Z ") && len(threads) <= 1
}
