// Package statefile reads and replaces the files in which a process keeps what the next one is to
// know. Cause is for errors of any file.
package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a regular file of at most that many bytes, to be read.
func Open(name string, most int64) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("read %s: not a regular file", name)
	case info.Size() > most:
		err = fmt.Errorf("read %s: larger than %d bytes", name, most)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Read returns the content of a regular file of at most that many bytes.
func Read(name string, most int64) ([]byte, error) {
	f, err := Open(name, most)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most)) // it may have grown since
}

// SetAside moves a file that cannot be used, so that the next one of the name does not replace what
// it has. It returns where it is then.
func SetAside(name string) (aside string, err error) {
	aside = name + ".invalid"
	return aside, os.Rename(name, aside)
}

// Replace writes a file, which only its owner can read, and replaces the one of that name with it:
// whenever the process or the machine ends, the name has the content of before or the new one.
func Replace(name string, write func(io.Writer) error) error {
	// With one name a killed process leaves at most one such file behind.
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync() // else the name may be on the disk before the content
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // as of a full disk; the error says what matters
	}
	return err
}

// ErrLocked is the error of Lock while another process has the lock.
var ErrLocked = errors.New("another process uses it")

// Lock keeps other processes that call it for this name away until it is closed or the process
// ends. The lock is that of a file beside, which stays: the one of that name is replaced.
func Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name+".lock", os.O_RDWR|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	switch err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = ErrLocked
	case err == nil:
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// Bytes returns what Replace needs to write a text.
func Bytes(text []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}
}

// Cause returns an error without the operation and the file of an *fs.PathError, for messages that
// name the file themselves.
func Cause(err error) error {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		return of.Err
	}
	return err
}
