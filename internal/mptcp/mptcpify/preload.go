package mptcpify

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/feature"
)

// libraries are where distributions install the library of mptcpize(8).
var libraries = []string{
	"/usr/lib/*/mptcpize/libmptcpwrap.so*",
	"/usr/lib*/mptcpize/libmptcpwrap.so*",
	"/usr/lib/*/mptcpd/libmptcpwrap.so*",
	"/usr/lib*/mptcpd/libmptcpwrap.so*",
	"/usr/local/lib*/mptcpd/libmptcpwrap.so*",
}

// preloadKey is the environment variable of the dynamic linker (ld.so(8)).
const preloadKey = "LD_PRELOAD"

// noPreload is what this host lacks.
func noPreload(reason, remedy string) error {
	return &feature.Error{Feature: "LD_PRELOAD", Reason: reason, Remedy: remedy}
}

// usePreload has the dynamic linker load the library into the program and its children.
func usePreload(o *Options) error {
	library, err := findLibrary(libraries)
	if err != nil {
		return err
	}
	if err := preloadable(o.Program); err != nil {
		return err
	}
	o.Env = addPreload(o.Env, library)
	return nil
}

// findLibrary returns the first file that matches one of the patterns and is a library for the
// architecture of this program.
func findLibrary(patterns []string) (string, error) {
	own, err := elf.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("read own architecture: %w", err)
	}
	defer own.Close()
	for _, p := range patterns {
		found, _ := filepath.Glob(p) // the error is of a bad pattern
		for _, path := range found {
			f, err := elf.Open(path)
			if err != nil {
				continue
			}
			fits := f.Machine == own.Machine && f.Type == elf.ET_DYN
			f.Close()
			if fits {
				return path, nil
			}
		}
	}
	return "", noPreload("there is no libmptcpwrap.so", "apt-get install mptcpize")
}

// preloadable returns a *feature.Error if a library that the dynamic linker loads into the program,
// or for a script into its interpreter, does not change the program's sockets.
func preloadable(program string) error {
	path := program
	if interpreter := interpreterOf(program); interpreter != "" {
		path = interpreter
	}
	f, err := elf.Open(path)
	if err != nil {
		return noPreload(fmt.Sprintf("%s is not an ELF file", path), "")
	}
	defer f.Close()
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("examine program: %w", err)
	case !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }):
		return noPreload(path+" is statically linked", "use a dynamically linked one, or --how seccomp")
	case f.Section(".go.buildinfo") != nil:
		return noPreload(path+" is a Go program, which does not call the library's socket function", "use --how seccomp")
	case info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0:
		return noPreload(path+" has set-user-ID or set-group-ID, so the dynamic linker ignores it", "use --how seccomp as root")
	}
	return nil
}

// maxShebang is the length of a script's first line that the kernel reads (BINPRM_BUF_SIZE).
const maxShebang = 256

// interpreterOf returns the interpreter of a script, or nothing.
func interpreterOf(program string) string {
	f, err := os.Open(program)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, maxShebang).ReadSlice('\n')
	return parseShebang(string(line))
}

// parseShebang returns the interpreter that the first line of a script names, or nothing.
func parseShebang(line string) string {
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return ""
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// addPreload returns the environment with the library before those that it has.
func addPreload(env []string, library string) []string {
	i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, preloadKey+"=") })
	if i < 0 {
		return append(slices.Clip(env), preloadKey+"="+library)
	}
	env = slices.Clone(env)
	if others := strings.TrimPrefix(env[i], preloadKey+"="); others != "" {
		library += ":" + others
	}
	env[i] = preloadKey + "=" + library
	return env
}
