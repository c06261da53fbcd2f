package lab

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/measurement"
)

// TestMeasureFailures: what answers instead of the server is said in one line, with what to do.
func TestMeasureFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		handle http.HandlerFunc
		want   string
	}{
		"portal that redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://login.example/", http.StatusFound)
		}, `a captive portal or proxy answers instead of the server: it answers "302 Found" and refers to "http://login.example/"; log in to the network first`},
		"portal with a page": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("<!DOCTYPE html>\n<HTML>Welcome"))
		}, "a captive portal or proxy answers instead of the server: it sends a web page; log in to the network first"},
		"web server": {http.NotFound, "the answer is not that of a tabane server: 404 Not Found; run tabane measure serve there, or check the port"},
		"newer server": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"tabane_measure":%d}`, measure.Protocol+1)
		}, "the server's protocol is version 2, and this program has 1; use the same version of tabane"},
	} {
		server := httptest.NewServer(tt.handle)
		p := measurement.Plan{Server: server.URL, Modes: []string{"tcp", "parallel:2"}, Trials: 1, Load: measure.Load{Bytes: unit.KB}}
		_, err := newMeasurer(t.Context(), p, nil, "1", false)
		if err == nil {
			t.Fatalf("%s: it is measured", name)
		}
		got := measureFailure(server.URL, err).Error()
		if want := fmt.Sprintf("measure %q: %s", server.URL, tt.want); got != want || strings.Contains(got, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
		server.Close()
	}
}
