// Package programs finds the external programs that tests use. It refuses programs that are not in
// its list, so that the list, from which continuous integration installs them, is complete. Only
// tests may import it.
package programs

import (
	_ "embed"
	"os"
	"os/exec"
	"strings"
	"testing"
)

//go:embed programs.txt
var list string

// packageOf returns the Debian package of a listed command.
func packageOf(command string) (string, bool) {
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == command {
			return f[1], true
		}
	}
	return "", false
}

// Need returns the path of the first command, all of which the test needs. Where one is not
// installed the test is skipped, or fails when TABANE_PROGRAMS=require is set. A command that
// programs.txt does not have is always a failure.
func Need(t testing.TB, commands ...string) string {
	t.Helper()
	first := ""
	for _, c := range commands {
		pkg, ok := packageOf(c)
		if !ok {
			t.Fatalf("%q is not in internal/testkit/programs/programs.txt: add it and its package, or do without", c)
		}
		path, err := exec.LookPath(c)
		switch {
		case err == nil && first == "":
			first = path
		case err == nil:
		case os.Getenv("TABANE_PROGRAMS") == "require":
			t.Fatalf("%v; install the package %s", err, pkg)
		default:
			t.Skipf("%v; install the package %s", err, pkg)
		}
	}
	return first
}
