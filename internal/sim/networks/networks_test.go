package networks

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
)

// TestNine: the loss against the best mode of each network, with 10 % of the bytes to explore.
func TestNine(t *testing.T) {
	var runs [][]Network
	for seed := range uint64(30) {
		runs = append(runs, Run(Nine, Options{Seed: seed + 1, Connections: 400, Explore: 0.1, Start: multipath}))
	}
	list := Summarize(runs)
	worst, mean := Worst(list), Mean(list)
	if worst.First > 0.03 || worst.Next > 0.01 || worst.Rest > 0.01 {
		t.Errorf("worst loss %.4f in connections 1 to 20, %.4f to 100, %.4f beyond", worst.First, worst.Next, worst.Rest)
	}
	if all := 0.05*mean.First + 0.2*mean.Next + 0.75*mean.Rest; all > 0.005 {
		t.Errorf("mean loss %.4f", all)
	}
	if worst.Tried > 0.1 || worst.Exploring > 0.011 {
		t.Errorf("tried %.4f of the bytes, and lost %.4f by it", worst.Tried, worst.Exploring)
	}
	if mean.Within20 < 0.9 || mean.Within100 < 0.95 {
		t.Errorf("within 5 %% of the best mode: %.2f after 20 connections, %.2f after 100", mean.Within20, mean.Within100)
	}
}

// TestMany: what 200 networks lose whose quality changes every 150 connections, against what they
// lose in the mode that they begin with.
func TestMany(t *testing.T) {
	run := func(explore float64) Summary {
		kinds := Many(200, rand.New(rand.NewPCG(1, 1)))
		return Mean(Summarize([][]Network{Run(kinds, Options{Seed: 1, Connections: 400, ChangeEvery: 150, Explore: explore, Start: multipath})}))
	}
	auto, fixed := run(0.1), run(0)
	if auto.Rest > 0.035 || auto.Rest > fixed.Rest/4 || auto.Changes > 2 {
		t.Errorf("lost %.4f, without changes of mode %.4f; %.1f changes in 100 connections", auto.Rest, fixed.Rest, auto.Changes)
	}
}

// TestOverSingle: in drawn networks, auto brings hardly less than the better of two single paths,
// which it has to find, in whichever mode it begins.
func TestOverSingle(t *testing.T) {
	for _, start := range []belief.Mode{multipath, belief.Best} {
		var runs [][]Network
		for seed := range uint64(3) {
			kinds := Many(200, rand.New(rand.NewPCG(seed, 0)))
			runs = append(runs, Run(kinds, Options{Seed: seed, Connections: 400, Explore: 0.1, Start: start}))
		}
		all := OverSingle(runs)
		if least, percentile := all[0], all[len(all)/100]; least < 0.9 || percentile < 0.97 || all[len(all)/2] < 0.99 {
			t.Errorf("begins with %s: %.3f of the better single path at least, %.3f in 99 %% of networks, %.3f in half of them", start, least, percentile, all[len(all)/2])
		}
	}
}

func TestRunsRepeat(t *testing.T) {
	o := Options{Seed: 5, Connections: 120, Explore: 0.1, Start: belief.Best}
	if a, b := Run(Nine, o), Run(Nine, o); a[8].Loss(0, 120) != b[8].Loss(0, 120) {
		t.Error("the same seed gives another result")
	}
}

// TestShort: where connections are too short to compare modes inside one, auto finds a better one
// by successive connections, and trying costs no more than it may.
func TestShort(t *testing.T) {
	run := func(explore float64) Summary {
		kinds := Many(200, rand.New(rand.NewPCG(2, 2)))
		return Mean(Summarize([][]Network{Run(kinds, Options{Seed: 2, Connections: 400, Explore: explore, Start: multipath, Short: true})}))
	}
	auto, fixed := run(0.1), run(0)
	if auto.First > fixed.First || auto.Next > fixed.Next/2 || auto.Rest > fixed.Rest/5 {
		t.Errorf("lost %.4f, %.4f and %.4f, without changes of mode %.4f", auto.First, auto.Next, auto.Rest, fixed.Rest)
	}
	if auto.Tried > 0.1 || auto.Exploring > 0.015 {
		t.Errorf("tried %.4f of the bytes, and lost %.4f by it", auto.Tried, auto.Exploring)
	}
}

// TestObjects: where all connections carry small objects, these take little longer than over the
// better path, and comparing has no more than its share.
func TestObjects(t *testing.T) {
	for _, size := range []float64{10e3, 100e3, 300e3} {
		var best, first, rest, tried float64
		all, err := RunObjects(t.Context(), ObjectOptions{Seed: 3, Networks: 30, Size: size, Length: 30 * time.Minute, Explore: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			best, first, rest, tried = best+o.Best/30, first+o.First/30, rest+o.Rest/30, max(tried, o.Tried)
		}
		if rest > 1.05 || first > 1.15 || best < 1.1 || tried > 0.11 {
			t.Errorf("%.0f bytes: %.3f and %.3f times as long as over the better path, %.3f over the best path; tried %.3f", size, first, rest, best, tried)
		}
	}
	o := ObjectOptions{Seed: 3, Networks: 5, Size: 10e3, Length: 10 * time.Minute}
	all, err := RunObjects(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.Tried > 0 || o.Changes > 0 {
			t.Errorf("tried without a share to explore: %+v", o)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := RunObjects(ended, o); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
}
