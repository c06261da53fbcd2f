package validate

import (
	"context"
	"errors"
	"fmt"

	"github.com/tabane/tabane/internal/experiment/scenario"
)

// Options configure Run.
type Options struct {
	// Quick makes fewer and shorter runs. The claims are the same, with the wider margins that
	// these need.
	Quick bool
	// NS2 is the path of ns-2's program ns. Default: that in PATH. The report says when there is
	// none.
	NS2 string
	// Kernel are result directories of `tabane lab run --compare sim`, or their compare.json files.
	Kernel []string
	// Scenario returns the scenario with that name for the comparison at path. It is needed with
	// Kernel.
	Scenario func(name, path string) (*scenario.Spec, error)
	// Workers is the number of parallel simulations. Default: the number of processors.
	Workers int
	// Progress, if not nil, is called with the number of runs done, by one goroutine at a time.
	Progress func(done, all int)
}

// Report is the result of a validation. It is deterministic for the same Options and versions.
type Report struct {
	Quick bool
	Parts []Part
}

// Part is one comparison.
type Part struct {
	Title string
	// Question, Method and Answer are Markdown; Answer sums up the tables.
	Question, Method, Answer string
	Tables                   []Table
	Claims                   []Claim
	// Missing is why there was nothing to compare with. Such a part has no claims.
	Missing string
}

// Table is a table of figures. The first column names the row.
type Table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

// Claim is a statement about figures that may be false.
type Claim struct {
	Text  string
	Got   string
	Holds bool
}

// Verdict returns a line with the number of claims that hold.
func (r Report) Verdict() string {
	claims := 0
	for _, p := range r.Parts {
		claims += len(p.Claims)
	}
	if n := r.failing(); n > 0 {
		return fmt.Sprintf("%d of %d claims do not hold", n, claims)
	}
	return fmt.Sprintf("all %d claims hold", claims)
}

// Holds reports whether all claims hold.
func (r Report) Holds() bool { return r.failing() == 0 }

// failing returns the number of claims that do not hold.
func (r Report) failing() int {
	n := 0
	for _, p := range r.Parts {
		for _, c := range p.Claims {
			if !c.Holds {
				n++
			}
		}
	}
	return n
}

// plan registers the runs of a comparison, and returns a function that makes its part when they are
// done.
type plan func(b *bench, o Options) func() Part

// Run runs all comparisons. A simulation or program that fails is an error; a claim that does not
// hold is not.
func Run(ctx context.Context, o Options) (Report, error) {
	b := &bench{}
	var finish []func() Part
	for _, p := range []plan{mathis, goals, fixedPoints, responsiveness, ns2, kernel} {
		finish = append(finish, p(b, o))
	}
	if err := errors.Join(b.faults...); err != nil {
		return Report{}, err
	}
	if err := b.run(ctx, o.Workers, o.Progress); err != nil {
		return Report{}, err
	}
	r := Report{Quick: o.Quick}
	for _, f := range finish {
		r.Parts = append(r.Parts, f())
	}
	return r, nil
}
