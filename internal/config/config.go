// Package config reads configuration files of daemons and scenarios.
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

	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/field"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/study"
)

// MaxSize is the maximum size of a file in bytes. A router's list of networks may be a full
// Internet routing table.
const MaxSize = 8 << 20

// maxFaults bounds how many faults of one file are reported; the last one then counts the others.
const maxFaults = 100

// File is the content of a file. Either Scenario, Study or at least one of the sections is set.
type File struct {
	role.Sections
	Scenario *scenario.Spec
	Study    *study.Config
	// Warnings are what is valid and has no effect, or does not fit, each on a line as the faults of
	// an Error.
	Warnings []string
}

// studyFile has the keys of a study's file.
type studyFile struct {
	// Study is a study with people.
	Study *study.Config `yaml:"study"`
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

// Load reads and checks the file at path, and the files that it names. A file that can be read but
// has faults returns an *Error.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	return readFile(path, data, true)
}

// Parse reads and checks the text of a file, but not the files that it names; name is its name in
// faults. All errors are of type *Error.
func Parse(name string, data []byte) (*File, error) { return readFile(name, data, false) }

func readFile(name string, data []byte, others bool) (*File, error) {
	file, _, faults := parse(name, data, others)
	if len(faults) > 0 {
		return nil, newError(name, faults)
	}
	return file, nil
}

// Locate returns an error with the positions of faults that were found after the file was read, or
// nil if there are none.
func Locate(name string, data []byte, list fault.List) error {
	if len(list) == 0 {
		return nil
	}
	_, d, faults := parse(name, data, false)
	if len(faults) == 0 {
		d.add(list)
		faults = d.faults
	}
	return newError(name, faults)
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
	if more := len(faults) - maxFaults; more > 0 {
		faults = append(faults[:maxFaults:maxFaults], whole("%d faults more", more))
	}
	return &Error{File: name, Faults: faults}
}

// parse reads and checks the text of a file. With others, it also reads the files that a daemon's file
// names.
func parse(name string, data []byte, others bool) (*File, *decoder, []Fault) {
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
	sections, ok := d.keys(root)
	if !ok {
		return nil, nil, d.faults
	}
	var checked fault.List
	switch daemonKeys, scenarioKeys, studyKeys := field.Keys[role.Sections](), field.Keys[scenario.Spec](), field.Keys[studyFile](); {
	case containsAny(sections, daemonKeys):
		d.decode(root, "", reflect.ValueOf(&file.Sections).Elem())
		if checked = file.Sections.Check(); others {
			checked = append(checked, file.Sections.Files(filepath.Dir(name))...)
		}
	case containsAny(sections, scenarioKeys):
		file.Scenario = &scenario.Spec{}
		d.base(root, file.Scenario, nil)
		d.decode(root, "", reflect.ValueOf(file.Scenario).Elem())
		if !d.broken["base"] { // without its base, a scenario would lack every inherited value
			if checked = file.Scenario.Translate(); len(checked) == 0 {
				checked = file.Scenario.Check()
			}
		}
	case containsAny(sections, studyKeys):
		var of studyFile
		d.decode(root, "", reflect.ValueOf(&of).Elem())
		if file.Study = of.Study; of.Study != nil {
			checked.Merge(studyKeys[0], of.Study.Check())
			if others {
				checked.Merge(studyKeys[0], of.Study.Files(filepath.Dir(name)))
			}
		}
	default:
		d.fault(root, "", "is neither a daemon's file (keys %s), a scenario (keys %s) nor a study (key %s)%s",
			strings.Join(daemonKeys, ", "), strings.Join(scenarioKeys, ", "), studyKeys[0],
			fault.Suggest(sections[0], slices.Concat(daemonKeys, scenarioKeys, studyKeys)))
	}
	if d.values > maxValues {
		// The values that were not read would be reported as missing.
		return nil, d, []Fault{d.spare}
	}
	d.add(checked)
	if len(d.faults) == 0 {
		d.add(file.Sections.Warnings())
		if file.Scenario != nil {
			d.add(file.Scenario.Warnings())
		}
		file.Warnings, d.faults = newError(name, d.faults).Lines(), nil
	}
	return file, d, d.faults
}

func containsAny(have, want []string) bool {
	return slices.ContainsFunc(have, func(k string) bool { return slices.Contains(want, k) })
}
