package bpf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
)

// TestRemovePinned: a daemon that runs as another user than root starts although PinRoot is a
// directory of root's, as where nothing was mounted there; but not beside pins that it cannot
// remove.
func TestRemovePinned(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	directory := t.TempDir()
	for at := directory; at != "/"; at = filepath.Dir(at) { // others may search those above
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		root string
		want error
	}{"a directory": {directory, nil}, "a BPF file system": {bpftest.Mount(t), fs.ErrPermission}} {
		pins := filepath.Join(tt.root, "gateway-1")
		if err := os.Mkdir(pins, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := asNobody(func() error { return RemovePinned(pins) }); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if err := RemovePinned(pins); err != nil {
			t.Errorf("%s, as root: %v", name, err)
		}
	}
}

// asNobody runs a function with the access to files of a user who owns none.
func asNobody(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const nobody = 65534
	if err := unix.Setfsuid(nobody); err != nil {
		return err
	}
	defer unix.Setfsuid(0)
	return f()
}
