package browser

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// profilePrefix starts the names of profile directories.
const profilePrefix = "tabane-browser-"

// profile is a browser's private directory. Its lock is held while the browser runs, so that
// directories of processes that were killed can be removed.
type profile struct {
	dir  string
	lock *os.File
}

// newProfile creates a profile in a directory, and removes those there that a killed process of
// this user has left behind.
func newProfile(parent string) (profile, error) {
	if err := sweep(parent); err != nil {
		return profile{}, fmt.Errorf("remove stale profiles: %w", err)
	}
	for {
		dir, err := os.MkdirTemp(parent, profilePrefix)
		if err != nil {
			return profile{}, fmt.Errorf("create profile: %w", err)
		}
		p, err := lockProfile(dir, unix.LOCK_EX)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process swept it before it was locked
		}
		if err != nil {
			return profile{}, fmt.Errorf("create profile: %w", err)
		}
		return p, nil
	}
}

// lockProfile locks a directory, which must still exist then.
func lockProfile(dir string, how int) (profile, error) {
	lock, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return profile{}, err
	}
	if err = unix.Flock(int(lock.Fd()), how); err == nil {
		_, err = os.Lstat(dir)
	}
	if err != nil {
		lock.Close()
		return profile{}, err
	}
	return profile{dir, lock}, nil
}

// singleton is the link by which a profile leads to the directory of sockets that a browser makes
// beside it.
const singleton = "SingletonSocket"

// remove removes the directory, and that of the browser's sockets, which a killed browser leaves
// behind.
func (p profile) remove() error {
	if socket, err := os.Readlink(filepath.Join(p.dir, singleton)); err == nil && filepath.Base(socket) == singleton {
		sockets := filepath.Dir(socket)
		for _, path := range []string{socket, filepath.Join(sockets, "SingletonCookie"), sockets} {
			_ = os.Remove(path) // it is not there, or there is more in it than a browser puts there
		}
	}
	return errors.Join(os.RemoveAll(p.dir), p.lock.Close())
}

// Sweep removes what browsers of this user have left in the directory for temporary files because
// the process that started them was killed. Start does so as well.
func Sweep() error {
	if err := sweep(os.TempDir()); err != nil {
		return fmt.Errorf("remove stale profiles: %w", err)
	}
	return nil
}

// sweep removes the profiles of this user that no process holds.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), profilePrefix) || !e.IsDir() {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		info, err := os.Lstat(dir)
		if err != nil {
			continue // removed meanwhile
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
			continue
		}
		p, err := lockProfile(dir, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue // in use, or removed meanwhile
		}
		if err := p.remove(); err != nil {
			return err
		}
	}
	return nil
}
