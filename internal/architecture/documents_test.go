package architecture

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// link is a relative link of a Markdown file, and its fragment.
	link = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)
	// codeBlock is a fenced block, whose lines are neither headings nor links.
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	heading   = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	anchor    = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	// notInSlug is what GitHub removes from a heading to make its fragment.
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// fragments are the places of a Markdown file that links can name, as GitHub derives them from
// headings.
func fragments(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		slug := strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		name := slug
		for n := 1; all[name]; n++ {
			name = fmt.Sprintf("%s-%d", slug, n)
		}
		all[name] = true
	}
	for _, m := range anchor.FindAllStringSubmatch(text, -1) {
		all[m[1]] = true
	}
	return all
}

// TestDocumentsAreReachable: a reader who follows links from README.md reaches every page of docs/
// and of the scenarios, and no link or fragment is broken.
func TestDocumentsAreReachable(t *testing.T) {
	const root = "../.."
	reached, places := map[string]bool{}, map[string]map[string]bool{}
	hasFragment := func(file, fragment string) bool {
		if places[file] == nil {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			places[file] = fragments(codeBlock.ReplaceAllString(string(text), ""))
		}
		return places[file][fragment]
	}
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
		for _, m := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(text), ""), -1) {
			to := filepath.Join(filepath.Dir(file), m[1])
			if m[1] == "" {
				to = file
			}
			info, err := os.Stat(to)
			page := to
			if err == nil && info.IsDir() {
				page = filepath.Join(to, "README.md")
			}
			if err == nil && m[2] != "" && !hasFragment(page, m[2]) {
				t.Errorf("%s: the link %s#%s is broken: no heading has that fragment", file, m[1], m[2])
			}
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

// TestScenarioPages: the page of each scenario says its question, its cost, and what to expect.
func TestScenarioPages(t *testing.T) {
	pages, err := filepath.Glob("../../scenarios/*/README.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("read pages of scenarios: %d found: %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{`\*\*Question\.\*\*`, `\*\*Cost\.\*\*`, `(\*\*|## )What to expect`} {
			if !regexp.MustCompile(`(?m)^` + part).Match(text) {
				t.Errorf("%s has no part that begins with %s", page, part)
			}
		}
	}
}
