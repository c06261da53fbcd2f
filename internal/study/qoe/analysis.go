package qoe

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tabane/tabane/internal/base/stat"
)

// Significance is the level of the tests of an analysis, after Holm's correction.
const Significance = 0.05

// Condition is what a participant uses a service under.
type Condition struct{ Environment, Transport string }

// Measure is a measure of an answer.
type Measure struct {
	// Name is that of files, Title that of axes and tables.
	Name, Title, Unit string
	Provenance        Provenance
	// of returns the value of an answer. If it has none, why is the reason.
	of func(Answer) (value float64, why string)
}

// The reasons why an answer has no value of a measure.
const (
	NotRated       = "no rating was given"
	WasInterrupted = "the server was restarted during the task"
	WasGivenUp     = "the task was ended without a choice"
)

// StudyMeasures returns the measures of a study.
func StudyMeasures() []Measure {
	return []Measure{
		{"rating", "satisfaction", "1 to 5", Rating, func(a Answer) (float64, string) {
			if a.Score < MinScore {
				return 0, NotRated
			}
			return float64(a.Score), ""
		}},
		{"task-time", "time of the task", "s", Measured, func(a Answer) (float64, string) {
			if _, ok := a.Usability(); !ok {
				return 0, WasInterrupted
			}
			if a.GaveUp {
				return 0, WasGivenUp
			}
			return a.Took.Seconds(), ""
		}},
		{"conditions-met", "effectiveness: conditions met", "0 to 3", Measured, func(a Answer) (float64, string) { return float64(a.Met), "" }},
		{"efficiency", "efficiency: conditions met per minute", "", Measured, func(a Answer) (float64, string) {
			u, ok := a.Usability()
			if !ok {
				return 0, WasInterrupted
			}
			return u.Efficiency, ""
		}},
	}
}

// Cell is a measure of a service under a condition: N participants have a value.
type Cell struct {
	Condition
	Service string
	stat.Summary
	// Excluded counts the answers without a value, by the reason.
	Excluded map[string]int
}

// Difference is a measure compared between two transports: that of A minus that of B, of the
// participants who have a value of both.
type Difference struct {
	Environment, Service string
	A, B                 string
	stat.PairedComparison
	// Mean is that of the differences, and CI95 half of its confidence interval (stat.Summary).
	Mean, CI95 float64
}

// MeasureAnalysis is the analysis of a measure.
type MeasureAnalysis struct {
	Measure
	Cells []Cell
	// Differences are those of all pairs of transports in the same environment, for each service:
	// the family of Holm's correction.
	Differences []Difference
	// Needed is how many participants with values of both transports a comparison takes.
	Needed int
}

// Analysis is the analysis of the answers of a study.
type Analysis struct {
	Environments, Transports, Services []string
	// Participants have finished a task, Complete of them all tasks.
	Participants, Complete int
	// Answers are those of finished tasks, GaveUp of them ended without a choice, Reloaded of them
	// had the page loaded more than once, which excludes nothing.
	Answers, GaveUp, Reloaded int
	Measures                  []MeasureAnalysis
}

// ErrAnswers means that answers are not those of one study.
var ErrAnswers = errors.New("answers are not those of one study")

// Analyze analyzes the answers of a study with these conditions and services. Each participant uses
// every condition, so differences are those within participants. Values that do not exist are not
// filled in. Errors wrap ErrAnswers.
func Analyze(conditions []Condition, services []string, answers []Answer) (Analysis, error) {
	a := Analysis{Services: services, Answers: len(answers)}
	for _, c := range conditions {
		a.Environments, a.Transports = appendNew(a.Environments, c.Environment), appendNew(a.Transports, c.Transport)
	}
	places, err := placeAnswers(conditions, services, answers)
	if err != nil {
		return Analysis{}, err
	}
	finished := map[string]int{} // answers of each participant
	for _, one := range answers {
		finished[one.Participant]++
		if one.GaveUp {
			a.GaveUp++
		}
		if one.Views > 1 {
			a.Reloaded++
		}
	}
	a.Participants = len(finished)
	for _, n := range finished {
		if n == len(conditions)*len(services) {
			a.Complete++
		}
	}
	for _, m := range StudyMeasures() {
		analyzed, err := analyzeMeasure(m, conditions, services, places)
		if err != nil {
			return Analysis{}, fmt.Errorf("%w: %s: %w", ErrAnswers, m.Title, err)
		}
		a.Measures = append(a.Measures, analyzed)
	}
	return a, nil
}

