package edge

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/epe/selection"
)

func TestMemoryFile(t *testing.T) {
	for control, want := range map[string]string{"": "/run/tabane/edge.paths", "/run/x/e.sock": "/run/x/e.paths", "/run/x/e": "/run/x/e.paths"} {
		if got := (&Config{Control: control}).memoryFile(); got != want {
			t.Errorf("%q: %s, want %s", control, got, want)
		}
	}
}

// TestMemory writes a file that the next instance reads, over what a killed one left behind.
func TestMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edge.paths")
	if err := os.WriteFile(file+".new", make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	m := newMemory(file, slog.New(slog.NewTextHandler(&log, nil)))
	now := time.Now()
	if got := m.read(now); got.Len() > 0 {
		t.Errorf("read %d paths of no file", got.Len())
	}
	var learned selection.Memory
	for i := range 100 {
		learned.Learn(now, selection.KeyOf(netip.MustParseAddr("2001:db8:1::a"), netip.AddrFrom4([4]byte{198, 51, byte(i), 1})), selection.Past{Rate: 1e6})
		m.remember(learned.Entries(now))
	}
	m.close()
	if next := m.read(now); next.Len() != 100 {
		t.Errorf("%d paths after a restart", next.Len())
	}
	if _, err := os.Stat(file + ".new"); err == nil || log.Len() > 0 {
		t.Errorf("left %v, logged %s", err, &log)
	}
}

// TestHostileMemory: whatever is at the place of the file is ignored with one line in the log.
func TestHostileMemory(t *testing.T) {
	dir := t.TempDir()
	write := func(size int64) func(string) error {
		return func(name string) error {
			f, err := os.Create(name)
			if err == nil {
				_, err = f.WriteString(`{"version":1,"paths":[{"peer":3}]}`)
			}
			if err == nil && size > 0 {
				err = f.Truncate(size)
			}
			return err
		}
	}
	for name, make := range map[string]func(string) error{
		"invalid":   write(0),
		"huge":      write(1 << 40),
		"directory": func(name string) error { return os.Mkdir(name, 0o700) },
		"fifo":      func(name string) error { return unix.Mkfifo(name, 0o600) },
		"link":      func(name string) error { return os.Symlink("/dev/zero", name) },
		"device":    func(name string) error { return os.Symlink("/dev/stdin", name) },
	} {
		file := filepath.Join(dir, name)
		if err := make(file); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		m := newMemory(file, slog.New(slog.NewTextHandler(&log, nil)))
		got := m.read(time.Now())
		m.close()
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "memory of paths failed") || got.Len() > 0 {
			t.Errorf("%s: %d paths, logged %d lines: %s", name, got.Len(), n, &log)
		}
	}
}

// TestUnwritableMemory logs the first of several failures.
func TestUnwritableMemory(t *testing.T) {
	var log bytes.Buffer
	m := newMemory(filepath.Join(t.TempDir(), "missing", "edge.paths"), slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		m.write(nil)
	}
	m.close()
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("logged %d lines: %s", n, &log)
	}
}
