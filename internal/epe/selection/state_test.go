package selection

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDiagram compares the transitions with the diagram of docs/adr/0019.
func TestDiagram(t *testing.T) {
	text, err := os.ReadFile("../../../docs/adr/0019-rest-and-overflow.md")
	if err != nil {
		t.Fatal(err)
	}
	_, diagram, _ := strings.Cut(string(text), "```mermaid")
	diagram, _, _ = strings.Cut(diagram, "```")
	var drawn, made []string
	for _, edge := range regexp.MustCompile(`(?m)^ +(\w+) --> (\w+):`).FindAllStringSubmatch(diagram, -1) {
		drawn = append(drawn, edge[1]+" to "+edge[2])
	}
	for from, list := range transitions {
		for _, to := range list {
			made = append(made, state(from).String()+" to "+to.String())
		}
	}
	slices.Sort(drawn)
	slices.Sort(made)
	if !slices.Equal(drawn, made) {
		t.Errorf("the diagram has\n%s\nwant\n%s", strings.Join(drawn, "\n"), strings.Join(made, "\n"))
	}
}

func TestEnterRefuses(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an unknown path failed")
		}
	}()
	new(path).enter(stateFailed, First)
}

func TestSince(t *testing.T) {
	var s since
	const ms = time.Millisecond
	for _, at := range []struct {
		now, least    time.Duration
		holds, begins bool
		lasted        bool
	}{
		{0, 0, false, false, false}, {10 * ms, 0, true, true, true}, {20 * ms, 11 * ms, true, false, false}, {30 * ms, 20 * ms, true, false, true},
		{40 * ms, 0, false, false, false}, {50 * ms, ms, true, true, false},
	} {
		if begins, lasted := s.set(at.now, at.holds), s.lasted(at.now, at.least); begins != at.begins || lasted != at.lasted {
			t.Errorf("at %s: begins %v, lasted %s %v, want %v, %v", at.now, begins, at.least, lasted, at.begins, at.lasted)
		}
	}
}
