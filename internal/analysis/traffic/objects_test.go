package traffic

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

func TestObjects(t *testing.T) {
	url := serve(t) + "/bytes/50kB"
	for name, o := range map[string]FetchOptions{
		"kept": {Transport: TCP}, "kept mptcp": {Transport: MPTCP}, "new": {Transport: TCP, NewConnections: true}, "new mptcp": {Transport: MPTCP, NewConnections: true},
	} {
		t.Run(name, func(t *testing.T) {
			var shown int64
			o.URL, o.Objects, o.Interval = url, 20, ms
			o.Progress = func(s Sample) { shown += s.Bytes }
			r, err := Fetch(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Objects) != 20 || r.Bytes != 1e6 || shown != r.Bytes || r.UsedMPTCP != (o.Transport == MPTCP && hasMPTCP(t)) {
				t.Errorf("%d objects, %d bytes, %d shown, mptcp %t", len(r.Objects), r.Bytes, shown, r.UsedMPTCP)
			}
			var sum time.Duration
			for _, took := range r.Objects {
				sum += took
			}
			if p50, p95 := r.ObjectTime(0.5), r.ObjectTime(0.95); p50 <= 0 || p95 < p50 || sum > r.Duration {
				t.Errorf("times %s and %s, the sum %s of %s", p50, p95, sum, r.Duration)
			}
		})
	}
}

// TestObjectsConnections counts the connections that objects take, by the addresses of the client.
func TestObjectsConnections(t *testing.T) {
	for fresh, want := range map[bool]int{false: 1, true: 5} {
		url, connections := countedServer(t)
		if _, err := Fetch(t.Context(), FetchOptions{URL: url, Transport: TCP, Objects: 5, NewConnections: fresh}); err != nil {
			t.Fatal(err)
		}
		if got := connections(); got != want {
			t.Errorf("new connections %t: %d, want %d", fresh, got, want)
		}
	}
}

// countedServer returns the URL of an object, and a function that counts the connections.
func countedServer(t *testing.T) (url string, connections func() int) {
	t.Helper()
	var mu sync.Mutex
	seen := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[r.RemoteAddr] = true
		_, _ = w.Write(make([]byte, 1000))
	}))
	t.Cleanup(server.Close)
	return server.URL, func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
}

func TestObjectsLimit(t *testing.T) {
	const limit = 200 * ms
	r, err := Fetch(t.Context(), FetchOptions{URL: serve(t) + "/cbr?rate=8Mbit/s&duration=80ms", Transport: TCP, Objects: 100, Limit: limit})
	if err != nil || r.Duration != limit || len(r.Objects) == 0 || len(r.Objects) > 2 {
		t.Errorf("%d objects in %s, %v", len(r.Objects), r.Duration, err)
	}
	for _, o := range []FetchOptions{{Objects: -1}, {NewConnections: true}, {Objects: 2, Upload: true}, {Objects: 2, Datagram: 1000}} {
		o.URL, o.Transport = "http://127.0.0.1:1/", TCP
		if _, err := Fetch(t.Context(), o); err == nil {
			t.Errorf("accepted %+v", o)
		}
	}
	if r, err := Fetch(t.Context(), FetchOptions{URL: serve(t) + "/nothing", Transport: TCP, Objects: 2}); err == nil {
		t.Errorf("404: %+v", r)
	}
}
