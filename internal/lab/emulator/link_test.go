package emulator

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

const ms = time.Millisecond

func ptr[T any](v T) *T { return &v }

func TestConfigCheck(t *testing.T) {
	c := Config{A: "ra", B: "ra", Forward: linkmodel.Profile{Delay: -1}, Schedule: linkmodel.Schedule{{At: -1}}}
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

// TestConfigAndRequestFormats checks the formats of configuration files and requests.
func TestConfigAndRequestFormats(t *testing.T) {
	want := Config{
		A: "ra", B: "rb", Seed: 7,
		Forward: linkmodel.Profile{
			Rate: 15 * unit.MbitPerSecond, Delay: 20 * ms, Jitter: linkmodel.Jitter{Kind: linkmodel.Normal, Amount: 2 * ms, Reorder: true},
			Loss: linkmodel.Loss{Kind: linkmodel.GilbertElliott, P: 0.01, R: 0.3, Bad: 0.8}, Duplicate: 0.001,
			Queue: linkmodel.Queue{Limit: linkmodel.Limit{Bytes: 64 * unit.KiB}, Discipline: linkmodel.DisciplineRED, RED: linkmodel.RED{Min: linkmodel.Limit{Packets: 5}, Max: linkmodel.Limit{Packets: 15}, P: 0.1}},
		},
		Schedule: linkmodel.Schedule{{At: 4 * time.Second, Direction: linkmodel.Backward, Change: linkmodel.Change{Rate: ptr(15 * unit.MbitPerSecond), Queue: &linkmodel.Queue{Discipline: linkmodel.DisciplineCoDel, CoDel: linkmodel.CoDel{Target: ms}, ECN: true}}}},
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
  queue: {discipline: codel, codel: {target: 1ms}, ecn: true}
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
}
