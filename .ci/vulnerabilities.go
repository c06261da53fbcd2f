//go:build ignore

// Command vulnerabilities looks for known vulnerabilities in what tabane calls, in the copy of the
// Go vulnerability database that the module golang.org/x/vulndb has. It fails if go.mod asks for a
// vulnerable module or toolchain. Vulnerabilities of the standard library that only this machine's
// older Go has are printed.
//
//	go run .ci/vulnerabilities.go [VERSION of golang.org/x/vulndb]
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// database is the version of golang.org/x/vulndb that CI reads.
const database = "v0.0.0-20261105234957-e22db6528018"

// finding is a vulnerability, as govulncheck prints it.
type finding struct {
	OSV          string
	FixedVersion string `json:"fixed_version"` // empty: none
	// Trace begins with what is vulnerable. Function is empty if nothing calls it.
	Trace []struct{ Module, Version, Package, Function string }
}

func main() {
	db := database
	if len(os.Args) > 1 {
		db = os.Args[1]
	}
	faults, err := check(db)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "look for known vulnerabilities:", err)
		os.Exit(2)
	case faults > 0:
		os.Exit(1)
	}
}

// check prints the vulnerabilities that are called, and returns how many of them go.mod asks for.
func check(db string) (faults int, err error) {
	var module struct{ Dir, Version string }
	if err := goJSON(&module, "mod", "download", "-json", "golang.org/x/vulndb@"+db); err != nil {
		return 0, err
	}
	var mod struct{ Go, Toolchain string }
	if err := goJSON(&mod, "mod", "edit", "-json"); err != nil {
		return 0, err
	}
	out, err := goCommand("tool", "govulncheck", "-db", "file://"+module.Dir+"/data/osv", "-format", "json", "./...")
	if err != nil {
		return 0, err
	}
	found, err := called(out)
	if err != nil {
		return 0, err
	}
	toolchain := cmp.Or(mod.Toolchain, "go"+mod.Go)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		remedy, fault := judge(found[name], toolchain)
		if fault {
			faults++
		}
		fmt.Printf("%s: %s\n", name, remedy)
	}
	fmt.Printf("%d known vulnerabilities are called, %d of them in what go.mod asks for (database %s)\n", len(found), faults, module.Version)
	return faults, nil
}

// judge returns what to do about a vulnerability, and whether go.mod asks for it.
func judge(f finding, toolchain string) (remedy string, fault bool) {
	fixed := "go" + strings.TrimPrefix(f.FixedVersion, "v")
	switch {
	case f.FixedVersion == "":
		return "there is no fixed version: do not call it", true
	case f.Trace[0].Module != "stdlib":
		return "go get " + f.Trace[0].Module + "@" + f.FixedVersion, true
	case version.Compare(toolchain, fixed) < 0:
		return "go get toolchain@" + fixed, true
	}
	return fmt.Sprintf("this machine's Go has it, %s of go.mod does not: set GOTOOLCHAIN=auto", toolchain), false
}

// called returns the findings with a function that is called, by vulnerability and module.
func called(out []byte) (map[string]finding, error) {
	found := map[string]finding{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var message struct{ Finding *finding }
		if err := d.Decode(&message); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("read findings: %w", err)
		}
		if f := message.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" {
			at := f.Trace[0]
			found[fmt.Sprintf("%s %s@%s %s", f.OSV, at.Module, at.Version, at.Package)] = *f
		}
	}
}

// goJSON runs the go command and decodes what it prints.
func goJSON(to any, args ...string) error {
	out, err := goCommand(args...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, to)
}

func goCommand(args ...string) ([]byte, error) {
	cmd := exec.Command(cmp.Or(os.Getenv("GO"), "go"), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}
