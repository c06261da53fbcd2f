package site

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/lab/browser"
	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
	"github.com/tabane/tabane/internal/testkit/certificate"
	"github.com/tabane/tabane/internal/testkit/programs"
)

var loopback = netip.MustParseAddrPort("[::1]:0")

func write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// start makes a site and runs it until the end of the test.
func start(t *testing.T, c httpd.Config) *Site {
	t.Helper()
	s, err := New(Options{Config: c, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	return s
}

// run runs a site until the end of the test.
func run(t *testing.T, s *Site) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestProtocols: HTTP/1.1 without TLS, and both versions with it.
func TestProtocols(t *testing.T) {
	dir := t.TempDir()
	_, pool := certificate.Write(t, dir, "site")
	c := httpd.Config{Seed: 1, Listen: []httpd.Listen{{Address: loopback, Congestion: "reno"}, {Address: loopback, Certificate: "site.pem", Key: "site-key.pem"}}}
	if faults := c.Files(dir); len(faults) > 0 {
		t.Fatal(faults)
	}
	s := start(t, c)
	for _, one := range []struct {
		listener int
		scheme   string
		http2    bool
		protocol string
	}{{0, "http", true, "HTTP/1.1"}, {1, "https", false, "HTTP/1.1"}, {1, "https", true, "HTTP/2.0"}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "site"}, ForceAttemptHTTP2: one.http2}
		client := http.Client{Transport: transport}
		response, err := client.Get(one.scheme + "://" + s.listeners[one.listener].Addr().String() + "/map/tile/1/2/1.png")
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil || response.Proto != one.protocol || response.StatusCode != http.StatusOK || n != response.ContentLength {
			t.Errorf("%s: %s, %s, %d of %d bytes, %v", one.protocol, response.Proto, response.Status, n, response.ContentLength, err)
		}
		transport.CloseIdleConnections()
	}
	status := s.Status().(Status)
	// Bytes are counted when they are written, and the client may have them a moment before.
	for deadline := time.Now().Add(10 * time.Second); status.Listeners[0].Bytes == 0 || status.Listeners[1].Bytes < 2*status.Listeners[0].Bytes; status = s.Status().(Status) {
		if time.Sleep(time.Millisecond); time.Now().After(deadline) {
			break
		}
	}
	if l := status.Listeners; len(l) != 2 || l[0].Requests != 1 || l[1].Requests != 2 || l[0].TLS || !l[1].TLS || l[0].Congestion != "reno" || l[0].Bytes == 0 || l[1].Bytes != 2*l[0].Bytes {
		t.Errorf("status %+v", status)
	}
	if status.Images.Drawn != 1 {
		t.Errorf("an image was drawn %d times", status.Images.Drawn)
	}
	if s, err := New(Options{Config: httpd.Config{Listen: []httpd.Listen{{Address: loopback}, {Address: loopback, Congestion: "nothing"}}}, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown congestion control: %v, %v", s, err)
	}
}

// TestConnectionsAreBounded: a connection too many is closed, and one later is served.
func TestConnectionsAreBounded(t *testing.T) {
	s, err := New(Options{Config: httpd.Config{Listen: []httpd.Listen{{Address: loopback}}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.maxOpen = 2
	run(t, s)
	at := s.listeners[0].Addr().String()
	ask := func(c net.Conn) error {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: site\r\n\r\n"); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}
	var open []net.Conn
	for i := range 3 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := ask(c); (err != nil) != (i == 2) {
			t.Errorf("connection %d: %v", i, err)
		}
		open = append(open, c)
	}
	if err := open[0].Close(); err != nil {
		t.Fatal(err)
	}
	for s.listeners[0].connections.Load() > 1 {
		time.Sleep(time.Millisecond)
	}
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := ask(c); err != nil {
		t.Errorf("a connection after one was closed: %v", err)
	}
}

// site returns a site without listeners.
func site(t *testing.T) *Site {
	t.Helper()
	s, err := New(Options{Config: httpd.Config{Seed: 1}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAnswers(t *testing.T) {
	h := site(t).Handler()
	ask := func(method, target string, header ...string) *http.Response {
		r := httptest.NewRequest(method, target, nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
	for _, one := range []struct {
		method, target string
		want           int
		kind           string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/map/", 200, "text/html; charset=utf-8"},
		{"GET", "/heavy/style.css", 200, "text/css; charset=utf-8"},
		{"GET", "/shop/shop.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/shop/search.json?q=mug&color=red", 200, "application/json"},
		{"GET", "/shop/search.json?color=pink", 400, "text/plain; charset=utf-8"},
		{"GET", "/map", 404, "text/plain; charset=utf-8"},
		{"GET", "/map/%2e%2e/shop/", 404, "text/plain; charset=utf-8"},
		{"POST", "/shop/cart/i1.json", 405, "text/plain; charset=utf-8"},
		{"OPTIONS", "/", 405, "text/plain; charset=utf-8"},
	} {
		r := ask(one.method, one.target)
		if r.StatusCode != one.want || r.Header.Get("Content-Type") != one.kind {
			t.Errorf("%s %s: %s, %q", one.method, one.target, r.Status, r.Header.Get("Content-Type"))
		}
		if p := r.Header.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: headers %v", one.method, one.target, r.Header)
		}
	}
	tile := ask("GET", "/map/tile/1/0/0.png")
	if tile.Header.Get("Cache-Control") != constantAge || ask("GET", "/shop/search.json?q=mug").Header.Get("Cache-Control") != otherAge {
		t.Errorf("a tile has %v", tile.Header)
	}
	if r := ask("GET", "/map/tile/1/0/0.png", "If-None-Match", tile.Header.Get("Etag")); r.StatusCode != http.StatusNotModified {
		t.Errorf("the same tile: %s", r.Status)
	}
	if r := ask("GET", "/map/tile/1/1/0.png", "If-None-Match", tile.Header.Get("Etag")); r.StatusCode != http.StatusOK {
		t.Errorf("another tile: %s", r.Status)
	}
}

// TestServesTheGraph: what tasks request is served, with the bytes that they say.
func TestServesTheGraph(t *testing.T) {
	s := site(t)
	h := s.Handler()
	for _, service := range content.Services() {
		for seed := range uint64(3) {
			for i, load := range s.world.Task(service, false, seed).Loads {
				got := int64(0)
				for _, r := range load.Requests {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, r.URI, nil))
					if w.Code != http.StatusOK {
						t.Errorf("%s: status %d", r.URI, w.Code)
					}
					got += int64(w.Body.Len())
				}
				if got != load.Bytes() {
					t.Errorf("%s, seed %d, load %d: %d bytes, want %d", service, seed, i, got, load.Bytes())
				}
			}
		}
	}
}

// TestCacheIsBounded: the images that were used last are kept, each is drawn once at a time, and
// the others are drawn again.
func TestCacheIsBounded(t *testing.T) {
	w := content.New(1)
	resource := func(path string) content.Resource {
		r, err := w.Resource(path, "")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	tile := func(i int) string { return fmt.Sprintf("/map/tile/3/%d/0.png", i) }
	c := newCache(3 * resource(tile(0)).Size)
	var drawing sync.WaitGroup
	for range 8 {
		drawing.Go(func() { c.rendered(tile(0), resource(tile(0))) })
	}
	drawing.Wait()
	for i := range 10 {
		c.rendered(tile(i), resource(tile(i)))
		c.rendered(tile(0), resource(tile(0)))
	}
	if s := c.status(); s.Kept != 3 || s.Bytes != c.limit || s.Drawn != 10 {
		t.Errorf("%+v, want 3 kept and 10 drawn", s)
	}
	again := c.rendered(tile(5), resource(tile(5)))
	if s := c.status(); s.Drawn != 11 || !bytes.Equal(again.body, resource(tile(5)).Body()) {
		t.Errorf("%+v after an image that was not kept", s)
	}
}

func TestConfig(t *testing.T) {
	at := func(port string) netip.AddrPort { return netip.MustParseAddrPort("[::1]:" + port) }
	c := httpd.Config{Listen: []httpd.Listen{{Address: at("80")}, {Address: at("443"), Certificate: "a", Key: "b", Congestion: "tabane_lia"}}}
	if faults := c.Check(); len(faults) > 0 {
		t.Error(faults)
	}
	c = httpd.Config{Listen: []httpd.Listen{{}, {Address: at("0")}, {Address: at("1"), Key: "b"}, {Address: at("1"), Congestion: "a name that is too long"}}}
	want := []string{"listen[0].address: must", "listen[1].address: must", "listen[2]: must have both", "listen[3].address: ", "listen[3].congestion: must"}
	text := c.Check().Err().Error()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in:\n%s", w, text)
		}
	}
	dir := t.TempDir()
	certificate.Write(t, dir, "site")
	write(t, filepath.Join(dir, "broken.pem"), []byte("no certificate"))
	for _, one := range []struct{ certificate, want string }{
		{"site.pem", ""}, {"none.pem", "none.pem: no such file"}, {"broken.pem", `broken.pem" and "`},
	} {
		c := httpd.Config{Listen: []httpd.Listen{{Address: at("1"), Certificate: one.certificate, Key: "site-key.pem"}}}
		err := c.Files(dir).Err()
		if one.want == "" && err != nil || one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want)) {
			t.Errorf("%s: %v", one.certificate, err)
		}
	}
}

// TestBrowser plays a task of each service in Chromium: it requests what the task says, step by
// step, and the page says when each step is complete and what was chosen.
func TestBrowser(t *testing.T) {
	program := programs.Need(t, "chromium")
	s := site(t)
	var mu sync.Mutex
	var requested []string
	inner := s.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		requested = append(requested, r.RequestURI)
		mu.Unlock()
		inner.ServeHTTP(w, r)
	}))
	defer server.Close()
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	b, err := browser.Start(ctx, browser.Options{Program: program, TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	// The map's with keys and clicks.
	for _, one := range []struct {
		service  content.Service
		seed     uint64
		language content.Language
	}{{content.Map, 2, content.English}, {content.Shop, 0, content.English}, {content.Map, 2, content.Japanese}, {content.Shop, 0, content.Japanese}} {
		task := s.world.In(one.language).Task(one.service, false, one.seed)
		name := fmt.Sprintf("%s, seed %d, %s", one.service, one.seed, one.language)
		p, err := b.Open(ctx, browser.PageOptions{Language: string(one.language)})
		if err != nil {
			t.Fatal(err)
		}
		// check compares the requests since the last call with those of a load.
		loads := 0
		check := func() {
			t.Helper()
			var want []string
			for _, r := range task.Loads[loads].Requests {
				want = append(want, r.URI)
			}
			loads++
			mu.Lock()
			got := requested
			requested = nil
			mu.Unlock()
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s, load %d: requests\n%q, want\n%q", name, loads-1, got, want)
			}
		}
		progress, err := p.Navigate(ctx, server.URL+task.Path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		check()
		reachable(ctx, t, p, name)
		for i, step := range task.Steps {
			switch step.Action {
			case content.Click:
				err = p.Click(ctx, step.Selector)
			case content.Type:
				err = errors.Join(p.Focus(ctx, step.Selector), p.Type(ctx, step.Text))
			case content.Key:
				err = errors.Join(p.Focus(ctx, step.Selector), p.Press(ctx, step.Text))
			}
			if err == nil && step.Loads {
				progress, err = p.Wait(ctx, loads)
				check()
				if err == nil {
					focused(ctx, t, p, step, name)
					reachable(ctx, t, p, fmt.Sprintf("%s, step %d", name, i))
				}
			}
			if err != nil || progress.Fault != "" {
				t.Fatalf("%s, step %d (%+v): %v, %q", name, i, step, err, progress.Fault)
			}
		}
		if progress.Chosen != task.Goal || loads != len(task.Loads) {
			t.Errorf("%s: chosen %q after %d loads, want %q after %d", name, progress.Chosen, loads, task.Goal, len(task.Loads))
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// focused checks where the focus is after a step: on the heading of what the step opened, or on the
// control that was used.
func focused(ctx context.Context, t *testing.T, p *browser.Page, step content.Step, title string) {
	t.Helper()
	all, err := p.Elements(ctx)
	if err != nil {
		t.Fatal(err)
	}
	id, err := p.Focused(ctx)
	if err != nil {
		t.Fatal(err)
	}
	opens := step.Selector == "#choose" || strings.Contains(step.Selector, "[data-")
	i := slices.IndexFunc(all, func(e browser.Element) bool { return e.ID == id })
	if i < 0 || !all[i].Focusable || all[i].Name == "" || opens != (all[i].Role == "heading") {
		t.Errorf("%s, %s of %s: the focus is not on what it opened or used", title, step.Action, step.Selector)
	}
}

// reachable checks that assistive technology has a name for each control of a page, and that the
// tabulator key moves the focus through all of them in their order, from where it is and around:
// what only a pointer reached would be missing.
func reachable(ctx context.Context, t *testing.T, p *browser.Page, title string) {
	t.Helper()
	all, err := p.Elements(ctx)
	if err != nil {
		t.Fatal(err)
	}
	controls := []string{"application", "button", "checkbox", "combobox", "link", "radio", "searchbox", "textbox"}
	var want, got []int64
	names := map[int64]string{}
	radios := map[int64]bool{}
	for _, e := range all {
		if !slices.Contains(controls, e.Role) {
			continue
		}
		if e.Name == "" || !e.Focusable {
			t.Errorf("%s: control %+v has no name or cannot have the focus", title, e)
		}
		names[e.ID] = e.Name
		// The arrow keys move within a group of radio buttons, of which the tabulator key reaches
		// one.
		if radios[e.ID] = e.Role == "radio"; !radios[e.ID] {
			want = append(want, e.ID)
		}
	}
	if len(want) < 10 {
		t.Fatalf("%s: only %d controls: %+v", title, len(want), all)
	}
	for range len(names) + 1 { // and the document itself, between the last one and the first one
		if err := p.Press(ctx, "Tab"); err != nil {
			t.Fatal(err)
		}
		id, err := p.Focused(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if names[id] != "" && !radios[id] {
			got = append(got, id)
		}
		if len(got) == len(want) {
			break
		}
	}
	if len(got) == 0 {
		t.Fatalf("%s: the tabulator key reaches nothing", title)
	}
	if i := slices.Index(want, got[0]); i > 0 {
		want = slices.Concat(want[i:], want[:i])
	}
	if !slices.Equal(got, want) {
		for i := range max(len(got), len(want)) {
			name := func(list []int64) string {
				if i < len(list) {
					return fmt.Sprintf("%q", names[list[i]])
				}
				return "nothing"
			}
			t.Logf("%d: %s, want %s", i, name(got), name(want))
		}
		t.Errorf("%s: the tabulator key does not reach all controls in their order", title)
	}
}
