package traffic

import (
	"context"
	"crypto/x509"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// visits returns visits without end, of two pages with three requests each. Equal calls return
// equal visits.
func visits() iter.Seq[Visit] {
	const apart, thinks = 50 * time.Millisecond, 100 * time.Millisecond
	return func(yield func(Visit) bool) {
		for i := 0; ; i++ {
			v := Visit{Start: time.Duration(i)*apart - thinks*3/2}
			for p := range 2 {
				page := Page{Think: time.Duration(p) * thinks}
				for q, bytes := range []int{2_000, 0, 30_000} {
					uri := fmt.Sprintf("/%d/%d/%d?bytes=%d", i, p, q, bytes)
					page.Requests = append(page.Requests, Request{URI: uri, Bytes: bytes, After: min(q, 1) - 1})
				}
				v.Pages = append(v.Pages, page)
			}
			if !yield(v) {
				return
			}
		}
	}
}

// startSite serves bodies of the lengths that visits wants, or extra bytes more, and returns a
// server and a function that returns what was requested.
func startSite(t *testing.T, secure bool, extra int) (s *httptest.Server, requested func() []string) {
	t.Helper()
	var mu sync.Mutex
	var uris []string
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		uris = append(uris, r.RequestURI)
		mu.Unlock()
		n, err := strconv.Atoi(r.URL.Query().Get("bytes"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = w.Write(make([]byte, n+extra)) // the client may have closed the connection
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
			s, requested := startSite(t, one.secure, 0)
			o := LoadOptions{URL: s.URL, Visits: visits(), Rate: 20_000_000, Duration: 2 * time.Second, Transport: one.transport, HTTP1: one.http1}
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
			for v := range visits() {
				if v.Start >= o.Duration {
					break
				}
				for _, page := range v.Pages {
					for _, request := range page.Requests {
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
	secure, _ := startSite(t, true, 0)
	plain, _ := startSite(t, false, 0)
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
			r, err := Load(ctx, LoadOptions{URL: one.url, Visits: visits(), Rate: 20_000_000, Duration: time.Hour, Transport: TCP, Roots: one.roots})
			if err == nil || !strings.Contains(err.Error(), one.want) || strings.Contains(err.Error(), "\n") || r.Bytes > 0 {
				t.Errorf("%v after %s, want %q", err, r.Duration, one.want)
			}
		})
	}
}

// TestLoadFails: a site of another seed, one that refuses, and none.
func TestLoadFails(t *testing.T) {
	s, _ := startSite(t, false, 0)
	other, _ := startSite(t, false, 1)
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
		change          func(*LoadOptions)
	}{
		{"seed", other.URL, "the site has another seed", nil},
		{"refused", broken.URL, "out of order", nil},
		{"closed", closed.URL, "connection refused", nil},
		{"silent", "http://" + silent.Addr().String(), "nothing arrived in 1s", nil},
		{"path", s.URL + "/map/", "want a URL like", nil},
		{"scheme", "ftp://server", "want a URL like", nil},
		{"rate", s.URL, "rate must be > 0", func(o *LoadOptions) { o.Rate = 0 }},
		{"duration", s.URL, "duration must be > 0", func(o *LoadOptions) { o.Duration = 0 }},
		{"transport", s.URL, "transport must be", func(o *LoadOptions) { o.Transport = "" }},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			o := LoadOptions{URL: one.url, Visits: visits(), Rate: 40_000_000, Duration: time.Second, Transport: TCP}
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
	if _, err := Load(ctx, LoadOptions{URL: s.URL, Visits: visits(), Rate: 1_000_000, Duration: time.Hour, Transport: TCP}); err == nil {
		t.Error("an interrupted load is no error")
	}
}
