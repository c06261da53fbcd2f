package sealed

import (
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// TestRetractedPath: a path that its gateway has no longer is none at the other one either, whether
// the gateway was restarted or not, and it can return.
func TestRetractedPath(t *testing.T) {
	t.Parallel()
	a, b := pair(t, 2)
	both := a.state
	a.run()
	b.run()
	b.up(2)
	first, second := both, both
	first.Paths, second.Paths = both.Paths[:1], both.Paths[1:]
	named := func(names ...string) func() bool {
		return func() bool {
			var have []string
			for _, l := range b.plane.Status().Peers[0].Links {
				if l.State != "up" {
					return false
				}
				have = append(have, l.Path)
			}
			return slices.Equal(have, names)
		}
	}
	for _, step := range []struct {
		what  string
		state dataplane.State
		names []string
	}{
		{"the second path removed", first, []string{"path0"}},
		{"the second path added again", both, []string{"path0", "path1"}},
		{"the first path removed", second, []string{"path1"}},
		{"the first path added again", both, []string{"path0", "path1"}},
	} {
		if err := a.plane.Apply(step.state); err != nil {
			t.Fatal(err)
		}
		eventually(t, step.what, named(step.names...))
	}
	a.crash()
	a.open("tun1", first)
	eventually(t, "restarted with one path", named("path0"))
}
