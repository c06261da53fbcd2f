package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/control"
)

// answering is a daemon that answers requests for a neighbor and commands with these handlers;
// without commands it has no control socket.
func answering(t *testing.T, name string, neighbor, commands http.Handler) source {
	t.Helper()
	socket := ""
	if commands != nil {
		socket = filepath.Join(t.TempDir(), "sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(commands)
		s.Listener = l
		s.Start()
		t.Cleanup(s.Close)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		control.WriteJSON(w, map[string]string{"control": socket})
	})
	if neighbor != nil {
		mux.Handle("GET "+neighborPath, neighbor)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return source{name, netip.MustParseAddrPort(s.Listener.Addr().String())}
}

// says answers every request.
func says(code int, text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) })
}

// TestUnknownPeerIsNamed: that another daemon knows no neighbors at all does not hide the
// suggestion.
func TestUnknownPeerIsNamed(t *testing.T) {
	const unknown = `no neighbor "tarnsit"; did you mean "transit"?`
	edge := answering(t, "edge", says(http.StatusServiceUnavailable, unknown), nil)
	gateway := answering(t, "gateway", nil, nil)
	for _, sources := range [][]source{{edge, gateway}, {gateway, edge}} {
		found, err := (&App{Out: io.Discard}).peerDetailOf(t.Context(), "tarnsit", sources, false, false)
		if found || err == nil || !strings.Contains(err.Error(), unknown) {
			t.Errorf("%v, %v", found, err)
		}
	}
	if _, err := (&App{Out: io.Discard}).peerDetailOf(t.Context(), "tarnsit", []source{gateway}, true, false); err == nil {
		t.Error("a named daemon without neighbors is no error")
	}
}

// TestClearPeer: a daemon without the neighbor is passed over, every other failure is reported.
func TestClearPeer(t *testing.T) {
	const unknown = `no neighbor "a"`
	cleared := answering(t, "asbr", nil, says(http.StatusAccepted, "refreshed"))
	without := answering(t, "edge", nil, says(http.StatusNotFound, unknown))
	noBGP := answering(t, "gateway", nil, http.NewServeMux())
	noControl := answering(t, "reseq", nil, nil)
	failing := answering(t, "reflector", nil, says(http.StatusConflict, "the session is closing"))
	for name, tt := range map[string]struct {
		sources []source
		named   bool
		found   bool
		err     string
	}{
		"one has it":         {sources: []source{noControl, noBGP, without, cleared}, found: true},
		"nobody has it":      {sources: []source{without, noBGP, noControl}, err: unknown},
		"no BGP":             {sources: []source{noBGP, noControl}},
		"one fails":          {sources: []source{failing, cleared}, found: true, err: "the session is closing"},
		"another fails":      {sources: []source{cleared, failing}, found: true, err: "the session is closing"},
		"named without":      {sources: []source{without}, named: true, err: unknown},
		"named without BGP":  {sources: []source{noBGP}, named: true, err: "404"},
		"named, no commands": {sources: []source{noControl}, named: true, err: errNoControl.Error()},
	} {
		found, err := (&App{Out: io.Discard}).clearPeerOf(t.Context(), tt.sources, tt.named, url.Values{"peer": {"a"}})
		if found != tt.found || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, %v", name, found, err)
		}
		var failure *Failure
		if err != nil && !errors.As(err, &failure) {
			t.Errorf("%s: %T", name, err)
		}
	}
}

// TestReloadAll: a daemon that cannot reload does not keep the others from it, and is reported with
// every other failure in the end.
func TestReloadAll(t *testing.T) {
	noControl := answering(t, "site", nil, nil)
	invalid := answering(t, "edge", nil, says(http.StatusConflict, "edge.asn: must be > 0\nedge.peers: must name a peer"))
	changed := answering(t, "asbr", nil, says(http.StatusAccepted, `egress peer "a" added`))
	absent := source{"gateway", netip.MustParseAddrPort("[::1]:1")}
	of := func(s source, text string) string { return fmt.Sprintf("tabane: reload %s %q: %s", s.name, s.at, text) }
	without := of(noControl, errNoControl.Error()+"; restart it to apply a changed file")
	refused := []string{of(invalid, "edge.asn: must be > 0"), of(invalid, "edge.peers: must name a peer")}
	for name, tt := range map[string]struct {
		sources []source
		named   bool
		out     string
		lines   []string
	}{
		"all reload":        {sources: []source{absent, changed}, out: `egress peer "a" added`},
		"one has no socket": {sources: []source{noControl, changed}, out: `egress peer "a" added`, lines: []string{without}},
		"one is invalid":    {sources: []source{invalid, absent, changed, noControl}, out: `egress peer "a" added`, lines: append(slices.Clone(refused), without)},
		"none is there":     {sources: []source{absent}, lines: []string{"no daemon of this host answers"}},
		"named":             {sources: []source{absent}, named: true, lines: []string{of(absent, "connection refused; start the daemon")}},
	} {
		var out, errs bytes.Buffer
		a := &App{Out: &out, Err: &errs}
		code := a.finish(a.reloadOf(t.Context(), tt.sources, tt.named))
		if (code == exitOK) != (tt.lines == nil) || code != exitOK && code != exitFailed || !strings.Contains(out.String(), tt.out) {
			t.Errorf("%s: exit code %d, output %q", name, code, &out)
		}
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		if len(tt.lines) > 0 && len(lines) != len(tt.lines) {
			t.Errorf("%s: %q", name, lines)
		}
		for i, want := range tt.lines {
			if i < len(lines) && !strings.Contains(lines[i], want) {
				t.Errorf("%s: line %q, want %q", name, lines[i], want)
			}
		}
	}
}

// TestClearUnknownPeer: an unknown neighbor has an error of its own.
func TestClearUnknownPeer(t *testing.T) {
	s, err := bgp.New(bgp.Options{ASN: 65000, RouterID: netip.MustParseAddr("192.0.2.1"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	(&service{machine: speaker{s: s}}).commands().ServeHTTP(w, httptest.NewRequest(http.MethodPost, clearPath+"?peer=a", nil))
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `no neighbor "a"`) {
		t.Errorf("answer %d %q", w.Code, w.Body)
	}
}

// speaker is a machine with a BGP speaker.
type speaker struct {
	fakeMachine
	s *bgp.Speaker
}

func (s speaker) Speaker() *bgp.Speaker { return s.s }

// TestStreamOfRoutes: a client receives the beginning of a table before its first route was found,
// however long that takes, also of a daemon that is on 127.0.0.1 alone.
func TestStreamOfRoutes(t *testing.T) {
	asked := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		streamRoutes(w, func(yield func(bgp.RouteEntry) error) error {
			select {
			case <-asked:
			case <-r.Context().Done():
				return r.Context().Err()
			}
			return yield(bgp.RouteEntry{Prefix: netip.MustParsePrefix("2001:db8::/32")})
		})
	}))
	server.Config.WriteTimeout = time.Nanosecond // other answers are late by now
	server.Start()
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*statusTimeout)
	defer cancel()
	port := netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	body, err := openStream(ctx, netip.AddrPortFrom(netip.IPv6Loopback(), port), "/")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	close(asked)
	var out bytes.Buffer
	if err := copyTable(&out, body, false); err != nil || !strings.HasPrefix(out.String(), "  2001:db8::/32") {
		t.Errorf("%q, %v", fmt.Sprint(&out), err)
	}
}
