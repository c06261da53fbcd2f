package validate

import (
	"fmt"
	"strings"
)

// Markdown writes the report as a page.
func (r Report) Markdown() string {
	var b strings.Builder
	b.WriteString(`# Validation

How far the simulator can be trusted: beside theory, beside another simulator, beside the kernel. Every figure on this page is measured by
` + "`tabane sim validate`" + `, which writes the page and ends with exit code 1 when one of the claims does not hold (` + "`make validate`" + `).
Simulations are the same for the same seed, so the page changes only when the program does.

n is the number of runs, each with a seed of its own; ± is the standard deviation among them.
`)
	if r.Quick {
		b.WriteString("\n**Quick run**: fewer and shorter runs than the page in the repository is made of.\n")
	}
	r.writeSummary(&b)
	for i, p := range r.Parts {
		fmt.Fprintf(&b, "\n## %d. %s\n\n%s\n\n%s\n", i+1, p.Title, p.Question, p.Method)
		if p.Missing != "" {
			fmt.Fprintf(&b, "\n**Not compared**: %s.\n", p.Missing)
			continue
		}
		for _, t := range p.Tables {
			t.write(&b)
		}
		if p.Answer != "" {
			fmt.Fprintf(&b, "\n%s\n", p.Answer)
		}
	}
	return b.String()
}

// writeSummary writes whether each claim holds.
func (r Report) writeSummary(b *strings.Builder) {
	if r.Holds() {
		fmt.Fprintf(b, "\n## Verdict\n\nResult: %s.\n", r.Verdict())
	} else {
		fmt.Fprintf(b, "\n## Verdict\n\n**Result: %s.**\n", r.Verdict())
	}
	t := Table{Head: []string{"part", "claim", "measured", "holds"}}
	for i, p := range r.Parts {
		name := fmt.Sprint(i + 1)
		if p.Missing != "" {
			t.Rows = append(t.Rows, []string{name, p.Title, "not compared: " + p.Missing, "–"})
		}
		for _, c := range p.Claims {
			t.Rows = append(t.Rows, []string{name, c.Text, c.Got, verdict(c.Holds)})
		}
	}
	t.write(b)
}

func (t *Table) write(b *strings.Builder) {
	if t.Caption != "" {
		fmt.Fprintf(b, "\n%s:\n", t.Caption)
	}
	b.WriteString("\n")
	row := func(cells []string) {
		b.WriteString("|")
		for _, c := range cells {
			fmt.Fprintf(b, " %s |", strings.NewReplacer("|", `\|`, "\n", " ").Replace(c))
		}
		b.WriteString("\n")
	}
	row(t.Head)
	b.WriteString(strings.Repeat("|---", len(t.Head)) + "|\n")
	for _, r := range t.Rows {
		row(r)
	}
}
