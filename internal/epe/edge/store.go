package edge

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/kernel/statefile"
)

const (
	// storeEvery is how often what changed in networks is written.
	storeEvery = time.Minute
	// storePart is the number of networks that are read from the table at a time.
	storePart = 1000
	// maxStoreSize bounds the file in bytes.
	maxStoreSize = 2 << 30
)

// NetworksFile is where the daemon keeps what is known of networks.
func (c *Config) NetworksFile() string { return c.stateFile(".networks") }

// stateFile is a file beside the daemon's socket, in a directory that is kept over restarts.
func (c *Config) stateFile(suffix string) string {
	return strings.TrimSuffix(control.Path(c.Control, "edge"), ".sock") + suffix
}

// readNetworks adds what a previous instance knew. What cannot be read is moved aside.
func readNetworks(file string, now time.Time, t *belief.Table, log *slog.Logger) {
	err := func() error {
		f, err := statefile.Open(file, maxStoreSize)
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
	aside, moved := statefile.SetAside(file)
	log.Warn("read what is known of networks failed; the file is moved aside", "file", file, "to", aside, "err", errors.Join(err, moved))
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
	return statefile.Replace(e.config.NetworksFile(), func(w io.Writer) error {
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
		e.afterLoop.Lock()
		defer e.afterLoop.Unlock()
		f()
	}
}
