package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

var loopback = netip.MustParseAddrPort("[::1]:0")

// serve runs a server on loopback until the test ends, and returns its URL.
func serve(t testing.TB) string { return serveAtMost(t, maxConnections) }

func serveAtMost(t testing.TB, connections int64) string {
	t.Helper()
	s, err := New(Options{Listen: []netip.AddrPort{loopback}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.maxOpen = connections
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return "http://" + s.Addrs()[0].String()
}

// TestConnectionsAreBounded: a client that opens more connections than there may be finds the
// others closed, and one that has ended makes room.
func TestConnectionsAreBounded(t *testing.T) {
	address := strings.TrimPrefix(serveAtMost(t, 2), "http://")
	ask := func() (*http.Response, net.Conn) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = fmt.Fprintf(c, "GET /bytes/1 HTTP/1.1\r\nHost: a\r\n\r\n") // what was refused answers nothing
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return nil, c
		}
		_ = r.Body.Close()
		return r, c
	}
	var open []net.Conn
	for i := range 3 {
		r, c := ask()
		if answered := r != nil; answered != (i < 2) {
			t.Errorf("connection %d has an answer: %t", i+1, answered)
		}
		open = append(open, c)
	}
	if err := open[0].Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if r, _ := ask(); r != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("there is no room after a connection has ended")
		}
	}
}

// hasMPTCP reports whether this host supports MPTCP.
func hasMPTCP(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/net/mptcp/enabled")
	has := err == nil && strings.TrimSpace(string(b)) == "1"
	if !has && os.Getenv("TABANE_LAB") == "require" {
		t.Fatalf("this host has no MPTCP: %q, %v", b, err)
	}
	return has
}

func get(t *testing.T, url string, header ...string) (*http.Response, []byte) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, body
}

func TestContentReader(t *testing.T) {
	want := append(bytes.Clone(pattern()), pattern()[:1000]...)
	if err := iotest.TestReader(&filler{size: int64(len(want))}, want); err != nil {
		t.Error(err)
	}
	c := &filler{size: 10}
	for _, tt := range []struct {
		offset int64
		whence int
	}{{-1, io.SeekStart}, {11, io.SeekStart}, {1, io.SeekEnd}, {0, 9}} {
		if _, err := c.Seek(tt.offset, tt.whence); err == nil {
			t.Errorf("Seek(%d, %d) gives no error", tt.offset, tt.whence)
		}
	}
}

func TestBytes(t *testing.T) {
	url := serve(t)
	for _, tt := range []struct {
		n    string
		want int64
	}{{"0", 0}, {"1", 1}, {"1048577", 1<<20 + 1}, {"3MB", 3e6}, {"5MiB", 5 << 20}} {
		response, body := get(t, url+"/bytes/"+tt.n)
		want, err := io.ReadAll(&filler{size: tt.want})
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusOK || response.ContentLength != tt.want || !bytes.Equal(body, want) {
			t.Errorf("/bytes/%s: %s, length %d, %d bytes, as wanted: %t", tt.n, response.Status, response.ContentLength, len(body), bytes.Equal(body, want))
		}
		if got := response.Header.Get("Content-Type"); got != "application/octet-stream" {
			t.Errorf("/bytes/%s: type %q", tt.n, got)
		}
	}
	response, body := get(t, url+"/bytes/3MB", "Range", "bytes=1048570-1048585")
	if response.StatusCode != http.StatusPartialContent || !bytes.Equal(body, append(bytes.Clone(pattern()[patternSize-6:]), pattern()[:10]...)) {
		t.Errorf("range: %s, %d bytes", response.Status, len(body))
	}
	response, _ = get(t, url+"/bytes/3MB", "Range", "bytes=0-1,5-6")
	if response.StatusCode != http.StatusPartialContent {
		t.Errorf("two ranges: %s", response.Status)
	}
	head, err := http.Head(url + "/bytes/1TB")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	if err := head.Body.Close(); err != nil || head.ContentLength != 1e12 {
		t.Errorf("head: length %d, %v", head.ContentLength, err)
	}
}