// A place is one page of the study: a service under a condition.
type place struct {
	Condition
	service string
}

// placeAnswers returns the answers of each place by participant. Each has one at most.
func placeAnswers(conditions []Condition, services []string, answers []Answer) (map[place]map[string]Answer, error) {
	places := map[place]map[string]Answer{}
	for _, one := range answers {
		at := place{Condition{one.Environment, one.Transport}, one.Service}
		switch {
		case !slices.Contains(conditions, at.Condition):
			return nil, fmt.Errorf("%w: participant %s has an answer for %s in %s, which is no condition", ErrAnswers, one.Participant, one.Transport, one.Environment)
		case !slices.Contains(services, one.Service):
			return nil, fmt.Errorf("%w: participant %s has an answer for the service %q", ErrAnswers, one.Participant, one.Service)
		}
		if places[at] == nil {
			places[at] = map[string]Answer{}
		}
		if _, twice := places[at][one.Participant]; twice {
			return nil, fmt.Errorf("%w: participant %s has two answers for %s with %s in %s", ErrAnswers, one.Participant, one.Service, one.Transport, one.Environment)
		}
		places[at][one.Participant] = one
	}
	return places, nil
}

// analyzeMeasure summarizes a measure at each place, and compares the transports of each environment.
func analyzeMeasure(m Measure, conditions []Condition, services []string, places map[place]map[string]Answer) (MeasureAnalysis, error) {
	analyzed := MeasureAnalysis{Measure: m}
	values := map[place]map[string]float64{} // and by participant
	for _, service := range services {
		for _, c := range conditions {
			at := place{c, service}
			cell := Cell{Condition: c, Service: service, Excluded: map[string]int{}}
			values[at] = map[string]float64{}
			for participant, one := range places[at] {
				v, why := m.of(one)
				if why != "" {
					cell.Excluded[why]++
					continue
				}
				values[at][participant] = v
			}
			if len(values[at]) > 0 {
				var err error
				if cell.Summary, err = stat.Summarize(slices.Collect(maps.Values(values[at]))); err != nil {
					return MeasureAnalysis{}, err
				}
			}
			analyzed.Cells = append(analyzed.Cells, cell)
		}
	}
	var family [][]float64
	for _, service := range services {
		for i, first := range conditions {
			for _, second := range conditions[i+1:] {
				if first.Environment != second.Environment {
					continue
				}
				differences := pairs(values[place{first, service}], values[place{second, service}])
				d := Difference{Environment: first.Environment, Service: service, A: first.Transport, B: second.Transport}
				if len(differences) > 0 {
					s, err := stat.Summarize(differences)
					if err != nil {
						return MeasureAnalysis{}, err
					}
					d.Mean, d.CI95 = s.Mean, s.CI95
				}
				family, analyzed.Differences = append(family, differences), append(analyzed.Differences, d)
			}
		}
	}
	compared, err := stat.ComparePaired(family, Significance)
	if err != nil {
		return MeasureAnalysis{}, err
	}
	for i, c := range compared {
		analyzed.Differences[i].PairedComparison = c
	}
	analyzed.Needed = stat.LeastPairs(len(family), Significance)
	return analyzed, nil
}

// pairs returns the differences of the participants that have both values.
func pairs(first, second map[string]float64) (differences []float64) {
	for participant, v := range first {
		if w, ok := second[participant]; ok {
			differences = append(differences, v-w)
		}
	}
	return differences
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
