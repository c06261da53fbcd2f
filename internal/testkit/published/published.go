// Package published reads and writes tables of Markdown files that a command of the Makefile
// writes, between two comments:
//
//	<!-- table NAME: COMMAND -->
//	<!-- end -->
//
// It is for tests and benchmarks, which compute the figures.
package published

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// end is the comment after a table.
const end = "<!-- end -->"

// Table is a table in a file.
type Table struct {
	// Lines are its lines in the file, without empty ones around them.
	Lines []string

	file          string
	before, after string
}

// Read returns the table of that name that the command writes, in a file relative to the root of
// the module. The working directory is that of a package.
func Read(file, name, command string) (*Table, error) {
	root := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Join(root, "..")
	}
	t := &Table{file: filepath.Join(root, file)}
	data, err := os.ReadFile(t.file)
	if err != nil {
		return nil, err
	}
	begin := fmt.Sprintf("<!-- table %s: %s -->\n", name, command)
	before, rest, opened := strings.Cut(string(data), begin)
	block, after, closed := strings.Cut(rest, end)
	if !opened || !closed {
		return nil, fmt.Errorf("read table %q: %s has nothing between %q and %q", name, file, strings.TrimSpace(begin), end)
	}
	t.before, t.after = before+begin, end+after
	t.Lines = strings.Split(strings.TrimSpace(block), "\n")
	return t, nil
}

// Write replaces the lines of the table in its file.
func (t *Table) Write(lines []string) error {
	return os.WriteFile(t.file, []byte(t.before+strings.Join(lines, "\n")+"\n"+t.after), 0o644)
}

// WriteMeasured replaces the table by what a benchmark measured in runs of a length, below a line
// on how it was measured.
func (t *Table) WriteMeasured(runs int, length time.Duration, head []string, rows [][]string) error {
	lines := append([]string{measuredOn(runs, length), ""}, Head(head...)...)
	for _, row := range rows {
		lines = append(lines, Row(row...))
	}
	return t.Write(lines)
}

// Head returns the first two lines of a table: the cells of its head, and the line below them.
func Head(cells ...string) []string {
	return []string{Row(cells...), strings.Repeat("|---", len(cells)) + "|"}
}

// Row returns the line of a row.
func Row(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |" }

// measuredOn describes runs of a length, and the machine.
func measuredOn(runs int, length time.Duration) string {
	of := "One run"
	if runs > 1 {
		of = fmt.Sprintf("Medians of %d runs", runs)
	}
	return fmt.Sprintf("%s of %v on %s:", of, length, Machine())
}

// Machine describes this machine: its processors and its kernel.
func Machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // fails only for a bad pointer
	release, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	processor := runtime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
				processor = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("a machine with %d processors (%s), Linux %s", runtime.NumCPU(), processor, release)
}
