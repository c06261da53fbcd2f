package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake is a go command whose tests end as its words say, one word for each run; the last one holds
// for all later runs. T passes, F fails, P panics, and behind D the process dies in another test; a
// word is a run with -count.
func fake(t *testing.T, words string) {
	t.Helper()
	dir := t.TempDir()
	script := `#!/bin/sh
say() { printf '{"Action":"%s","Package":"example/p","Test":"%s","Output":"%s"}\n' "$@"; }
n=$(($(cat "$0.n" 2>/dev/null || echo 0) + 1)); echo $n >"$0.n"
set -- WORDS
while [ $n -gt 1 ] && [ $# -gt 1 ]; do n=$((n - 1)); shift; done
status=0
for c in $(echo "$1" | sed 's/./& /g'); do
	case $c in
	T) say pass TestOne "" ;;
	F) say output TestOne 'it differs\n'; say fail TestOne ""; status=1 ;;
	P) say output TestOne 'panic: oh\n'; say fail TestOne ""; status=1 ;;
	D) say output TestOne 'it differs\n'; say fail TestOne ""; say run TestOther ""; say fail "" ""; exit 1 ;;
	esac
done
say pass TestOther ""
[ $status = 0 ] && say pass "" "" || say fail "" ""
exit $status
`
	file := filepath.Join(dir, "go")
	if err := os.WriteFile(file, []byte(strings.Replace(script, "WORDS", words, 1)), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GO", file)
}

// TestLastLines: a test that fails once is flaky, by name; one that fails twice in a run, or
// panics, has failed. The last line counts the tests, in the form that CI reads.
func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		words, flaky, last string
		failed             bool
	}{
		{"T", "0 flaky", "2 passed, 0 failed, 0 skipped", false},
		{"F T", "1 flaky: TestOne of example/p", "2 passed, 0 failed, 0 skipped", false},
		{"F F", "0 flaky", "1 passed, 1 failed, 0 skipped", true},
		{"F T F", "0 flaky", "1 passed, 1 failed, 0 skipped", true},
		{"FF T", "0 flaky", "1 passed, 2 failed, 0 skipped", true},
		{"FTF T", "0 flaky", "2 passed, 2 failed, 0 skipped", true},
		{"P T", "0 flaky", "1 passed, 1 failed, 0 skipped", true},
		{"D T", "0 flaky", "0 passed, 2 failed, 0 skipped", true},
	} {
		t.Run(c.words, func(t *testing.T) {
			fake(t, c.words)
			var out strings.Builder
			failed, err := run([]string{"./..."}, "", &out)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if err != nil || failed != c.failed || len(lines) < 2 || lines[len(lines)-2] != c.flaky || lines[len(lines)-1] != c.last {
				t.Errorf("failed %v, %v:\n%s", failed, err, out.String())
			}
			if explained := strings.Contains(out.String(), "it differs") || strings.Contains(out.String(), "panic: oh"); explained != strings.ContainsAny(c.words, "FPD") {
				t.Errorf("the failure is not shown:\n%s", out.String())
			}
		})
	}
}

// TestBeside: a command that fails beside the tests fails the run, and is shown before the last
// lines.
func TestBeside(t *testing.T) {
	for command, want := range map[string]bool{"echo said": false, "echo said; false": true} {
		fake(t, "T")
		var out strings.Builder
		failed, err := run([]string{"./..."}, command, &out)
		if err != nil || failed != want || !strings.Contains(out.String(), "said\n") || !strings.HasSuffix(out.String(), "\n0 flaky\n2 passed, 0 failed, 0 skipped\n") {
			t.Errorf("%s: failed %v, %v:\n%s", command, failed, err, out.String())
		}
	}
}
