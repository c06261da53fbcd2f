package sealed

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestLocked holds the rule of doc.go: a method that ends in Locked does not lock its mutex, a
// method that calls one on its own receiver locks it or ends in Locked, and no part locks the
// peer's mutex.
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

// lockUse returns which mutexes of the receiver a method locks, as "", "mu." or "peer.mu.", and
// whether it calls a method of the receiver that ends in Locked.
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

// TestUnlockedAfterPanics: a mutex that is not unlocked by defer has no call before its Unlock that
// could panic. A boundary goes on after a panic, and would wait for the mutex forever.
func TestUnlockedAfterPanics(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			block, ok := n.(*ast.BlockStmt)
			if !ok {
				return true
			}
			for i, s := range block.List {
				mutex, unlocks := lockCall(s, "Unlock")
				if !unlocks {
					continue
				}
				seen++
				first := i - 1
				for ; first >= 0; first-- {
					if locked, locks := lockCall(block.List[first], "Lock"); locks && locked == mutex {
						break
					}
				}
				if first < 0 {
					t.Errorf("%v: %s is unlocked in another block than it is locked in", fset.Position(s.Pos()), mutex)
				}
				for _, between := range block.List[first+1 : i] {
					ast.Inspect(between, func(n ast.Node) bool {
						if call, ok := n.(*ast.CallExpr); ok && !harmless(call) {
							t.Errorf("%v: a call while %s is locked, without defer", fset.Position(call.Pos()), mutex)
						}
						return true
					})
				}
			}
			return true
		})
	}
	if seen == 0 {
		t.Error("no Unlock without defer is found")
	}
}

// lockCall returns the mutex of a statement that calls its Lock or Unlock, or that of readers.
func lockCall(s ast.Stmt, method string) (mutex string, ok bool) {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return "", false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	path := selectors(call.Fun)
	for _, name := range []string{"." + method, ".R" + method} {
		if mutex, ok := strings.CutSuffix(path, name); ok {
			return mutex, true
		}
	}
	return "", false
}

// harmless reports whether a call is of what does not panic: reads of atomics, conversions, and
// parts of the language.
func harmless(call *ast.CallExpr) bool {
	path := selectors(call.Fun)
	return path == "append" || path == "delete" || path == "len" || path == "time.Duration" || strings.HasSuffix(path, ".Load")
}
