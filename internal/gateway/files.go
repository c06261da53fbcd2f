package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/kernel/statefile"
)

// Files makes the names of files relative to dir, that of the configuration file, and returns their
// faults. It reads them.
func (c *Config) Files(dir string) fault.List {
	var faults fault.List
	resolve := func(name *string) bool {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(dir, *name)
		}
		return *name != ""
	}
	if resolve(&c.Key) {
		key, err := readKey(c.Key, handshake.ParsePrivateKey)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			faults.Add("key", "%v: make a key by tabane gateway key --out %s", err, c.Key)
		case err != nil:
			faults.Add("key", "%v", err)
		}
		for i, p := range c.Peers {
			if err == nil && p.PublicKey == key.Public().String() {
				faults.Add(fmt.Sprintf("peers[%d].public_key", i), "is that of this gateway itself")
			}
		}
	}
	resolve(&c.QuotaFile)
	for _, s := range c.secrets() {
		if resolve(s.file) {
			if _, err := readKey(*s.file, handshake.ParsePresharedKey); err != nil {
				faults.Add(s.at+".preshared_key", "%v", err)
			}
		}
	}
	return faults
}

// PrivateKey returns the private key in a file.
func PrivateKey(file string) (handshake.PrivateKey, error) {
	return readKey(file, handshake.ParsePrivateKey)
}

// WriteKey writes a private key to a new file that only the caller can read, and if root calls, the
// group of the package's units if there is one: a daemon that root starts has no access to files of
// another user, after its start. It is an error if the file exists. It may be called for a file in a
// directory that others cannot change.
func WriteKey(file string, key handshake.PrivateKey) error { return writeKey(file, key, unitUser) }

func writeKey(file string, key handshake.PrivateKey, unit func() (owner, group uint32, ok bool)) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("write key %q: the file exists: a new key would replace one that peers may know; tabane gateway key %s prints its public key", file, file)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("write key %q: %w; make its directory: mkdir -p %s", file, statefile.Cause(err), filepath.Dir(file))
	case err != nil:
		return fmt.Errorf("write key %q: %w", file, statefile.Cause(err))
	}
	defer func() {
		if err = cmp.Or(err, f.Close()); err != nil {
			err = fmt.Errorf("write key %q: %w", file, errors.Join(statefile.Cause(err), os.Remove(file)))
		}
	}()
	if _, group, ok := unit(); ok && os.Geteuid() == 0 {
		if err := errors.Join(f.Chown(0, int(group)), f.Chmod(0o640)); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(f, "# public key: %s\n%s\n", key.Public(), key.Text()); err != nil {
		return err
	}
	return f.Sync()
}

// unitUser returns the numbers of the user and the group whom the units run the daemons as, if this
// host has them.
func unitUser() (owner, group uint32, ok bool) {
	u, err := user.Lookup(packageUser)
	if err != nil {
		return 0, 0, false
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, 0, false
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(uid), uint32(gid), err == nil
}

// maxKeyFile is the largest size of a key's file in bytes.
const maxKeyFile = 4096

// packageUser is the user whom the units of the package run the daemons as. Root reads that user's
// keys, as for tabane check.
const packageUser = "tabane"

// trusted reports whether a key that this user owns, and can replace, is good for a process of the
// effective user.
func trusted(owner, effective uint32) bool {
	if owner == effective || owner == 0 {
		return true
	}
	unit, _, ok := unitUser()
	return effective == 0 && ok && unit == owner
}

// exposed reports whether others may read or write a file of this owner and group: others than the
// owner and, of a file of root's, those who read it as the group of the units.
func exposed(mode fs.FileMode, owner, group uint32, unit func() (owner, group uint32, ok bool)) bool {
	const others, readers = 0o077, 0o040
	if mode&others == readers && owner == 0 {
		_, units, ok := unit()
		return !ok || group != units
	}
	return mode&others != 0
}

// readKey reads a key from a file of this user or root that is not exposed. Lines that begin with #
// are comments.
func readKey[K any](name string, parse func(string) (K, error)) (key K, err error) {
	// A named pipe must not block.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return key, fmt.Errorf("read key %q: %w", name, statefile.Cause(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return key, err
	}
	of := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return key, fmt.Errorf("read key %q: it is not a regular file", name)
	case exposed(info.Mode().Perm(), of.Uid, of.Gid, unitUser):
		return key, fmt.Errorf("read key %q: it may be read or written by others (mode %04o): chmod 600 %s, and make a new key if others may have read it", name, info.Mode().Perm(), name)
	case !trusted(of.Uid, uint32(os.Geteuid())):
		return key, fmt.Errorf("read key %q: it belongs to user %d, who can read and replace it: chown it to the user of the daemon, and make a new key", name, of.Uid)
	case info.Size() > maxKeyFile:
		return key, fmt.Errorf("read key %q: it is larger than %d bytes", name, maxKeyFile)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return key, fmt.Errorf("read key %q: %w", name, err)
	}
	text := ""
	for line := range bytes.Lines(data) {
		if l := strings.TrimSpace(string(line)); l != "" && !strings.HasPrefix(l, "#") {
			if text != "" {
				return key, fmt.Errorf("read key %q: it has more than one key", name)
			}
			text = l
		}
	}
	if key, err = parse(text); err != nil {
		return key, fmt.Errorf("read key %q: %w", name, err)
	}
	return key, nil
}

// PublicKey returns the public key that belongs to the private key in a file.
func PublicKey(file string) (handshake.PublicKey, error) {
	key, err := PrivateKey(file)
	if err != nil {
		return handshake.PublicKey{}, err
	}
	return key.Public(), nil
}
