package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unfuzzed are packages with decoders and without a fuzz target, and why.
var unfuzzed = map[string]string{
	"internal/cli/config":           "the fuzz target of files reads all kinds of files with it",
	"internal/experiment/linkmodel": "a switch over three words",
}

// unoffered are packages with decoders whose values have no methods that accessor.Call can call,
// and those whose methods must not be called with hostile values.
var unoffered = map[string]string{
	"internal/bgp/session":    "counters without methods",
	"internal/cli":            "ends and policies of subflows without methods",
	"internal/cli/files":      "methods of sections read the files that they name",
	"internal/lab":            "a state without methods",
	"internal/mptcp/mptcpify": "numbers",
	"internal/gateway/acks":   "a value of the package, which its fuzz target uses",
	"internal/gateway/inet":   "its fuzz target calls what it does with a packet",
	"internal/gateway/tun":    "its fuzz target calls the methods, which need buffers",
}

var decoder = regexp.MustCompile(`^([Pp]arse|[Dd]ecode|Unmarshal)`)

// TestEveryDecoderIsFuzzed: a package with a function that decodes bytes or a stream has a fuzz
// target.
func TestEveryDecoderIsFuzzed(t *testing.T) {
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		var decoders []string
		for _, file := range p.GoFiles {
			decoders = append(decoders, functions(t, filepath.Join(p.Dir, file), func(f *ast.FuncDecl) bool {
				return decoder.MatchString(f.Name.Name) && takesBytes(f.Type.Params)
			})...)
		}
		tests, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var targets []string
		for _, file := range tests {
			targets = append(targets, functions(t, file, func(f *ast.FuncDecl) bool { return strings.HasPrefix(f.Name.Name, "Fuzz") })...)
		}
		why, exempt := unfuzzed[name]
		switch {
		case len(decoders) > 0 && len(targets) == 0 && !exempt:
			t.Errorf("%s has decoders, %s, and no fuzz target", name, strings.Join(decoders, ", "))
		case exempt && (len(decoders) == 0 || len(targets) > 0):
			t.Errorf("%s needs no exception (%s): it has decoders %v and fuzz targets %v", name, why, decoders, targets)
		}
		calls := slices.Contains(slices.Concat(p.TestImports, p.XTestImports), module+"/internal/testkit/accessor")
		why, exempt = unoffered[name]
		switch {
		case len(decoders) > 0 && len(targets) > 0 && !calls && !exempt:
			t.Errorf("%s has decoders, %s, and its fuzz target does not give what they return to accessor.Call", name, strings.Join(decoders, ", "))
		case exempt && (len(decoders) == 0 || len(targets) == 0 || calls):
			t.Errorf("%s needs no exception for accessor.Call (%s)", name, why)
		}
	}
}

// functions returns the names of the functions of a file that match.
func functions(t *testing.T, file string, match func(*ast.FuncDecl) bool) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && match(d) {
			names = append(names, d.Name.Name)
		}
	}
	return names
}

// takesBytes reports whether a parameter is a []byte or a Reader.
func takesBytes(params *ast.FieldList) bool {
	for _, p := range params.List {
		switch typ := p.Type.(type) {
		case *ast.ArrayType:
			if element, ok := typ.Elt.(*ast.Ident); ok && element.Name == "byte" {
				return true
			}
		case *ast.SelectorExpr:
			if typ.Sel.Name == "Reader" {
				return true
			}
		}
	}
	return false
}
