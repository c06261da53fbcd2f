// Package architecture holds the house to its plan: which package stands on which floor, and who may import what. It has
// tests only.
package architecture

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/tabane/tabane"

// floor is a place in the house: the higher may import the lower, never the other way round, and packages at the same
// height not each other.
type floor struct {
	height int
	name   string
	// because says what goes wrong when a package of this floor imports something from its own height or above.
	because string
}

var (
	ground   = floor{0, "the ground floor", "it is pure: values and arithmetic that everything else stands on"}
	grammar  = floor{1, "the ground floor", "it is the text of values, whatever they are of"}
	models   = floor{2, "the ground floor", "a model is pure arithmetic on values, and knows no other model: who wants two of them brings them together"}
	loader   = floor{9, "the adapters' floor", "it loads programs for adapters, and knows none of them"}
	probes   = floor{9, "the adapters' floor", "it finds out for an adapter whether a neighbor is reachable, and knows none of them"}
	adapters = floor{10, "the adapters' floor", "an adapter knows the one thing outside that it adapts, and nothing that uses it"}
	stands   = floor{11, "the adapters' floor", "it stands in for an adapter in tests"}
	frame    = floor{15, "the machines' frame", "it is what machines share, so it knows none of them"}
	machines = floor{20, "the machines' floor", "a machine does not know other machines, nor the experiment it stands in"}
	outcomes = floor{25, "the results' floor", "a result does not know the experiment it came out of, nor who ran it"}
	roles    = floor{25, "the experiments' floor", "the table of daemons knows the daemons, not who starts them"}
	scenes   = floor{30, "the experiments' floor", "a scenario says what an experiment is, not who runs it"}
	labs     = floor{31, "the experiments' floor", "a lab is a network; what runs in it and is measured is for packages above"}
	labPlays = floor{31, "the experiments' floor", "it plays what a lab starts, in tests"}
	benches  = floor{32, "the experiments' floor", "who runs an experiment, who draws it and who examines the host do not know each other, nor how they are called"}
	judges   = floor{33, "the experiments' floor", "it holds experiments against each other and against theory, so it knows who runs them and they do not know it"}
	files    = floor{40, "the roof", "reading files is for whoever calls the program, and knows no command line"}
	roof     = floor{41, "the roof", "the command line is imported by the main package alone"}
	door     = floor{50, "the door", "nothing imports a main package"}
)

// house is every package of the module. A package that is not in it has no place yet: choose one here.
var house = map[string]floor{
	"internal/unit":    ground,
	"internal/stat":    ground,
	"internal/fault":   ground,
	"internal/feature": ground,
	"internal/srv6":    ground,
	"internal/vpn":     ground,
	"internal/field":   grammar,
	"internal/channel": models,
	"internal/cc":      models,
	"internal/sched":   models,
	"internal/quality": models,
	"internal/reseq":   models,

	"internal/bfd": probes,

	"internal/netns": adapters,
	"internal/route": adapters,
	"internal/tc":    adapters,
	"internal/mptcp": adapters,
	"internal/bgp":   adapters,
	"internal/link":  adapters,
	"internal/bpf":   loader,

	"internal/bpf/flowcount": adapters,
	"internal/pcap":          adapters,

	"internal/packet": adapters,
	"internal/tcp":    adapters,

	"internal/route/routetest": stands,
	"internal/netns/netnstest": stands,
	"internal/lab/labtest":     labPlays,

	"internal/daemon":      frame,
	"internal/pathmanager": frame,

	"internal/asbr":      machines,
	"internal/reflector": machines,
	"internal/edge":      machines,
	"internal/flows":     machines,
	"internal/router":    machines,
	"internal/traffic":   machines,
	"internal/sim":       machines,
	"internal/capture":   machines,

	"internal/result":   outcomes,
	"internal/role":     roles,
	"internal/scenario": scenes,
	"scenarios":         scenes,
	"internal/lab":      labs,
	"internal/labrun":   benches,
	"internal/simrun":   benches,
	"internal/validate": judges,
	"internal/report":   benches,
	"internal/doctor":   benches,

	"internal/config": files,
	"internal/cli":    roof,
	"cmd/tabane":      door,

	"internal/architecture": door,
	"internal/acceptance":   door,
}

// reserved are libraries that belong to certain packages, so that they can be replaced and their faults contained.
var reserved = []struct {
	library string
	owners  []string
	because string
}{
	{"github.com/osrg/gobgp", []string{"internal/bgp"}, "GoBGP is behind the speaker of bgp, so that a machine is tested without it"},
	// The lab writes the files that its daemons read; it reads none, so the strictness of config does not suffer.
	{"github.com/goccy/go-yaml", []string{"internal/config", "internal/lab"}, "YAML is read by config alone, which bounds and places everything"},
	{"github.com/cilium/ebpf", []string{"internal/bpf", "internal/bpf/flowcount"}, "programs and maps are behind bpf, so that a machine is tested without a kernel"},
	{"github.com/spf13/cobra", []string{"internal/cli"}, "flags are the command line's"},
	{"gonum.org/v1/plot", []string{"internal/report"}, "figures are report's"},
}

// impure are packages of the standard library that the ground floor does without. The package time is not among them for
// its Duration; what of it reads the clock is found by TestGroundReadsNoClock.
var impure = []string{"os", "net", "net/http", "io/fs", "os/exec", "os/signal", "syscall", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "database/sql"}

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath, Dir, Name, Doc                  string
	GoFiles, Imports, TestImports, XTestImports []string
}

// all is the module's packages, asked for once.
var all = sync.OnceValues(list)

func packages(t *testing.T) []pkg {
	t.Helper()
	list, err := all()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func list() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Doc,GoFiles,Imports,TestImports,XTestImports", module+"/...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	var found []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		found = append(found, p)
	}
}

