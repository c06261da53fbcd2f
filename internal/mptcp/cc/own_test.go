package cc

import (
	"os"
	"strings"
	"testing"
	"time"
)

// own: scalable grows by 1 % of what is acknowledged, and gives away an eighth on a loss.
type scalable struct{}

func (scalable) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	if !a.Limited || f.slowStart(a.Segments) {
		return
	}
	f.Cwnd += 0.01 * float64(a.Segments)
}

func (scalable) Lost(s []Subflow, i int, _ time.Duration) { s[i].lost(0.875, minThreshold) }

func (scalable) TimedOut(s []Subflow, i int, _ time.Duration) { s[i].timedOut(0.5, minThreshold) }

// TestOwn: the control of docs/own.md does what the page says, and the page has the code of this
// file.
func TestOwn(t *testing.T) {
	var c Control = scalable{}
	s := []Subflow{Start(InitialWindow)}
	s[0].Cwnd, s[0].Ssthresh = 100, 50
	c.Acked(s, 0, Ack{Segments: 100, Limited: true})
	if got := s[0].Cwnd; got != 101 {
		t.Errorf("%v segments after 100 acknowledged ones, want 101", got)
	}
	s[0].InFlight, s[0].Cwnd = 80, 80
	if c.Lost(s, 0, 0); s[0].Cwnd != 70 {
		t.Errorf("%v segments after a loss with 80 in flight, want 70", s[0].Cwnd)
	}
	page, err := os.ReadFile("../../../docs/own.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("own_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(code), "// own: ")
	_, part, _ = strings.Cut(part, "\n")
	part, _, _ = strings.Cut(part, "\n\n//")
	if !strings.Contains(string(page), strings.TrimSpace(part)) {
		t.Errorf("docs/own.md does not have\n%s", part)
	}
}
