package traffic

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestUpload(t *testing.T) {
	url := serve(t)
	for _, transport := range []Transport{TCP, MPTCP} {
		t.Run(string(transport), func(t *testing.T) {
			var shown int64
			r, err := Fetch(t.Context(), FetchOptions{
				URL: url + "/bytes/20MB", Transport: transport, Interval: ms, Upload: true, Progress: func(s Sample) { shown += s.Bytes },
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Bytes != 20e6 || r.UsedMPTCP != (transport == MPTCP && hasMPTCP(t)) || r.FirstByte <= 0 || r.GoodputBps != 20e6*8/r.Duration.Seconds() {
				t.Errorf("report: %d bytes, mptcp %t, first byte %s, %g bit/s in %s", r.Bytes, r.UsedMPTCP, r.FirstByte, r.GoodputBps, r.Duration)
			}
			var sum int64
			for _, s := range r.Series {
				sum += s.Bytes
			}
			if last := r.Series[len(r.Series)-1].At; sum != r.Bytes || last > r.Duration || last+ms < r.Duration {
				t.Errorf("series: %d bytes, the last interval from %s, duration %s", sum, last, r.Duration)
			}
			if shown > r.Bytes {
				t.Errorf("progress showed %d bytes of %d", shown, r.Bytes)
			}
		})
	}
}

func TestUploadConstantBitRate(t *testing.T) {
	r, err := Fetch(t.Context(), FetchOptions{URL: serve(t) + "/cbr?rate=80Mbit/s&duration=500ms", Transport: TCP, Upload: true})
	if err != nil || r.Bytes != 5e6 || r.Duration < 450*ms {
		t.Fatalf("%d bytes in %s, %v, want 5000000 in about 490ms", r.Bytes, r.Duration, err)
	}
}

// TestUploadLimit: the server measures until the limit, whatever is still in the queues.
func TestUploadLimit(t *testing.T) {
	url := serve(t)
	const limit = 300 * ms
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // 1 TiB would take longer
	defer cancel()
	r, err := Fetch(ctx, FetchOptions{URL: url + "/bytes/1TiB", Transport: TCP, Limit: limit, Upload: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Duration != limit || r.Bytes == 0 || len(r.Series) != 3 {
		t.Errorf("report: %d bytes in %s, %d intervals", r.Bytes, r.Duration, len(r.Series))
	}
	r, err = Fetch(t.Context(), FetchOptions{URL: url + "/bytes/1MB", Transport: TCP, Limit: time.Minute, Upload: true})
	if err != nil || r.Bytes != 1e6 || r.Duration >= time.Minute {
		t.Errorf("limit not reached: %d bytes in %s, %v", r.Bytes, r.Duration, err)
	}
}

func TestUploadRefuses(t *testing.T) {
	url := serve(t)
	for _, tt := range []struct {
		o    FetchOptions
		says string
	}{
		{FetchOptions{URL: url + "/bytes/lots", Upload: true}, "lots"},
		{FetchOptions{URL: url + "/nothing", Upload: true}, `got path "/nothing"`},
		{FetchOptions{URL: url + "/bytes/1kB", Upload: true, Interval: ms, Limit: time.Hour}, "at most 1000000 intervals"},
		{FetchOptions{URL: url + "/bytes/1kB", Datagram: 1000}, "datagrams need a URL like"},
		{FetchOptions{URL: url + "/cbr?rate=1Mbit/s&duration=1s", Datagram: 7}, "datagrams must have 8 to 65507 bytes, got 7"},
		{FetchOptions{URL: url + "/cbr?rate=1kbit/s&duration=1s", Datagram: 1000}, "0 datagrams of 1000 bytes"},
		{FetchOptions{URL: url + "/cbr?rate=1Mbit/s&duration=1s", Datagram: 1000, Limit: time.Second}, "no limit"},
		{FetchOptions{URL: url + "/cbr?rate=1Mbit/s&duration=1s", Datagram: 1000, After: -1}, "after a duration > 0"},
		{FetchOptions{URL: url + "/cbr?rate=1Mbit/s&duration=1s", Datagram: 1000, Upload: true, After: 1}, "only datagrams from the server"},
		{FetchOptions{URL: url + "/bytes/1kB", After: 1}, "only datagrams from the server"},
	} {
		tt.o.Transport = TCP
		if _, err := Fetch(t.Context(), tt.o); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v, want it to say %q", tt.o, err, tt.says)
		}
	}
	for query, says := range map[string]string{
		"rate=1Mbit/s&duration=1s":                          "size must be 8 to 65507",
		"rate=1Mbit/s&duration=1s&size=1000":                `parameter "port" is missing`,
		"rate=1Mbit/s&duration=1s&size=1000&port=0":         "port must be 1 to 65535",
		"rate=1Mbit/s&duration=1s&size=1000&port=9&chunk=0": "chunk",

		"rate=1Mbit/s&duration=1s&size=1000&port=9&after=-1s":    "after must be",
		"rate=1Mbit/s&duration=1s&size=1000&port=9&after=later":  "after must be",
		"rate=1Mbit/s&duration=1s&size=1000&port=9&after=90000h": "after must be",
	} {
		if response, body := get(t, url+"/datagrams?"+query); response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), says) {
			t.Errorf("GET /datagrams?%s: %s %q, want it to say %q", query, response.Status, body, says)
		}
	}
}

// TestDatagrams: all numbers arrive on loopback, in either direction, at the rate.
func TestDatagrams(t *testing.T) {
	url := serve(t)
	for _, upload := range []bool{false, true} {
		var shown int64
		r, err := Fetch(t.Context(), FetchOptions{
			URL: url + "/cbr?rate=8Mbit/s&duration=500ms", Transport: TCP, Datagram: 1000, Upload: upload, Progress: func(s Sample) { shown += s.Bytes },
		})
		if err != nil {
			t.Fatalf("upload %t: %v", upload, err)
		}
		if r.Datagrams == nil {
			t.Fatalf("upload %t: no datagrams", upload)
		}
		got, want := *r.Datagrams, Datagrams{Sent: 500, Received: 500}
		if got.LeastDelay <= 0 || got.DelayP95 < got.LeastDelay || got.DelayP95 > 500*ms {
			t.Errorf("upload %t: delays %s and %s", upload, got.LeastDelay, got.DelayP95)
		}
		if got.LeastDelay, got.DelayP95 = 0, 0; got != want || r.Bytes != 500_000 || r.Duration < 450*ms || r.Duration > 5*time.Second {
			t.Errorf("upload %t: %+v, %d bytes in %s, want 500 datagrams in about 500ms", upload, r.Datagrams, r.Bytes, r.Duration)
		}
		if shown == 0 || shown > r.Bytes {
			t.Errorf("upload %t: progress showed %d bytes", upload, shown)
		}
	}
}

// TestDatagramsBeginLater: what is measured begins with the stream, and ends with the last
// datagram, whether or not the server's response arrives.
func TestDatagramsBeginLater(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query().Get("after")
		_, port, err := parseStream(r.URL.RawQuery)
		if err != nil {
			t.Error(err)
			return
		}
		sock, err := dialDatagrams(Connection(r), port)
		if err != nil {
			t.Error(err)
			return
		}
		defer sock.Close()
		http.NewResponseController(w).Flush()
		for n := range uint64(2) { // of 50
			sock.Write(append(binary.BigEndian.AppendUint64(nil, n), make([]byte, 992)...))
		}
		<-r.Context().Done() // the path is dead
	}))
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c)
	}
	server.Start()
	t.Cleanup(server.Close)
	accepted := false
	r, err := Fetch(t.Context(), FetchOptions{
		URL: server.URL + "/cbr?rate=8Mbit/s&duration=50ms", Transport: TCP, Datagram: 1000, After: time.Millisecond, Accepted: func() { accepted = true },
		Progress: func(Sample) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := <-asked; after != "1ms" || !accepted {
		t.Errorf("requested after %q, accepted %t", after, accepted)
	}
	if d := r.Datagrams; d.Sent != 50 || d.Received != 2 || r.EmptyIntervals != 0 || len(r.Series) != 1 {
		t.Errorf("%+v, %d empty intervals of %d", *d, r.EmptyIntervals, len(r.Series))
	}
}
