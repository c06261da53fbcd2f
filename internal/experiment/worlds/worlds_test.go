package worlds

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

func anyOptions(t *rapid.T) Options {
	return Options{
		Kind: rapid.SampledFrom(Kinds()).Draw(t, "kind"), Seed: rapid.Uint64().Draw(t, "seed"),
		Number: rapid.IntRange(0, 1_000_000).Draw(t, "number"), Packets: rapid.IntRange(1, 1_000_000).Draw(t, "packets"),
	}
}

// TestDraw checks that every world is one: valid links within the bounds, and events during the
// traffic.
func TestDraw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := anyOptions(t)
		w := Draw(o)
		if !reflect.DeepEqual(w, Draw(o)) {
			t.Fatal("the same options draw another world")
		}
		if len(w.Paths) < minPaths || len(w.Paths) > maxPaths {
			t.Errorf("%d paths", len(w.Paths))
		}
		if w.Lasts < shortest || w.Lasts > longest {
			t.Errorf("lasts %s", w.Lasts)
		}
		for i, p := range w.Paths {
			if err := p.Forward.Check().Err(); err != nil {
				t.Errorf("path %d forward: %v", i, err)
			}
			if err := p.Backward.Check().Err(); err != nil {
				t.Errorf("path %d backward: %v", i, err)
			}
			if err := p.Schedule.Check(p.Forward, p.Backward).Err(); err != nil {
				t.Errorf("path %d schedule: %v", i, err)
			}
			for _, step := range p.Schedule {
				if step.At < time.Second || step.At >= w.Lasts {
					t.Errorf("a step at %s of %s", step.At, w.Lasts)
				}
			}
			if r := p.Forward.Rate; r < minRate || r > maxRate {
				t.Errorf("rate %s", r)
			}
			if p.Backward.Rate > p.Forward.Rate {
				t.Errorf("the way back of %s is faster: %s", p.Forward.Rate, p.Backward.Rate)
			}
		}
	})
}

// TestDrawVaries checks that whatever can be drawn is, in 1,000 worlds.
func TestDrawVaries(t *testing.T) {
	seen := map[string]int{}
	count := func(key string, is bool) {
		if is {
			seen[key]++
		} else {
			seen[key] += 0
		}
	}
	for n := range 1000 {
		w := Draw(Options{Kind: EPE, Seed: 3, Number: n})
		count("event", w.Event != "")
		count("shared", w.Shared.Rate > 0)
		for _, k := range []int{2, 3, 4} {
			count(string(rune('0'+k))+" paths", len(w.Paths) == k)
		}
		p := w.Paths[0]
		count("asymmetric", p.Backward.Rate < p.Forward.Rate)
		count("packets", p.Forward.Queue.Packets > 0)
		count("jitter uniform", p.Forward.Jitter.Kind == "uniform")
		count("jitter normal", p.Forward.Jitter.Kind == "normal")
		count("jitter pareto", p.Forward.Jitter.Kind == "pareto")
		count("slots", p.Forward.Slot > 0)
		count("reorder", p.Forward.Jitter.Reorder)
		count("random loss", p.Forward.Loss.Kind == "random")
		count("bursts of losses", p.Forward.Loss.Kind == "gilbert-elliott")
		count("load", p.Forward.Load.Rate > 0)
		count("slow", p.Forward.Rate < 3*minRate)
		count("fast", p.Forward.Rate > maxRate/3)
	}
	for key, n := range seen {
		if n < 30 {
			t.Errorf("%s in %d of 1000 worlds", key, n)
		}
	}
}

// TestPair: a fifth of the paths of pairs delivers in slots, both ways.
func TestPair(t *testing.T) {
	const count = 500
	slots := 0
	for n := range count {
		for _, p := range Pair(Options{Kind: EPE, Seed: 3, Number: n}).Paths {
			if p.Forward.Slot != p.Backward.Slot || p.Forward.Slot != 0 && (p.Forward.Slot < minSlot || p.Forward.Slot > maxSlot) {
				t.Fatalf("pair %d has slots of %v and %v", n, p.Forward.Slot, p.Backward.Slot)
			}
			if p.Forward.Slot > 0 {
				slots++
			}
		}
	}
	if share := float64(slots) / 2 / count; share < 0.15 || share > 0.25 {
		t.Errorf("%.2f of the paths deliver in slots", share)
	}
}

