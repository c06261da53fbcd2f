package mptcpify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/mptcp/protocol"
)

// groupName is the prefix of the names of control groups, each of which has one program and its
// children.
const groupName = "tabane-mptcpify-"

// useProgram puts this process into a control group of its own, for whose sockets it attaches the
// eBPF program of package protocol. A process outside keeps both until the group is empty.
func useProgram(*Options) error { return useGroup(protocol.Attach, opensMPTCP) }

// useGroup does so with a program that attach attaches until its file is closed, and whose effect
// check checks.
func useGroup(attach func(group *os.File) (*os.File, error), check func() error) (err error) {
	parent, err := ownGroup("/proc/self")
	if err != nil {
		return err
	}
	// Those of keepers that were killed are empty.
	if left, err := filepath.Glob(filepath.Join(parent, groupName+"*")); err == nil {
		for _, dir := range left {
			_ = unix.Rmdir(dir) // it is in use
		}
	}
	dir := filepath.Join(parent, groupName+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return noGroup(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, join(parent), unix.Rmdir(dir))
		}
	}()
	group, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer group.Close()
	link, err := attach(group)
	if err != nil {
		return err
	}
	defer link.Close()
	if err := join(dir); err != nil {
		return noGroup(err)
	}
	if err := launch(keeperStarterRole, dir, link); err != nil {
		return fmt.Errorf("start the keeper of the program: %w", err)
	}
	if err := check(); err != nil {
		return &feature.Error{Feature: "eBPF", Reason: "sockets of the control group stay those of TCP", Remedy: "use --how seccomp", Err: err}
	}
	return nil
}

// noGroup is the error of a control group that cannot be made or joined.
func noGroup(err error) error {
	return &feature.Error{Feature: "eBPF", Reason: "this process cannot have a control group of its own", Remedy: "use --how seccomp", Err: err}
}

// ownGroup returns the directory of a process's control group in version 2 of the hierarchy, by the
// directory of the process in /proc.
func ownGroup(process string) (string, error) {
	mounts, err := os.ReadFile(filepath.Join(process, "mountinfo"))
	if err != nil {
		return "", err
	}
	groups, err := os.ReadFile(filepath.Join(process, "cgroup"))
	if err != nil {
		return "", err
	}
	path, found := "", false
	for line := range strings.Lines(string(groups)) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			path, found = strings.TrimSuffix(rest, "\n"), true
		}
	}
	for line := range strings.Lines(string(mounts)) {
		// ID parent device root mountpoint options... - type source options (proc_pid_mountinfo(5))
		mount, kind, _ := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if !found || len(fields) < 5 || !strings.HasPrefix(kind, "cgroup2 ") {
			continue
		}
		if below, ok := strings.CutPrefix(path, strings.TrimSuffix(fields[3], "/")); ok {
			return filepath.Join(fields[4], below), nil
		}
	}
	return "", noGroup(errors.New("no control groups of version 2 are mounted"))
}

// join moves this process into a control group.
func join(dir string) error { return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0) }

// opensMPTCP returns an error if a TCP socket that this process opens is not one of MPTCP.
func opensMPTCP() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	switch protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); {
	case err != nil:
		return os.NewSyscallError("getsockopt", err)
	case protocol != unix.IPPROTO_MPTCP:
		return fmt.Errorf("protocol %d", protocol)
	}
	return nil
}

// keptEvery is the longest time until the keeper notices that its control group is gone. The kernel
// delays reports of events that follow soon upon others, and loses them if the group is removed.
const keptEvery = 2 * time.Second

// keep is the process that has the link of the program. It leaves the control group, and removes it
// when it is empty.
func keep(dir string) error {
	rename(keeperName)
	if err := join(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("leave control group: %w", err)
	}
	events, err := os.Open(filepath.Join(dir, "cgroup.events"))
	if err != nil {
		return err
	}
	fmt.Print(ready)
	_ = unix.Dup3(0, 1, 0)
	buffer := make([]byte, 256)
	for {
		n, err := events.ReadAt(buffer, 0)
		if n == 0 && err != nil {
			return err
		}
		if bytes.Contains(buffer[:n], []byte("populated 0")) && unix.Rmdir(dir) == nil {
			return nil
		}
		changes := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(changes, int(keptEvery/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for control group: %w", err)
		}
	}
}
