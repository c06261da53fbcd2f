package traffic

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Bounds of the chunk of a constant bit rate: with shorter ones the timer takes more time than
// sending, with longer ones the rate is not constant.
const (
	minChunk     = time.Millisecond
	maxChunk     = 10 * time.Second
	defaultChunk = 10 * time.Millisecond
)

// schedule computes when the bytes of a constant bit rate are due. Time is divided into chunks; all
// bytes of a chunk are due at its start, like those of a packet or a video frame. The schedule is
// absolute: it does not depend on when earlier bytes were sent, so that delays do not accumulate.
type schedule struct {
	rate            unit.Bandwidth
	duration, chunk time.Duration
}

// total returns the bytes of the whole schedule, rounded down.
func (s schedule) total() int64 { return int64(s.rate.SizeIn(s.duration)) }

// due returns how many bytes must have been sent after the elapsed time.
func (s schedule) due(elapsed time.Duration) int64 {
	return int64(s.rate.SizeIn(min(s.next(elapsed), s.duration)))
}

// next returns the start of the chunk after the one at elapsed.
func (s schedule) next(elapsed time.Duration) time.Duration {
	return (elapsed/s.chunk + 1) * s.chunk
}

// parseSchedule parses the parameters rate, duration and chunk of a request, which may have others
// with these names. Its errors are sent to the client.
func parseSchedule(query string, others ...string) (schedule, url.Values, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return schedule{}, nil, fmt.Errorf("the parameters are malformed: %w", err)
	}
	s, err := scheduleOf(values, append([]string{"rate", "duration", "chunk"}, others...))
	return s, values, err
}

// scheduleOf is parseSchedule of parameters; known are their names, of which the first two are
// required.
func scheduleOf(values url.Values, known []string) (schedule, error) {
	for name, v := range values {
		if !slices.Contains(known, name) {
			return schedule{}, fmt.Errorf("parameter %q is unknown; there are %s", name, strings.Join(known, ", "))
		}
		if len(v) != 1 {
			return schedule{}, fmt.Errorf("parameter %q is given %d times", name, len(v))
		}
	}
	for _, name := range known[:2] {
		if !values.Has(name) {
			return schedule{}, fmt.Errorf("parameter %q is missing; want, for example, /cbr?rate=25Mbit/s&duration=30s", name)
		}
	}
	s := schedule{chunk: defaultChunk}
	var err error
	if s.rate, err = unit.ParseBandwidth(values.Get("rate")); err != nil {
		return schedule{}, err
	}
	for name, d := range map[string]*time.Duration{"duration": &s.duration, "chunk": &s.chunk} {
		if !values.Has(name) {
			continue
		}
		if *d, err = time.ParseDuration(values.Get(name)); err != nil {
			return schedule{}, fmt.Errorf("%s %q is not understood; want a number and ms, s, m or h, like \"30s\"", name, values.Get(name))
		}
	}
	switch {
	case s.rate == 0:
		return schedule{}, fmt.Errorf("rate must be > 0, got %s", s.rate)
	case s.duration <= 0:
		return schedule{}, fmt.Errorf("duration must be > 0, got %s", s.duration)
	case s.chunk < minChunk || s.chunk > maxChunk:
		return schedule{}, fmt.Errorf("chunk must be from %s to %s, got %s", minChunk, maxChunk, s.chunk)
	case s.total() == 0:
		return schedule{}, fmt.Errorf("%s for %s is less than one byte", s.rate, s.duration)
	case s.total() > int64(maxContent):
		return schedule{}, fmt.Errorf("%s for %s is more than %s", s.rate, s.duration, maxContent)
	case s.duration > maxDuration:
		return schedule{}, fmt.Errorf("duration must be at most %s, got %s", maxDuration, s.duration)
	}
	return s, nil
}

// maxDuration is a year.
const maxDuration = 365 * 24 * time.Hour
