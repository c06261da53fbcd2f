package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a program, whose command line run executes, and exits the process. version and commit
// are what the linker was given. The first SIGINT or SIGTERM asks for a clean stop; the second has
// its default effect and ends the process at once.
func Main(run func(context.Context, Options) int, version, commit string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, Options{Args: os.Args[1:], Out: os.Stdout, Err: os.Stderr, Build: NewBuild(version, commit)}))
}
