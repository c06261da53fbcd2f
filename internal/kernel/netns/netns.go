// Package netns creates, deletes and enters named network namespaces, which are bind mounts in
// /run/netns, as those of `ip netns`.
//
// The namespace of the calling goroutine is never changed: a function or a command runs inside a
// namespace, and a thread that cannot return is discarded. Links, addresses and routes are
// configured elsewhere.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// dir is where iproute2 keeps named namespaces.
const dir = "/run/netns"

// threadNS is the network namespace of the calling thread.
const threadNS = "/proc/thread-self/ns/net"

// maxName is the longest permitted name in bytes.
const maxName = 64

// Create creates a named network namespace, in which lo is down. An existing name is an error that
// matches fs.ErrExist.
func Create(name string) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("create namespace %q: %w", name, err)
	}
	if err := create(name); err != nil {
		return fmt.Errorf("create namespace %q: %w", name, err)
	}
	return nil
}

func create(name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := share(); err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return err
	}
	f.Close()
	err = onThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		return unix.Mount(threadNS, path, "none", unix.MS_BIND, "")
	})
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// share makes the directory a shared mount, so that a namespace deleted here is also gone in the
// mount namespaces of other processes, which would keep it alive otherwise. A directory that is no
// mount point must become one first.
func share() error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// The same lock as iproute2 takes: two creators at once would mount the directory on itself
	// twice.
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %q: %w", dir, err)
	}
	err = unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return wrap("share "+dir, err)
	}
	if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s on itself: %w", dir, err)
	}
	return wrap("share "+dir, unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, ""))
}

// Delete removes the name. The namespace is freed with its last process, socket or other reference.
// A missing name is an error that matches fs.ErrNotExist.
func Delete(name string) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("delete namespace %q: %w", name, err)
	}
	path := filepath.Join(dir, name)
	// EINVAL: a file without a mount, as a creator that died half-way leaves it; it still has to
	// go.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("delete namespace %q: %w", name, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("delete namespace %q: %w", name, err)
	}
	return nil
}

// List returns the names that start with prefix, sorted.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Do runs f inside the namespace, on an operating system thread of its own, and returns f's error
// as it is. Sockets that f opens and commands that f starts belong to the namespace for good;
// goroutines that f starts do not run in it. A panic or runtime.Goexit of f happens to the caller.
// A missing name is an error that matches fs.ErrNotExist.
func Do(name string, f func() error) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("enter namespace %q: %w", name, err)
	}
	ns, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("enter namespace %q: %w", name, err)
	}
	defer ns.Close()
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %q: %w", name, err)
		}
		return nil
	}, f)
}

// A Handle keeps a network namespace open. It is safe for concurrent use until Close.
type Handle struct{ file *os.File }

// Current returns a handle of the network namespace of the calling thread.
func Current() (*Handle, error) {
	f, err := os.Open(threadNS)
	if err != nil {
		return nil, fmt.Errorf("open own namespace: %w", err)
	}
	return &Handle{f}, nil
}

// Close closes the handle.
func (h *Handle) Close() error { return h.file.Close() }

// Do runs f inside the namespace, as the function Do does. It needs no privilege where the calling
// thread is in it already.
func (h *Handle) Do(f func() error) error {
	if inside, err := h.inside(); err != nil || !inside {
		return onThread(func() error {
			if err := errors.Join(err, unix.Setns(int(h.file.Fd()), unix.CLONE_NEWNET)); err != nil {
				return fmt.Errorf("enter namespace: %w", err)
			}
			return nil
		}, f)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}

// inside reports whether the calling thread is in the namespace. Threads leave theirs in onThread
// only, and return to it.
func (h *Handle) inside() (bool, error) {
	var own, other unix.Stat_t
	err := errors.Join(unix.Stat(threadNS, &own), unix.Fstat(int(h.file.Fd()), &other))
	return own.Dev == other.Dev && own.Ino == other.Ino, err
}

// Start starts the command inside the namespace, otherwise as cmd.Start does.
func Start(name string, cmd *exec.Cmd) error {
	return Do(name, cmd.Start)
}

// onThread runs enter and then f on a locked thread and brings the thread back to the namespace it
// came from. A thread that cannot return stays locked, so the runtime ends it with its goroutine
// and never reuses it.
func onThread(enter, f func() error) error {
	var (
		err      error
		returned bool // f came to its end, neither panic nor Goexit
		panicked any
		done     = make(chan struct{})
	)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		home, e := os.Open(threadNS)
		if e != nil {
			runtime.UnlockOSThread()
			err, returned = fmt.Errorf("open own namespace: %w", e), true
			return
		}
		defer home.Close()
		defer func() {
			if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}()
		if err = enter(); err != nil {
			returned = true
			return
		}
		defer func() {
			if !returned {
				panicked = recover()
			}
		}()
		err = f()
		returned = true
	}()
	<-done
	switch {
	case panicked != nil:
		panic(panicked)
	case !returned:
		runtime.Goexit()
	}
	return err
}

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("name is empty")
	case len(name) > maxName:
		return fmt.Errorf("name has %d bytes, more than %d", len(name), maxName)
	case name == "." || name == "..":
		return errors.New("name is a directory")
	}
	for _, r := range name {
		if r == '/' || r <= ' ' || r == 0x7f || r == '\uFFFD' {
			return fmt.Errorf("name contains %q", r)
		}
	}
	return nil
}

func wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", verb, err)
}
