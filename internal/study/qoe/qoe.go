// Package qoe computes what a user experiences from what is measured: the Speed Index of a page,
// the waiting time that ITU-T G.1030 maps to a rating, and effectiveness and efficiency of a task
// (ISO 9241-11).
//
// It measures nothing, and it keeps apart what is measured, what a model estimates and what people
// rated (Provenance): an estimate is no sample of a test of significance, so it is a type of its
// own (MOS).
package qoe

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Provenance is where a value comes from.
type Provenance string

// The provenances.
const (
	// Measured is what an instrument measured.
	Measured Provenance = "measured"
	// Model is what a formula estimates from what was measured.
	Model Provenance = "model"
	// Rating is what a person answered.
	Rating Provenance = "rating"
)

// Context is a pair of waiting times of ITU-T G.1030: that of the best rating and that of the
// worst, for users who expect to wait at most for so long.
type Context struct {
	Name string
	// Min is the longest time that is rated 5, Max the shortest that is rated 1.
	Min, Max time.Duration
}

// The contexts of ITU-T G.1030 (02/2014), equation II-2 and Figure II.4, as a public implementation
// quotes them: the text of the Recommendation was not available. Its model is of a search task of
// two pages with trained subjects, in 2005.
var (
	Fast = Context{Name: "fast", Min: 670 * time.Millisecond, Max: 6 * time.Second}
	Slow = Context{Name: "slow", Min: 2160 * time.Millisecond, Max: 155 * time.Second}
)

// Waiting is the context of waiting times here: results estimate the MOS with it.
var Waiting = Fast

// String names the pair, for tables: "G.1030 fast: 0.67 s to 6 s".
func (c Context) String() string {
	return fmt.Sprintf("G.1030 %s: %g s to %g s", c.Name, c.Min.Seconds(), c.Max.Seconds())
}

// MOS is an estimated mean opinion score, 1 to 5. It is an estimate of a mean over people, computed
// from a time: it has no more information than the time and no spread of its own. Tests of
// significance take float64, so that they take the times.
type MOS struct{ score float64 }

// String prints the score with its provenance: "3.62 (model)".
func (m MOS) String() string { return fmt.Sprintf("%.2f (%s)", m.score, Model) }

// Score returns the score to be drawn or written to a table, never to be tested.
func (m MOS) Score() float64 { return m.score }

// Estimate returns the estimated MOS of a waiting time (ITU-T G.1030, equation II-2):
// 5 - 4 ln(t/Min) / ln(Max/Min), cut to 1..5. A time <= 0 is an error.
func (c Context) Estimate(t time.Duration) (MOS, error) {
	switch {
	case c.Min <= 0 || c.Max <= c.Min:
		return MOS{}, fmt.Errorf("estimate MOS: context must have 0 < Min < Max, got %s and %s", c.Min, c.Max)
	case t <= 0:
		return MOS{}, fmt.Errorf("estimate MOS: waiting time must be > 0, got %s", t)
	}
	score := 5 - 4*math.Log(float64(t)/float64(c.Min))/math.Log(float64(c.Max)/float64(c.Min))
	return MOS{min(5, max(1, score))}, nil
}

// Usability are effectiveness and efficiency of a task (ISO 9241-11, as paper E defines them).
type Usability struct {
	// Effectiveness is the number of conditions that the chosen item meets.
	Effectiveness int
	// Efficiency is Effectiveness per minute of the task.
	Efficiency float64
}

// Of returns those of a task of which so many conditions are met. A time <= 0 and a negative number
// are errors.
func Of(met int, took time.Duration) (Usability, error) {
	if met < 0 {
		return Usability{}, fmt.Errorf("compute usability: conditions met must be >= 0, got %d", met)
	}
	if took <= 0 {
		return Usability{}, fmt.Errorf("compute usability: time must be > 0, got %s", took)
	}
	return Usability{met, float64(met) / took.Minutes()}, nil
}

// Histogram counts the pixels of a frame by the value of each of the colors red, green and blue.
type Histogram [3][256]int

// Frame is what a page showed from At on, since the start of its navigation.
type Frame struct {
	At        time.Duration
	Histogram *Histogram
}

// Visual is the progress of a page's first view.
type Visual struct {
	// First and Last are the times of the first change and of the last one, from which on the view
	// is complete.
	First, Last time.Duration
	// SpeedIndex is the mean time at which the view appears: the integral of 1 - completeness.
	SpeedIndex time.Duration
}

// Errors of Progress.
var (
	// ErrFrames means that the frames are not those of a page's progress.
	ErrFrames = errors.New("frames must have histograms, rise in time and start at 0")
	// ErrNoChange means that the view never changed.
	ErrNoChange = errors.New("the view never changed")
)

// Progress returns the progress of a view, of which the last frame is complete. The completeness of
// a frame is 1 - |final - frame| / |final - first|, where |a - b| is the sum of the differences of
// the histograms, and is cut to 0..1 (Speed Index, P. Meenan, 2012).
func Progress(frames []Frame) (Visual, error) {
	if len(frames) == 0 || frames[0].At != 0 {
		return Visual{}, fmt.Errorf("compute speed index: %w", ErrFrames)
	}
	for i, f := range frames {
		if f.Histogram == nil || i > 0 && f.At < frames[i-1].At {
			return Visual{}, fmt.Errorf("compute speed index: %w: frame %d at %s", ErrFrames, i, f.At)
		}
	}
	first, final := frames[0].Histogram, frames[len(frames)-1].Histogram
	whole := distance(first, final)
	if whole == 0 {
		return Visual{}, fmt.Errorf("compute speed index: %w", ErrNoChange)
	}
	var v Visual
	for i, f := range frames[1:] {
		before := frames[i]
		if *f.Histogram != *before.Histogram {
			if v.First == 0 {
				v.First = f.At
			}
			v.Last = f.At
		}
		left := min(1, float64(distance(before.Histogram, final))/float64(whole))
		v.SpeedIndex += time.Duration(left * float64(f.At-before.At))
	}
	return v, nil
}

// distance is the sum of the differences of two histograms.
func distance(a, b *Histogram) int {
	sum := 0
	for color := range a {
		for i, n := range a[color] {
			sum += max(n-b[color][i], b[color][i]-n)
		}
	}
	return sum
}
