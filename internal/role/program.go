package role

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// The programs, and the packages that install them.
const (
	// Product has what hosts of a network run.
	Product = "tabane"
	// Laboratory has experiments, and the daemons that only these need.
	Laboratory = "tabane-lab"
)

// FindProgram returns the path of a program: the one in the directory of the calling program, or
// else in PATH.
func FindProgram(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find program %q: it is neither in %s nor in PATH: %w", name, dir, err)
	}
	return path, nil
}
