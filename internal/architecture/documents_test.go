package architecture

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// link is a relative link of a Markdown file, without its fragment.
var link = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)

// TestDocumentsAreReachable: a reader who follows links from README.md reaches every page of docs/ and of
// the scenarios, and no link is broken.
func TestDocumentsAreReachable(t *testing.T) {
	const root = "../.."
	reached := map[string]bool{}
	var follow func(file string)
	follow = func(file string) {
		if reached[file] {
			return
		}
		reached[file] = true
		if filepath.Ext(file) != ".md" {
			return
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			return
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to := filepath.Join(filepath.Dir(file), m[1])
			info, err := os.Stat(to)
			switch {
			case err != nil:
				t.Errorf("%s: the link %s is broken: %v", file, m[1], err)
			case !info.IsDir():
				follow(to)
			default:
				if _, err := os.Stat(filepath.Join(to, "README.md")); err == nil {
					follow(filepath.Join(to, "README.md"))
				}
			}
		}
	}
	follow(filepath.Join(root, "README.md"))
	for _, dir := range []string{"docs", "scenarios"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(file string, d fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(file) == ".md" && !strings.Contains(file, "testdata") && !reached[file] {
				t.Errorf("no page that is reached from README.md links to %s", file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
