package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/flowcount"
	"github.com/tabane/tabane/internal/epe/flows"
)

var (
	edgeAt = netip.MustParseAddrPort("[::1]:9117")
	asbrAt = netip.MustParseAddrPort("[::1]:9116")
)

// answers are the fake daemons' responses; an error is a daemon that does not answer.
type answers map[netip.AddrPort]any

func (a answers) ask(_ context.Context, at netip.AddrPort, path string) ([]byte, error) {
	if !strings.HasPrefix(path, "/status") {
		return fmt.Appendf(nil, `{"asked":%q}`, path), nil
	}
	switch v := a[at].(type) {
	case nil:
		return nil, errors.New("connection refused")
	case error:
		return nil, v
	case string:
		return []byte(v), nil
	default:
		return json.Marshal(v)
	}
}

func healthy() edge.Status {
	return edge.Status{
		Role: "edge", Status: health.Status{Ready: true}, Address: netip.MustParseAddr("2001:db8::10"),
		Sessions: []bgp.SessionStatus{{Neighbor: "rr1", Up: true}},
		Peers: []edge.PeerStatus{
			{Name: "a", Address: netip.MustParseAddr("2001:db8::a"), Routes: 5},
			{Name: "b", Address: netip.MustParseAddr("2001:db8::b"), Routes: 7},
		},
	}
}

func texts(events []event) (text []string) {
	for _, e := range events {
		text = append(text, e.Daemon+" "+string(e.Level)+": "+e.Text)
	}
	return text
}

func TestRunRecordsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := answers{edgeAt: healthy()}
		d := New(Options{Ask: a.ask, Daemons: []Daemon{{Name: "edge", At: edgeAt}, {Name: "asbr", At: asbrAt, Optional: true}}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- d.Run(ctx) }()
		synctest.Wait()
		if s := d.state(); len(s.Daemons) != 1 || s.Daemons[0].Name != "edge" || s.Daemons[0].Fault != "" {
			t.Errorf("daemons %+v, want the one that answers", s.Daemons)
		}
		step := func(change any) {
			d.mu.Lock()
			a[edgeAt] = change
			d.mu.Unlock()
			time.Sleep(interval)
			synctest.Wait()
		}
		down := healthy()
		down.Sessions[0].Up, down.Sessions[0].Reason = false, "hold timer expired"
		down.Peers[1].Routes = 0
		down.Status = health.Status{Reason: "no session"}
		step(down)
		step(errors.New("connection refused"))
		step(errors.New("connection refused"))
		step(healthy())
		step(`[1]`)
		step(`{"ready":`)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
		want := []string{
			"edge good: answers, ready",
			"edge bad: session with rr1 down (hold timer expired)",
			"edge bad: no route through b any more",
			"edge bad: not ready: no session",
			"edge bad: does not answer: connection refused",
			"edge good: answers again, ready",
			"edge bad: does not answer: json: cannot unmarshal array into Go value of type dashboard.status",
		}
		if got := texts(d.state().Events); !slices.Equal(got, want) {
			t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if f := d.state().Daemons[0].Fault; f == "" {
			t.Error("truncated JSON is no fault")
		}
	})
}

// The statuses of the daemons have the keys that the dashboard reads.
func TestStatusOfDaemons(t *testing.T) {
	sid := netip.MustParseAddr("fc00:1:1::")
	for _, tt := range []struct {
		status any
		read   func(status) any
		want   any
	}{
		{healthy(), func(s status) any { return s.Ready && s.Sessions[0].Up }, true},
		{healthy(), func(s status) any { return s.Peers[1].Address }, netip.MustParseAddr("2001:db8::b")},
		{healthy(), func(s status) any { return s.Peers[1].Routes }, 7},
		{healthy(), func(s status) any { return s.Address }, netip.MustParseAddr("2001:db8::10")},
		{asbr.Status{Drain: asbr.Drained}, func(s status) any { return s.Drain }, string(asbr.Drained)},
		{asbr.Status{Peers: []asbr.PeerStatus{{Name: "a", SID: sid}}}, func(s status) any { return s.Peers[0].SID }, sid},
	} {
		b, err := json.Marshal(tt.status)
		if err != nil {
			t.Fatal(err)
		}
		var s status
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if got := tt.read(s); got != tt.want {
			t.Errorf("%s: %v, want %v", b, got, tt.want)
		}
	}
}

func TestEventsAreBounded(t *testing.T) {
	d := New(Options{})
	for i := range 3 * maxEvents {
		d.record("edge", good, fmt.Sprint(i))
	}
	if e := d.state().Events; len(e) != maxEvents || e[len(e)-1].Text != fmt.Sprint(3*maxEvents-1) {
		t.Errorf("%d events, the last %+v", len(e), e[len(e)-1])
	}
}

func flow(sent bool, local string, sid string, bytes uint64) *flows.Flow {
	f := &flows.Flow{
		Sent: sent, Protocol: "tcp", Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort("[2001:db8:c::1]:40000"),
		Delta: flowcount.Count{Packets: 1, Bytes: bytes},
	}
	if sid != "" {
		f.SID = netip.MustParseAddr(sid)
	}
	return f
}

