package lab

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labtest"
)

func TestEmulatedLink(t *testing.T) {
	spec := labtest.Plain()
	const delay = 30 * time.Millisecond
	spec.Links["wire"].Delay, spec.Links["wire"].Seed = delay, 7
	l := start(t, options(t, "emulated", spec))
	trip := func() time.Duration {
		begun := time.Now()
		if err := labtest.Reach(l.Name(), "a", "b", "2001:db8:1::b"); err != nil {
			t.Fatal(err)
		}
		return time.Since(begun)
	}
	trip() // resolves the neighbor
	if took := trip(); took < 2*delay {
		t.Errorf("a datagram and its answer take %s over a delay of %s", took, delay)
	}
	// One direction without a delay, and then no shape at all.
	short := time.Duration(0)
	if err := l.Links().Set("wire", scenario.Shape{Delay: delay, Backward: &linkmodel.Change{Delay: &short}}); err != nil {
		t.Fatal(err)
	}
	if took := trip(); took < delay {
		t.Errorf("with a delay in one direction they take %s", took)
	}
	both, wire := scenario.Hole{Node: "a", Interface: "wire"}, scenario.Port{Node: "a", Interface: "wire"}
	if err := l.Links().Blackhole(both); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"a", "b"} {
		if labtest.Rate(t, l.Name(), node, "wire") == 0 {
			t.Errorf("%s sends without a token bucket", node)
		}
	}
	if err := errors.Join(l.Links().Clear(wire), l.Links().SetUp(wire, false), l.Links().SetUp(wire, true)); err != nil {
		t.Fatal(err)
	}
	if err := l.Links().Set("wire", scenario.Shape{}); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitReady(t.Context(), DefaultTimeout); err != nil {
		t.Fatal(err)
	}
	trip()

	other, err := Open(l.Name())
	if err != nil {
		t.Fatal(err)
	}
	for want, shape := range map[string]scenario.Shape{
		"delay: must be from 0s to 1m0s":       {Delay: time.Hour},
		"queue: needs a rate":                  {Queue: time.Second},
		"loss.kind: must be random or gilbert": {Loss: &linkmodel.Loss{P: 1}},
	} {
		if err := other.Links().Set("wire", shape); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := other.Links().Set("wire", scenario.Shape{Rate: 10e6, Loss: &linkmodel.Loss{Kind: linkmodel.Random, P: 0.1}}); err != nil {
		t.Error(err)
	}
}
