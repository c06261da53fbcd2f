// Package config reads configuration files of daemons, and the text of other kinds of files for
// what declares these.
//
// Decoding is strict. Unknown and repeated keys, wrong types and invalid values are faults; all of
// them are reported at once, each with file, line, column and the path of the value. No value is
// guessed, converted or clamped, no default is filled in, and the kernel is not read. A file is
// untrusted: its size, its nesting and the expansion of its aliases are bounded. No other package
// depends on YAML.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/role"
)

// MaxSize is the maximum size of a file in bytes. A router's list of networks may be a full
// Internet routing table.
const MaxSize = 8 << 20

// MaxFaults bounds how many faults of one file are reported; the last one then counts the others.
const MaxFaults = 100

// File is the content of a file: at least one of the sections, or Other.
type File struct {
	role.Sections
	// Other is the pointer that Kind.New has made.
	Other any
	// Warnings are what is valid and has no effect, or does not fit, each on a line as the faults
	// of an Error.
	Warnings []string
}

// Kind is a kind of file other than that of daemons.
type Kind struct {
	// Group is the group of its top-level keys, ScenarioFile or StudyFile.
	Group string
	// New returns a pointer to a struct with a field for each key.
	New func() any
	// Check returns the faults of what was read.
	Check func(read any) fault.List
	// Warnings returns what is valid and has no effect in what was read; nil if there is no such
	// thing.
	Warnings func(read any) fault.List
	// Files makes the names of files relative to dir, that of the file, and returns the faults of
	// these files, which it reads. nil if the kind names no files.
	Files func(read any, dir string) fault.List
	// Inherited lists the keys that a file has from the one that its key base names. none has no
	// such key.
	Inherited []string
	// Embedded returns a base that comes with the program. It is used if Inherited is set.
	Embedded func(name string) (file string, data []byte, err error)
}

// KindError is the cause of a fault of a file that is valid for another program, as far as its
// top-level keys show.
type KindError struct {
	// Kind is that of the file, "scenario".
	Kind string
}

func (e *KindError) Error() string {
	return "is a " + e.Kind + " file, which the program tabane-lab reads"
}

// Fault is a fault and its position. Line and Column count from 1, columns in characters; both are
// 0 for a fault of the whole file. File is the base that contains the fault, or empty.
type Fault struct {
	File         string
	Line, Column int
	fault.Fault
}

// Error lists all faults of one file in line order. The list is never empty.
type Error struct {
	File   string
	Faults []Fault
	// other is set if the file is of a kind that the reader does not know.
	other *KindError
}

// Unwrap returns a *KindError, or nil.
func (e *Error) Unwrap() error {
	if e.other == nil {
		return nil
	}
	return e.other
}

// Lines formats each fault on a line of its own, as "FILE:LINE:COL: path: message". Characters that
// are not printable are escaped.
func (e *Error) Lines() []string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		file := cmp.Or(f.File, e.File)
		line := fmt.Sprintf("%s:%d:%d: %s", file, f.Line, f.Column, f.Fault.Error())
		if f.Line == 0 {
			line = fmt.Sprintf("%s: %s", file, f.Fault.Error())
		}
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			line = strings.ReplaceAll(strings.Trim(strconv.Quote(line), `"`), `\"`, `"`)
		}
		lines[i] = line
	}
	return lines
}

// Error prints one fault per line, without a newline at the end.
func (e *Error) Error() string { return strings.Join(e.Lines(), "\n") }

// Load reads and checks the file of a daemon at path, and the files that it names. A file that can
// be read but has faults returns an *Error.
func Load(path string) (*File, error) { return Reader{}.Load(path) }

// Reader reads files of daemons, and those of other kinds.
type Reader struct{ Kinds []Kind }

// Load reads and checks the file at path, and the files that it names. A file that can be read but
// has faults returns an *Error.
func (r Reader) Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	return r.readFile(path, data, true)
}

// Parse reads and checks the text of a file, but not the files that it names; name is its name in
// faults. All errors are of type *Error.
func (r Reader) Parse(name string, data []byte) (*File, error) { return r.readFile(name, data, false) }

func (r Reader) readFile(name string, data []byte, others bool) (*File, error) {
	file, d, faults := r.parse(name, data, others)
	if len(faults) > 0 {
		err := newError(name, faults)
		if d != nil {
			err.other = d.kind
		}
		return nil, err
	}
	return file, nil
}

