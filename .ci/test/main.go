// Command test runs `go test -json` with its arguments, shows a line for each package and
// everything about what failed, and ends with a line that names the flaky tests and one that counts
// all tests. Its exit code is 1 when anything failed.
//
// Labs and browsers share the machine with other work, so a few tests that fail run again, alone.
// One that then passes repeats times counts as passed and is named as flaky; the output of its
// failure, which remains to be explained, is shown before it is repeated. One that fails twice in a
// run has failed. A panic, a data race, a failure to build, and more than maxRepeat failures are
// never repeated.
//
//	go run ./.ci/test [-beside=COMMAND] [ARGUMENT of go test]...
//
// COMMAND is run beside the tests, at the lowest priority. What it prints is shown when it ends.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
)

const (
	maxRepeat = 5
	// A test that fails in one of two runs is caught as often again by the second repetition.
	repeats = 2
)

// event is what test2json documents, and what the go command says of a build.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// unit is a test with its subtests, or with an empty name what is left of a package.
type unit struct{ pkg, test string }

type count struct{ passed, failed, skipped int }

type results struct {
	out    io.Writer
	counts map[unit]*count
	// failed are in the order in which they first failed; failures says how often, and output what
	// they printed.
	failed   []unit
	failures map[unit]int
	output   map[unit][]string
	// running are the tests that have begun and not ended.
	running map[unit]bool
}

func newResults(out io.Writer) *results {
	return &results{out: out, counts: map[unit]*count{}, failures: map[unit]int{}, output: map[unit][]string{}, running: map[unit]bool{}}
}

// fail notes that a unit failed, and what it printed.
func (r *results) fail(u unit, text []string) {
	if r.failures[u]++; r.failures[u] == 1 {
		r.failed = append(r.failed, u)
	}
	r.output[u] = append(r.output[u], text...)
}

func main() {
	args := os.Args[1:]
	var beside string
	if len(args) > 0 && strings.HasPrefix(args[0], "-beside=") {
		beside, args = strings.TrimPrefix(args[0], "-beside="), args[1:]
	}
	failed, err := run(args, beside, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

// writer is an io.Writer for several goroutines.
type writer struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(b)
}

// startBeside runs a shell command at the lowest priority. The function that it returns waits for
// it, and says whether it failed.
func startBeside(command string, out io.Writer) (failed func() bool) {
	if command == "" {
		return func() bool { return false }
	}
	done := make(chan bool, 1)
	go func() {
		text, err := exec.Command("nice", "-n", "19", "sh", "-c", command).CombinedOutput()
		verdict := "ok"
		if err != nil {
			verdict = "failed: " + err.Error()
		}
		fmt.Fprintf(out, "%s%s: %s\n", text, command, verdict)
		done <- err != nil
	}()
	return func() bool { return <-done }
}

func run(args []string, beside string, shown io.Writer) (failed bool, err error) {
	out := &writer{w: shown}
	besideFailed := startBeside(beside, out)
	all := newResults(out)
	if err := all.test(args); err != nil {
		return true, err
	}
	flaky, err := all.repeat(args)
	if err != nil {
		return true, err
	}
	for _, u := range all.failed {
		if !slices.Contains(flaky, u) {
			fmt.Fprint(out, strings.Join(all.output[u], ""))
		}
	}
	names := make([]string, 0, len(flaky))
	for _, u := range flaky {
		fmt.Fprintf(out, "flaky: %s of %s failed once and passed when it ran alone\n", u.test, u.pkg)
		names = append(names, u.test+" of "+u.pkg)
	}
	var sum count
	for _, c := range all.counts {
		sum.passed += c.passed
		sum.failed += c.failed
		sum.skipped += c.skipped
	}
	if sum.passed == 0 && sum.failed == 0 {
		return true, errors.New("no test ran")
	}
	failed = besideFailed() || sum.failed > 0
	fmt.Fprintln(out, strings.TrimSuffix(fmt.Sprintf("%d flaky: %s", len(flaky), strings.Join(names, ", ")), ": "))
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped)
	return failed, nil
}