func TestErrorResponses(t *testing.T) {
	url := serve(t)
	for _, tt := range []struct {
		path   string
		status int
		says   string
	}{
		{"/", 200, "GET /cbr?rate=25Mbit/s&duration=30s"},
		{"/bytes/-1", 400, `size "-1" not understood: is negative; want a number and B`},
		{"/bytes/many", 400, "not understood"},
		{"/bytes/1125899906842625", 400, "size must be at most 1024TiB"},
		{"/bytes/99999999999999999999", 400, "not understood"},
		{"/bytes/", 404, ""},
		{"/nothing", 404, ""},
		{"/cbr", 400, `parameter "rate" is missing`},
		{"/cbr?rate=fast&duration=1s", 400, `bandwidth "fast" not understood`},
	} {
		response, body := get(t, url+tt.path)
		if response.StatusCode != tt.status || !strings.Contains(string(body), tt.says) {
			t.Errorf("%s: %s, %q, want %d and %q", tt.path, response.Status, body, tt.status, tt.says)
		}
	}
	response, err := http.Post(url+"/bytes/1", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("post: %s, %v", response.Status, err)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no address is accepted")
	}
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).AddrPort()
	_, err = New(Options{Listen: []netip.AddrPort{loopback, taken}})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("listen on %q: ", taken)) || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("taken port: %v", err)
	}
}

func TestFetch(t *testing.T) {
	url := serve(t)
	for _, transport := range []Transport{TCP, MPTCP} {
		t.Run(string(transport), func(t *testing.T) {
			var reported []Sample
			r, err := Fetch(t.Context(), FetchOptions{URL: url + "/bytes/20MB", Transport: transport, Interval: ms, Progress: func(s Sample) { reported = append(reported, s) }})
			if err != nil {
				t.Fatal(err)
			}
			wantMPTCP := transport == MPTCP && hasMPTCP(t)
			if r.Bytes != 20e6 || r.UsedMPTCP != wantMPTCP || r.Fallback != (transport == MPTCP && !wantMPTCP) {
				t.Errorf("report: %d bytes, mptcp %t, fallback %t", r.Bytes, r.UsedMPTCP, r.Fallback)
			}
			if r.FirstByte <= 0 || r.Duration <= 0 || r.GoodputBps != 20e6*8/r.Duration.Seconds() {
				t.Errorf("report: first byte %s, duration %s, %g bit/s", r.FirstByte, r.Duration, r.GoodputBps)
			}
			var sum int64
			for _, s := range r.Series {
				sum += s.Bytes
			}
			if last := r.Series[len(r.Series)-1].At; sum != r.Bytes || last > r.Duration || last+ms < r.Duration {
				t.Errorf("series: %d bytes, the last interval from %s, duration %s", sum, last, r.Duration)
			}
			if diff := cmp.Diff(r.Series, reported); diff != "" {
				t.Errorf("progress (-series +reported):\n%s", diff)
			}
		})
	}
}

func TestFetchConstantBitRate(t *testing.T) {
	url := serve(t)
	r, err := Fetch(t.Context(), FetchOptions{URL: url + "/cbr?rate=80.000008Mbit/s&duration=500ms", Transport: MPTCP})
	if err != nil || r.Bytes != 5000000 {
		t.Fatalf("%d bytes, %v, want 5000000", r.Bytes, err)
	}
	if n := len(r.Series); n < 5 {
		t.Errorf("%d intervals of 100 ms, want 5 or more", n)
	}
}

