package cli

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLoadWaits: SIGTERM ends a command that waits for the configuration in a FIFO.
func TestLoadWaits(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "edge.yaml")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := load(ctx, fifo)
		failed <- err
	}()
	cancel()
	if err := <-failed; !errors.Is(err, ErrInterrupted) {
		t.Errorf("error %v", err)
	}
	// The reader that waits gets an end of file.
	w, err := unix.Open(fifo, unix.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(w); err != nil {
		t.Error(err)
	}
}