// repeat runs what failed again, alone, where one failure may be due to the load, and returns what
// passed then. Its counts take the place of those of the failure.
func (r *results) repeat(args []string) (flaky []unit, err error) {
	if len(r.failed) > maxRepeat {
		return nil, nil
	}
	var flags []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			flags = append(flags, a)
		}
	}
	for _, u := range r.failed {
		if !repeatable(u, r.output[u]) {
			return nil, nil
		}
	}
	for _, u := range r.failed {
		if r.failures[u] > 1 {
			continue // of -count
		}
		// Shown now, since the run may be ended before the repetitions are over.
		fmt.Fprintf(r.out, "%s of %s failed; it runs again, alone; the failure:\n", u.test, u.pkg)
		for line := range strings.Lines(strings.Join(r.output[u], "")) {
			fmt.Fprint(r.out, "    | ", line)
		}
		passed := r.counts[u]
		for range repeats {
			again := newResults(io.Discard)
			if err := again.test(append(slices.Clone(flags), "-run=^"+regexp.QuoteMeta(u.test)+"$", u.pkg)); err != nil {
				return nil, err
			}
			if passed = again.counts[u]; len(again.failed) > 0 || passed == nil || passed.passed == 0 {
				passed = nil
				break
			}
		}
		if passed != nil {
			r.counts[u] = passed
			flaky = append(flaky, u)
		}
	}
	return flaky, nil
}

func repeatable(u unit, output []string) bool {
	for _, line := range output {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.Contains(line, "DATA RACE") || strings.Contains(line, "race detected") {
			return false
		}
	}
	return u.test != ""
}

// test runs go test and counts what its events say. An error means that the events cannot be relied
// upon.
func (r *results) test(args []string) error {
	goTest := exec.Command(cmp.Or(os.Getenv("GO"), "go"), append([]string{"test", "-json"}, args...)...)
	goTest.Stderr = os.Stderr
	events, err := goTest.StdoutPipe()
	if err != nil {
		return err
	}
	if err := goTest.Start(); err != nil {
		return err
	}
	if err := r.read(events); err != nil {
		return errors.Join(err, goTest.Process.Kill(), goTest.Wait())
	}
	if err := goTest.Wait(); err != nil && len(r.failed) == 0 {
		return fmt.Errorf("go test failed without a failed test: %w", err)
	}
	return nil
}

func (r *results) read(in io.Reader) error {
	text := map[unit][]string{}
	buffered := bufio.NewReader(in)
	for {
		line, err := buffered.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				r.apply(e, text)
			} else {
				// What the go command says outside the protocol.
				fmt.Fprint(r.out, string(line))
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// apply counts one event. Text is what each running test has printed, and what its failed subtests
// have.
func (r *results) apply(e event, text map[unit][]string) {
	top, _, sub := strings.Cut(e.Test, "/")
	u := unit{e.Package, top}
	c := r.counts[u]
	if c == nil {
		c = &count{}
		r.counts[u] = c
	}
	full := unit{e.Package, e.Test}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			text[full] = append(text[full], e.Output)
		}
		return
	case "build-output":
		fmt.Fprint(r.out, e.Output)
		return
	case "run":
		r.running[full] = true
		return
	case "pass", "skip", "fail":
		delete(r.running, full)
	default:
		return
	}
	switch {
	case e.Test == "":
		if e.Action == "fail" && (!r.failedIn(e.Package) || r.died(e.Package, text[u])) {
			// None of its tests failed: a build, a TestMain, or a benchmark did. Or its process
			// died, and those behind the failed test never ran.
			c.failed++
			r.fail(u, text[u])
		}
		fmt.Fprintf(r.out, "%-4s  %s  %.1fs\n", map[string]string{"pass": "ok", "skip": "-", "fail": "..."}[e.Action], e.Package, e.Elapsed)
	case e.Action == "pass":
		c.passed++
	case e.Action == "skip":
		c.skipped++
		fmt.Fprint(r.out, strings.Join(text[full], ""))
	default:
		c.failed++
		if !sub {
			r.fail(u, text[u])
		}
	}
	if sub && e.Action == "fail" {
		text[u] = append(text[u], text[full]...)
	}
	delete(text, full)
}

// died reports whether the process of a package ended before its tests: by what it printed, or
// because a test has no result.
func (r *results) died(pkg string, output []string) bool {
	for u := range r.running {
		if u.pkg == pkg {
			return true
		}
	}
	return !repeatable(unit{pkg, "its tests"}, output)
}

func (r *results) failedIn(pkg string) bool {
	for _, u := range r.failed {
		if u.pkg == pkg {
			return true
		}
	}
	return false
}
