package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/sim/validate"
)

type validateFlags struct {
	out    string
	ns2    string
	kernel []string
	quick  bool
	jobs   int
}

func (a *app) simValidate() *cobra.Command {
	var f validateFlags
	c := &cobra.Command{
		Use:   "validate",
		Short: "Compare the simulator with theory, ns-2 and the kernel",
		Long: `Validate runs the simulator where the result is known: Mathis' formula, the three goals of RFC 6356, the fixed points
of LIA, OLIA and BALIA, and ns-2 where it is installed. It writes a page of tables and claims, docs/validation.md in the
repository, and says which claims do not hold. What the kernel does is measured by "lab run NAME --compare sim"; --kernel
enters such results. It takes a minute or two on two processors.

Exit code 0: all claims hold; 1: some do not; 2: it could not run, or was interrupted.`,
		Example: `  tabane sim validate --quick
  tabane sim validate --out docs/validation.md
  tabane sim validate --kernel out/reseq-rate --kernel out/reseq-delay`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("jobs") && f.jobs < 1 {
				return cli.Usage(c, fmt.Errorf("--jobs must be > 0, got %d", f.jobs))
			}
			return a.validate(c.Context(), f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.out, "out", "", "`file` for the page (default: standard output)")
	flags.StringVar(&f.ns2, "ns2", "", "the `program` ns of ns-2 (default: the one in PATH, if any)")
	flags.StringArrayVar(&f.kernel, "kernel", nil, "`directory` of a result of lab run --compare sim, or its compare.json; may be given several times")
	flags.BoolVar(&f.quick, "quick", false, "fewer and shorter runs, some seconds")
	flags.IntVar(&f.jobs, "jobs", 0, "number of parallel simulations (default: number of processors)")
	return c
}

// measuredScenario returns the scenario of a comparison: the file NAME.yaml next to it if it
// exists, otherwise the embedded scenario.
func measuredScenario(name, path string) (*scenario.Spec, error) {
	if file := filepath.Join(filepath.Dir(path), name+".yaml"); fileExists(file) {
		return simulated(file, scenario.Selection{}, false)
	}
	return simulated(name, scenario.Selection{}, false)
}

func fileExists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func (a *app) validate(ctx context.Context, f validateFlags) error {
	begun := time.Now()
	p := newProgress(a.Err, cli.Width(a.Err), "runs")
	r, err := validate.Run(ctx, validate.Options{
		Quick: f.quick, NS2: f.ns2, Kernel: f.kernel, Scenario: measuredScenario, Workers: f.jobs,
		Progress: func(done, all int) {
			elapsed := time.Since(begun)
			p.show(done, all, elapsed, elapsed*time.Duration(all-done)/time.Duration(done))
		},
	})
	p.clear()
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("it was interrupted")
		}
		return &cli.Failure{What: "validate simulator", Why: err}
	}
	page := []byte(r.Markdown())
	if f.out == "" {
		if _, err := a.Out.Write(page); err != nil {
			return &cli.Failure{What: "write page", Why: err}
		}
	} else {
		if err := writeFile(f.out, page); err != nil {
			return &cli.Failure{What: "write page", Name: f.out, Why: err, Do: "name a file in a directory that this user can write"}
		}
		fmt.Fprintf(a.Out, "%s\npage: %s (%s)\n", r.Verdict(), f.out, time.Since(begun).Round(time.Second))
	}
	if !r.Holds() {
		return cli.ErrUnmet
	}
	return nil
}
