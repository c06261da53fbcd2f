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

// The exit codes; scripts depend on them.
const (
	exitOK     = 0
	exitUnmet  = 1
	exitFailed = 2
)

// errUnmet ends a command that ran and has already reported which checks failed.
var errUnmet = errors.New("a check or expectation failed")

// failure is a command that could not run.
type failure struct {
	// what was to be done and on what; why it was not, and what the user can do about it. on and do
	// may be empty.
	what, on string
	why      error
	do       string
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

// reason is the error without what the failure contains itself: the operation and the name of a
// file.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) && err == error(path) {
		err = path.Err
	}
	return err.Error()
}

// fileFailure says why a file that a flag or an argument names cannot be read.
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

// usageError is an invalid command line.
type usageError struct {
	why string
	// do is what the user can do about it.
	do string
}

func (e *usageError) Error() string { return e.why + "; " + e.do }

// usage is a command line that c does not take.
func usage(c *cobra.Command, err error) error {
	return &usageError{err.Error(), "see " + c.CommandPath() + " --help"}
}

// invalid is a flag or an argument with a value that it cannot have; want says which it can.
func invalid(name, value, want string) error {
	return &usageError{fmt.Sprintf("invalid value %q for %s", value, name), "want " + want}
}

// finish prints what went wrong and decides the exit code; it is the only place that does.
func (a *app) finish(err error) int {
	var faults interface{ Lines() []string }
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
	return exitFailed
}

// oneLine keeps an error that joins several on one line.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// quantity is a number and its noun: "no nodes", "1 node", "2 nodes".
func quantity(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun + "s"
	case 1:
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
