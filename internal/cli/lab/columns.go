package lab

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/tabane/tabane/internal/experiment/report"
)

// writeColumns prints a table. What does not fit into width columns, unless 0, follows in further
// tables, which begin with the first columns again, names. Each line begins with the indent.
func writeColumns(out io.Writer, lines [][]string, names, width int, indent string) error {
	if width > 0 {
		width = max(1, width-len(indent))
	}
	for i, part := range report.Bands(lines, names, width) {
		if i > 0 && indent == "" {
			fmt.Fprintln(out)
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, line := range part {
			fmt.Fprintln(w, indent+strings.Join(line, "\t"))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}
