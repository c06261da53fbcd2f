package sealed

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestLocked holds the rule of doc.go: a method that ends in Locked does not lock its mutex, a method
// that calls one on its own receiver locks it or ends in Locked, and no part locks the peer's mutex.
func TestLocked(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	locked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
				continue
			}
			holds, calls := lockUse(f)
			if strings.HasSuffix(f.Name.Name, "Locked") {
				if locked++; holds[""] || holds["mu."] {
					t.Errorf("%s: %s locks a mutex that it expects locked", name, f.Name.Name)
				}
			} else if calls && !holds[""] && !holds["mu."] {
				t.Errorf("%s: %s calls a method that expects the mutex locked", name, f.Name.Name)
			}
			if holds["peer.mu."] {
				t.Errorf("%s: %s locks the mutex of its peer", name, f.Name.Name)
			}
		}
	}
	if locked < 10 {
		t.Errorf("%d methods end in Locked", locked)
	}
}

// lockUse returns which mutexes of the receiver a method locks, as "", "mu." or "peer.mu.", and whether
// it calls a method of the receiver that ends in Locked.
func lockUse(f *ast.FuncDecl) (holds map[string]bool, calls bool) {
	receiver := f.Recv.List[0].Names[0].Name
	holds = map[string]bool{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		path := selectors(call.Fun)
		rest, own := strings.CutPrefix(path, receiver+".")
		if !own {
			return true
		}
		if mutex, is := strings.CutSuffix(rest, "Lock"); is && (mutex == "" || strings.HasSuffix(mutex, ".")) {
			holds[mutex] = true
		}
		calls = calls || strings.HasSuffix(rest, "Locked") && !strings.Contains(rest, ".")
		return true
	})
	return holds, calls
}

// selectors returns an expression of names as it is written, "" for another one.
func selectors(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if left := selectors(e.X); left != "" {
			return left + "." + e.Sel.Name
		}
	}
	return ""
}
