package architecture

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/layers.svg")

// TestPicture compares docs/layers.svg with the table of folders: go test ./internal/architecture
// -update writes it.
func TestPicture(t *testing.T) {
	const file = "../../docs/layers.svg"
	want := picture(documented())
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/layers.svg is stale; write it by: go test ./internal/architecture -update")
	}
}

// row is a folder of the picture with its packages, the lowest rung last.
type row struct {
	folder   string
	packages []string
}

// documented returns the folders from the command line down. Fakes are nothing to choose a place
// by.
func documented() []row {
	var rows []row
	for _, f := range slices.Backward(folders) {
		var names []string
		for _, rung := range slices.Backward(f.rungs) {
			for _, n := range rung {
				names = append(names, strings.Replace(n, ".", f.name, 1))
			}
		}
		rows = append(rows, row{f.name, names})
	}
	return rows
}

// picture draws the folders with their packages as SVG.
func picture(rows []row) string {
	const (
		width, left, right = 900, 130, 882
		box, line, margin  = 24, 30, 11
	)
	var body strings.Builder
	top := 44
	for _, r := range rows {
		var boxes strings.Builder
		x, y := left, top+margin
		for _, name := range r.packages {
			w := int(7.4*float64(len(name)) + 18)
			if x+w > right {
				x, y = left, y+line
			}
			fmt.Fprintf(&boxes, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" class=\"package\"/><text x=\"%g\" y=\"%d\" class=\"label\">%s</text>\n",
				x, y, w, box, float64(x)+float64(w)/2, y+16, name)
			x += w + 8
		}
		height := y + box + margin - top
		fmt.Fprintf(&body, "<rect x=\"10\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" class=\"layer\"/>\n<text x=\"24\" y=\"%d\" class=\"name\">%s</text>\n%s",
			top, width-20, height, top+height/2+5, r.folder, boxes.String())
		top += height + 8
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="13">
<style>.layer{fill:#f2f5f8;stroke:#b8c4d0}.package{fill:#fff;stroke:#5b7fa3}.name{font-weight:bold;fill:#223}.label{text-anchor:middle;fill:#223}</style>
<rect width="%[1]d" height="%[2]d" fill="#fff"/>
<text x="24" y="27" fill="#223">Folders of internal/: a package imports packages of lower folders only, and of its own folder those to the right</text>
%[3]s</svg>
`, width, top+2, body.String())
}
