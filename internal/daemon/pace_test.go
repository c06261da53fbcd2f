package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLongSteps: a turn of the loop that keeps events waiting is logged with the step that took most
// of it, while it lasts and at its end.
func TestLongSteps(t *testing.T) {
	run(t, func(r *rig) {
		var out bytes.Buffer
		r.pace.log = slog.New(slog.NewTextHandler(&out, nil))
		takes := map[string]time.Duration{}
		r.slow = func(method string) { time.Sleep(takes[method]) }
		logged := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if out.Len() == 0 {
				lines = nil
			}
			if len(lines) != len(want) {
				t.Fatalf("%s: %d lines, want %d:\n%s", what, len(lines), len(want), &out)
			}
			for i, line := range lines {
				if !strings.Contains(line, want[i]) {
					t.Errorf("%s: line %q has no %q", what, line, want[i])
				}
			}
			out.Reset()
		}
		r.in(func() { time.Sleep(longTurn - time.Millisecond) })
		logged("a request that is just short enough")
		r.in(func() { time.Sleep(2 * longTurn) })
		name := `step="request daemon.TestLongSteps.`
		logged("a request", name, "took=2s turn=2s cpu=")

		// Short steps of one turn count together; the longest one is named.
		takes["BGP"], takes["settled"] = longTurn*2/3, longTurn/2
		r.learn()
		time.Sleep(2 * longTurn)
		logged("events of BGP", "events wait for a long step\" step=settled", "step=\"BGP events\" took=666.666666ms turn=1.166666666s cpu=")

		// Each turn is measured by itself.
		takes["BGP"], takes["settled"] = 0, longTurn*2/3
		for range 5 {
			r.learn()
		}
		time.Sleep(2 * longTurn)
		logged("turns in a row")
	})
}