func short(importPath string) string { return strings.TrimPrefix(importPath, module+"/") }

// upward says why from may not import to, or nothing.
func upward(from, to string) string {
	a, known := house[from]
	b, also := house[to]
	switch {
	case !known || !also || a.height > b.height:
		return ""
	case a.height == b.height:
		return fmt.Sprintf("%s must not import %s, its neighbor on %s: %s", from, to, a.name, a.because)
	}
	return fmt.Sprintf("%s must not import %s, which is above it on %s: %s", from, to, b.name, a.because)
}

// foreign says why a package may not import a library, or nothing.
func foreign(from, library string) string {
	for _, r := range reserved {
		if (library == r.library || strings.HasPrefix(library, r.library+"/")) && !slices.Contains(r.owners, from) {
			return fmt.Sprintf("%s must not import %s, which belongs to %s: %s", from, library, strings.Join(r.owners, ", "), r.because)
		}
	}
	// What is drawn from a seed that comes in is as pure as arithmetic; a model may have a generator of its own.
	seeded := house[from] == models && library == "math/rand/v2"
	if f := house[from]; (f == ground || f == models) && slices.Contains(impure, library) && !seeded {
		return fmt.Sprintf("%s must not import %s: %s", from, library, f.because)
	}
	return ""
}

func TestImportsGoDownward(t *testing.T) {
	for _, p := range packages(t) {
		from := short(p.ImportPath)
		for _, i := range p.Imports {
			if why := upward(from, short(i)); why != "" {
				t.Error(why)
			}
			if why := foreign(from, i); why != "" {
				t.Error(why)
			}
			if f := house[short(i)]; f == stands || f == labPlays {
				t.Errorf("%s must not import %s: %s only", from, short(i), f.because)
			}
		}
		// A test may use what is beside and below its package and what stands in for it, not what is above.
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			to := short(i)
			if house[from].height < house[to].height && from != to && house[from] != door && house[to] != stands {
				t.Errorf("the tests of %s", upward(from, to))
			}
		}
	}
}

func TestEveryPackageHasItsPlace(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		seen[name] = true
		if _, ok := house[name]; !ok {
			t.Errorf("%s has no floor: choose one in the table house of this test, and say in docs/architecture.md what it is for", name)
		}
		switch path.Base(name) {
		case "util", "utils", "common", "helper", "helpers", "misc", "shared", "lib", "base", "types":
			t.Errorf("%s is named after nothing: name a package for what it is about", name)
		}
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment: say in one what it does and what it refuses to do", name)
		}
		if len(p.GoFiles) > 0 && p.Name != "main" && !strings.HasPrefix(p.Doc, "Package "+p.Name+" ") {
			t.Errorf("the package comment of %s must begin with %q", name, "Package "+p.Name)
		}
	}
	for name := range house {
		if !seen[name] {
			t.Errorf("%s is in the table house of this test, but not in the module", name)
		}
	}
}

// TestGroundReadsNoClock finds what the import of "time" does not tell: time comes into the ground floor as an argument, and the
// simulator has its own.
func TestGroundReadsNoClock(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	for _, p := range packages(t) {
		f := house[short(p.ImportPath)]
		if f != ground && f != models && short(p.ImportPath) != "internal/sim" || len(p.GoFiles) == 0 {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, s.Sel.Name) {
					t.Errorf("%s: %s must not call time.%s: %s", fset.Position(s.Pos()), short(p.ImportPath), s.Sel.Name, "the same must come out of the same, at any time")
				}
				return true
			})
		}
	}
}

// TestRules checks the rules themselves: each must be able to fail.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		allowed  bool
	}{
		{"internal/asbr", "internal/lab", false},
		{"internal/asbr", "internal/edge", false},
		{"internal/lab", "internal/report", false},
		{"internal/lab", "internal/config", false},
		{"internal/scenario", "internal/lab", false},
		{"internal/unit", "internal/stat", false},
		{"internal/config", "internal/cli", false},
		{"internal/cc", "internal/sched", false},
		{"internal/sim", "internal/simrun", false},
		{"internal/simrun", "internal/labrun", false},
		{"internal/channel", "internal/unit", true},
		{"internal/sim", "internal/cc", true},
		{"internal/cli", "cmd/tabane", false},
		{"internal/lab", "internal/scenario", true},
		{"internal/scenario", "internal/asbr", true},
		{"internal/asbr", "internal/daemon", true},
		{"internal/daemon", "internal/bgp", true},
		{"internal/bgp", "internal/srv6", true},
		{"cmd/tabane", "internal/cli", true},
	} {
		if why := upward(tt.from, tt.to); (why == "") != tt.allowed {
			t.Errorf("%s imports %s: allowed %v, got %q", tt.from, tt.to, tt.allowed, why)
		}
	}
	for _, tt := range []struct {
		from, library string
		allowed       bool
	}{
		{"internal/asbr", "github.com/osrg/gobgp/v4/pkg/server", false},
		{"internal/bgp", "github.com/osrg/gobgp/v4/pkg/server", true},
		{"internal/scenario", "github.com/goccy/go-yaml", false},
		{"internal/stat", "os", false},
		{"internal/stat", "math", true},
		{"internal/unit", "time", true},
		{"internal/unit", "math/rand/v2", false},
		{"internal/channel", "math/rand/v2", true},
		{"internal/channel", "os", false},
		{"internal/netns", "os", true},
	} {
		if why := foreign(tt.from, tt.library); (why == "") != tt.allowed {
			t.Errorf("%s imports %s: allowed %v, got %q", tt.from, tt.library, tt.allowed, why)
		}
	}
}
