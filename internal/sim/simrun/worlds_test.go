package simrun

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tabane/tabane/internal/base/ablation"
	"github.com/tabane/tabane/internal/experiment/worlds"
)

func worldsOf(t testing.TB, kind worlds.Kind, count int) WorldsOptions {
	t.Helper()
	return WorldsOptions{Draw: worlds.Options{Kind: kind, Seed: 1, Packets: 4000}, Count: count, Base: builtIn(t, kind.Base())}
}

// TestWorldsOfShards checks that shards, merged, are the worlds that are simulated at once, and
// that a file is continued.
func TestWorldsOfShards(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	o := worldsOf(t, worlds.Gateway, 5)
	whole, err := Worlds(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 2 {
		o.Shard, o.Shards, o.Jobs = i, 2, 1
		o.File = filepath.Join(dir, fmt.Sprint(i))
		names = append(names, o.File)
		if _, err := Worlds(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	if rows, err := Merge(merged, names); err != nil || rows != 5 {
		t.Fatalf("%d rows, %v", rows, err)
	}
	read, err := ReadWorlds(merged)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, read); diff != "" {
		t.Errorf("merged shards are others (-at once +merged):\n%s", diff)
	}
	again, err := Worlds(ctx, o)
	if err != nil || len(again) != 0 {
		t.Errorf("%d worlds of the file were simulated again, %v", len(again), err)
	}
}

// TestWorldsOfOneTraffic: the measures of a traffic are the same without the others, and a world that
// does not have it has none.
func TestWorldsOfOneTraffic(t *testing.T) {
	o := worldsOf(t, worlds.Gateway, 4)
	o.Draw.Packets = 1000
	whole, err := Worlds(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, o.Traffic = range worlds.Traffic(worlds.Gateway) {
		got, err := Worlds(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		for i, j := range whole {
			want := maps.Clone(j.Values)
			for _, m := range worlds.Measures(worlds.Gateway) {
				if m.Traffic != o.Traffic {
					delete(want, m.Name)
				}
			}
			if diff := cmp.Diff(want, got[i].Values, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s alone in world %d (-beside others +alone):\n%s", o.Traffic, j.Number, diff)
			}
		}
	}
}

func TestReadWorldsRefuses(t *testing.T) {
	for _, text := range []string{"", "kind\n", "a,b\n1,2\n", "kind,seed,number,packets\ngateway,x,1,1\n", "kind,seed,number,packets\n\"gate\n"} {
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadWorlds(name); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

var updateWorlds = flag.Bool("update-worlds", false, "write the distributions of drawn worlds to testdata")

// TestWorlds compares the distributions of drawn worlds with the committed ones: a decision that
// makes a kind of network worse is seen, whatever it was made for. After a change that is meant:
//
//	go test ./internal/sim/simrun -run TestWorlds -update-worlds
func TestWorlds(t *testing.T) {
	for _, tt := range []struct {
		kind  worlds.Kind
		count int
	}{{worlds.Gateway, 200}, {worlds.EPE, 50}, {worlds.Clients, 20}} {
		t.Run(string(tt.kind), func(t *testing.T) {
			t.Parallel()
			o := worldsOf(t, tt.kind, tt.count)
			judged, err := Worlds(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			list, err := worlds.Distribute(tt.kind, Values(judged))
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join("testdata", "worlds-"+string(tt.kind)+".txt")
			if *updateWorlds {
				if err := os.WriteFile(name, []byte(figuresOf(list)), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			compareFigures(t, string(want), list)
		})
	}
}

// figuresOf writes distributions in lines: measure, least, 5 %, median. Small figures have as many
// digits as large ones, or rounding would differ by more than compareFigures allows.
func figuresOf(list []worlds.Distribution) string {
	var b strings.Builder
	for _, d := range list {
		fmt.Fprintf(&b, "%s %.4g %.4g %.4g\n", d.Name, d.Least, d.P5, d.Median)
	}
	return b.String()
}

// compareFigures fails where a distribution is worse than the committed one by more than 5 %, of
// times in milliseconds by more than 30.
func compareFigures(t *testing.T, want string, list []worlds.Distribution) {
	t.Helper()
	now := map[string]worlds.Distribution{}
	for _, d := range list {
		now[d.Name] = d
	}
	for line := range strings.Lines(want) {
		var name string
		var figures [3]float64
		if _, err := fmt.Sscan(line, &name, &figures[0], &figures[1], &figures[2]); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		d, known := now[name]
		if !known {
			t.Errorf("%s is not measured any more", name)
			continue
		}
		for i, v := range []float64{d.Least, d.P5, d.Median} {
			allowed := 0.05 * math.Abs(figures[i])
			if d.Unit != "" {
				allowed = 30
			}
			worse := figures[i] - v
			if d.Less {
				worse = -worse
			}
			if worse > allowed {
				t.Errorf("%s, %s: %.4g, was %.4g", name, [...]string{"worst", "5 %", "median"}[i], v, figures[i])
			}
		}
		if d.Worlds == 0 {
			t.Errorf("%s has no worlds", name)
		}
	}
}

// TestWorldHasItsPathsOnly: a lab uses each egress peer of the server.
func TestWorldHasItsPathsOnly(t *testing.T) {
	base := builtIn(t, worlds.EPE.Base())
	for n := range 20 {
		w := worlds.Draw(worlds.Options{Kind: worlds.EPE, Seed: 1, Number: n})
		spec := w.Spec(base)
		if got := len(spec.Nodes["server"].Edge.Peers); got != len(w.Paths) {
			t.Errorf("%d egress peers with %d paths", got, len(w.Paths))
		}
		if err := spec.Check().Err(); err != nil {
			t.Error(err)
		}
	}
	if len(base.Nodes["server"].Edge.Peers) != 4 {
		t.Error("the base has changed")
	}
}

// TestConstants: each constant of a kind is there once, and can be given other values and back.
func TestConstants(t *testing.T) {
	for _, k := range worlds.Kinds() {
		seen := map[string]bool{}
		for _, c := range Constants(k) {
			if seen[c.Name] {
				t.Errorf("%s: %s is there twice", k, c.Name)
			}
			seen[c.Name] = true
			before := c.Text()
			for _, v := range c.Variants() {
				restore := v.Apply()
				if c.Text() != v.Text() {
					t.Errorf("%s: %s is %s with %s %s", k, c.Name, c.Text(), v.Title, v.Text())
				}
				restore()
			}
			if c.Text() != before {
				t.Errorf("%s: %s is left at %s, was %s", k, c.Name, c.Text(), before)
			}
		}
		if len(seen) < 10 {
			t.Errorf("%s has %d constants", k, len(seen))
		}
	}
}

// TestAblate: what a constant changes is seen, and undone; so is what other random numbers change.
func TestAblate(t *testing.T) {
	o := worldsOf(t, worlds.EPE, 10)
	o.Draw.Packets = 1000
	of := slices.DeleteFunc(Constants(worlds.EPE), func(c ablation.Constant) bool { return c.Name != "switchBelow" })
	list, err := Ablate(context.Background(), o, of)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 5 {
		t.Fatalf("got %+v", list)
	}
	if a := list[0]; a.Name != "" || a.Better+a.Worse != 0 || a.Gain != 0 || a.Within != 0 || a.Low == "" {
		t.Errorf("compared with themselves: %+v", a)
	}
	if a := list[1]; a.Name != "" || a.Changed != OtherNumbers || a.Better+a.Worse == 0 || a.Within <= math.Abs(a.Gain) {
		t.Errorf("with other random numbers: %+v", a)
	}
	changed := 0
	for i, a := range list[2:] {
		changed += a.Better + a.Worse
		if a.Name != "switchBelow" || a.Value != "0.8" || a.Changed != []string{"0.4", "1.6", Removed}[i] || a.Gain != 0 != (a.Within > 0) {
			t.Errorf("got %+v", a)
		}
	}
	if changed == 0 {
		t.Errorf("it changes nothing: %+v", list)
	}
	if got := of[0].Text(); got != "0.8" {
		t.Errorf("the constant is left at %s", got)
	}
}

// TestAblateLeavesOut: what is not simulated, because the removal of a constant changes nothing, would
// have changed nothing.
func TestAblateLeavesOut(t *testing.T) {
	o := worldsOf(t, worlds.Gateway, 8)
	o.Draw.Packets = 1000
	base, err := Worlds(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	between := 0
	for _, c := range Constants(worlds.Gateway) {
		variants := c.Variants()
		if c.Name != "longQueue" && c.Name != "minFraction" && c.Name != "keepFor" {
			continue
		}
		values := func(v ablation.Variant) []Judged {
			restore := v.Apply()
			defer restore()
			judged, err := Worlds(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			return judged
		}
		without := values(variants[2])
		for _, v := range variants[:2] {
			if !v.Within(variants[2]) {
				continue
			}
			for i, j := range values(v) {
				if !cmp.Equal(without[i], base[i]) {
					continue
				}
				between++
				if diff := cmp.Diff(base[i], j); diff != "" {
					t.Errorf("%s %s in world %d (-as it is +changed):\n%s", c.Name, v.Text(), j.Number, diff)
				}
			}
		}
	}
	if between < 8 {
		t.Errorf("only %d worlds were compared", between)
	}
}

// BenchmarkWorlds simulates 20 drawn worlds of each kind on one processor.
func BenchmarkWorlds(b *testing.B) {
	for _, kind := range worlds.Kinds() {
		b.Run(string(kind), func(b *testing.B) {
			o := worldsOf(b, kind, 20)
			o.Draw.Packets, o.Jobs = worlds.DefaultPackets/4, 1
			for b.Loop() {
				if _, err := Worlds(b.Context(), o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
