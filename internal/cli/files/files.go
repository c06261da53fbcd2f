// Package files reads every kind of file that there is: those of daemons, scenarios and studies.
//
// It declares the kinds to config, which does the reading. Programs that run daemons alone use
// config.
package files

import (
	"fmt"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/study"
	"github.com/tabane/tabane/scenarios"
)

// File is the content of a file. Either Scenario, Study or at least one of the sections is set.
type File struct {
	role.Sections
	Scenario *scenario.Spec
	Study    *study.Config
	// Warnings are as in config.File.
	Warnings []string
}

// studyFile has the keys of a study's file.
type studyFile struct {
	// Study is a study with people.
	Study *study.Config `yaml:"study"`
}

// studyKey is the path of a study in its file.
var studyKey = field.Keys[studyFile]()[0]

var reader = config.Reader{Kinds: []config.Kind{
	{
		Group: config.ScenarioFile,
		New:   func() any { return &scenario.Spec{} },
		Check: func(read any) (faults fault.List) {
			spec := read.(*scenario.Spec)
			spec.Complete()
			if faults = spec.Translate(); len(faults) == 0 {
				faults = spec.Check()
			}
			return faults
		},
		Warnings:  func(read any) fault.List { return read.(*scenario.Spec).Warnings() },
		Inherited: []string{"sysctls", "nodes", "links"},
		Embedded:  embedded,
	},
	{
		Group: config.StudyFile,
		New:   func() any { return &studyFile{} },
		Check: func(read any) (faults fault.List) {
			if s := read.(*studyFile).Study; s != nil {
				faults.Merge(studyKey, s.Check())
			}
			return faults
		},
		Files: func(read any, dir string) (faults fault.List) {
			if s := read.(*studyFile).Study; s != nil {
				faults.Merge(studyKey, s.Files(dir))
			}
			return faults
		},
	},
}}

// embedded returns a scenario that comes with the program.
func embedded(name string) (file string, data []byte, err error) {
	if data, err = scenarios.Read(name); err != nil {
		return "", nil, fmt.Errorf("no scenario %q comes with the program%s; there are %s; a file's name ends in .yaml",
			name, fault.Suggest(name, scenarios.Names()), strings.Join(scenarios.Names(), ", "))
	}
	return scenarios.File(name), data, nil
}

// Load is config.Load for files of every kind.
func Load(path string) (*File, error) { return opened(reader.Load(path)) }

// Parse reads and checks the text of a file, but not the files that it names; name is its name in
// faults. All errors are of type *config.Error.
func Parse(name string, data []byte) (*File, error) { return opened(reader.Parse(name, data)) }

// Locate returns an error with the positions of faults that were found after the file was read, or
// nil if there are none.
func Locate(name string, data []byte, list fault.List) error { return reader.Locate(name, data, list) }

func opened(f *config.File, err error) (*File, error) {
	if err != nil {
		return nil, err
	}
	file := &File{Sections: f.Sections, Warnings: f.Warnings}
	switch read := f.Other.(type) {
	case *scenario.Spec:
		file.Scenario = read
	case *studyFile:
		file.Study = read.Study
	}
	return file, nil
}

// Encode returns a scenario as YAML, with its base merged into it and translated to its family.
func Encode(spec *scenario.Spec) ([]byte, error) {
	merged := *spec
	merged.Base, merged.Family = "", ""
	b, err := config.Encode(merged)
	if err != nil {
		return nil, fmt.Errorf("encode scenario %q: %w", spec.Name, err)
	}
	return b, nil
}