// Locate returns an error with the positions of faults that were found after the file was read, or
// nil if there are none.
func (r Reader) Locate(name string, data []byte, list fault.List) error {
	if len(list) == 0 {
		return nil
	}
	_, d, faults := r.parse(name, data, false)
	if len(faults) == 0 {
		d.add(list)
		faults = d.faults
	}
	return newError(name, faults)
}

// Places calls f with each value that the text of a file has, as it is written, and its path.
func (r Reader) Places(name string, data []byte, f func(path string, value ast.Node)) error {
	_, d, faults := r.parse(name, data, false)
	if len(faults) > 0 {
		return newError(name, faults)
	}
	for path, p := range d.places {
		if p.node != nil {
			f(path, d.resolve(p.node))
		}
	}
	return nil
}

// newError sorts faults by line, those of bases last, and bounds how many are reported.
func newError(name string, faults []Fault) *Error {
	order := func(f Fault) string { // faults in bases are last
		if f.File == name {
			return ""
		}
		return f.File
	}
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if more := len(faults) - MaxFaults; more > 0 {
		faults = append(faults[:MaxFaults:MaxFaults], whole("%d faults more", more))
	}
	return &Error{File: name, Faults: faults}
}

// parse reads and checks the text of a file. With others, it also reads the files that a daemon's
// file names.
func (r Reader) parse(name string, data []byte, others bool) (*File, *decoder, []Fault) {
	root, err := readDocument(data)
	if err != nil {
		var f Fault
		if !errors.As(err, &f) {
			f.Message = err.Error()
		}
		return nil, nil, []Fault{f}
	}

	d := newDecoder()
	d.file = name
	file := &File{}
	keys, ok := d.keys(root)
	if !ok {
		return nil, nil, d.faults
	}
	var checked fault.List
	warnings := file.Sections.Warnings
	if containsAny(keys, field.Keys[role.Sections]()) {
		d.decode(root, "", reflect.ValueOf(&file.Sections).Elem())
		if checked = file.Sections.Check(); others {
			checked = append(checked, file.Sections.Files(filepath.Dir(name))...)
		}
	} else if i := slices.IndexFunc(r.Kinds, func(k Kind) bool { return containsAny(keys, keysOf(k.Group)) }); i >= 0 {
		k := r.Kinds[i]
		file.Other, checked = d.other(root, k, others)
		if k.Warnings != nil {
			warnings = func() fault.List { return k.Warnings(file.Other) }
		}
	} else {
		d.unknown(root, keys)
	}
	if d.values > MaxValues {
		// The values that were not read would be reported as missing.
		return nil, d, []Fault{d.spare}
	}
	d.add(checked)
	if len(d.faults) == 0 {
		d.add(warnings())
		file.Warnings, d.faults = newError(name, d.faults).Lines(), nil
	}
	return file, d, d.faults
}

func containsAny(have, want []string) bool {
	return slices.ContainsFunc(have, func(k string) bool { return slices.Contains(want, k) })
}

// keysOf returns the keys of a group of the reference.
func keysOf(group string) []string {
	var names []string
	for _, k := range groupNamed(group).Keys {
		names = append(names, k.Name)
	}
	return names
}

// other reads a file of a kind, over its bases.
func (d *decoder) other(root ast.Node, k Kind, others bool) (read any, checked fault.List) {
	read = k.New()
	into := reflect.ValueOf(read).Elem()
	if len(k.Inherited) > 0 {
		d.base(root, k, into, nil)
	}
	d.decode(root, "", into)
	if d.broken["base"] { // without its base, the file would lack every inherited value
		return read, nil
	}
	checked = k.Check(read)
	if others && k.Files != nil {
		checked = append(checked, k.Files(read, filepath.Dir(d.file))...)
	}
	return read, checked
}

// unknown records the fault of a file of no kind that is read here.
func (d *decoder) unknown(root ast.Node, keys []string) {
	daemon, scenario, study := keysOf(DaemonFile), keysOf(ScenarioFile), keysOf(StudyFile)
	switch {
	case containsAny(keys, scenario):
		d.kind = &KindError{"scenario"}
	case containsAny(keys, study):
		d.kind = &KindError{"study"}
	default:
		d.fault(root, "", "is neither a daemon's file (keys %s), a scenario (keys %s) nor a study (key %s)%s",
			strings.Join(daemon, ", "), strings.Join(scenario, ", "), study[0], fault.Suggest(clip(keys[0]), slices.Concat(daemon, scenario, study)))
		return
	}
	d.fault(root, "", "%v", d.kind)
}
