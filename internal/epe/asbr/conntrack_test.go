package asbr

import (
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/daemon/condition"
)

// TestConntrackIsExamined: a full table of connection tracking drops sessions and forwarded packets,
// and nothing else says so.
func TestConntrackIsExamined(t *testing.T) {
	if !slices.ContainsFunc((&Config{}).conditions(nil), func(c condition.Condition) bool { return c.Name == condition.Tracked().Name }) {
		t.Error("connection tracking is not examined")
	}
}
