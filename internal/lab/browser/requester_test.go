package browser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestRequester: a page gets the number of bytes that the server has, each requester on a
// connection of its own; what cannot be got is said, and a body that is left ends its connection.
func TestRequester(t *testing.T) {
	programs.Need(t, "chromium")
	from := make(chan string, 10)
	mux := http.NewServeMux()
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		from <- r.RemoteAddr
		w.Header().Set("Access-Control-Allow-Origin", "*")
		_, _ = w.Write(make([]byte, 3_000_000))
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 1000))
		}
		from <- "ended"
	})
	mux.HandleFunc("/nothing", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		http.NotFound(w, r)
	})
	mux.HandleFunc("/private", func(http.ResponseWriter, *http.Request) {})
	s := httptest.NewServer(mux)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := Start(ctx, Options{TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	get := func(r *Requester, path string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.RoundTrip(request)
	}
	r := b.Requester()
	var ports []string
	for _, r := range []*Requester{r, r, b.Requester()} {
		response, err := get(r, "/bytes")
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, response.Body)
		if n != 3_000_000 || err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("%d bytes, %v, %v", n, response.Status, err)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		_, port, _ := net.SplitHostPort(<-from)
		ports = append(ports, port)
	}
	if ports[0] != ports[1] || ports[1] == ports[2] {
		t.Errorf("connections from ports %v", ports)
	}
	if response, err := get(r, "/nothing"); err != nil || response.Status != "404 Not Found" {
		t.Errorf("%v, %v", response, err)
	}
	if _, err := get(r, "/private"); err == nil || !strings.Contains(err.Error(), "the browser has no response: TypeError") {
		t.Errorf("of another origin: %v", err)
	}
	response, err := get(r, "/endless")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(response.Body, make([]byte, 100_000)); err != nil {
		t.Error(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-from:
	case <-ctx.Done():
		t.Error("a body that was left still arrives")
	}
	if _, err := response.Body.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
		t.Error("a body that was left has an end")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzDecodeArrived: what a page reports is a number of bytes or an error.
func FuzzDecodeArrived(f *testing.F) {
	for _, payload := range []string{"0", "65536", "-1", "99999999999999999999", "x", ""} {
		f.Add(fmt.Sprintf(`{"name": %q, "payload": %q}`, arrived, payload))
	}
	f.Add(`{"name": "other", "payload": "1"}`)
	f.Add(`{`)
	f.Fuzz(func(t *testing.T, params string) {
		n, ok, err := decodeArrived([]byte(params))
		if n < 0 || n > maxPiece || ok && err != nil || !ok && n != 0 {
			t.Errorf("%q: %d, %t, %v", params, n, ok, err)
		}
	})
}
