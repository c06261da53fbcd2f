package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// groups are where the root of control groups of version 2 is mounted.
var groups = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// Groups opens the root of control groups of version 2. Where it is not mounted, as in a network
// namespace with a /sys of its own, it is opened by a mount that nothing else sees (Linux 5.2),
// which needs CAP_SYS_ADMIN.
func Groups() (*os.File, error) {
	for _, dir := range groups {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return os.Open(dir)
		}
	}
	missing := func(err error) error {
		return &feature.Error{Feature: "eBPF", Reason: "there are no control groups of version 2", Remedy: "mount -t cgroup2 none " + groups[1], Err: err}
	}
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, missing(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, missing(err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, missing(err)
	}
	return os.NewFile(uintptr(fd), "cgroup2"), nil
}

// GroupPath returns a path of a control group that is open, for this process. It is a symbolic link.
func GroupPath(group *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", group.Fd()) }

// EgressFilter is a program that decides which packets the sockets of a control group send, such as
// that of IPAddressDeny= of systemd.
type EgressFilter struct {
	// Group is the path of the control group below the directory that was read.
	Group   string
	Program ebpf.ProgramID
}

// EgressFilters returns the filters of the control groups in a directory of version 2 and below.
// dir may be a symbolic link.
func EgressFilters(dir string) (list []EgressFilter, err error) {
	err = filepath.WalkDir(dir+"/.", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil // removed meanwhile
		}
		if err != nil || !d.IsDir() {
			return err
		}
		group, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer group.Close()
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(group.Fd()), Attach: ebpf.AttachCGroupInetEgress})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, p := range found.Programs {
			list = append(list, EgressFilter{filepath.Clean("/" + strings.TrimPrefix(path, dir)), p.ID})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list filters of control groups: %w", err)
	}
	return list, nil
}

// Accepts reports whether the filter accepts each of some packets, which begin with an Ethernet
// header. It runs the program, which counts them if it does so with packets that are sent. It needs
// CAP_SYS_ADMIN.
func (f EgressFilter) Accepts(packets ...[]byte) ([]bool, error) {
	p, err := ebpf.NewProgramFromID(f.Program)
	if err != nil {
		return nil, fmt.Errorf("open filter of control group %q: %w", f.Group, err)
	}
	defer p.Close()
	accepts := make([]bool, len(packets))
	for i, b := range packets {
		verdict, err := p.Run(&ebpf.RunOptions{Data: b})
		if err != nil {
			return nil, fmt.Errorf("run filter of control group %q: %w", f.Group, err)
		}
		accepts[i] = verdict&1 != 0 // others are notes of congestion
	}
	return accepts, nil
}
