package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/measurement"
	"github.com/tabane/tabane/internal/experiment/report"
)

// readMeasurement reads the trials in a directory.
func readMeasurement(ctx context.Context, dir string) (p measurement.Plan, rows []measurement.Row, err error) {
	store, err := measurement.Open(ctx, dir)
	if err != nil {
		return p, nil, storeFailure("read measurement", dir, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if rows, err = store.Rows(ctx); err != nil {
		return p, nil, storeFailure("read measurement", dir, err)
	}
	return store.Plan(), rows, nil
}

func (a *app) measureExportCommand() *cobra.Command {
	var output string
	var asJSON bool
	c := &cobra.Command{
		Use:   "export DIR",
		Short: "Export the trials of a measurement as CSV or JSON",
		Long: `Export writes a line for each trial, failed ones included, with all that is needed to repeat it. JSON also has the bytes of every 100 ms.
"tabane diff" compares two directories without an export.`,
		Example: `  tabane measure export isp-e -o isp-e.csv
  tabane measure export isp-e --json`,
		Args: cli.Arguments(1, 1, "one directory"),
		RunE: func(c *cobra.Command, args []string) error {
			p, rows, err := readMeasurement(c.Context(), args[0])
			if err != nil {
				return err
			}
			write := func(w io.Writer) error { return measurement.WriteCSV(w, p, rows) }
			if asJSON {
				write = func(w io.Writer) error { return measurement.WriteJSON(w, p, rows) }
			}
			if output == "" {
				return write(a.Out)
			}
			return writeAnswers(output, write)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this `file` (default standard output)")
	c.Flags().BoolVar(&asJSON, "json", false, "export as JSON")
	return c
}

func (a *app) measureReportCommand() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "report DIR... [--out DIR]",
		Short: "Compare the modes of measurements, and draw the figures",
		Long: `Report compares the modes of one or more measurements, each a directory of "measure run", and prints the verdicts. With --out it also
writes report.html, one self-contained page with box plots of all networks as in paper A's Fig. 12 and 13 and of parallel connections as
in Fig. 14, and the figures and tables as files.`,
		Example: `  tabane measure report isp-e
  tabane measure report isp-a isp-b isp-e --out report`,
		Args: cli.Arguments(1, -1, "one directory or more"),
		RunE: func(c *cobra.Command, args []string) error { return a.measureReport(c.Context(), args, out) },
	}
	c.Flags().StringVarP(&out, "out", "o", "", "`directory` of the report")
	return c
}

func (a *app) measureReport(ctx context.Context, dirs []string, out string) error {
	m := report.Measurements{Command: "tabane measure report", Version: a.Version}
	for _, dir := range dirs {
		p, rows, err := readMeasurement(ctx, dir)
		if err != nil {
			return err
		}
		analysis, err := measurement.Analyze(p, rows)
		if err != nil {
			return storeFailure("analyze measurement", dir, err)
		}
		m.Command += " " + dir
		m.Networks = append(m.Networks, report.Network{Analysis: analysis, Rows: rows})
	}
	for i, n := range m.Networks {
		if len(m.Networks) > 1 {
			fmt.Fprintf(a.Out, "%s%s\n", map[bool]string{true: "\n"}[i > 0], n.Plan.Name)
		}
		if err := printAnalysis(a.Out, n.Analysis); err != nil {
			return err
		}
	}
	if out == "" {
		return nil
	}
	m.Command += " --out " + filepath.Base(out) // pages are published: no other directory
	if err := report.WriteMeasurements(out, m); err != nil {
		return &cli.Failure{What: "write report", Name: out, Why: err}
	}
	return nil
}
