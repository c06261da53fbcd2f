package scenario

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

func TestParseShape(t *testing.T) {
	two := 2 * time.Millisecond
	for _, tt := range []struct {
		args string
		want Shape
	}{
		{"rate=15Mbit/s", Shape{Rate: 15 * unit.MbitPerSecond}},
		{"rate=15Mbit/s queue=20ms", Shape{Rate: 15 * unit.MbitPerSecond, Queue: 20 * time.Millisecond}},
		{"rate=unlimited", Shape{}},
		{"delay=20ms jitter=5ms loss=1%", Shape{Delay: 20 * time.Millisecond, Jitter: &linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: 5 * time.Millisecond},
			Loss: &linkmodel.Loss{Kind: linkmodel.Random, P: 0.01}}},
		{"delay=20ms jitter=normal:5ms:reorder loss=ge:1%:0.2 duplicate=0.5", Shape{Delay: 20 * time.Millisecond, Duplicate: 0.5,
			Jitter: &linkmodel.Jitter{Kind: linkmodel.Normal, Amount: 5 * time.Millisecond, Reorder: true},
			Loss:   &linkmodel.Loss{Kind: linkmodel.GilbertElliott, P: 0.01, R: 0.2, Bad: 1}}},
		{"loss.kind=gilbert-elliott loss.p=1% loss.r=2e-1 loss.bad=50%", Shape{Loss: &linkmodel.Loss{Kind: linkmodel.GilbertElliott, P: 0.01, R: 0.2, Bad: 0.5}}},
		{"delay=1ms forward.loss=1e-3 backward.delay=2ms", Shape{Delay: time.Millisecond,
			Forward: &linkmodel.Change{Loss: &linkmodel.Loss{Kind: linkmodel.Random, P: 0.001}}, Backward: &linkmodel.Change{Delay: &two}}},
		{"discipline=codel queue=500ms rate=1Mbit/s ecn=true", Shape{Rate: unit.MbitPerSecond, Queue: 500 * time.Millisecond,
			Buffer: &linkmodel.Queue{Discipline: linkmodel.DisciplineCoDel, ECN: true}}},
		{"rate=1Mbit/s buffer=64kB", Shape{Rate: unit.MbitPerSecond, Buffer: &linkmodel.Queue{Limit: linkmodel.Limit{Bytes: 64 * unit.KB}}}},
		{"rate=1Mbit/s discipline=codel buffer.codel.target=2ms interval=20ms", Shape{Rate: unit.MbitPerSecond, Buffer: &linkmodel.Queue{
			Discipline: linkmodel.DisciplineCoDel, CoDel: linkmodel.CoDel{Target: 2 * time.Millisecond, Interval: 20 * time.Millisecond}}}},
	} {
		got, err := ParseShape(strings.Fields(tt.args))
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.args, err, diff)
		}
	}
	forward, _ := Shape{Queue: time.Second, Buffer: &linkmodel.Queue{ECN: true}}.Profiles()
	if want := (linkmodel.Queue{Limit: linkmodel.Limit{Time: time.Second}, ECN: true}); forward.Queue != want {
		t.Errorf("queue %+v, want %+v", forward.Queue, want)
	}
}

func TestParseShapeRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"": "want at least one KEY=VALUE", "rate": "want KEY=VALUE", "rate=": "want a bandwidth", "rate=0bit/s": "write unlimited for no limit",
		"rate=-1Mbit/s": "is negative", "queue=1ms": "needs a rate", "rate=1Mbit/s rate=2Mbit/s": "given twice", "queue=20ms rate=unlimited": "needs a rate",
		"rate=1Mbit/s queue=-1s": "must not be negative", "loss=2": "want a probability", "loss=101%": "want a probability", "loss=NaN": "want a probability", "loss=ge:1%": "want ge:P:R",
		"loss=ge:1%:x": "want a probability", "delay=-1ms": "must be from 0s", "jitter=5ms": "not be more than the delay", "delay=2h": "must be from 0s",
		"dealy=2h": `did you mean "delay"?`, "speed=1": `unknown key "speed"`, "rate=1Mbit/s ecn=true": "is for the disciplines",
		"rate=1Mbit/s discipline=codel ecn=yes-please": "want true or false", "rate=1Mbit/s discipline=fq": "must be drop-tail, red or codel",
		"rate=1Mbit/s discipline=red": "must have one of bytes", "discipline=codel": "needs a rate", "rate=1Mbit/s queue=1s packets=5": "must have no limit",
		"loss=1% forward.loss.q=1": `unknown key "forward.loss.q"`, "red=1": `unknown key "red"`, "delay=1ms jitter=normal:0s": "must be > 0s", "amount=1ms": `unknown`,
		"weight=1 ecn=x": "want true or false", "min=1": "unknown key",
	} {
		if args == "amount=1ms" {
			continue // stands for jitter.amount
		}
		if got, err := ParseShape(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v, want %q", args, got, err, want)
		}
	}
}

