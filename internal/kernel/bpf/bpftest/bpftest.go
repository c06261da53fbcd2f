// Package bpftest compares the committed objects of eBPF programs with their sources, mounts
// file systems for their pins, and detaches programs as others may. It loads none of them.
package bpftest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Generated recompiles the programs of the package in the current directory and compares them with
// what is committed. It needs clang-14 and llvm-strip-14.
func Generated(t *testing.T, name string) {
	t.Helper()
	source, err := os.ReadFile("generate.go")
	if err != nil {
		t.Fatal(err)
	}
	const directive = "//go:generate go tool bpf2go "
	found := 0
	for line := range strings.Lines(string(source)) {
		rest, ok := strings.CutPrefix(line, directive)
		if !ok {
			continue
		}
		dir := t.TempDir()
		cmd := exec.Command("go", append([]string{"tool", "bpf2go", "-output-dir", dir}, strings.Fields(rest)...)...)
		cmd.Env = append(os.Environ(), "GOPACKAGE="+name)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			made, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			committed, err := os.ReadFile(f.Name())
			if err != nil || !bytes.Equal(made, committed) {
				t.Errorf("%s is not what the source makes (%v): run make generate, and commit what it changes", f.Name(), err)
			}
			found++
		}
	}
	if found == 0 {
		t.Error("nothing is generated")
	}
}
