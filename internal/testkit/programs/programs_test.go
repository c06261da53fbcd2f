package programs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// base are programs that are always there: Go, and what Debian marks as essential.
var base = []string{"go", "sh", "cat", "chmod", "cut", "echo", "exit", "grep", "head", "ls", "readlink", "sed", "setpriv", "unshare", "sleep", "stat", "tail", "test", "tr", "trap", "true", "while"}

// built are expressions, and the packages that use them, for programs that the tests have built
// themselves.
var built = map[string]string{
	"internal/acceptance": "program", "internal/epe/arrival": "program", "internal/lab": "os.Args[0]", "internal/experiment/measurement": "os.Args[0]",
}

func TestListIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 4 || seen[f[0]] || f[3] != "tests" && f[3] != "benchmarks" || f[2] != "-" && !strings.HasSuffix(f[2], ".service") {
			t.Errorf("%q is no row of the list, or is there twice", line)
			continue
		}
		seen[f[0]] = true
	}
}

// source is a parsed test, or a helper that only tests import.
type source struct {
	folder, path string
	file         *ast.File
}

func sources(t *testing.T) []source {
	t.Helper()
	var found []source
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		rel, _ := filepath.Rel("../../..", path)
		found = append(found, source{filepath.ToSlash(filepath.Dir(rel)), rel, f})
		return err
	})
	if err != nil || len(found) < 50 {
		t.Fatalf("%d tests, %v", len(found), err)
	}
	return found
}

// called is the package and the function of a call: "exec", "Command".
func called(c *ast.CallExpr) (pkg, function string) {
	if s, ok := c.Fun.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name, s.Sel.Name
		}
	}
	return "", ""
}

func expression(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return expression(x.X) + "." + x.Sel.Name
	case *ast.IndexExpr:
		return expression(x.X) + "[" + expression(x.Index) + "]"
	case *ast.BasicLit:
		return x.Value
	case *ast.CallExpr:
		return expression(x.Fun) + "()"
	default:
		return "?"
	}
}

// TestEveryProgramIsListed: a test starts a program of others only by Need, and nothing in the list
// is without a user.
func TestEveryProgramIsListed(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		needs := map[string]bool{} // variables that Need returned
		ast.Inspect(s.file, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Rhs) == 1 {
				if c, ok := a.Rhs[0].(*ast.CallExpr); ok && expression(c.Fun) == "programs.Need" {
					needs[expression(a.Lhs[0])] = true
				}
			}
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch pkg, function := called(c); {
			case pkg == "programs" && function == "Need":
				for _, arg := range c.Args[1:] {
					name, err := strconv.Unquote(expression(arg))
					if err != nil {
						t.Errorf("%s: Need takes names, got %s", s.path, expression(arg))
					}
					used[name] = true
				}
			case pkg == "exec" && function == "LookPath" && s.folder != "cmd/tabane":
				t.Errorf("%s: looks for a program itself; use programs.Need", s.path)
			case pkg == "exec" && (function == "Command" || function == "CommandContext"):
				arg := c.Args[0]
				if function == "CommandContext" {
					arg = c.Args[1]
				}
				text := expression(arg)
				name, err := strconv.Unquote(text)
				switch {
				case err == nil && (slices.Contains(base, name) || strings.HasPrefix(name, "/")):
				case text == "programs.Need()" || needs[text] || built[s.folder] == text:
				case s.folder == "internal/analysis/traffic" && text == "wrap[0]": // a table of what Need returned
				default:
					t.Errorf("%s: starts %s; a test starts what it built, or what programs.Need returned", s.path, text)
				}
			}
			return true
		})
	}
	for line := range strings.Lines(list) {
		if name := strings.Fields(line)[0]; name != "#" && !used[name] {
			t.Errorf("no test uses %s: take it out of programs.txt", name)
		}
	}
}

// stranger finds commands in a shell script that are neither always there nor the product.
var stranger = regexp.MustCompile(`(?:^|[;|&] *)(ip|ss|ping|tc|nstat|ps|pgrep|pkill|nsenter|gzip|curl|iperf3|tshark|vtysh|ethtool|bridge|dig|nc|socat|tcpdump)(?: +[-a-z]|$)`)

// runs are functions of tests that run a command or a script.
var runs = regexp.MustCompile(`(?:^|\.)(Run|run|must|try|command|contains|Command)$`)

// TestScriptsUseNoOtherProgram looks at the words of scripts in tests: what runs on a node of a
// lab, and those of testscript.
func TestScriptsUseNoOtherProgram(t *testing.T) {
	for _, s := range sources(t) {
		if s.folder == "internal/testkit/programs" {
			continue
		}
		listed := false
		for _, i := range s.file.Imports {
			listed = listed || strings.HasSuffix(i.Path.Value, `internal/testkit/programs"`)
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok || listed {
				return true
			}
			function := expression(c.Fun)
			if !runs.MatchString(function) {
				return true
			}
			for _, arg := range c.Args {
				ast.Inspect(arg, func(n ast.Node) bool {
					if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
						if text, err := strconv.Unquote(l.Value); err == nil && stranger.MatchString(text) {
							t.Errorf("%s: %s(%q) runs another program; use programs.Need, or ask the kernel", s.path, function, text)
						}
					}
					return true
				})
			}
			return true
		})
	}
	scripts, err := filepath.Glob("../../../cmd/tabane/testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	product := append([]string{"tabane", "tabane-lab", "inside", "echo-request"}, base...)
	run := regexp.MustCompile(`^(?:\[!?root\] )?(?:! )?(?:exec|exits \d+|eventually)(?: inside \S+)? (\S+)(.*)`)
	inLab := regexp.MustCompile(`lab exec .*-- (\S+)`)
	for _, file := range scripts {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			m := run.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				continue
			}
			names := []string{m[1]}
			if x := inLab.FindStringSubmatch(m[2]); x != nil {
				names = append(names, x[1])
			}
			for _, name := range names {
				if !slices.Contains(product, name) && name != "no-such-program" {
					t.Errorf("%s: %q runs %s, which a machine may not have", filepath.Base(file), strings.TrimSpace(line), name)
				}
			}
		}
	}
}
