// Package fault collects what is wrong with an input, each fault with the path of the value.
//
// It only collects and prints: it does not judge, does not stop at the first fault and knows
// nothing of files, lines or formats. A checker adds faults to a List under the path of the value;
// code that embeds that value merges the list under its own path.
package fault

import (
	"fmt"
	"strings"
)

// Fault is one thing wrong with one value.
type Fault struct {
	// Path leads to the value from the root of the input, for example "peers[2].asn". It is empty
	// when the whole input is at fault.
	Path string
	// Message says what must hold and what was found, for example "must be > 0, got 0".
	Message string
}

// Error prints the fault as "path: message", or as the message alone when there is no path.
func (f Fault) Error() string {
	if f.Path == "" {
		return f.Message
	}
	return f.Path + ": " + f.Message
}

// List is the faults found so far, in the order in which they were found. The zero value is ready
// to use. As an error it is reached with errors.As; a checker returns List.Err, never the list
// itself, because an empty List in an error interface is not nil.
type List []Fault

// Add records a fault of the value at path.
func (l *List) Add(path, format string, args ...any) {
	*l = append(*l, Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

// Fixed records a fault when the value at path, which only a restart can change, differs in a new configuration.
func Fixed[T comparable](l *List, path string, old, now T) {
	if now != old {
		l.Add(path, "cannot change from %v to %v while the daemon runs; a restart is needed", old, now)
	}
}

// Merge records the faults of sub, which was checked on its own, as faults of the value at prefix.
func (l *List) Merge(prefix string, sub List) {
	for _, f := range sub {
		*l = append(*l, Fault{Path: Join(prefix, f.Path), Message: f.Message})
	}
}

// Err returns the list as an error, or nil when nothing is wrong. The error does not change when
// faults are added to l afterwards.
func (l List) Err() error {
	if len(l) == 0 {
		return nil
	}
	return append(List(nil), l...)
}

// Error prints the faults one per line, without a newline at the end.
func (l List) Error() string {
	lines := make([]string, len(l))
	for i, f := range l {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.Is and errors.As the single faults.
func (l List) Unwrap() []error {
	errs := make([]error, len(l))
	for i, f := range l {
		errs[i] = f
	}
	return errs
}

// Join appends the path sub to the path prefix: a dot between them, none before an index, and an
// empty path on either side leaves the other as it is.
func Join(prefix, sub string) string {
	if prefix == "" || sub == "" || strings.HasPrefix(sub, "[") {
		return prefix + sub
	}
	return prefix + "." + sub
}