func run(traffic, transport string, goodput, gap float64) result.Run {
	return result.Run{
		CellKey: result.CellKey{Case: theCase, Traffic: traffic, Transport: transport},
		Metrics: map[string]float64{result.Goodput: goodput, result.LongestGap: gap}, Notes: map[string]string{},
	}
}

func TestJudge(t *testing.T) {
	broken := run(Bulk, "a", 0, 0)
	broken.Notes[result.NoteError] = "not a byte arrived"
	w := World{Options: Options{Kind: EPE}, Paths: make([]Path, 2)}
	got := w.Judge([]result.Run{
		broken, run(Bulk, "b", 20, 0), run(Bulk, "a-b", 8, 0), run(Bulk, first, 6, 0), run(Bulk, memory, 30, 0),
		run(Stream, "a", 8, 0.5), run(Stream, "b", 20, 0), run(Stream, "a-b", 10, 0.2), run(Stream, first, 9, 0.25),
		run(Kept, "a", 4, 0), run(Kept, "b", 8, 0), run(Kept, "a-b", 1, 0), run(Kept, first, 2, 0), run(Kept, memory, 4, 0),
	})
	want := map[string]float64{
		"bulk_first": 0.75, "bulk_memory": 1.5, "kept_first": 2, "kept_memory": 2, "stream_first": 0.9, "stream_carried_first": 0.9, "stream_pause_first": 50,
	}
	for name, v := range want {
		if math.Abs(got[name]-v) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got[name], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	failed := run(Kept, first, 0, 0)
	failed.Notes[result.NoteError] = "not a byte arrived"
	if v := w.Judge([]result.Run{run(Kept, "a", 1, 0), failed})["kept_first"]; !math.IsInf(v, 1) {
		t.Errorf("a failed delivery takes %v times as long", v)
	}
	if v := w.Judge([]result.Run{broken, run(Bulk, first, 1, 0)}); len(v) > 0 {
		t.Errorf("no path alone delivers: got %v", v)
	}
}

// TestJudgeCarried: where no path alone carries a stream, its pauses are not judged, and its goodput
// only by the measure of all streams.
func TestJudgeCarried(t *testing.T) {
	w := World{Options: Options{Kind: Gateway}, Paths: make([]Path, 2)}
	w.Paths[0].Forward.Rate = 10 * unit.MbitPerSecond
	for _, tt := range []struct {
		alone  float64
		judged bool
	}{{7.6e6, true}, {6.8e6, false}} {
		got := w.Judge([]result.Run{run(Stream, "path1", tt.alone, 0.1), run(Stream, auto, 8e6, 0.4)})
		if pause, judged := got["stream_pause"]; judged != tt.judged || judged && math.Abs(pause-300) > 1e-9 {
			t.Errorf("a path alone carries %v of 8e6: got %v", tt.alone, got)
		}
		if v, judged := got["stream_carried"]; judged != tt.judged || judged && v != got["stream"] || got["stream"] == 0 {
			t.Errorf("a path alone carries %v of 8e6: got %v", tt.alone, got)
		}
	}
}

// TestJudgeAgainst: a measure may compare with another transport over all paths.
func TestJudgeAgainst(t *testing.T) {
	w := World{Options: Options{Kind: Gateway}, Paths: make([]Path, 2)}
	failed := run(Bulk, dq, 0, 0)
	failed.Notes[result.NoteError] = "not a byte arrived"
	alone, all := run(Bulk, "path1", 8, 0), run(Bulk, auto, 10, 0)
	if got := w.Judge([]result.Run{alone, all, run(Bulk, dq, 20, 0)}); got["bulk_of_dq"] != 0.5 || got["bulk"] != 1.25 {
		t.Errorf("got %v", got)
	}
	if got, judged := w.Judge([]result.Run{alone, all, failed})["bulk_of_dq"]; judged {
		t.Errorf("got %v of a delivery that failed", got)
	}
}

// TestJudgeMeans: several runs of a cell are judged by their means; one that failed delivered
// nothing.
func TestJudgeMeans(t *testing.T) {
	w := World{Options: Options{Kind: Gateway}, Paths: make([]Path, 2)}
	failed := run(Bulk, "path2", 0, 0)
	failed.Notes[result.NoteError] = "not a byte arrived"
	got := w.Judge([]result.Run{
		run(Bulk, "path1", 8, 0), run(Bulk, "path1", 12, 0), run(Bulk, "path2", 18, 0), failed, run(Bulk, auto, 20, 0), run(Bulk, auto, 10, 0),
		run(Stream, "path1", 1, 0.2), run(Stream, "path1", 1, 0.4), run(Stream, auto, 1, 0.5), run(Stream, auto, 1, 0.1),
	})
	for name, v := range map[string]float64{"bulk": 1.5, "stream": 1, "stream_pause": 0} {
		if math.Abs(got[name]-v) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got[name], v)
		}
	}
}

