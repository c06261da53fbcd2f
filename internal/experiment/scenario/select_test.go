package scenario

import (
	"slices"
	"testing"
	"time"
)

func TestSelect(t *testing.T) {
	s := &Spec{Experiment: &Experiment{
		Cases: []Case{{Name: "p0-65", Published: []Published{{Transport: "a"}, {Transport: "b"}, {Traffic: "cbr"}, {Traffic: "bulk"}}}, {Name: "p0-130", Events: []Event{{}}}, {Name: "p1-65"}},
		Traffic: map[string]*Traffic{
			"bulk": {EventAt: time.Second}, "cbr": {EventAt: time.Second},
		},
		Transports: map[string]*Transport{"a": {}, "b": {}}, Baseline: "b",
		Expect: []Expectation{
			{Name: "all"}, {Name: "of another", Relative: "case:p0-130"}, {Name: "of b", Relative: "transport:b"}, {Name: "p1", Case: "p1-*"}, {Name: "cbr", Traffic: "cbr"},
		},
		Figures: []Figure{{Name: "bulk", Traffic: "bulk"}, {Name: "cbr", Traffic: "cbr"}, {Name: "b", Traffic: "bulk", Transports: []string{"b"}}, {Name: "burst", Kind: FigureBursts, Traffic: "bulk", Case: "p1-65"}},
	}}
	one, err := s.Select(Selection{Cases: []string{"p*-65"}, Traffic: []string{"bulk"}, Transports: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	var expect, figures []string
	for _, x := range one.Experiment.Expect {
		expect = append(expect, x.Name)
	}
	for _, f := range one.Experiment.Figures {
		figures = append(figures, f.Name)
	}
	e := one.Experiment
	if len(e.Cells()) != 2 || e.Cells()[1].String() != "p1-65 bulk a" || !slices.Equal(expect, []string{"all", "p1"}) || !slices.Equal(figures, []string{"bulk", "burst"}) ||
		e.Baseline != "" || e.Traffic["bulk"].EventAt != 0 {
		t.Errorf("cells %v, expectations %q, figures %q, baseline %q, events at %s", e.Cells(), expect, figures, e.Baseline, e.Traffic["bulk"].EventAt)
	}
	if p := e.Cases[0].Published; !slices.Equal(p, []Published{{Transport: "a"}, {Traffic: "bulk"}}) {
		t.Errorf("published values %v", p)
	}
	if whole := s.Experiment; len(whole.Cases[0].Published) != 4 {
		t.Error("the scenario itself was changed")
	}
	if whole := s.Experiment; len(whole.Cells()) != 12 || whole.Traffic["bulk"].EventAt == 0 || len(whole.Expect) != 5 || len(whole.Figures[0].Transports) != 0 {
		t.Error("the scenario itself was changed")
	}
	for want, l := range map[string]Selection{
		`the scenario has no case "p0-66", did you mean "p0-65"?; it has p0-65, p0-130, p1-65`: {Cases: []string{"p0-66"}},
		`the scenario has no traffic "x*"; it has bulk, cbr`:                                   {Traffic: []string{"x*"}},
		`the scenario has no transport "c"; it has b, a`:                                       {Transports: []string{"c"}},
	} {
		if _, err := s.Select(l); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", l, err, want)
		}
	}
}

// TestSelectTraffic selects each traffic of a scenario whose cases set rates: what remains is
// valid.
func TestSelectTraffic(t *testing.T) {
	s := read(t, "epe-unequal")
	for _, name := range s.Experiment.TrafficNames() {
		one, err := s.Select(Selection{Traffic: []string{name}})
		if err == nil {
			err = one.Check().Err()
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.Experiment.Cases[0].Rates) != 1 {
		t.Error("the scenario itself was changed")
	}
}

// TestSelectFigures: a figure of cases that are left out is left out.
func TestSelectFigures(t *testing.T) {
	s, err := read(t, "shake-static").Select(Selection{Cases: []string{"j50", "r50"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check().Err(); err != nil {
		t.Error(err)
	}
	if n := len(s.Experiment.Figures); n != 3 {
		t.Errorf("%d figures, want those of two models of jitter, and today's", n)
	}
}