func TestFetchLimit(t *testing.T) {
	url := serve(t)
	const limit = 300 * ms
	r, err := Fetch(t.Context(), FetchOptions{URL: url + "/bytes/1024TiB", Transport: TCP, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	if r.Duration != limit || r.Bytes == 0 || r.GoodputBps != float64(r.Bytes)*8/limit.Seconds() || len(r.Series) != 3 {
		t.Errorf("report: %d bytes in %s, %g bit/s, %d intervals", r.Bytes, r.Duration, r.GoodputBps, len(r.Series))
	}
	r, err = Fetch(t.Context(), FetchOptions{URL: url + "/bytes/1MB", Transport: TCP, Limit: time.Hour})
	if err != nil || r.Bytes != 1e6 || r.Duration >= time.Hour {
		t.Errorf("limit not reached: %d bytes in %s, %v", r.Bytes, r.Duration, err)
	}
}

// An MPTCP socket that is only closed would remain for a minute and receive until its buffer is
// full.
func TestFetchLimitResetsTheConnection(t *testing.T) {
	for _, transport := range []Transport{TCP, MPTCP} {
		ended := make(chan error, 1)
		url := peer(t, func(c net.Conn) {
			ended <- c.SetWriteDeadline(time.Now().Add(20 * time.Second))
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for b := make([]byte, 1<<16); err == nil; {
				_, err = c.Write(b)
			}
			ended <- err
		})
		if _, err := Fetch(t.Context(), FetchOptions{URL: url, Transport: transport, Limit: 100 * ms}); err != nil {
			t.Errorf("%s: %v", transport, err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s: the server saw %v", transport, err)
		}
	}
}

// peer runs a server that accepts one connection and passes it to do.
func peer(t *testing.T, do func(c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		do(c)
	})
	t.Cleanup(func() {
		_ = l.Close()
		done.Wait()
	})
	return "http://" + l.Addr().String()
}

func TestFetchBadResponses(t *testing.T) {
	readRequest := func(c net.Conn) {
		b := make([]byte, 4096)
		_, _ = c.Read(b)
	}
	for _, tt := range []struct {
		name  string
		do    func(c net.Conn)
		says  string
		bytes int64
	}{
		{"closes at once", func(net.Conn) {}, "", 0},
		{"speaks something else", func(c net.Conn) { readRequest(c); _, _ = io.WriteString(c, "220 mail\r\n") }, "malformed", 0},
		{"ends early", func(c net.Conn) {
			readRequest(c)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
		}, "unexpected EOF", 3},
		{"redirects", func(c net.Conn) {
			readRequest(c)
			_, _ = io.WriteString(c, "HTTP/1.1 302 Found\r\nLocation: http://[::1]:1/\r\nContent-Length: 0\r\n\r\n")
		}, `server responds "302 Found"`, 0},
		{"complains at length", func(c net.Conn) {
			readRequest(c)
			_, _ = io.WriteString(c, "HTTP/1.1 500 Oh\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("no ", 30000))
		}, `server responds "500 Oh": "no no`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := peer(t, tt.do)
			r, err := Fetch(t.Context(), FetchOptions{URL: url + "/x", Transport: TCP})
			if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.HasPrefix(err.Error(), fmt.Sprintf("fetch %q: ", url+"/x")) || len(err.Error()) > 700 {
				t.Errorf("error %v, want it to say %q", err, tt.says)
			}
			if r.Bytes != tt.bytes {
				t.Errorf("%d bytes, want %d", r.Bytes, tt.bytes)
			}
		})
	}
}

// A fetch without a response until the limit is a valid measurement.
func TestFetchLimitWithoutResponse(t *testing.T) {
	url := peer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	reported := 0
	r, err := Fetch(t.Context(), FetchOptions{URL: url, Transport: TCP, Limit: 1200 * ms, Progress: func(Sample) { reported++ }})
	if err != nil {
		t.Fatal(err)
	}
	want := Report{Duration: 1200 * ms, LongestGap: 200 * ms, EmptyIntervals: 2, Series: make([]Sample, 12)}
	for i := range want.Series {
		want.Series[i].At = time.Duration(i) * 100 * ms
	}
	want.Series[11].Gap = 200 * ms
	if diff := cmp.Diff(want, r); diff != "" || reported != 12 {
		t.Errorf("%d reported, report (-want +got):\n%s", reported, diff)
	}
}

// Without a connection within the limit there is nothing to report.
func TestFetchLimitWithoutConnection(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet6{Addr: loopback.Addr().As16()}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	full := fmt.Sprintf("[::1]:%d", at.(*syscall.SockaddrInet6).Port)
	first, err := net.Dial("tcp", full) // fills the backlog, so that the kernel drops the next SYN
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	never := func(ctx context.Context, _ string) ([]netip.Addr, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, o := range []FetchOptions{{URL: "http://" + full}, {URL: "http://name", Resolve: never}} {
		o.Transport, o.Limit = TCP, 100*ms
		begun := time.Now()
		if _, err := Fetch(t.Context(), o); err == nil || !strings.HasSuffix(err.Error(), "no connection within 100ms") {
			t.Errorf("%s: error %v after %s", o.URL, err, time.Since(begun))
		}
	}
}

func TestFetchCancel(t *testing.T) {
	url := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := Fetch(ctx, FetchOptions{URL: url + "/bytes/1024TiB", Transport: TCP, Interval: ms, Progress: func(s Sample) {
		if s.Bytes > 0 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || r.Bytes == 0 || r.Duration == 0 {
		t.Errorf("canceled: %v, %d bytes in %s", err, r.Bytes, r.Duration)
	}
	if _, err := Fetch(ctx, FetchOptions{URL: url + "/bytes/1", Transport: TCP}); err == nil {
		t.Error("canceled before: no error")
	}
}

func TestFetchRefusesOptions(t *testing.T) {
	for _, tt := range []struct {
		o    FetchOptions
		says string
	}{
		{FetchOptions{URL: "https://[::1]/", Transport: TCP}, "want a URL like"},
		{FetchOptions{URL: "server/bytes/1", Transport: TCP}, "want a URL like"},
		{FetchOptions{URL: "http:///bytes/1", Transport: TCP}, "want a URL like"},
		{FetchOptions{URL: "http://[::1", Transport: TCP}, "missing ']'"},
		{FetchOptions{URL: "http://[::1]:99999/", Transport: TCP}, "port must be from 1 to 65535"},
		{FetchOptions{URL: "http://[::1]/"}, `transport must be "tcp" or "mptcp", got ""`},
		{FetchOptions{URL: "http://[::1]/", Transport: TCP, Interval: 1}, "interval must be at least 1ms"},
		{FetchOptions{URL: "http://[::1]/", Transport: TCP, Limit: -1}, "limit must be >= 0"},
		{FetchOptions{URL: "http://nowhere/", Transport: TCP, Resolve: func(context.Context, string) ([]netip.Addr, error) { return nil, nil }}, `host "nowhere" has no address`},
		{FetchOptions{URL: "http://[::1]:1/", Transport: TCP}, "connection refused"},
		{FetchOptions{URL: "http://[::1]:1/", Transport: TCP, Source: netip.MustParseAddr("2001:db8::1")}, "cannot assign requested address"},
	} {
		if r, err := Fetch(t.Context(), tt.o); err == nil || !strings.Contains(err.Error(), tt.says) || r.Series != nil {
			t.Errorf("%+v: %v, want it to say %q", tt.o, err, tt.says)
		}
	}
}

func TestFetchConnectsToAddress(t *testing.T) {
	var seen []string
	var mu sync.Mutex
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			t.Error(err)
		}
		seen = append(seen, fmt.Sprintf("%s from %s, encodings %q, close %t", r.Host, host, r.Header.Get("Accept-Encoding"), r.Close))
		_, _ = io.WriteString(w, "x")
	}))
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	for _, o := range []FetchOptions{
		{URL: "http://content.example/", Address: at, Source: netip.MustParseAddr("127.0.0.2")},
		{URL: fmt.Sprintf("http://content.example:%d/", at.Port()), Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "content.example" {
				t.Errorf("resolve %q", host)
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.9"), at.Addr()}, nil
		}},
	} {
		o.Transport = TCP
		if r, err := Fetch(t.Context(), o); err != nil || r.Bytes != 1 {
			t.Errorf("%+v: %d bytes, %v", o, r.Bytes, err)
		}
	}
	want := []string{
		`content.example from 127.0.0.2, encodings "", close true`,
		fmt.Sprintf(`content.example:%d from 127.0.0.1, encodings "", close true`, at.Port()),
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// The goroutine of a request ends when its client disconnects.
func TestClientDisconnects(t *testing.T) {
	for _, path := range []string{"/bytes/1024TiB", "/cbr?rate=1Mbit/s&duration=1h", "/cbr?rate=100Gbit/s&duration=1h"} {
		ended := make(chan struct{})
		filler := handler(nil, slog.New(slog.DiscardHandler))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			filler.ServeHTTP(w, r)
		}))
		response, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, response.Body, 1000); err != nil {
			t.Error(err)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		<-ended
		server.Close()
	}
}

// slowLog counts records after a delay.
type slowLog struct {
	slog.Handler
	served atomic.Int32
}

func (l *slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *slowLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "request served" {
		time.Sleep(50 * ms)
		l.served.Add(1)
	}
	return nil
}

// When its context ends, Run closes the connections and returns after their goroutines.
func TestRunCancel(t *testing.T) {
	log := &slowLog{Handler: slog.DiscardHandler}
	s, err := New(Options{Listen: []netip.AddrPort{loopback, loopback}, Log: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var clients sync.WaitGroup
	for i, path := range []string{"/bytes/1024TiB", "/cbr?rate=1Mbit/s&duration=1h"} {
		response, err := http.Get("http://" + s.Addrs()[i].String() + path)
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err == nil {
				t.Errorf("%s ended as if it were complete", path)
			}
		})
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if n := log.served.Load(); n != 2 {
		t.Errorf("%d requests had ended, want 2", n)
	}
	clients.Wait()
}

// Sockets are in the caller's network namespace, regardless of the goroutines that HTTP starts.
func TestNamespace(t *testing.T) {
	netnstest.Enter(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	o := FetchOptions{URL: serve(t) + "/bytes/1000", Transport: MPTCP}
	if r, err := Fetch(t.Context(), o); err != nil || r.Bytes != 1000 {
		t.Errorf("inside: %d bytes, %v", r.Bytes, err)
	}
	outside := make(chan error)
	go func() {
		_, err := Fetch(t.Context(), o)
		outside <- err
	}()
	if err := <-outside; err == nil {
		t.Error("the server is reached from outside of its namespace")
	}
}

func TestReportAsJSON(t *testing.T) {
	want := Report{Bytes: 1, FirstByte: 2, Duration: 3, GoodputBps: 4.5, UsedMPTCP: true, Series: []Sample{{5, 6, 0}}, LongestGap: 7, EmptyIntervals: 8}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestCurl(t *testing.T) {
	url := serve(t)
	for _, wrap := range [][]string{{programs.Need(t, "curl")}, {programs.Need(t, "mptcpize", "curl"), "run", "curl"}} {
		for _, tt := range []struct{ path, want string }{
			{"/bytes/10MB", "200 10000000"},
			{"/cbr?rate=8Mbit/s&duration=200ms", "200 200000"},
			{"/bytes/x", "400 "},
		} {
			args := append(wrap[1:len(wrap):len(wrap)], "-g", "-sS", "-o", os.DevNull, "-w", "%{http_code} %{size_download}", url+tt.path)
			out, err := exec.CommandContext(t.Context(), wrap[0], args...).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), tt.want) {
				t.Errorf("%s %v: %v, %q, want %q", wrap[0], args, err, out, tt.want)
			}
		}
	}
}

func BenchmarkBytes(b *testing.B) {
	url := serve(b)
	for _, transport := range []Transport{TCP, MPTCP} {
		b.Run(string(transport), func(b *testing.B) {
			b.ReportAllocs()
			var bytes int64
			for b.Loop() {
				r, err := Fetch(b.Context(), FetchOptions{URL: url + "/bytes/256MiB", Transport: transport})
				if err != nil {
					b.Fatal(err)
				}
				bytes += r.Bytes
			}
			b.ReportMetric(float64(bytes)*8/1e9/b.Elapsed().Seconds(), "Gbit/s")
		})
	}
}
