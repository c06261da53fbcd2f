package edge

import (
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/kernel/statefile"
)

// memoryFile is where the daemon keeps what connections learned of paths.
func (c *Config) memoryFile() string { return c.stateFile(".paths") }

// memory keeps what connections learned of paths in a file. It is written in a goroutine of its
// own.
type memory struct {
	file    string
	log     *slog.Logger
	entries chan []selection.Entry
	writer  sync.WaitGroup
	failed  bool // to write, which was logged
}

// newMemory returns the memory in a file. The caller calls close once.
func newMemory(file string, log *slog.Logger) *memory {
	m := &memory{file: file, log: log, entries: make(chan []selection.Entry, 1)}
	m.writer.Go(func() {
		for entries := range m.entries {
			m.write(entries)
		}
	})
	return m
}

// read returns what is in the file. What is invalid is logged and ignored.
func (m *memory) read(now time.Time) *selection.Memory {
	var paths selection.Memory
	text, err := statefile.Read(m.file, selection.MaxMemorySize)
	if err == nil {
		err = paths.Load(now, text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("read memory of paths failed", "file", m.file, "err", err)
	}
	return &paths
}

// remember has the entries written, in place of those that were not written yet. It has one caller.
func (m *memory) remember(entries []selection.Entry) {
	select {
	case <-m.entries:
	default:
	}
	m.entries <- entries
}

// close waits until everything is written.
func (m *memory) close() {
	close(m.entries)
	m.writer.Wait()
}

// write replaces the file as a whole.
func (m *memory) write(entries []selection.Entry) {
	text, err := selection.Encode(entries)
	if err == nil {
		err = statefile.Replace(m.file, statefile.Bytes(text))
	}
	if err != nil && !m.failed {
		m.log.Warn("write memory of paths failed; what is not written is lost at a restart", "err", err)
	}
	m.failed = err != nil
}
