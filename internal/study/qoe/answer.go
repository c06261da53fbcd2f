package qoe

import (
	"fmt"
	"time"
)

// Score is what a person answered on the 5-step scale of paper E, from 1 (very dissatisfied) to 5
// (very satisfied). 0 means that there is no answer.
type Score int

// The ends of the scale.
const (
	MinScore Score = 1
	MaxScore Score = 5
)

// ParseScore parses a score as a form has it: one digit, 1 to 5.
func ParseScore(text string) (Score, error) {
	if len(text) != 1 || text[0] < '0'+byte(MinScore) || text[0] > '0'+byte(MaxScore) {
		return 0, fmt.Errorf("rating must be %d to %d, got %q", MinScore, MaxScore, text)
	}
	return Score(text[0] - '0'), nil
}

// Answer is a task that a participant of a study has finished.
type Answer struct {
	// Participant is the random code of the participant, Language the language of the pages.
	Participant, Language string
	// Position counts the participant's tasks from 0.
	Position int
	// Environment and Transport are the condition.
	Environment, Transport, Service string
	// Took is the time of the task; 0 if it is not known.
	Took time.Duration
	// Met is how many conditions of the task the choice meets.
	Met int
	// GaveUp is set if the participant ended the task without a choice.
	GaveUp bool
	// Interrupted is set if the study's server was restarted during the task, which therefore took
	// longer, or if its clock was set back.
	Interrupted bool
	// Views counts how often the service's page was loaded: one more with each reload.
	Views int
	Score Score
}

// Usability returns effectiveness and efficiency of the task. ok is false if its time is not
// meaningful.
func (a Answer) Usability() (u Usability, ok bool) {
	if a.Interrupted || a.Took <= 0 {
		return Usability{Effectiveness: a.Met}, false
	}
	u, err := Of(a.Met, a.Took)
	return u, err == nil
}
