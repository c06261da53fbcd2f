package bpf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
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

// TestOwn: root can use pins of the user of the units without access to files of others, and that user
// can pin beside them, but cannot remove them.
func TestOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	root := bpftest.Mount(t)
	for at := filepath.Dir(root); at != "/"; at = filepath.Dir(at) { // others may search those above
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(root, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	dir, outside := filepath.Join(root, "gateway-1"), t.TempDir()
	if err := os.Chown(outside, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	err := asNobody(func() error {
		return errors.Join(os.MkdirAll(filepath.Join(dir, "maps-1"), 0o700), os.Symlink(outside, filepath.Join(dir, "links")))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := own(dir); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		of   string
		want uint32
	}{{root, 0}, {dir, 0}, {filepath.Join(dir, "maps-1"), 0}, {outside, nobody}} {
		info, err := os.Stat(tt.of)
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != tt.want {
			t.Errorf("%s belongs to user %d, want %d", tt.of, owner, tt.want)
		}
	}
	if err := unprivileged(0, func() error { return os.RemoveAll(filepath.Join(dir, "maps-1")) }); err != nil {
		t.Errorf("root without access to files of others: %v", err)
	}
	err = asNobody(func() error { return os.Mkdir(filepath.Join(root, "gateway-2"), 0o700) })
	if err != nil {
		t.Errorf("the user of the units cannot pin: %v", err)
	}
	if err := asNobody(func() error { return os.Remove(filepath.Join(dir, "links")) }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the user of the units removes pins of root's: %v", err)
	}
	if err := asNobody(func() error { return os.Rename(dir, dir+"0") }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the user of the units moves pins of root's: %v", err)
	}
	// Those of others are in use, and a sweep leaves them.
	var list []Pinned
	err = asNobody(func() (err error) {
		list, err = allPinned(root, "gateway")
		return err
	})
	if err != nil || len(list) != 2 || !list[0].Used || !list[1].Stale() {
		t.Errorf("another user finds %+v, %v", list, err)
	}
}

const nobody = 65534

// asNobody runs a function with the access to files of a user and a group who own none.
func asNobody(f func() error) error { return unprivileged(nobody, f) }

// unprivileged runs a function with the access to files of a user and the group of that number, and
// without CAP_DAC_OVERRIDE.
func unprivileged(user int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this function
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		done <- errors.Join(unix.Setfsgid(user), unix.Setfsuid(user), unix.Capset(&header, &none[0]), f())
	}()
	return <-done
}
