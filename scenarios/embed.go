// Package scenarios holds the scenarios that come with the program. It hands out their files as
// they are and reads nothing in them.
package scenarios

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

//go:embed */scenario.yaml
var files embed.FS

// Names returns the names of the scenarios, sorted.
func Names() []string {
	found, err := fs.Glob(files, "*/scenario.yaml")
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = path.Dir(f)
	}
	return names
}

// Read returns the file of a scenario. An unknown name is an error that matches fs.ErrNotExist.
func Read(name string) ([]byte, error) {
	if strings.ContainsAny(name, `/\`) {
		return nil, fmt.Errorf("read scenario %q: %w", name, fs.ErrNotExist)
	}
	b, err := files.ReadFile(path.Join(name, "scenario.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read scenario %q: %w", name, err)
	}
	return b, nil
}

// File returns the path of a scenario's file in the source tree, which is its name in messages.
func File(name string) string { return "scenarios/" + name + "/scenario.yaml" }
