package bpftest

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// LockNames waits until no other test loads congestion controls by their own names, which a host
// has once, and returns what lets the next one do so.
func LockNames() (unlock func(), err error) {
	name := filepath.Join(os.TempDir(), "tabane-test-congestion.lock")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock names of congestion controls: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %q: %w", name, err)
	}
	return func() { _ = f.Close() }, nil
}