// TestJudgeClients: downloads at once are judged by what all of them carry, and by the slowest.
func TestJudgeClients(t *testing.T) {
	several := func(transport string, own, all, least float64) result.Run {
		r := run(Bulk, transport, own, 0)
		r.Metrics[result.AllRate], r.Metrics[result.LeastRate] = all, least
		return r
	}
	w := World{Options: Options{Kind: Clients}, Paths: make([]Path, 2)}
	got := w.Judge([]result.Run{several("path1", 9, 10, 1), several("path2", 1, 20, 4), several(auto, 2, 30, 2)})
	if got["downloads"] != 1.5 || got["slowest"] != 0.5 {
		t.Errorf("got %v", got)
	}
	if got := w.Judge([]result.Run{several("path1", 1, 1, 0), several(auto, 1, 1, 0)}); got["slowest"] != 1 {
		t.Errorf("nothing over the best line: got %v", got)
	}
}

// TestAgain: the best of the lines alone is judged by itself with other random numbers.
func TestAgain(t *testing.T) {
	w := World{Options: Options{Kind: Gateway}, Paths: make([]Path, 2)}
	runs := []result.Run{run(Bulk, "path1", 8, 0), run(Bulk, "path2", 10, 0), run(Bulk, auto, 20, 0), run(Kept, "path1", 90, 0), run(Stream, "path1", 2, 0), run(Stream, "path2", 1, 0)}
	list := w.Again(runs)
	if len(list) != 2 || list[0].Transport != "path2" || list[0].Traffic != Bulk || list[1].Transport != "path1" || list[1].Traffic != Stream {
		t.Fatalf("got %v", list)
	}
	for _, best := range list {
		best.Metrics = map[string]float64{result.Goodput: 7}
		runs = append(runs, Repeated(best))
	}
	got := w.Judge(runs)
	for name, want := range map[string]float64{"bulk_again": 0.7, "bulk": 2, "bulk_of_again": 2 / 0.7, "stream_again": 3.5} {
		if math.Abs(got[name]-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got[name], want)
		}
	}
	if list := w.Again([]result.Run{run(Bulk, auto, 20, 0)}); len(list) > 0 {
		t.Errorf("no line alone delivers: got %v", list)
	}
	if list := (World{Options: Options{Kind: EPE}}).Again([]result.Run{run(Stream, "a", 8, 0)}); len(list) > 0 {
		t.Errorf("no measure of streams in EPE needs it: got %v", list)
	}
}

// TestNeeds: the runs that no measure needs change none, and each that one needs changes some where
// it is the best.
func TestNeeds(t *testing.T) {
	delivers := func(traffic, transport string, rate float64) result.Run {
		r := run(traffic, transport, rate, 0)
		r.Metrics[result.DatagramDelayP95] = 1 / rate
		return r
	}
	for _, k := range Kinds() {
		left := 0
		for n := range 50 {
			w := Draw(Options{Kind: k, Seed: 1, Number: n})
			transports := w.experiment(&scenario.Experiment{}).TransportNames()
			for _, traffic := range append([]string{Bulk}, w.Extra...) {
				var all, needed []result.Run
				for i, name := range transports {
					r := delivers(traffic, name, float64(10+(11*i+n)%len(transports)))
					all = append(all, r)
					if w.Needs(traffic, name) {
						needed = append(needed, r)
					}
				}
				whole := w.Judge(all)
				if !reflect.DeepEqual(w.Judge(needed), whole) {
					t.Errorf("%s %s: the runs that are not needed change a measure", w.Name(), traffic)
				}
				left += len(all) - len(needed)
				for i := range needed {
					best := slices.Clone(needed)
					best[i] = delivers(traffic, best[i].Transport, 1000)
					if reflect.DeepEqual(w.Judge(best), whole) {
						t.Errorf("%s: %s over %s is needed by no measure", w.Name(), traffic, best[i].Transport)
					}
				}
			}
		}
		if left == 0 != (k == Clients) {
			t.Errorf("%s: %d runs are not needed", k, left)
		}
	}
}

