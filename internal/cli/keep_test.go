package cli

import (
	"context"
	"os"
	"syscall"
	"testing"
)

// kept is closed by KeepState.
type kept chan context.Context

func (k kept) KeepState() {
	ctx := <-k
	if ctx.Err() != nil {
		panic("the daemon stops before it keeps its state")
	}
	close(k)
}

// TestStopKeeping: at SIGUSR1 the daemon stops once it keeps its state.
func TestStopKeeping(t *testing.T) {
	k := make(kept, 1)
	ctx, stop := stopKeeping(t.Context(), k)
	defer stop()
	k <- ctx
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if _, open := <-k; open || t.Context().Err() != nil {
		t.Error("stopped without keeping the state")
	}
}
