package validate

import (
	"context"
	"errors"
	"fmt"

	"github.com/tabane/tabane/internal/scenario"
)

// Options says what is compared.
type Options struct {
	// Quick makes fewer and shorter runs: the claims are the same, with the wider margins that
	// these need.
	Quick bool
	// NS2 is the program ns of ns-2; empty looks for it in PATH. It may be missing, and the report
	// then says so.
	NS2 string
	// Kernel are directories of results of `tabane lab run --compare sim`, or compare.json files of
	// such.
	Kernel []string
	// Scenario returns the scenario with that name for the comparison at path. It is needed with
	// Kernel.
	Scenario func(name, path string) (*scenario.Spec, error)
	// Workers is how many simulations run at a time; 0 is one for each processor.
	Workers int
	// Progress is called with how many of all runs are done. It is called by one goroutine at a
	// time. It may be nil.
	Progress func(done, all int)
}

// Report is what came out. It is the same for the same Options and the same versions of what is
// compared.
type Report struct {
	Quick bool
	Parts []Part
}

// Part is one comparison.
type Part struct {
	Title string
	// Question is what a reader wants to know, Method how it is answered, Answer what the tables
	// say, all in Markdown.
	Question, Method, Answer string
	Tables                   []Table
	Claims                   []Claim
	// Missing says why there was nothing to compare with. Such a part claims nothing.
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

// Verdict says in a line how many claims hold.
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

// failing is how many claims do not hold.
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

// plan registers the runs of one comparison and returns what makes its part of them once they are
// done.
type plan func(b *bench, o Options) func() Part

// Run does all comparisons. Claims that do not hold are no error; a simulation or a program that
// fails is.
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
