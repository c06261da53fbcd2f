package dashboard

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/tabane/tabane/internal/daemon/control"
)

//go:embed page
var page embed.FS

// policy forbids the page everything but its own files: nothing that a daemon reports can make it
// load or run anything else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page at /, its data at /state, and the routes to a destination at /routes. It
// answers GET requests only, and only those for this host or for the names (control.OwnHost).
func (d *Dashboard) Handler(names ...string) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { control.WriteJSON(w, d.state()) })
	mux.HandleFunc("GET /routes", d.routes)
	return control.OwnHost(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	}), names...)
}

// routesState is the answer of a daemon for a destination.
type routesState struct {
	Daemon string          `json:"daemon"`
	Fault  string          `json:"fault,omitempty"`
	Routes json.RawMessage `json:"routes,omitempty"`
}

// routes asks all daemons that answer for the routes to a destination.
func (d *Dashboard) routes(w http.ResponseWriter, r *http.Request) {
	destination := strings.TrimSpace(r.URL.Query().Get("destination"))
	if _, err := netip.ParsePrefix(destination); err != nil {
		if _, err := netip.ParseAddr(destination); err != nil {
			http.Error(w, "enter an address or a prefix, like 2001:db8::1", http.StatusBadRequest)
			return
		}
	}
	answers := []routesState{}
	for _, one := range d.state().Daemons {
		if one.Fault != "" {
			continue
		}
		raw, err := d.opt.Ask(r.Context(), one.At, "/routes?"+url.Values{"destination": {destination}}.Encode())
		switch {
		case err != nil:
			answers = append(answers, routesState{Daemon: one.Name, Fault: err.Error()})
		case json.Valid(raw):
			answers = append(answers, routesState{Daemon: one.Name, Routes: raw})
		}
	}
	control.WriteJSON(w, answers)
}
