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

// groups are the layers of the picture, from top to bottom.
var groups = []string{
	commandGroup, runnerGroup, specGroup, engineGroup, sharedGroup, adapterGroup, modelGroup, foundationGroup,
}

// TestPicture compares docs/layers.svg with the table of layers: go test ./internal/architecture
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

// documented returns the packages that the documents show, by group, in alphabetical order.
func documented() map[string][]string {
	packages := map[string][]string{}
	for name, l := range layerOf {
		// Fakes and tests are nothing to choose a layer by.
		if !l.testing() && name != "internal/architecture" && name != "internal/acceptance" {
			packages[l.group] = append(packages[l.group], strings.TrimPrefix(name, "internal/"))
		}
	}
	for _, names := range packages {
		slices.Sort(names)
	}
	return packages
}

// picture draws the layers with their packages as SVG.
func picture(packages map[string][]string) string {
	const (
		width, left, right = 900, 196, 882
		box, line, margin  = 24, 30, 11
	)
	var body strings.Builder
	top := 44
	for _, g := range groups {
		var boxes strings.Builder
		x, y := left, top+margin
		for _, name := range packages[g] {
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
			top, width-20, height, top+height/2+5, g, boxes.String())
		top += height + 8
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="13">
<style>.layer{fill:#f2f5f8;stroke:#b8c4d0}.package{fill:#fff;stroke:#5b7fa3}.name{font-weight:bold;fill:#223}.label{text-anchor:middle;fill:#223}</style>
<rect width="%[1]d" height="%[2]d" fill="#fff"/>
<text x="24" y="27" fill="#223">Layers: a package imports packages of lower layers only</text>
%[3]s</svg>
`, width, top+2, body.String())
}
