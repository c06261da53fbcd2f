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

	"github.com/tabane/tabane/internal/kernel/netns"
)

// Verb is the hidden command of the tabane program that calls Enter with its arguments.
const Verb = "lab-exec"

// Enter replaces the calling process by a command on a lab's node; args are those of
// launcher.arguments after the verb. It returns only on failure.
//
// The process becomes the command instead of its parent, so that terminal, standard input, signals,
// exit code and PID are the command's own. A parent that enters the namespaces on one of its
// threads and forks would have to keep that thread while the command runs, and its mounts could
// leak to unrelated goroutines of the Go runtime.
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
		// A daemon outlives the command that starts it and must not hold open that
		// command's locks and pipes.
		if err := unix.CloseRange(firstInherited, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return fmt.Errorf("close inherited descriptors: %w", err)
		}
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("run %q: %w", argv[0], errors.Unwrap(err))
	}
	// With exec, the thread of Do becomes the only one of the process and keeps its namespaces.
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

// asCommand, in place of a parent, runs a command of the user, which keeps all inherited
// descriptors.
const asCommand = "command"

// firstInherited is the first descriptor after the standard ones.
const firstInherited = 3

// dieWith sets the parent death signal again for the calling thread: it is an attribute of a
// thread, and exec keeps only that of the thread that calls it.
func dieWith(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("ask for a signal when the parent ends: %w", err)
	}
	if os.Getppid() != parent {
		return fmt.Errorf("parent %d has ended", parent)
	}
	return nil
}

// isolateMounts gives the calling thread its own /etc/hosts and a /sys with the interfaces of its
// namespace, as `ip netns exec` does. The thread must not be used for anything else.
func isolateMounts(hosts string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	// Slave instead of private, so that unmounts on the host, in particular of a deleted
	// namespace, propagate here.
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

// starter starts processes from one thread that lives until close: the kernel sends the signal of
// PR_SET_PDEATHSIG when the thread that forked exits, not when the process does. The processes
// inherit the priority of that thread.
type starter struct {
	jobs chan func()
}

// niceness gives the processes of a lab priority over others on the host: each represents a machine
// of its own, and BFD declares a neighbor down whose process waits 150 ms for a CPU.
const niceness = -10

func newStarter() *starter {
	s := &starter{jobs: make(chan func())}
	go s.run(make(chan struct{}))
	return s
}

// run executes jobs on a thread of its own, and closes settled once it has that thread.
func (s *starter) run(settled chan<- struct{}) {
	// The first thread cannot be used: it neither exits with its goroutine nor may its priority
	// change. While it is locked, another goroutine runs on another thread.
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
	// Without the privilege, the lab runs at normal priority.
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

// close ends the thread, which kills every process that has it as parent.
func (s *starter) close() { close(s.jobs) }

// child is a process that this one has started. exited is closed when it has exited; err is then
// its exit error.
type child struct {
	daemon
	process
	exited chan struct{}
	err    error
}

// processesIn returns the processes whose main thread is in one of the namespaces, except the
// calling process.
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
		// Read the start time first: if the PID is reused afterwards, the new process is
		// not signaled.
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

// lastLines returns the last n lines of a log file, at most 4096 bytes.
func lastLines(path string, n int) string {
	const maxTail = 4096
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > maxTail {
		if _, err := f.Seek(-maxTail, io.SeekEnd); err != nil {
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
