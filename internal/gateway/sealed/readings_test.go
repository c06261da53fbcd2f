package sealed

import (
	"flag"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/testkit/published"
)

var writeTables = flag.Bool("update", false, "write the tables of docs/gateway-measured.md")

// readings are the values of a benchmark, by their units: one for each run.
type readings map[string][]float64

// add adds the value of a run, and reports the median of all.
func (r readings) add(b *testing.B, value float64, unit string) {
	r[unit] = append(r[unit], value)
	b.ReportMetric(r.median(unit), unit)
}

func (r readings) median(unit string) float64 {
	m, err := stat.Quantile(0.5, r[unit])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return m
}

// publish writes a table of docs/gateway-measured.md, below a line on how it was measured, in runs
// of a length, with -update.
func publish(b *testing.B, name string, runs int, length time.Duration, head []string, rows [][]string) {
	if !*writeTables || b.Failed() {
		return
	}
	table, err := published.Read("docs/gateway-measured.md", name, "make bench-gateway")
	if err == nil {
		err = table.WriteMeasured(runs, length, head, rows)
	}
	if err != nil {
		b.Fatal(err)
	}
}
