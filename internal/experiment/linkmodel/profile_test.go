package linkmodel

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
)

func TestProfileCheck(t *testing.T) {
	red := RED{Min: Limit{Time: 8 * ms}, Max: Limit{Time: 80 * ms}, P: 0.03}
	with := func(change func(*RED)) RED {
		r := red
		change(&r)
		return r
	}
	for _, tt := range []struct {
		name    string
		profile Profile
		want    string
	}{
		{"plain wire", Profile{}, ""},
		{"all of it", Profile{
			Rate: 15 * unit.MbitPerSecond, Delay: 20 * ms, Jitter: Jitter{Kind: Normal, Amount: 5 * ms, Reorder: true},
			Loss: Loss{Kind: GilbertElliott, P: 0.1, R: 0.5, Bad: 1}, Duplicate: 0.01,
			Queue: Queue{Limit: Limit{Bytes: 100 * unit.KB}, Discipline: DisciplineRED, RED: red},
		}, ""},
		{"least rate", Profile{Rate: 8 * unit.KbitPerSecond}, ""},
		{"rate", Profile{Rate: 7999}, "rate: must be at least 8kbit/s, or 0 for unlimited, got 7.999kbit/s"},
		{"negative rate", Profile{Rate: -1}, "rate: must be at least"},
		{"delay", Profile{Delay: -1}, "delay: must be from 0s to 1m0s, got -1ns"},
		{"long delay", Profile{Delay: MaxDelay + 1}, "delay: must be from"},
		{"duplicate", Profile{Duplicate: 1.1}, "duplicate: must be a probability from 0 to 1, got 1.1"},
		{"duplicate that is no number", Profile{Duplicate: math.NaN()}, "duplicate: must be a probability"},
		{"jitter without kind", Profile{Delay: ms, Jitter: Jitter{Amount: ms}}, "jitter.kind: must be uniform, normal or pareto when there is jitter"},
		{"jitter of a strange kind", Profile{Delay: ms, Jitter: Jitter{Kind: "cauchy", Amount: ms}}, `jitter.kind: must be uniform, normal or pareto, got "cauchy"`},
		{"no jitter", Profile{Delay: ms, Jitter: Jitter{Kind: Uniform}}, "jitter.amount: must be > 0s"},
		{"jitter above the delay", Profile{Delay: ms, Jitter: Jitter{Kind: Uniform, Amount: 2 * ms}}, "jitter.amount: must not be more than the delay, 1ms"},
		{"loss without kind", Profile{Loss: Loss{P: 0.1}}, "loss.kind: must be random or gilbert-elliott when there is loss"},
		{"loss of a strange kind", Profile{Loss: Loss{Kind: "x"}}, "loss.kind: must be random or gilbert-elliott, got"},
		{"loss", Profile{Loss: Loss{Kind: Random, P: -0.1}}, "loss.p: must be a probability"},
		{"random with states", Profile{Loss: Loss{Kind: Random, P: 0.1, Bad: 1}}, "loss: r, good and bad are of gilbert-elliott"},
		{"states without loss", Profile{Loss: Loss{Kind: GilbertElliott, P: 0.1, R: 0.1}}, "loss.bad: must be > 0"},
		{"two limits", Profile{Queue: Queue{Limit: Limit{Bytes: 1, Packets: 1}}}, "queue: must have one of bytes, packets and time, got 2"},
		{"negative limit", Profile{Queue: Queue{Limit: Limit{Packets: -1}}}, "queue.packets: must be > 0, got -1"},
		{"strange discipline", Profile{Queue: Queue{Discipline: "fq"}}, "queue.discipline: must be drop-tail, red or codel"},
		{"parameters of another", Profile{Queue: Queue{RED: red, CoDel: CoDel{Target: ms}}}, "queue.red: is for the discipline red only\nqueue.codel: is for the discipline codel only"},
		{"RED without thresholds", Profile{Queue: Queue{Discipline: DisciplineRED, RED: RED{P: 0.1}}}, "queue.red.min: must have one of"},
		{"RED with two units", Profile{Queue: Queue{Discipline: DisciplineRED, RED: with(func(r *RED) { r.Max = Limit{Packets: 3} })}}, "queue.red.max: must be in the unit of min"},
		{"RED upside down", Profile{Queue: Queue{Discipline: DisciplineRED, RED: with(func(r *RED) { r.Max = r.Min })}}, "queue.red.max: must be more than min"},
		{"RED that never drops", Profile{Queue: Queue{Discipline: DisciplineRED, RED: with(func(r *RED) { r.P = 0 })}}, "queue.red.p: must be a probability > 0"},
		{"weight", Profile{Queue: Queue{Discipline: DisciplineRED, RED: with(func(r *RED) { r.Weight = 2 })}}, "queue.red.weight: must be from 0 to 1"},
		{"marks of drop-tail", Profile{Queue: Queue{ECN: true}}, "queue.ecn: is for the disciplines red and codel"},
		{"marks of CoDel", Profile{Queue: Queue{Discipline: DisciplineCoDel, ECN: true}}, ""},
		{"CoDel by default", Profile{Queue: Queue{Discipline: DisciplineCoDel}}, ""},
		{"target", Profile{Queue: Queue{Discipline: DisciplineCoDel, CoDel: CoDel{Target: 100 * ms}}}, "queue.codel.target: must be less than the interval, 100ms, got 100ms"},
		{"interval", Profile{Queue: Queue{Discipline: DisciplineCoDel, CoDel: CoDel{Interval: -1}}}, "queue.codel.interval: must be > 0s"},
	} {
		got := tt.profile.Check().Error()
		if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestChangeKeepsWhatItDoesNotName(t *testing.T) {
	p := Profile{Rate: 30 * unit.MbitPerSecond, Delay: 20 * ms, Duplicate: 0.1, Loss: Loss{Kind: Random, P: 0.1}}
	got := p.With(Change{Rate: ptr(15 * unit.MbitPerSecond), Loss: &Loss{}})
	want := Profile{Rate: 15 * unit.MbitPerSecond, Delay: 20 * ms, Duplicate: 0.1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got = p.With(Change{
		Delay: ptr(ms), Jitter: &Jitter{Kind: Uniform, Amount: ms}, Duplicate: ptr(0.0),
		Queue: &Queue{Limit: Limit{Packets: 5}},
	})
	want = Profile{Rate: p.Rate, Delay: ms, Jitter: Jitter{Kind: Uniform, Amount: ms}, Loss: p.Loss, Queue: Queue{Limit: Limit{Packets: 5}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
