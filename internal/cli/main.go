package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// sameSignal is how long after the first signal further ones are taken for the same: timeout(1)
// sends SIGTERM to its child and at once to its process group, so that the child gets it twice.
const sameSignal = 500 * time.Millisecond

// Main runs a program, whose command line run executes, and exits the process. version and commit
// are what the linker was given. The first SIGINT or SIGTERM asks for a clean stop; the second, if it
// is not the same one again, has its default effect and ends the process at once.
func Main(run func(context.Context, Options) int, version, commit string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
	os.Exit(run(ctx, Options{Args: os.Args[1:], Out: os.Stdout, Err: os.Stderr, Build: NewBuild(version, commit)}))
}