func TestDistribute(t *testing.T) {
	var list []map[string]float64
	for i := range 101 {
		list = append(list, map[string]float64{"bulk": float64(i) / 100, "bulk_again": float64(i) / 100 * 0.98, "stream_pause": float64(i)})
	}
	list = append(list, map[string]float64{})
	got, err := Distribute(Gateway, list)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(got, func(d Distribution) bool { return d.Name == "bulk" })
	j := slices.IndexFunc(got, func(d Distribution) bool { return d.Name == "stream_pause" })
	k := slices.IndexFunc(got, func(d Distribution) bool { return d.Name == "bulk_again" })
	if len(got) != 3 || i < 0 || j < 0 || k < 0 {
		t.Fatalf("got %v", got)
	}
	near := func(name string, got, want float64) {
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	near("least", got[i].Least, 0)
	near("1 %", got[i].P1, 0.01)
	near("median", got[i].Median, 0.5)
	near("those that meet the goal", got[i].Met, 4./101)
	near("those that would by chance", got[k].Met, 2./101)
	if goal := got[k].GoalText(); goal != "" {
		t.Errorf("what chance does has the goal %s", goal)
	}
	near("longest pause", got[j].Least, 100)
	near("1 % of pauses", got[j].P1, 99)
	near("95 % of pauses", got[j].P95, 5)
}

// TestBeyond checks the order of misses.
func TestBeyond(t *testing.T) {
	m := map[string]Measure{}
	for _, x := range measures {
		m[x.Name] = x
	}
	for _, tt := range []struct {
		name string
		v    float64
		miss bool
	}{
		{"bulk", 0.97, false}, {"bulk", 0.96, true}, {"bulk", 0, true}, {"bulk_dq", 0.1, false}, {"call_loss", 0.2, true}, {"call_delay", 20, false}, {"kept_first", 1.1, false}, {"kept_first", 1.2, true},
		{"kept_first", math.Inf(1), true}, {"stream_pause", -5, false}, {"stream_pause", 31, true},
	} {
		if got := m[tt.name].Beyond(tt.v); got > 0 != tt.miss || math.IsNaN(got) {
			t.Errorf("%s %v is beyond by %v", tt.name, tt.v, got)
		}
	}
	if m["bulk"].Beyond(0.5) <= m["bulk"].Beyond(0.6) {
		t.Error("less is not worse")
	}
}

// TestCarries: an event changes the rate of its path, and of no other.
func TestCarries(t *testing.T) {
	fell, died := 0, 0
	for n := range 300 {
		w := Draw(Options{Kind: Gateway, Seed: 5, Number: n})
		for i, p := range w.Paths {
			if before := w.Carries(i, 0); before != p.Forward.Rate {
				t.Fatalf("%s: path %d carries %s before anything happens, want %s", w.Name(), i, before, p.Forward.Rate)
			}
			switch after := w.Carries(i, w.Lasts); {
			case after == 0 && len(p.Schedule) > 0:
				died++
			case after != p.Forward.Rate:
				t.Errorf("%s: path %d carries %s in the end, %s before; %s", w.Name(), i, after, p.Forward.Rate, w.Event)
			}
			if len(p.Schedule) > 0 && w.Carries(i, p.Schedule[0].At) == rounded(p.Forward.Rate/10) {
				fell++
			}
		}
	}
	if fell < 5 || died < 10 {
		t.Errorf("%d fell to a tenth, %d died", fell, died)
	}
}
