package lab

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/netns"
)

// Verb is the hidden command of the tabane program that calls Enter with its arguments.
const Verb = "lab-exec"

// Enter turns the calling process into a command on a lab's node; args are what enterArguments
// wrote. It returns only when it could not.
//
// Being the command, rather than its parent, is what lets terminal, standard input, signals and
// exit code through without any help, and what makes a pid mean the command itself. A parent that
// enters the namespaces on one of its threads and forks would need that thread for as long as the
// command lives, and mounts that the Go runtime could hand to unrelated goroutines by mistake.
func Enter(args []string) error {
	if len(args) < 4 {
		return errors.New("enter node: need a namespace, a hosts file, a parent and a command")
	}
	name, hosts, argv := args[0], args[1], args[3:]
	if !strings.HasPrefix(name, prefix) {
		return fmt.Errorf("enter node: namespace %q is not a lab's", name)
	}
	parent := 0
	if args[2] != asCommand {
		var err error
		if parent, err = strconv.Atoi(args[2]); err != nil {
			return fmt.Errorf("enter node: parent %q is not a pid", args[2])
		}
		// A daemon outlives the command that starts it, whose locks and pipes it must not keep
		// open.
		if err := unix.CloseRange(firstInherited, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return fmt.Errorf("close inherited descriptors: %w", err)
		}
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("run %q: %w", argv[0], errors.Unwrap(err))
	}
	// Do's thread becomes the process's only one with exec and keeps its namespaces.
	return netns.Do(name, func() error {
		if err := isolateMounts(hosts); err != nil {
			return err
		}
		if parent != 0 {
			if err := dieWith(parent); err != nil {
				return err
			}
		}
		if err := unix.Exec(path, argv, os.Environ()); err != nil {
			return fmt.Errorf("run %q: %w", path, err)
		}
		return nil
	})
}

// asCommand in place of a parent enters a node for a command of the user, which keeps all
// descriptors.
const asCommand = "command"

// firstInherited is the first descriptor after the standard ones.
const firstInherited = 3

// dieWith renews for the calling thread what the parent asked for: the signal at its death is an
// attribute of a thread, and exec keeps only that of the thread that calls it.
func dieWith(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("ask for a signal when the parent ends: %w", err)
	}
	if os.Getppid() != parent {
		return fmt.Errorf("parent %d has ended", parent)
	}
	return nil
}

// isolateMounts gives the calling thread, which is never used for anything else, its own /etc/hosts
// and a /sys that shows the interfaces of its namespace, as `ip netns exec` does.
func isolateMounts(hosts string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	// Slave, not private: what the host unmounts, above all a deleted namespace, must go here as
	// well.
	if err := unix.Mount("", "/", "none", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	if err := unix.Mount(hosts, "/etc/hosts", "none", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on /etc/hosts: %w", hosts, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/sys", &st); err != nil {
		return fmt.Errorf("stat /sys: %w", err)
	}
	var flags uintptr
	if st.Flags&unix.ST_RDONLY != 0 {
		flags = unix.MS_RDONLY
	}
	if err := unix.Mount("tabane", "/sys", "sysfs", flags, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return nil
}

// starter starts processes from one thread that lives until it is closed: the kernel sends
// PR_SET_PDEATHSIG when the thread that forked ends, not when the process does. They inherit the
// thread's priority.
type starter struct {
	jobs chan func()
}

// niceness gives a lab priority over other work of the host: each of its processes stands for a
// machine of its own, and BFD declares one down that waits 150 ms for a processor.
const niceness = -10

func newStarter() *starter {
	s := &starter{jobs: make(chan func())}
	go s.run(make(chan struct{}))
	return s
}

// run executes jobs on a thread of its own, and closes settled when it has one.
func (s *starter) run(settled chan<- struct{}) {
	// Unlocked on the first thread only, which would neither end with its goroutine nor lose its
	// priority: while it is held, another goroutine gets another thread.
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		elsewhere := make(chan struct{})
		go s.run(elsewhere)
		<-elsewhere
		runtime.UnlockOSThread()
		close(settled)
		return
	}
	close(settled)
	// Where the host does not allow it, the lab does without.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceness)
	for job := range s.jobs {
		job()
	}
}

func (s *starter) start(cmd *exec.Cmd) error {
	done := make(chan error)
	s.jobs <- func() { done <- cmd.Start() }
	return <-done
}

// close ends the thread, and with it every process whose parent death signal it is.
func (s *starter) close() { close(s.jobs) }

// child is a process of ours. exited is closed when it has ended and err says how.
type child struct {
	daemon
	process
	exited chan struct{}
	err    error
}

// processesIn returns the processes whose main thread is in one of the namespaces, except the
// caller.
func processesIn(spaces []*space) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	links := make([]string, len(spaces))
	for i, s := range spaces {
		links[i] = fmt.Sprintf("net:[%d]", s.inode)
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The start time first: a process that has taken over the pid since is then not the one
		// that is signaled.
		st, err := procStat(pid)
		if err != nil {
			continue
		}
		if link, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net")); err == nil && slices.Contains(links, link) {
			found = append(found, process{PID: pid, Start: st.start})
		}
	}
	return found, nil
}

// lastLines returns the end of a log file, as much of it as an error message should carry.
func lastLines(path string, n int) string {
	const most = 4096
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
