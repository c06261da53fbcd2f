package netns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAll(t *testing.T) {
	name := newNamespace(t, "all")
	find := func(want func(Namespace) bool) []Namespace {
		t.Helper()
		all, err := All()
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(all, func(n Namespace) bool { return !want(n) })
	}
	named := find(func(n Namespace) bool { return n.Name == name })
	if len(named) != 1 || named[0].PID != 0 || named[0].String() != name {
		t.Fatalf("namespaces %+v", named)
	}
	// Its own namespace is found once, by whatever process.
	selfOutside := self(t)
	own := 0
	for _, n := range find(func(n Namespace) bool { return n.PID != 0 }) {
		if strings.Contains(n.String(), "/") {
			t.Errorf("namespace %q", n)
		}
		err := n.Do(func() error {
			if self(t) == selfOutside {
				own++
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	if own != 1 {
		t.Errorf("the own namespace is found %d times", own)
	}
	inside := ""
	if err := named[0].Do(func() error { inside = self(t); return nil }); err != nil || inside == selfOutside {
		t.Errorf("inside it is %s, %v", inside, err)
	}
}

// TestNameOfNothing: a name is a file before its namespace is mounted, and after.
func TestNameOfNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "name")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Namespace{Name: "name", path: file}).Do(func() error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
}
