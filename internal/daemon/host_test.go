package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/kernel/route"
)

// madeUpHost has parameters, of which some belong to the daemon.
type madeUpHost struct {
	*rig
	wrong map[string]bool
	own   []string
}

func (h *madeUpHost) Conditions() []condition.Condition {
	var list []condition.Condition
	for _, name := range []string{"a", "b", "c", "d"} {
		c := condition.Condition{Name: name, Examine: func() ([]health.Problem, error) {
			if h.wrong[name] {
				return []health.Problem{{Text: name + " is wrong", Remedy: "mend " + name}}, nil
			}
			return nil, nil
		}}
		if slices.Contains(h.own, name) {
			c.Restore = func() error { delete(h.wrong, name); return nil }
		}
		list = append(list, c)
	}
	return list
}

// degraded returns the daemon's reason to be degraded.
func (h *madeUpHost) degraded() string {
	var r health.Report
	h.Do(context.Background(), func() { r.Lack(h.Problems()...) })
	return r.Status().Reason
}

// want is what the reason must be.
func (h *madeUpHost) want() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(h.wrong)) {
		all = append(all, fmt.Sprintf("%s is wrong: mend %s", name, name))
	}
	return strings.Join(all, "; ")
}

func runHost(t *testing.T, test func(*madeUpHost)) {
	run(t, func(r *rig) {
		h := &madeUpHost{rig: r, wrong: map[string]bool{}, own: []string{"b", "d"}}
		ctx, cancel := context.WithCancel(r.t.Context())
		ended := make(chan struct{})
		go func() {
			r.examineHost(ctx, h, func(f func() error) error { return f() })
			close(ended)
		}()
		synctest.Wait()
		test(h)
		cancel()
		<-ended
	})
}

// TestHostIsExaminedAgain: whatever other programs change, in any order, within 10 s what belongs
// to the daemon is restored and the rest is a reason with its remedy, until it is mended.
func TestHostIsExaminedAgain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 12).Draw(rt, "flips")
		runHost(t, func(h *madeUpHost) {
			for _, name := range steps {
				if h.wrong[name] {
					delete(h.wrong, name)
				} else {
					h.wrong[name] = true
				}
				if rapid.Bool().Draw(rt, "wait") {
					time.Sleep(10 * time.Second)
					synctest.Wait()
					if h.wrong["b"] || h.wrong["d"] {
						rt.Fatalf("not restored: %v", h.wrong)
					}
					if got := h.degraded(); got != h.want() {
						rt.Fatalf("reason %q, want %q", got, h.want())
					}
				}
			}
		})
	})
}

// TestParametersAreExaminedAtOnce: the kernel's notification of a parameter does not wait for the
// next turn.
func TestParametersAreExaminedAtOnce(t *testing.T) {
	runHost(t, func(h *madeUpHost) {
		time.Sleep(examinePause)
		h.wrong["a"] = true
		h.events <- route.ParameterChange{}
		synctest.Wait()
		if got := h.degraded(); got != "a is wrong: mend a" {
			t.Errorf("reason %q", got)
		}
	})
}
