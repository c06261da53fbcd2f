package papers

import (
	"fmt"
	"strings"
)

// Head are the columns of the tables in docs/papers.md.
func Head() []string { return []string{"figure", "command", "published", "ours", "verdict"} }

// Row returns the cells of a figure in the table of its paper.
func (e Entry) Row() []string {
	got := e.Got
	if e.See != "" {
		got = strings.TrimSpace(got + fmt.Sprintf(" ([more](%s))", e.See))
	}
	verdict := "**" + string(e.Outcome) + "**"
	if e.Because != "" {
		verdict += ": " + e.Because
	}
	return []string{fmt.Sprintf("**%s** %s", e.ID, e.Title), "`" + e.CommandLine() + "`", e.Published, got, verdict}
}
