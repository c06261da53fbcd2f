package qoe

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"
)

// answersOf makes the answers of n participants under the conditions: the second is rated one step
// higher than the first by each of them, and its task takes half of the time.
func answersOf(n int, conditions []Condition) []Answer {
	var list []Answer
	for i := range n {
		for j, c := range conditions {
			list = append(list, Answer{
				Participant: fmt.Sprintf("P%d", i), Language: "en", Position: j, Environment: c.Environment, Transport: c.Transport, Service: "map",
				Took: time.Duration(40+i) * time.Second / time.Duration(1+j%2), Met: 3, Views: 1, Score: Score(1 + (i+j)%2 + 2*(j%2)),
			})
		}
	}
	return list
}

func analyze(t *testing.T, conditions []Condition, answers []Answer) map[string]MeasureAnalysis {
	t.Helper()
	a, err := Analyze(conditions, []string{"map"}, answers)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]MeasureAnalysis{}
	for _, m := range a.Measures {
		byName[m.Name] = m
	}
	return byName
}

var twoConditions = []Condition{{"all", "tcp"}, {"all", "mptcp"}}

func TestAnalyze(t *testing.T) {
	answers := answersOf(8, twoConditions)
	answers[0].Score = 0          // of participant 0 with tcp
	answers[3].Interrupted = true // of participant 1 with mptcp
	answers[4].GaveUp = true      // of participant 2 with tcp
	answers[4].Met, answers[4].Views = 0, 3
	a, err := Analyze(twoConditions, []string{"map"}, answers[:15]) // participant 7 has not finished
	if err != nil {
		t.Fatal(err)
	}
	if a.Participants != 8 || a.Complete != 7 || a.Answers != 15 || a.GaveUp != 1 || a.Reloaded != 1 {
		t.Errorf("counts: %+v", a)
	}
	m := analyze(t, twoConditions, answers[:15])
	for _, tt := range []struct {
		measure  string
		n        [2]int
		pairs    int
		excluded map[string]int
	}{
		{"rating", [2]int{7, 7}, 6, map[string]int{NotRated: 1}},
		{"task-time", [2]int{7, 6}, 5, map[string]int{WasInterrupted: 1, WasGivenUp: 1}},
		{"conditions-met", [2]int{8, 7}, 7, nil},
		{"efficiency", [2]int{8, 6}, 6, map[string]int{WasInterrupted: 1}},
	} {
		one := m[tt.measure]
		excluded := map[string]int{}
		for i, c := range one.Cells {
			if c.N != tt.n[i] {
				t.Errorf("%s %s: %d values, want %d", tt.measure, c.Transport, c.N, tt.n[i])
			}
			for why, n := range c.Excluded {
				excluded[why] += n
			}
		}
		if fmt.Sprint(excluded) != fmt.Sprint(tt.excluded) {
			t.Errorf("%s: excluded %v, want %v", tt.measure, excluded, tt.excluded)
		}
		if d := one.Differences[0]; len(one.Differences) != 1 || d.Pairs != tt.pairs || one.Needed != 6 || d.Judged != (tt.pairs >= 6) {
			t.Errorf("%s: %+v, needed %d", tt.measure, one.Differences, one.Needed)
		}
	}
	d := m["rating"].Differences[0]
	if d.A != "tcp" || d.B != "mptcp" || d.Mean >= 0 || d.Effect != -1 || d.P != 1.0/32 || d.Corrected != d.P {
		t.Errorf("ratings of tcp and mptcp: %+v", d)
	}
	if d := m["task-time"].Differences[0]; d.P != 0 || d.Corrected != 0 || d.Effect != 0 {
		t.Errorf("what is not judged has a p-value: %+v", d)
	}
	// The participant who ended the task without a choice has the efficiency 0.
	if c := m["efficiency"].Cells[0]; c.Min != 0 {
		t.Errorf("efficiency: %+v", c)
	}
}

// TestAnalyzePairsInEnvironments: transports are compared in the same environment, and all pairs of
// a figure count for the correction.
func TestAnalyzePairsInEnvironments(t *testing.T) {
	conditions := []Condition{{"near", "tcp"}, {"near", "mptcp"}, {"far", "tcp"}, {"far", "mptcp"}, {"far", "quic"}}
	m := analyze(t, conditions, answersOf(12, conditions))["task-time"]
	var pairs []string
	for _, d := range m.Differences {
		pairs = append(pairs, d.Environment+" "+d.A+" "+d.B)
		if !d.Judged || d.Corrected < d.P {
			t.Errorf("%+v", d)
		}
	}
	if got, want := fmt.Sprint(pairs), "[near tcp mptcp far tcp mptcp far tcp quic far mptcp quic]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if d := m.Differences[0]; d.P != math.Pow(2, -11) || d.Corrected != 4*d.P {
		t.Errorf("p = %g, corrected %g", d.P, d.Corrected)
	}
	if m.Needed != 8 {
		t.Errorf("needed: %d participants", m.Needed)
	}
}

func TestAnalyzeFewParticipants(t *testing.T) {
	for n := range 6 {
		for name, m := range analyze(t, twoConditions, answersOf(n, twoConditions)) {
			if d := m.Differences[0]; d.Judged || d.Pairs != n {
				t.Errorf("%d participants, %s: %+v", n, name, d)
			}
		}
	}
}

func TestAnalyzeForeignAnswers(t *testing.T) {
	for name, change := range map[string]func(*Answer){
		"environment": func(a *Answer) { a.Environment = "sea" },
		"transport":   func(a *Answer) { a.Transport = "quic" },
		"service":     func(a *Answer) { a.Service = "shop" },
		"twice":       func(a *Answer) { a.Transport = "tcp" },
	} {
		answers := answersOf(2, twoConditions)
		change(&answers[1])
		if _, err := Analyze(twoConditions, []string{"map"}, answers); !errors.Is(err, ErrAnswers) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
