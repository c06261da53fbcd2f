package linkmodel

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
)

func TestScheduleCheck(t *testing.T) {
	rate := Change{Rate: ptr(15 * unit.MbitPerSecond)}
	for _, tt := range []struct {
		name     string
		schedule Schedule
		want     string
	}{
		{"none", nil, ""},
		{"in order", Schedule{{At: 0, Change: rate}, {At: 4 * time.Second, Change: rate}, {At: 4 * time.Second, Direction: Backward, Change: rate}}, ""},
		{"negative", Schedule{{At: -time.Second, Change: rate}}, "[0].at: must be >= 0s, got -1s"},
		{"out of order", Schedule{{At: 9 * time.Second, Change: rate}, {At: 4 * time.Second, Change: rate}}, "[1].at: must not be before the step above it, at 9s, got 4s"},
		{"empty step", Schedule{{At: 1}}, "[0]: changes nothing"},
		{"strange direction", Schedule{{Direction: "up", Change: rate}}, `[0].direction: must be forward, backward or both, got "up"`},
		{"impossible value, reported once", Schedule{{Change: Change{Delay: ptr(-ms)}}}, "[0].delay: must be from 0s to 1m0s, got -1ms"},
		{"impossible after an earlier step", Schedule{
			{At: 1, Direction: Forward, Change: Change{Delay: ptr(5 * ms)}},
			{At: 2, Change: Change{Jitter: &Jitter{Kind: Uniform, Amount: 8 * ms}}},
		}, "[1].jitter.amount: must not be more than the delay, 5ms"},
		{"impossible in one direction", Schedule{{Change: Change{Jitter: &Jitter{Kind: Uniform, Amount: 15 * ms}}}}, "[0].jitter.amount: must not be more than the delay, 10ms"},
	} {
		got := tt.schedule.Check(Profile{Delay: 20 * ms}, Profile{Delay: 10 * ms}).Error()
		if got != tt.want && (tt.want == "" || !strings.HasPrefix(got, tt.want) || strings.Contains(got, "\n")) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestScheduleSplit(t *testing.T) {
	change := Change{Delay: ptr(ms)}
	forward, backward := Schedule{{At: 1, Change: change}, {At: 2, Direction: Backward, Change: change}, {At: 3, Direction: Forward, Change: change}}.Split()
	times := func(s Schedule) (at []time.Duration) {
		for _, step := range s {
			at = append(at, step.At)
		}
		return at
	}
	if diff := cmp.Diff([][]time.Duration{{1, 3}, {1, 2}}, [][]time.Duration{times(forward), times(backward)}); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
}

func TestDirection(t *testing.T) {
	var d Direction
	if err := d.UnmarshalText([]byte("both")); err != nil || d != Both {
		t.Errorf("both reads as %q, %v", d, err)
	}
	if err := d.UnmarshalText([]byte("up")); err == nil {
		t.Error("the direction up is accepted")
	}
}
