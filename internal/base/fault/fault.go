// Package fault collects the faults of an input, each with the path of the value.
//
// It does not validate, and has no notion of files, lines or formats. A checker adds faults to a
// List under the path of the value; code that embeds that value merges the list under its own path.
package fault

import (
	"fmt"
	"strings"
)

// Fault is one fault of one value.
type Fault struct {
	// Path is the path of the value from the root of the input, for example "peers[2].asn". It
	// is empty for a fault of the whole input.
	Path string
	// Message is what is required and what was given, for example "must be > 0, got 0".
	Message string
}

// Error returns "path: message", or the message alone if the path is empty.
func (f Fault) Error() string {
	if f.Path == "" {
		return f.Message
	}
	return f.Path + ": " + f.Message
}

// List is a list of faults, in the order in which they were added. The zero value is ready to use.
// A checker returns List.Err as its error, never the list itself, because an empty List in an error
// interface is not nil; errors.As gives the list back.
type List []Fault

// Add adds a fault of the value at path.
func (l *List) Add(path, format string, args ...any) {
	*l = append(*l, Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

// Fixed adds a fault if the value at path, which only a restart can change, differs in a new
// configuration.
func Fixed[T comparable](l *List, path string, old, now T) {
	if now != old {
		l.Add(path, "cannot change from %v to %v while the daemon runs; a restart is needed", old, now)
	}
}

// Merge adds the faults of sub as faults of the value at prefix.
func (l *List) Merge(prefix string, sub List) {
	for _, f := range sub {
		*l = append(*l, Fault{Path: Join(prefix, f.Path), Message: f.Message})
	}
}

// Err returns the list as an error, or nil if it is empty. The error does not change when faults
// are added to l afterwards.
func (l List) Err() error {
	if len(l) == 0 {
		return nil
	}
	return append(List(nil), l...)
}

// Error returns the faults, one per line, without a newline at the end.
func (l List) Error() string {
	lines := make([]string, len(l))
	for i, f := range l {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the single faults, for errors.Is and errors.As.
func (l List) Unwrap() []error {
	errs := make([]error, len(l))
	for i, f := range l {
		errs[i] = f
	}
	return errs
}

// Join joins two paths with a dot, without one before an index. If one is empty, it returns the
// other.
func Join(prefix, sub string) string {
	if prefix == "" || sub == "" || strings.HasPrefix(sub, "[") {
		return prefix + sub
	}
	return prefix + "." + sub
}
