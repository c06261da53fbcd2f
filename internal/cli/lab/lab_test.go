package lab

import (
	"os"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/lab"
)

// TestLabDownAll: a process with the owner's PID may be another one and does not own the lab.
func TestLabDownAll(t *testing.T) {
	removed, owned := unowned([]lab.Info{
		{Name: "detached", Owner: 0},
		{Name: "reused", Owner: os.Getpid()},
		{Name: "running", Owner: os.Getpid(), Owned: true},
	})
	if want := []string{"detached", "reused"}; !slices.Equal(removed, want) {
		t.Errorf("removes %q, want %q", removed, want)
	}
	if want := []string{"running"}; !slices.Equal(owned, want) {
		t.Errorf("leaves %q, want %q", owned, want)
	}
}

func TestUsableLabs(t *testing.T) {
	got := usable([]lab.Info{
		{Name: "up", User: 1000, Condition: lab.Running},
		{Name: "starting", User: 1000, Condition: lab.NotReady},
		{Name: "lost-daemon", User: 1000, Condition: lab.Partial},
		{Name: "stale", User: 1000, Condition: lab.Stale},
		{Name: "other-user", User: 1001, Condition: lab.Running},
	}, 1000)
	if want := []string{"up", "starting", "lost-daemon"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
