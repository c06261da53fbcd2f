package database

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadOnly: a file that cannot be written is an error without the texts of SQLite, which are of
// memory.
func TestReadOnly(t *testing.T) {
	kind := Kind{Application: 1, Version: 1, Schema: "CREATE TABLE a (b)", MaxPages: 100}
	dir := t.TempDir()
	path := filepath.Join(dir, "a.db")
	db, err := Open(t.Context(), path, kind, true, func(*sql.Tx) error { return nil })
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			t.Skip(err)
		}
	} else if err := errors.Join(os.Chmod(path, 0o400), os.Chmod(dir, 0o500)); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), path, kind, false, nil)
	if !errors.Is(err, ErrNotWrite) || strings.Contains(err.Error(), "memory") {
		t.Errorf("got %v", err)
	}
}
