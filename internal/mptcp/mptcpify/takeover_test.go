package mptcpify

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/seccomp"
)

// caller is a thread of this process under the filter.
type caller struct {
	listener *seccomp.Listener
	ask      chan struct{}
	answers  chan socket
}

func newCaller(t *testing.T) *caller {
	t.Helper()
	c := &caller{ask: make(chan struct{}), answers: make(chan socket)}
	arch, _ := seccomp.Arch()
	installed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var err error
		c.listener, err = seccomp.Install(filter(arch))
		installed <- err
		for range c.ask {
			c.answers <- open(unix.AF_INET, unix.SOCK_STREAM, 0)
		}
	}()
	if err := <-installed; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(c.ask)
		if err := c.listener.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// newRecord returns a record that two supervisors of this process share.
func newRecord(t *testing.T) record {
	t.Helper()
	fd, err := createRecord()
	if err != nil {
		t.Fatal(err)
	}
	r, err := openRecord(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(r.memory); err != nil {
			t.Error(err)
		}
		r.file.Close()
	})
	return r
}

// TestTakeover checks what the next supervisor does with a call at each point at which the previous
// one may have died.
func TestTakeover(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name string
		// before is what the previous supervisor has done with the call that is in the record.
		before func(s *supervisor, n seccomp.Notification) error
	}{
		{"received", func(*supervisor, seccomp.Notification) error { return nil }},
		{"installed", func(s *supervisor, n seccomp.Notification) error {
			_, err := s.install(n)
			return err
		}},
		{"opened", func(s *supervisor, n seccomp.Notification) error {
			// The socket is closed with the process that has opened it.
			fd, err := s.opener.open(n)
			if err != nil {
				return err
			}
			var stat unix.Stat_t
			if err := unix.Fstat(fd, &stat); err != nil {
				return err
			}
			s.record.setSocket(stat.Ino)
			return unix.Close(fd)
		}},
		{"answered", func(s *supervisor, n seccomp.Notification) error {
			s.answer(n, nil)
			return nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCaller(t)
			r := newRecord(t)
			o, err := newOpener()
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(o.namespace)
			previous, next := &supervisor{listener: c.listener, record: r, opener: o}, &supervisor{listener: c.listener, record: r, opener: o}
			c.ask <- struct{}{}
			if err := c.listener.Receive(r.notification()); err != nil {
				t.Fatal(err)
			}
			n, err := r.load()
			if err != nil {
				t.Fatal(err)
			}
			files := openFiles(t)
			if err := tt.before(previous, n); err != nil {
				t.Fatal(err)
			}
			next.answer(r.load())
			if s := <-c.answers; s.Errno != 0 || s.Got != unix.IPPROTO_MPTCP {
				t.Errorf("the call returned %+v", s)
			}
			if got := openFiles(t); got != files {
				t.Errorf("the caller has %d files, want %d", got, files)
			}
			// Another one finds nothing to do, and the next call is not affected.
			next.answer(r.load())
			r.clear()
			if _, err := r.load(); err == nil {
				t.Error("the record still has a notification")
			}
			c.ask <- struct{}{}
			if err := c.listener.Receive(r.notification()); err != nil {
				t.Fatal(err)
			}
			next.answer(r.load())
			if s := <-c.answers; s.Got != unix.IPPROTO_MPTCP {
				t.Errorf("the next call returned %+v", s)
			}
		})
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
