package link

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/tabane/tabane/internal/channel"
	"github.com/tabane/tabane/internal/unit"
)

const ms = time.Millisecond

func ptr[T any](v T) *T { return &v }

func TestScheduleCheck(t *testing.T) {
	rate := channel.Change{Rate: ptr(15 * unit.MbitPerSecond)}
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
		{"impossible value, told once", Schedule{{Change: channel.Change{Delay: ptr(-ms)}}}, "[0].delay: must be from 0s to 1m0s, got -1ms"},
		{"impossible after an earlier step", Schedule{
			{At: 1, Direction: Forward, Change: channel.Change{Delay: ptr(5 * ms)}},
			{At: 2, Change: channel.Change{Jitter: &channel.Jitter{Kind: channel.Uniform, Amount: 8 * ms}}},
		}, "[1].jitter.amount: must not be more than the delay, 5ms"},
		{"impossible in one direction", Schedule{{Change: channel.Change{Jitter: &channel.Jitter{Kind: channel.Uniform, Amount: 15 * ms}}}}, "[0].jitter.amount: must not be more than the delay, 10ms"},
	} {
		got := tt.schedule.Check(channel.Profile{Delay: 20 * ms}, channel.Profile{Delay: 10 * ms}).Error()
		if got != tt.want && (tt.want == "" || !strings.HasPrefix(got, tt.want) || strings.Contains(got, "\n")) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	c := Config{A: "ra", B: "ra", Forward: channel.Profile{Delay: -1}, Schedule: Schedule{{At: -1}}}
	got := c.Check().Error()
	want := "b: must not be the same interface as a, \"ra\"\nforward.delay: must be from 0s to 1m0s, got -1ns"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	c = Config{B: "an-interface-name-that-is-too-long"}
	if got := c.Check().Error(); !strings.HasPrefix(got, "a: must be an interface name of 1 to 15 bytes, got \"\"\nb: must be") {
		t.Errorf("%q", got)
	}
}

// The forms of files and requests.
func TestForms(t *testing.T) {
	want := Config{
		A: "ra", B: "rb", Seed: 7,
		Forward: channel.Profile{
			Rate: 15 * unit.MbitPerSecond, Delay: 20 * ms, Jitter: channel.Jitter{Kind: channel.Normal, Amount: 2 * ms, Reorder: true},
			Loss: channel.Loss{Kind: channel.GilbertElliott, P: 0.01, R: 0.3, Bad: 0.8}, Duplicate: 0.001,
			Queue: channel.Queue{Limit: channel.Limit{Bytes: 64 * unit.KiB}, Discipline: channel.EarlyDrop, RED: channel.RED{Min: channel.Limit{Packets: 5}, Max: channel.Limit{Packets: 15}, P: 0.1}},
		},
		Schedule: Schedule{{At: 4 * time.Second, Direction: Backward, Change: channel.Change{Rate: ptr(15 * unit.MbitPerSecond), Queue: &channel.Queue{Discipline: channel.ControlledDelay, CoDel: channel.CoDel{Target: ms}}}}},
	}
	text := `
a: ra
b: rb
seed: 7
forward:
  rate: 15Mbit/s
  delay: 20ms
  jitter: {kind: normal, amount: 2ms, reorder: true}
  loss: {kind: gilbert-elliott, p: 0.01, r: 0.3, bad: 0.8}
  duplicate: 0.001
  queue: {bytes: 64KiB, discipline: red, red: {min: {packets: 5}, max: {packets: 15}, p: 0.1}}
schedule:
- at: 4s
  direction: backward
  rate: 15Mbit/s
  queue: {discipline: codel, codel: {target: 1ms}}
`
	var fromYAML Config
	if err := yaml.UnmarshalWithOptions([]byte(text), &fromYAML, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, fromYAML); diff != "" {
		t.Errorf("YAML (-want +got):\n%s", diff)
	}
	if faults := want.Check(); len(faults) > 0 {
		t.Errorf("faults %v", faults)
	}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var fromJSON Config
	if err := json.Unmarshal(b, &fromJSON); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, fromJSON); diff != "" {
		t.Errorf("JSON %s (-want +got):\n%s", b, diff)
	}
	var d Direction
	if err := d.UnmarshalText([]byte("both")); err != nil || d != Both {
		t.Errorf("both reads as %q, %v", d, err)
	}
	if err := d.UnmarshalText([]byte("up")); err == nil {
		t.Error("the direction up is accepted")
	}
}
