package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace of this host.
type Namespace struct {
	// Name is its name in /run/netns, or empty.
	Name string
	// PID is the lowest ID of a process in it, or 0.
	PID int

	path string
}

// String returns the name, or else a process by which the namespace can be entered.
func (n Namespace) String() string {
	switch {
	case n.Name != "":
		return n.Name
	case n.PID == 1 || n.PID == 2: // init and kthreadd
		return "(initial)"
	}
	return "(of process " + strconv.Itoa(n.PID) + ")"
}

// Do runs f inside the namespace, as the function Do does. The error of a namespace that is gone
// matches fs.ErrNotExist.
func (n Namespace) Do(f func() error) error {
	ns, err := os.Open(n.path)
	if err != nil {
		return fmt.Errorf("enter namespace %q: %w", n, err)
	}
	defer ns.Close()
	return onThread(func() error {
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if errors.Is(err, unix.EINVAL) {
			err = fs.ErrNotExist // the file of a name to which nothing is mounted yet, or any more
		}
		if err != nil {
			return fmt.Errorf("enter namespace %q: %w", n, err)
		}
		return nil
	}, f)
}

// All returns the network namespaces that have a process or a name in this mount namespace, those
// of processes first. Namespaces that only a socket or a file keeps are not found, nor those of
// processes that this one may not inspect (ptrace(2)) if they have no name.
func All() ([]Namespace, error) {
	type identity struct{ device, inode uint64 }
	var all []Namespace
	index := map[identity]int{}
	add := func(n Namespace) error {
		var s unix.Stat_t
		if err := unix.Stat(n.path, &s); err != nil {
			return err
		}
		id := identity{s.Dev, s.Ino}
		if at, ok := index[id]; ok {
			if all[at].Name == "" {
				all[at].Name = n.Name
			}
			return nil
		}
		index[id] = len(all)
		all = append(all, n)
		return nil
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		err = add(Namespace{PID: pid, path: filepath.Join("/proc", p.Name(), "ns/net")})
		// The process has ended, is a zombie without namespaces, or belongs to somebody else.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("list network namespaces: process %d: %w", pid, err)
		}
	}
	names, err := List("")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := add(Namespace{Name: name, path: filepath.Join(dir, name)}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list network namespaces: %q: %w", name, err)
		}
	}
	return all, nil
}
