package dashboard

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/daemon/control"
)

//go:embed page
var page embed.FS

// policy forbids the page everything but its own files: nothing that a daemon reports can make it
// load or run anything else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page at /, its data at /state, the routes to a destination at /routes, and how
// packets reach client networks at /networks. It answers GET requests only, and only those for this
// host or for the names (control.OwnHost).
func (d *Dashboard) Handler(names ...string) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { control.WriteJSON(w, d.state()) })
	mux.HandleFunc("GET /routes", d.routes)
	mux.HandleFunc("GET /networks", d.networks)
	return control.OwnHost(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	}), names...)
}

// answer is what a daemon answered.
type answer struct {
	Daemon   string          `json:"daemon"`
	Fault    string          `json:"fault,omitempty"`
	Routes   json.RawMessage `json:"routes,omitempty"`
	Networks json.RawMessage `json:"networks,omitempty"`
}

// destination returns the address or prefix of a request; it answers a request with anything else.
func destination(w http.ResponseWriter, r *http.Request) (text string, ok bool) {
	text = strings.TrimSpace(r.URL.Query().Get("destination"))
	_, err := netip.ParsePrefix(text)
	if err != nil {
		_, err = netip.ParseAddr(text)
	}
	if err != nil {
		http.Error(w, "enter an address or a prefix, like 2001:db8::1", http.StatusBadRequest)
	}
	return text, err == nil
}

// routes asks all daemons that answer for the routes to a destination.
func (d *Dashboard) routes(w http.ResponseWriter, r *http.Request) {
	text, ok := destination(w, r)
	if !ok {
		return
	}
	shown := func(one *daemon) bool { return !one.Optional || one.answered }
	d.ask(w, r, shown, "/routes?"+url.Values{"destination": {text}}.Encode(), func(a *answer, raw json.RawMessage) { a.Routes = raw })
}

// networks asks the servers for the client networks that have a mode, all or those of a
// destination.
func (d *Dashboard) networks(w http.ResponseWriter, r *http.Request) {
	q := url.Values{"limit": {strconv.Itoa(maxNetworks)}}
	if r.URL.Query().Get("destination") != "" {
		text, ok := destination(w, r)
		if !ok {
			return
		}
		q.Set("within", text)
	}
	delivers := func(one *daemon) bool { return one.status.Delivery.Networks > 0 }
	d.ask(w, r, delivers, "/networks?"+q.Encode(), func(a *answer, raw json.RawMessage) { a.Networks = raw })
}

// ask answers a request with what some of the daemons that answer say at a path.
func (d *Dashboard) ask(w http.ResponseWriter, r *http.Request, of func(*daemon) bool, path string, put func(*answer, json.RawMessage)) {
	answers := []answer{}
	for _, one := range d.answering(of) {
		a := answer{Daemon: one.Name}
		raw, err := d.opt.Ask(r.Context(), one.At, path)
		switch {
		case err != nil:
			a.Fault = err.Error()
		case !json.Valid(raw):
			continue
		default:
			put(&a, raw)
		}
		answers = append(answers, a)
	}
	control.WriteJSON(w, answers)
}

// answering returns those of some daemons that answer.
func (d *Dashboard) answering(of func(*daemon) bool) (list []Daemon) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.daemons {
		if one := &d.daemons[i]; one.fault == "" && of(one) {
			list = append(list, one.Daemon)
		}
	}
	return list
}
