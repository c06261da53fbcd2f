package cli

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/role"
)

// faulty is a machine whose status panics.
type faulty struct{ role.Machine }

func (faulty) Status() any { missing[""]++; return nil }

var missing map[string]int

// TestPanicCostsTheRequest: a status that panics is an error of that request, over HTTP and in the
// goroutines of Prometheus' library; the server goes on, and counts it.
func TestPanicCostsTheRequest(t *testing.T) {
	defer contain.Acknowledge()
	var logged strings.Builder
	h, err := handler(slog.New(slog.NewTextHandler(&logged, nil)), "asbr", "test", faulty{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get(server.URL + path)
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body)
	}
	before := contain.Counts()[contain.Request]
	for range 2 {
		if code, body := get("/status"); code != http.StatusInternalServerError || !strings.HasPrefix(body, "BUG: assignment to entry in nil map") {
			t.Errorf("/status: %d %s", code, body)
		}
		if code, body := get("/metrics"); code != http.StatusInternalServerError || !strings.Contains(body, "BUG: assignment to entry in nil map") {
			t.Errorf("/metrics: %d %s", code, body)
		}
	}
	stop := contain.Inject(func(b contain.Boundary, path []byte) {
		if b == contain.Request && string(path) == "/other" {
			panic("BUG: injected")
		}
	})
	_, err = http.Post(server.URL+"/other", "text/plain", nil)
	stop()
	if err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("a handler that panics: %v", err)
	}
	if n := contain.Counts()[contain.Request] - before; n != 5 {
		t.Errorf("%d panics counted, want 5", n)
	}
	if n := strings.Count(logged.String(), "panic contained"); n != 1 {
		t.Errorf("%d logged, want 1: %s", n, logged.String())
	}
}

// degraded is why a daemon without other problems is degraded.
func degraded() string {
	var r health.Report
	contain.Report(&r)
	return r.Status().Reason
}

// TestAcknowledge: a panic is a metric, and degrades the daemon until it is acknowledged.
func TestAcknowledge(t *testing.T) {
	defer contain.Acknowledge()
	contain.Count(contain.BFD, "BUG: injected")
	h, err := handler(slog.New(slog.DiscardHandler), "asbr", "test", fakeMachine{})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil))
	for _, want := range []string{`tabane_panics_total{boundary="bfd"} `, `tabane_panics_total{boundary="bgp-session"} `} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if reason := degraded(); !strings.HasPrefix(reason, "1 panics contained (bfd 1)") {
		t.Errorf("degraded: %q", reason)
	}
	s := &service{machine: fakeMachine{}, log: slog.New(slog.DiscardHandler)}
	w = httptest.NewRecorder()
	s.commands().ServeHTTP(w, httptest.NewRequest(http.MethodDelete, panicsPath, nil))
	if w.Code != http.StatusAccepted {
		t.Errorf("acknowledged: %d %s", w.Code, w.Body)
	}
	if reason := degraded(); reason != "" {
		t.Errorf("degraded: %s", reason)
	}
}
