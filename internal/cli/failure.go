package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit codes, on which scripts depend.
const (
	exitOK     = 0
	exitUnmet  = 1
	exitFailed = 2
	// Those of a shell, for a program that replaces this process.
	exitNotExecutable = 126
	exitNotFound      = 127
)

// errUnmet ends a command that ran and has already reported which checks failed.
var errUnmet = errors.New("a check or expectation failed")

// errInterrupted is the cause of the failure of a command that a signal ended.
var errInterrupted = errors.New("interrupted")

// failure is the error of a command that could not run.
type failure struct {
	// what is the operation and on its object; why is the cause and do the remedy. on and do
	// may be empty.
	what, on string
	why      error
	do       string
	// code is the exit code, exitFailed if 0.
	code int
}

func (f *failure) Error() string {
	s := f.what
	if f.on != "" {
		s += ", on " + f.on
	}
	s += ": " + reason(f.why)
	if f.do != "" {
		s += "; " + f.do
	}
	return s
}

func (f *failure) Unwrap() error { return f.why }

// reason returns the error's text without the operation and path of a *fs.PathError, which the
// failure has itself.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) && err == error(path) {
		err = path.Err
	}
	return err.Error()
}

// fileFailure returns the failure to access a file of a flag or an argument.
func fileFailure(what, path string, err error) error {
	do := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		do = "check the path"
	case errors.Is(err, fs.ErrPermission):
		do = "make it readable for this user"
	case errors.Is(err, syscall.EISDIR):
		do = "name a file in it"
	}
	return &failure{what: what, on: path, why: err, do: do}
}

// usageError is the error of an invalid command line.
type usageError struct {
	why string
	// do is the remedy.
	do string
}

func (e *usageError) Error() string { return e.why + "; " + e.do }

// usage returns the error of an invalid command line of c.
func usage(c *cobra.Command, err error) error {
	return &usageError{err.Error(), "see " + c.CommandPath() + " --help"}
}

// invalid returns the error of an invalid value of a flag or an argument; want describes valid
// ones.
func invalid(name, value, want string) error {
	return &usageError{fmt.Sprintf("invalid value %q for %s", value, name), "want " + want}
}

// finish prints the error and returns the exit code.
func (a *app) finish(err error) int {
	var faults interface{ Lines() []string }
	var failed *failure
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUnmet):
		return exitUnmet
	case errors.As(err, &faults):
		for _, line := range faults.Lines() {
			fmt.Fprintln(a.err, line)
		}
	default:
		fmt.Fprintln(a.err, "tabane: "+oneLine(err.Error()))
	}
	if errors.As(err, &failed) && failed.code != 0 {
		return failed.code
	}
	return exitFailed
}

// oneLine joins the lines of an error with semicolons.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// quantity returns a number with its noun: "no nodes", "1 node", "2 nodes".
func quantity(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun + "s"
	case 1:
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
