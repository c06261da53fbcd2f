//go:build ignore

// Command test runs `go test -json` with its arguments, shows a line for each package and everything about what failed, and
// ends with a line that counts the tests. Its exit code is 1 when anything failed.
//
// Labs and browsers share the machine with other work, so a few tests that fail run once more, alone. One that passes then
// counts as passed and is named as flaky, with the output of its failure, which remains to be explained. A panic, a
// data race, a failure to build, and more than maxRepeat failures are never repeated.
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
	"strings"
)

const maxRepeat = 5

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
	// failed are in the order in which they failed, with what they printed.
	failed []unit
	output map[unit][]string
}

func main() {
	failed, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) (failed bool, err error) {
	all := results{out: out, counts: map[unit]*count{}, output: map[unit][]string{}}
	if err := all.test(args); err != nil {
		return true, err
	}
	var flags []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			flags = append(flags, a)
		}
	}
	repeat := len(all.failed) <= maxRepeat
	for _, u := range all.failed {
		repeat = repeat && repeatable(u, all.output[u])
	}
	var flaky []unit
	for _, u := range all.failed {
		if repeat {
			fmt.Fprintf(out, "%s of %s failed; it runs once more, alone\n", u.test, u.pkg)
			again := results{out: io.Discard, counts: map[unit]*count{}, output: map[unit][]string{}}
			if err := again.test(append(flags, "-run=^"+regexp.QuoteMeta(u.test)+"$", u.pkg)); err != nil {
				return true, err
			}
			if c := again.counts[u]; len(again.failed) == 0 && c != nil && c.passed > 0 {
				all.counts[u] = c
				flaky = append(flaky, u)
				continue
			}
		}
		fmt.Fprint(out, strings.Join(all.output[u], ""))
	}
	for _, u := range flaky {
		fmt.Fprintf(out, "flaky: %s of %s failed once and passed when it ran alone; the failure:\n", u.test, u.pkg)
		for line := range strings.Lines(strings.Join(all.output[u], "")) {
			fmt.Fprint(out, "    | ", line)
		}
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
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped)
	return sum.failed > 0, nil
}

func repeatable(u unit, output []string) bool {
	for _, line := range output {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.Contains(line, "DATA RACE") || strings.Contains(line, "race detected") {
			return false
		}
	}
	return u.test != ""
}

// test runs go test and counts what its events say. An error means that the events cannot be relied upon.
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

// apply counts one event. Text is what each running test has printed, and what its failed subtests have.
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
	case "pass", "skip", "fail":
	default:
		return
	}
	switch {
	case e.Test == "":
		if e.Action == "fail" && !r.failedIn(e.Package) {
			// None of its tests failed: a build, a TestMain, or a benchmark did.
			c.failed++
			r.failed, r.output[u] = append(r.failed, u), text[u]
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
			r.failed, r.output[u] = append(r.failed, u), text[u]
		}
	}
	if sub && e.Action == "fail" {
		text[u] = append(text[u], text[full]...)
	}
	delete(text, full)
}

func (r *results) failedIn(pkg string) bool {
	for _, u := range r.failed {
		if u.pkg == pkg {
			return true
		}
	}
	return false
}
