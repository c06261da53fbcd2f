package traffic

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
	"github.com/tabane/tabane/internal/study/site"
)

// startSite serves the pages of seed 1 and returns its URL and a function that returns what was
// requested.
func startSite(t *testing.T, secure bool) (s *httptest.Server, requested func() []string) {
	t.Helper()
	pages, err := site.New(site.Options{Config: httpd.Config{Seed: 1}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var uris []string
	inner := pages.Handler()
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		uris = append(uris, r.RequestURI)
		mu.Unlock()
		inner.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.EnableHTTP2 = secure
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(uris)
	}
}

// TestLoad loads a site over each protocol. What it requests is what the visits say.
func TestLoad(t *testing.T) {
	for _, one := range []struct {
		name, protocol string
		secure, http1  bool
		transport      Transport
	}{
		{"http", "HTTP/1.1", false, false, MPTCP},
		{"https with HTTP/1.1", "HTTP/1.1", true, true, TCP},
		{"https", "HTTP/2.0", true, false, TCP},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			s, requested := startSite(t, one.secure)
			o := LoadOptions{URL: s.URL, Site: 1, Seed: 3, Rate: 20_000_000, Duration: 2 * time.Second, Transport: one.transport, HTTP1: one.http1}
			if one.secure {
				o.Roots = x509.NewCertPool()
				o.Roots.AddCert(s.Certificate())
			}
			r, err := Load(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Failed > 0 || r.Skipped > 0 || r.Protocol != one.protocol || r.Bytes == 0 || r.CPU <= 0 || r.OfferedBps <= 0 || len(r.Series) != 20 {
				t.Errorf("report %+v", r)
			}
			if r.Pages != len(r.FirstViews)+len(r.Steps)+r.Unfinished || r.Pages < r.Visits || r.FirstView(0.5) < 0 || len(r.Steps) > 0 && r.Step(0.5) <= 0 {
				t.Errorf("pages do not add up: %+v", r)
			}
			// A visit has a connection, and over HTTP/1.1 at most six.
			if most := map[string]int{"HTTP/1.1": connectionsPerHost, "HTTP/2.0": 1}[one.protocol]; r.Connections == 0 || r.Connections > most*r.Visits || r.MPTCP > r.Connections {
				t.Errorf("%d connections of %d visits, %d over MPTCP", r.Connections, r.Visits, r.MPTCP)
			}
			expected := map[string]bool{}
			for v := range content.New(1).Visits(content.Services(), false, o.Rate, o.Seed) {
				if v.Start >= o.Duration {
					break
				}
				for _, l := range v.Task.Loads {
					for _, request := range l.Requests {
						expected[request.URI] = true
					}
				}
			}
			uris := requested()
			for _, uri := range uris {
				if !expected[uri] {
					t.Errorf("requests %s", uri)
				}
			}
			if len(uris) > r.Requests || r.Unfinished == 0 && len(uris) != r.Requests {
				t.Errorf("%d requests, reported are %d", len(uris), r.Requests)
			}
		})
	}
}

// TestLoadEndsAtOnce: where nothing has arrived and further connections would fail as the first one
// did, a load of an hour ends with the reason.
func TestLoadEndsAtOnce(t *testing.T) {
	secure, _ := startSite(t, true)
	plain, _ := startSite(t, false)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(secure.Certificate())
	_, port, err := net.SplitHostPort(secure.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		name, url string
		roots     *x509.CertPool
		want      string
	}{
		{"issuer", secure.URL, x509.NewCertPool(), "certificate signed by unknown authority"},
		{"name", "https://localhost:" + port, trusted, "certificate is valid for"},
		{"scheme", strings.Replace(plain.URL, "http:", "https:", 1), trusted, "server gave HTTP response to HTTPS client"},
		{"closed", closed.URL, nil, "connection refused"},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r, err := Load(ctx, LoadOptions{URL: one.url, Site: 1, Rate: 20_000_000, Duration: time.Hour, Transport: TCP, Roots: one.roots})
			if err == nil || !strings.Contains(err.Error(), one.want) || strings.Contains(err.Error(), "\n") || r.Bytes > 0 {
				t.Errorf("%v after %s, want %q", err, r.Duration, one.want)
			}
		})
	}
}

// TestLoadFails: a site of another seed, one that refuses, and none.
func TestLoadFails(t *testing.T) {
	s, _ := startSite(t, false)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "out of order", http.StatusBadGateway) }))
	t.Cleanup(broken.Close) // after the parallel tests
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	silent, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for _, one := range []struct {
		name, url, want string
		site            uint64
		change          func(*LoadOptions)
	}{
		{"seed", s.URL, "the site has another seed", 2, func(o *LoadOptions) { o.Duration = 3 * time.Second }},
		{"refused", broken.URL, "out of order", 1, nil},
		{"closed", closed.URL, "connection refused", 1, nil},
		{"silent", "http://" + silent.Addr().String(), "nothing arrived in 1s", 1, nil},
		{"path", s.URL + "/map/", "want a URL like", 1, nil},
		{"scheme", "ftp://server", "want a URL like", 1, nil},
		{"rate", s.URL, "rate must be > 0", 1, func(o *LoadOptions) { o.Rate = 0 }},
		{"duration", s.URL, "duration must be > 0", 1, func(o *LoadOptions) { o.Duration = 0 }},
		{"transport", s.URL, "transport must be", 1, func(o *LoadOptions) { o.Transport = "" }},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			o := LoadOptions{URL: one.url, Site: one.site, Rate: 40_000_000, Duration: time.Second, Transport: TCP, Services: []content.Service{content.Shop}}
			if one.change != nil {
				one.change(&o)
			}
			r, err := Load(t.Context(), o)
			if text := strings.Join(r.Failures, "\n"); (err == nil || !strings.Contains(err.Error(), one.want)) && !strings.Contains(text, one.want) {
				t.Errorf("%v, %q, want %q", err, text, one.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Load(ctx, LoadOptions{URL: s.URL, Site: 1, Rate: 1_000_000, Duration: time.Hour, Transport: TCP}); err == nil {
		t.Error("an interrupted load is no error")
	}
}
