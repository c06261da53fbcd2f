//go:build ignore

// Command summary reads what `go test -json` prints, shows a line for each package and everything about what failed, and ends
// with a line that counts the tests. Its exit code is 1 when anything failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is what test2json documents, and what the go command says of a build.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
	// ImportPath stands in for Package in the output of a build.
	ImportPath  string
	FailedBuild string
}

func main() {
	failed, err := summarize(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func summarize(in io.Reader, out io.Writer) (failed bool, err error) {
	type key struct{ pkg, test string }
	output := map[key][]string{}
	passes, fails, skips := 0, 0, 0
	failedIn := map[string]bool{}
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				// What the go command says outside the protocol.
				fmt.Fprint(out, string(line))
				continue
			}
			k := key{e.Package, e.Test}
			switch e.Action {
			case "output":
				output[k] = append(output[k], e.Output)
			case "build-output":
				fmt.Fprint(out, e.Output)
			case "pass", "skip", "fail":
				text := output[k]
				delete(output, k)
				switch {
				case e.Test == "":
					if e.Action == "fail" {
						fmt.Fprint(out, strings.Join(text, ""))
						// None of its tests failed: a build, a TestMain, or a benchmark did.
						if !failedIn[e.Package] {
							fails++
						}
					}
					fmt.Fprintf(out, "%-4s  %s  %.1fs\n", map[string]string{"pass": "ok", "skip": "-", "fail": "FAIL"}[e.Action], e.Package, e.Elapsed)
				case e.Action == "pass":
					passes++
				case e.Action == "skip":
					skips++
					fmt.Fprint(out, strings.Join(text, ""))
				default:
					fails++
					failedIn[e.Package] = true
					fmt.Fprint(out, strings.Join(text, ""))
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return true, err
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", passes, fails, skips)
	return fails > 0, nil
}
