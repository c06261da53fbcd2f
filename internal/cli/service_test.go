package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// TestReloadOfAStoppingDaemon: a reload that SIGTERM interrupts is neither rejected nor applied.
func TestReloadOfAStoppingDaemon(t *testing.T) {
	for name, err := range map[string]error{"applied": nil, "not applied": errors.New("speaker is not running")} {
		ending := make(chan struct{})
		close(ending)
		var log bytes.Buffer
		s := &service{file: "edge.yaml", log: slog.New(slog.NewTextHandler(&log, nil)), ending: ending}
		if _, got := s.report([]string{"use changed"}, nil, err); !errors.Is(got, errStopping) {
			t.Errorf("%s: error %v", name, got)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `level=INFO msg="reload ends with the daemon" file=edge.yaml`) {
			t.Errorf("%s: log %s", name, text)
		}
	}
}
