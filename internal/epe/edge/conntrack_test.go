package edge

import (
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/daemon/condition"
)

// TestConntrackIsExamined: a full table of connection tracking drops connections of clients, and
// nothing else says so.
func TestConntrackIsExamined(t *testing.T) {
	if !slices.ContainsFunc((&Config{}).conditions(), func(c condition.Condition) bool { return c.Name == condition.Tracked().Name }) {
		t.Error("connection tracking is not examined")
	}
}
