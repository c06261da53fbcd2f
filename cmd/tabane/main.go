// Command tabane sends content over every path a network has. See tabane --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/tabane/tabane/internal/bfd"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/mptcpify"
)

// version is set by the linker (see the Makefile).
var version string

// The verb mptcpify has another program replace this process, with what the main thread has. The other verbs unlock it.
func init() { runtime.LockOSThread() }

func main() {
	bfd.Process()
	mptcpify.Process()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal asks for a clean stop; the second has its default effect and ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, cli.Options{Args: os.Args[1:], Out: os.Stdout, Err: os.Stderr, Version: release()}))
}

// release is the version that the linker was given, or else what the toolchain noted down.
func release() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			revision = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return info.Main.Version
	}
	return revision + dirty
}
