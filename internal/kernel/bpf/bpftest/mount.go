package bpftest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Mount mounts a BPF file system, for pins, until the test ends, and returns where. It needs root.
func Mount(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("bpf", root, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return root
}
