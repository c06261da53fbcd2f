package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/daemon/control"
)

// leaver records the calls of Drain and Undrain.
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

func TestCommands(t *testing.T) {
	for name, c := range map[string]struct {
		method, query string
		err           error
		want          int
		asked         int
	}{
		"drain":       {method: http.MethodPost, want: http.StatusAccepted, asked: 1},
		"with a wait": {method: http.MethodPost, query: "?wait=30s", want: http.StatusAccepted, asked: 1},
		"undo":        {method: http.MethodDelete, want: http.StatusAccepted, asked: 1},
		"twice":       {method: http.MethodPost, err: errors.New("drain: already draining"), want: http.StatusConflict, asked: 1},
		"no duration": {method: http.MethodPost, query: "?wait=soon", want: http.StatusConflict},
		"a look":      {method: http.MethodGet, want: http.StatusMethodNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			l := &leaver{err: c.err}
			w := httptest.NewRecorder()
			(&service{machine: &draining{leaver: l}}).commands().ServeHTTP(w, httptest.NewRequest(c.method, drainPath+c.query, nil))
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

// draining is a machine that can be drained.
type draining struct {
	fakeMachine
	*leaver
}

// TestTheStatusAddressTakesNoCommand: the status address, which any user can connect to, is
// read-only.
func TestTheStatusAddressTakesNoCommand(t *testing.T) {
	m := &draining{leaver: &leaver{}}
	h, err := handler(slog.New(slog.DiscardHandler), "asbr", "1.2", m)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut} {
		for _, path := range []string{drainPath, "/status", "/metrics"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, nil))
			if w.Code != http.StatusNotFound && w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: answer %d", method, path, w.Code)
			}
		}
	}
	if len(m.drained)+m.undone > 0 {
		t.Errorf("drained by HTTP: %+v", m.leaver)
	}
}

// TestTheStatusAddressAnswersForThisHostOnly: a page whose name resolves to this host cannot read
// the status.
func TestTheStatusAddressAnswersForThisHostOnly(t *testing.T) {
	h, err := handler(slog.New(slog.DiscardHandler), "asbr", "1.2", &fakeMachine{})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{"[::1]:9116": http.StatusOK, "localhost:9116": http.StatusOK, "evil.example:9116": http.StatusForbidden} {
		for _, path := range []string{"/status", "/metrics"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s for %s: answer %d, want %d", path, host, w.Code, want)
			}
		}
	}
}

// TestCommandWithoutSocket: a socket that something has removed is named with a remedy.
func TestCommandWithoutSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "asbr.sock")
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		control.WriteJSON(w, map[string]string{"control": socket})
	}))
	defer daemon.Close()
	at := netip.MustParseAddrPort(daemon.Listener.Addr().String())
	_, err := command(t.Context(), at, http.MethodPost, reloadPath, nil)
	text := commandFailure("reload", source{"asbr", at}, err).Error()
	if !strings.Contains(text, socket) || !strings.Contains(text, "restart the daemon") {
		t.Errorf("%q", text)
	}
}

// TestStartWithoutRoom: a socket that cannot be made is a failure with a remedy of its own.
func TestStartWithoutRoom(t *testing.T) {
	for _, err := range []error{syscall.EROFS, syscall.ENOSPC} {
		text := startFailure("start asbr with", "asbr.yaml", fmt.Errorf("listen on control socket: %w", err)).Error()
		if !strings.Contains(text, "give control a path that can be written") {
			t.Errorf("%q", text)
		}
	}
}
