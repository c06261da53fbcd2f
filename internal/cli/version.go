package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Build says which source a program is of.
type Build struct{ Version, Commit string }

// NewBuild returns what the linker was given, or else what the toolchain recorded.
func NewBuild(version, commit string) Build {
	b := Build{version, commit}
	info, ok := debug.ReadBuildInfo()
	if ok {
		b.record(info)
	}
	if b.Version == "" {
		b.Version = "unknown"
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}

// record fills in what is missing.
func (b *Build) record(info *debug.BuildInfo) {
	const short = 12
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if b.Commit == "" {
		b.Commit = revision
	}
	switch {
	case b.Version != "":
	case len(revision) >= short:
		b.Version = revision[:short] + dirty
	default:
		b.Version = info.Main.Version
	}
}

// String is one line: version, commit, and the toolchain and platform.
func (b Build) String() string {
	return fmt.Sprintf("tabane %s commit %s %s %s/%s", b.Version, b.Commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func (a *App) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program, its commit and its Go",
		GroupID: "tools",
		Example: "  tabane version",
		Args:    Arguments(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.Out, a.build)
			return err
		},
	}
}
