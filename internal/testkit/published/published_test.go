package published

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTable(t *testing.T) {
	root := t.TempDir()
	at := filepath.Join(root, "internal", "x")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(at)
	const text = "before\n\n<!-- table a: make x -->\n| old |\n<!-- end -->\nbetween\n<!-- table b: make x -->\n<!-- end -->\nafter\n"
	file := filepath.Join(root, "page.md")
	for name, text := range map[string]string{file: text, filepath.Join(root, "go.mod"): "module x\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	table, err := Read("page.md", "a", "make x")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(table.Lines, []string{"| old |"}) {
		t.Errorf("lines %q", table.Lines)
	}
	if err := table.Write(append(Head("one", "two"), Row("1", "2"))); err != nil {
		t.Fatal(err)
	}
	const want = "before\n\n<!-- table a: make x -->\n| one | two |\n|---|---|\n| 1 | 2 |\n<!-- end -->\nbetween\n<!-- table b: make x -->\n<!-- end -->\nafter\n"
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("got\n%s%v", got, err)
	}
	for _, missing := range [][2]string{{"c", "make x"}, {"a", "make y"}} {
		if _, err := Read("page.md", missing[0], missing[1]); err == nil {
			t.Errorf("no error for table %v", missing)
		}
	}
	if _, err := Read("none.md", "a", "make x"); err == nil {
		t.Error("no error for a missing file")
	}
}
