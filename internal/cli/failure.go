package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode"

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

// ErrUnmet ends a command that ran and has already reported which checks failed.
var ErrUnmet = errors.New("a check or expectation failed")

// ErrInterrupted is the cause of the failure of a command that a signal ended.
var ErrInterrupted = errors.New("interrupted")

// Failure is the error of a command that could not run. It reads `verb object "name": cause;
// remedy`.
type Failure struct {
	// What is the verb and the object, or the verb and what precedes the name: "read capture",
	// "serve metrics at".
	What string
	// Name is the object's name, path or address. It is empty if there is only one.
	Name string
	// Why is the cause, which need not have the name.
	Why error
	// Do is the remedy as an instruction, or empty.
	Do string
	// code is the exit code, exitFailed if 0.
	code int
}

func (f *Failure) Error() string {
	s := f.What
	if f.Name != "" {
		s += " " + strconv.Quote(f.Name)
	}
	s += ": " + strings.TrimPrefix(reason(f.Why, f.Name), f.What+": ") // packages name what they do, too
	if f.Do != "" {
		s += "; " + f.Do
	}
	return s
}

func (f *Failure) Unwrap() error { return f.Why }

// reason returns the text of an error without operations on the object of that name, which the
// failure names itself.
func reason(err error, name string) string {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if of, ok := e.(*fs.PathError); ok && of.Path == name {
			return of.Err.Error()
		}
	}
	if of, ok := err.(*net.OpError); ok && (of.Addr == nil || of.Addr.String() == name) {
		if call, ok := of.Err.(*os.SyscallError); ok {
			return call.Err.Error()
		}
		return of.Err.Error()
	}
	text := err.Error()
	// As in: open lab "name": no such lab
	if of, cause, ok := strings.Cut(text, strconv.Quote(name)+": "); ok && name != "" && !strings.ContainsAny(of, ":;\n") {
		return cause
	}
	return text
}

// FileFailure returns the failure to access a file of a flag or an argument.
func FileFailure(what, path string, err error) error {
	do := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		do = "check the path"
	case errors.Is(err, fs.ErrPermission):
		do = "give this user access to it"
	case errors.Is(err, syscall.EISDIR):
		do = "name a file in it"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		do = "free space there, or name another path"
	}
	return &Failure{What: what, Name: path, Why: err, Do: do}
}

// UsageError is the error of an invalid command line.
type UsageError struct {
	Why string
	// Do is the remedy.
	Do string
}

func (e *UsageError) Error() string { return e.Why + "; " + e.Do }

// Usage returns the error of an invalid command line of c.
func Usage(c *cobra.Command, err error) error {
	return &UsageError{err.Error(), "see " + c.CommandPath() + " --help"}
}

// Invalid returns the error of an invalid value of a flag or an argument; want describes valid
// ones.
func Invalid(name, value, want string) error {
	return &UsageError{fmt.Sprintf("invalid value %q for %s", value, name), "want " + want}
}

// finish prints the error and returns the exit code.
func (a *App) finish(err error) int {
	var faults interface{ Lines() []string }
	var failed *Failure
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, ErrUnmet):
		return exitUnmet
	case errors.As(err, &faults):
		for _, line := range faults.Lines() {
			fmt.Fprintln(a.Err, line)
		}
	default:
		fmt.Fprintln(a.Err, "tabane: "+OneLine(err.Error()))
	}
	if errors.As(err, &failed) && failed.code != 0 {
		return failed.code
	}
	return exitFailed
}

// OneLine joins the lines of a text with semicolons. A tab becomes a space, and every other
// character that does not print becomes U+FFFD: the text may be from the network, and a terminal
// obeys escape sequences.
func OneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Quantity returns a number with its noun: "no nodes", "1 node", "2 nodes".
func Quantity(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun + "s"
	case 1:
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
