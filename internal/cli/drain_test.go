package cli

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// leaver remembers what it was asked.
type leaver struct {
	drained []time.Duration
	undone  int
	err     error
}

func (l *leaver) Drain(wait time.Duration) error {
	l.drained = append(l.drained, wait)
	return l.err
}

func (l *leaver) Undrain() error {
	l.undone++
	return l.err
}

func TestDrainIsForProgramsOfThisHost(t *testing.T) {
	for name, c := range map[string]struct {
		method, query, from, origin string
		err                         error
		want                        int
		asked                       int
	}{
		"drain":           {method: http.MethodPost, from: "[::1]:9", want: http.StatusAccepted, asked: 1},
		"drain, IPv4":     {method: http.MethodPost, query: "?wait=30s", from: "127.0.0.1:9", want: http.StatusAccepted, asked: 1},
		"undo":            {method: http.MethodDelete, from: "[::1]:9", want: http.StatusAccepted, asked: 1},
		"twice":           {method: http.MethodPost, from: "[::1]:9", err: errors.New("drain: it is leaving"), want: http.StatusConflict, asked: 1},
		"no duration":     {method: http.MethodPost, query: "?wait=soon", from: "[::1]:9", want: http.StatusConflict},
		"another host":    {method: http.MethodPost, from: "[2001:db8::1]:9", want: http.StatusForbidden},
		"undo from there": {method: http.MethodDelete, from: "[2001:db8::1]:9", want: http.StatusForbidden},
		"a page":          {method: http.MethodPost, from: "[::1]:9", origin: "https://example.com", want: http.StatusForbidden},
		"a look":          {method: http.MethodGet, from: "[::1]:9", want: http.StatusMethodNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			l := &leaver{err: c.err}
			mux := http.NewServeMux()
			serveDrain(mux, l)
			r := httptest.NewRequest(c.method, drainPath+c.query, nil)
			r.RemoteAddr = c.from
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			if w.Code != c.want || len(l.drained)+l.undone != c.asked {
				t.Errorf("answer %d %q, asked %+v", w.Code, w.Body, l)
			}
			if c.err != nil && !strings.Contains(w.Body.String(), c.err.Error()) {
				t.Errorf("the answer does not say why: %q", w.Body)
			}
			if strings.Contains(c.query, "30s") && l.drained[0] != 30*time.Second {
				t.Errorf("wait %v", l.drained)
			}
		})
	}
}
