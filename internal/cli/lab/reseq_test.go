package lab

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/analysis/capture"
)

// TestSubflowsOfAFlood: subflows without data beyond the first ones are one line.
func TestSubflowsOfAFlood(t *testing.T) {
	c := capture.Connection{Subflows: make([]capture.Subflow, 5000)}
	c.Subflows[4000].ToClient.Segments = 1
	var b strings.Builder
	writeSubflows(&b, &c, func(s *capture.Subflow) *capture.SubflowDirection { return &s.ToClient }, 0)
	if got := strings.Count(b.String(), "\n"); got != 1+reseqShown+1+1 || !strings.HasSuffix(b.String(), "and 4989 subflows without data\n") {
		t.Errorf("%d lines, the last of %q", got, b.String()[max(0, b.Len()-100):])
	}
}