func TestRates(t *testing.T) {
	d := New(Options{})
	d.rates.rename([]daemon{{status: status{Address: netip.MustParseAddr("2001:db8::10"), Peers: []struct {
		Name    string     `json:"name"`
		Address netip.Addr `json:"address"`
		SID     netip.Addr `json:"sid"`
		Routes  int        `json:"routes"`
	}{{Name: "a", Address: netip.MustParseAddr("2001:db8::a")}, {Name: "b", SID: netip.MustParseAddr("fc00:2:1::")}}}}})
	one := &flows.Snapshot{Elapsed: time.Second, Flows: []*flows.Flow{
		flow(true, "[2001:db8::a]:80", "fc00:1:1::", 1000),
		flow(false, "[2001:db8::a]:80", "", 10),
		flow(true, "[2001:db8::10]:80", "", 500),
		flow(false, "[2001:db8:9::1]:80", "fc00:2:1::", 300), // on its way through this border router
		flow(true, "[2001:db8::10]:179", "", 999),            // BGP
		flow(true, "[2001:db8::99]:22", "", 20),
	}}
	if err := d.Count(one); err != nil {
		t.Fatal(err)
	}
	got := map[string][2]float64{}
	var order []string
	for _, s := range d.state().Paths {
		got[s.Path] = [2]float64{s.Out[0], s.In[0]}
		order = append(order, s.Path)
	}
	want := map[string][2]float64{"a": {8000, 80}, "b": {2400, 0}, bestPath: {4000, 0}, other: {160, 0}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("rates %v, want %v", got, want)
	}
	if want := []string{"a", "b", bestPath, other}; !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
	if s := d.state().Subflows; len(s) != 4 || s[0].Path != "a" || s[0].Rate != 8000 {
		t.Errorf("subflows %+v", s)
	}
	for range 2 * samples {
		_ = d.Count(&flows.Snapshot{Elapsed: time.Second})
	}
	for range maxSubflows + 7 {
		one.Flows = append(one.Flows, flow(true, "[2001:db8::a]:80", "", 1))
	}
	_ = d.Count(one)
	s := d.state()
	if len(s.Paths[0].Out) != samples || s.Paths[0].Out[samples-2] != 0 || s.Paths[0].Out[samples-1] <= 8000 {
		t.Errorf("%d samples, the last %v", len(s.Paths[0].Out), s.Paths[0].Out[samples-2:])
	}
	if len(s.Subflows) != maxSubflows || s.Left != 11 {
		t.Errorf("%d subflows and %d left out", len(s.Subflows), s.Left)
	}
	d.rates.rename(nil) // all peers are removed: their paths are shown until the last sample is gone
	if _ = d.Count(&flows.Snapshot{Elapsed: time.Second}); len(d.state().Paths) == 0 {
		t.Error("the last rates are gone at once")
	}
	for range samples {
		_ = d.Count(&flows.Snapshot{Elapsed: time.Second})
	}
	if p := d.state().Paths; len(p) > 0 {
		t.Errorf("paths of removed peers: %+v", p)
	}
}

func TestHandler(t *testing.T) {
	a := answers{edgeAt: healthy()}
	d := New(Options{Ask: a.ask, Daemons: []Daemon{{Name: "edge", At: edgeAt}, {Name: "asbr", At: asbrAt}}})
	d.poll(t.Context(), 0)
	d.poll(t.Context(), 1)
	h := d.Handler("dash.example")
	for _, tt := range []struct {
		method, host, target string
		code                 int
		body                 string
	}{
		{"GET", "[::1]:9121", "/", 200, "<title>tabane</title>"},
		{"GET", "127.0.0.1", "/dashboard.js", 200, "textContent"},
		{"GET", "localhost:9121", "/state", 200, `"name":"edge"`},
		{"GET", "DASH.example:9121", "/state", 200, `"fault":"connection refused"`},
		{"GET", "evil.example", "/state", 403, "use its address"},
		{"GET", "localhost.evil.example:9121", "/state", 403, "use its address"},
		{"POST", "localhost", "/state", 405, ""},
		{"GET", "localhost", "/../dashboard.go", 307, ""},
		{"GET", "localhost", "/none", 404, ""},
		{"GET", "localhost", "/routes?destination=2001:db8::1", 200, `"asked":"/routes?destination=2001%3Adb8%3A%3A1"`},
		{"GET", "localhost", "/routes?destination=203.0.113.0/24", 200, `"daemon":"edge"`},
		{"GET", "localhost", "/routes?destination=x%0d%0ay", 400, "enter an address"},
		{"GET", "localhost", "/routes", 400, "enter an address"},
	} {
		r := httptest.NewRequest(tt.method, "http://localhost/", nil)
		target, query, _ := strings.Cut(tt.target, "?")
		r.URL.Path, r.URL.RawQuery, r.Host = target, query, tt.host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.body) {
			t.Errorf("%s %s for %s: %d %s, want %d %q", tt.method, tt.target, tt.host, w.Code, w.Body, tt.code, tt.body)
		}
		if w.Code == http.StatusOK && w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s: no content security policy", tt.target)
		}
	}
}
