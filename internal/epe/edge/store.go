package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/epe/belief"
)

const (
	// storeEvery is how often what changed in networks is written.
	storeEvery = time.Minute
	// storePart is the number of networks that are read from the table at a time.
	storePart = 1000
	// maxStoreSize bounds the file in bytes.
	maxStoreSize = 2 << 30
)

// networksFile is where the daemon keeps what is known of networks: beside its socket.
func (c *Config) networksFile() string {
	return strings.TrimSuffix(control.Path(c.Control, "edge"), ".sock") + ".networks"
}

// readNetworks adds what a previous instance knew. What cannot be read is moved aside.
func readNetworks(file string, now time.Time, t *belief.Table, log *slog.Logger) {
	err := func() error {
		f, err := openRegular(file, maxStoreSize)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = t.Read(now, f)
		return err
	}()
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	aside := file + ".invalid"
	if moved := os.Rename(file, aside); moved != nil {
		err = errors.Join(err, moved)
	}
	log.Warn("read what is known of networks failed; the file is moved aside", "file", file, "to", aside, "err", err)
}

// storeNetworks writes what is known of networks every minute if it changed, and at the end.
func (e *Edge) storeNetworks(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
	every := time.NewTicker(storeEvery)
	defer every.Stop()
	failed := false
	for done := false; !done; {
		select {
		case <-every.C:
		case <-ctx.Done():
			done = true
		}
		err := e.storeOnce()
		if err != nil && !failed {
			e.log.Warn("write what is known of networks failed; what is not written is lost at a restart", "err", err)
		}
		if failed = err != nil; failed {
			e.inLoop(e.egress.auto.table.SetChanged)
		}
	}
}

// storeOnce replaces the file as a whole, in one step, if something changed.
func (e *Edge) storeOnce() error {
	var prefixes []netip.Prefix
	changed := false
	e.inLoop(func() {
		if changed = e.egress.auto.table.ClearChanged(); changed {
			prefixes = e.egress.auto.table.Prefixes()
		}
	})
	if !changed {
		return nil
	}
	return replaceFile(e.config.networksFile(), func(w io.Writer) error {
		return belief.Write(w, func(yield func(*belief.Record) bool) {
			for len(prefixes) > 0 {
				part := prefixes[:min(storePart, len(prefixes))]
				prefixes = prefixes[len(part):]
				var records []belief.Record
				e.inLoop(func() { records = e.egress.auto.table.RecordsOf(part) })
				for i := range records {
					if !yield(&records[i]) {
						return
					}
				}
			}
		})
	})
}

// inLoop runs f in the daemon's loop, or here once that has ended.
func (e *Edge) inLoop(f func()) {
	if !e.daemon.Do(context.Background(), f) {
		f()
	}
}

// openRegular opens a regular file of at most that many bytes.
func openRegular(name string, most int64) (*os.File, error) {
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

// replaceFile writes a file and replaces the one of that name with it.
func replaceFile(name string, write func(io.Writer) error) error {
	// With one name a killed process leaves at most one such file behind.
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync() // else the name may be on the disk before the content
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