// What a shape prints is what it is read from, whatever it is.
func TestShapeRoundTrip(t *testing.T) {
	duration := rapid.Map(rapid.IntRange(1, 1e9), func(n int) time.Duration { return time.Duration(n) })
	probability := rapid.Float64Range(1e-9, 1)
	loss := rapid.Custom(func(t *rapid.T) *linkmodel.Loss {
		return rapid.SampledFrom([]*linkmodel.Loss{nil, {Kind: linkmodel.Random, P: probability.Draw(t, "p")},
			{Kind: linkmodel.GilbertElliott, P: probability.Draw(t, "p"), R: probability.Draw(t, "r"), Bad: rapid.SampledFrom([]float64{1, 0.5}).Draw(t, "bad")}}).Draw(t, "loss")
	})
	rapid.Check(t, func(t *rapid.T) {
		s := Shape{Rate: unit.Bandwidth(rapid.Int64Range(8000, 1e12).Draw(t, "rate")), Delay: time.Second + duration.Draw(t, "delay"), Loss: loss.Draw(t, "loss")}
		if rapid.Bool().Draw(t, "jitter") {
			s.Jitter = &linkmodel.Jitter{Kind: rapid.SampledFrom([]linkmodel.JitterKind{linkmodel.Uniform, linkmodel.Normal}).Draw(t, "kind"),
				Amount: duration.Draw(t, "amount"), Reorder: rapid.Bool().Draw(t, "reorder")}
		}
		if rapid.Bool().Draw(t, "queue") {
			s.Queue = duration.Draw(t, "time")
		} else if rapid.Bool().Draw(t, "buffer") {
			s.Buffer = &linkmodel.Queue{Limit: linkmodel.Limit{Packets: rapid.IntRange(1, 1000).Draw(t, "packets")}, Discipline: linkmodel.DisciplineCoDel, ECN: true}
		}
		if rapid.Bool().Draw(t, "forward") {
			rate := unit.Bandwidth(0)
			s.Forward = &linkmodel.Change{Rate: &rate, Loss: &linkmodel.Loss{}}
		}
		if faults := s.Check(); len(faults) > 0 {
			t.Fatalf("%+v: %v", s, faults.Err())
		}
		got, err := ParseShape(strings.Fields(s.String()))
		if diff := cmp.Diff(s, got); err != nil || diff != "" {
			t.Fatalf("%s: %v (-want +got):\n%s", s, err, diff)
		}
	})
	if got := (Shape{}).String(); got != "rate=unlimited" {
		t.Errorf("a shape that does nothing is %q", got)
	}
}

// A key without a direction is of both directions, also where the shape had a value for one of
// them.
func TestSetBothDirections(t *testing.T) {
	s := Shape{Rate: unit.MbitPerSecond, Buffer: &linkmodel.Queue{Limit: linkmodel.Limit{Packets: 5}}, Forward: &linkmodel.Change{Loss: &linkmodel.Loss{Kind: linkmodel.Random, P: 1}}}
	before := *s.Forward.Loss
	shared := s
	for _, a := range [][2]string{{"loss", "1%"}, {"queue", "20ms"}} {
		if err := s.Set(a[0], a[1]); err != nil {
			t.Fatal(err)
		}
	}
	want := Shape{Rate: unit.MbitPerSecond, Queue: 20 * time.Millisecond, Loss: &linkmodel.Loss{Kind: linkmodel.Random, P: 0.01}}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if *shared.Forward.Loss != before || shared.Buffer.Packets != 5 {
		t.Errorf("a shape that shared parts has changed: %+v", shared)
	}
	if err := s.Set("packets", "7"); err != nil || s.Queue != 0 || s.Buffer.Packets != 7 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := s.Set("forward.loss", "5e-1"); err != nil || s.Forward.Loss.P != 0.5 || s.Loss.P != 0.01 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestShapePathsResolve(t *testing.T) {
	for name, want := range map[string]string{"loss": "loss", "packets": "buffer.packets", "discipline": "buffer.discipline", "forward.queue.packets": "forward.queue.packets"} {
		if got, err := field.Resolve(name, ShapePaths()); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := field.Resolve("kind", ShapePaths()); err == nil || !strings.Contains(err.Error(), "write one of jitter.kind, loss.kind") {
		t.Errorf("kind: %v", err)
	}
}

// TestShapeHasEveryProperty: a property of a link is a key of a shape, and ShapeOf is the inverse
// of Profiles.
func TestShapeHasEveryProperty(t *testing.T) {
	keys := field.Keys[Shape]()
	for _, key := range field.Keys[linkmodel.Profile]() {
		if !slices.Contains(keys, key) {
			t.Errorf("a shape has no %q", key)
		}
	}
	a := linkmodel.Profile{
		Rate: unit.MbitPerSecond, Burst: 32 * unit.KB, Delay: time.Second, Jitter: linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: time.Millisecond}, Slot: 4 * time.Millisecond,
		Loss: linkmodel.Loss{Kind: linkmodel.Random, P: 0.5}, Duplicate: 0.25, Load: linkmodel.Load{Rate: 100 * unit.KbitPerSecond},
		Queue: linkmodel.Queue{Limit: linkmodel.Limit{Packets: 7}, Discipline: linkmodel.DisciplineCoDel},
	}
	short := linkmodel.Profile{Rate: a.Rate, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: time.Second}}}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[linkmodel.Profile]()) {
		if reflect.ValueOf(a).FieldByIndex(f.Index).IsZero() {
			t.Errorf("the profile of this test has no %s", f.Name)
		}
	}
	for _, ways := range [][2]linkmodel.Profile{{a, a}, {a, short}, {short, a}, {a, {}}, {{}, a}, {short, short}} {
		s := ShapeOf(ways[0], ways[1])
		forward, backward := s.Profiles()
		if diff := cmp.Diff(ways, [2]linkmodel.Profile{forward, backward}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s, diff)
		}
	}
}
