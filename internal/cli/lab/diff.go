package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/measurement"
	"github.com/tabane/tabane/internal/experiment/report"
	"github.com/tabane/tabane/internal/experiment/result"
)

type diffFlags struct {
	metrics       []string
	json, changed bool
}

func (a *app) diffCommand() *cobra.Command {
	var f diffFlags
	c := &cobra.Command{
		Use:     "diff A B",
		Short:   "Compare two results of one scenario",
		GroupID: "lab",
		Long: `Diff compares two results of the same scenario, each a directory that "lab run" or "sim run" wrote, or its
result.json, or two directories of "measure run". For each case, traffic, transport and metric that both have it prints the means over the trials, the ratio
B/A, and the 95 % confidence interval of that ratio (Fieller's, with the degrees of freedom of Welch and Satterthwaite).
The verdict is "better" or "worse" where the interval leaves out 1, "no difference shown" where it does not, and
"too few trials" where a result has one trial. "No difference shown" does not mean that there is none: more trials
narrow the interval. Each row is tested alone, so about one in 20 rows shows a difference by chance.

Exit code 0: nothing is worse in B; 1: something is; 2: the results cannot be compared.`,
		Example: `  tabane diff out/before out/after
  tabane diff out/epe-steady out/sim-epe-steady --metric goodput_bps
  tabane diff before/result.json after/result.json --changed --json`,
		Args: cli.Arguments(2, 2, "two results"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkMetrics(f.metrics); err != nil {
				return cli.Usage(c, err)
			}
			return a.diff(c.Context(), args[0], args[1], f)
		},
	}
	flags := c.Flags()
	metricFlag(flags, &f.metrics, "compare this `metric`", "all that can be better or worse")
	flags.BoolVar(&f.changed, "changed", false, "leave out rows without a difference")
	flags.BoolVar(&f.json, "json", false, "print the comparison as JSON")
	return c
}

// metricFlag adds the flag that chooses metrics.
func metricFlag(flags *pflag.FlagSet, metrics *[]string, what, otherwise string) {
	flags.StringSliceVar(metrics, "metric", nil, what+severalTimes+" (default: "+otherwise+")")
}

// checkMetrics returns a fault of the values of --metric.
func checkMetrics(names []string) error {
	for i, name := range names {
		if _, ok := result.MetricNamed(name); !ok {
			all := result.Select(func(result.Metric) bool { return true })
			return fmt.Errorf("--metric must be one of %s, got %q%s", strings.Join(all, ", "), name, fault.Suggest(name, all))
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("--metric %s is given twice", name)
		}
	}
	return nil
}

func (a *app) diff(ctx context.Context, nameA, nameB string, f diffFlags) error {
	what := fmt.Sprintf("compare result %q with", nameA)
	ra, err := readCompared(ctx, nameA)
	if err != nil {
		return err
	}
	rb, err := readCompared(ctx, nameB)
	if err != nil {
		return err
	}
	if ra.Scenario != rb.Scenario {
		return &cli.Failure{What: what, Name: nameB, Why: fmt.Errorf("they are of different scenarios: %s and %s", ra.Scenario, rb.Scenario), Do: "name two results of one scenario"}
	}
	list := result.Differences(ra, rb, f.metrics)
	if len(list) == 0 {
		return &cli.Failure{What: what, Name: nameB, Why: errors.New("they have no case, traffic, transport and metric in common"), Do: "see their runs.csv"}
	}
	show := report.Diff
	if f.json {
		show = report.DiffJSON
	}
	if err := show(a.Out, ra, rb, list, report.DiffOptions{A: nameA, B: nameB, Changed: f.changed, Width: cli.Width(a.Out)}); err != nil {
		return err
	}
	if slices.ContainsFunc(list, func(d result.Difference) bool { return d.Change == result.Worse }) {
		return cli.ErrUnmet
	}
	return nil
}

// readCompared reads a result, or the measurement in a directory.
func readCompared(ctx context.Context, name string) (result.Result, error) {
	if !measurement.Exists(name) {
		return readResult(name)
	}
	p, rows, err := readMeasurement(ctx, name)
	if err != nil {
		return result.Result{}, err
	}
	r, err := measurement.Result(p, rows)
	if err != nil {
		return result.Result{}, storeFailure("read measurement", name, err)
	}
	return r, nil
}

// readResult reads a result from its directory or its result.json.
func readResult(name string) (result.Result, error) {
	const what = "read result"
	path := name
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		path = filepath.Join(name, resultFile)
	}
	file, err := os.Open(path)
	if err != nil {
		return result.Result{}, cli.FileFailure(what, path, err)
	}
	defer file.Close()
	r, err := result.Decode(file)
	if err != nil {
		return result.Result{}, &cli.Failure{What: what, Name: path, Why: err, Do: "name a directory that lab run or sim run wrote, or its " + resultFile}
	}
	return r, nil
}
