package bgp

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(newHandler(slog.NewTextHandler(&out, nil), nil))
		a, b := log.With("Key", "a"), log.With("Key", "b")
		lines := func() int { return strings.Count(out.String(), "\n") }

		a.Info("Peer Up")
		a.Debug("detail")
		if lines() != 0 {
			t.Errorf("logged: %s", &out)
		}
		for range 100 {
			a.Warn("malformed", "Error", "length")
			b.Warn("malformed", "Error", "length")
		}
		a.Warn("something else")
		if lines() != 3 {
			t.Errorf("logged %d lines: %s", lines(), &out)
		}
		time.Sleep(repeatAfter)
		a.Warn("malformed", "Error", "length")
		a.Error("broken")
		a.Error("broken")
		if lines() != 6 {
			t.Errorf("logged %d lines: %s", lines(), &out)
		}
	})
}
