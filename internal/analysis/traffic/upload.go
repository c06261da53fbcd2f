package traffic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
)

// Headers of uploads. The first two are of the request and have the server measure as FetchOptions
// say, the third is of the response and has the port to which datagrams are sent.
const (
	intervalHeader = "Tabane-Interval"
	limitHeader    = "Tabane-Limit"
	portHeader     = "Tabane-Port"
)

// maxReport bounds a report of the server in bytes: it has some 40 bytes for each interval.
const maxReport = 64 << 20

// upload sends the content that the URL describes and returns the server's report. m counts what
// has been acknowledged.
func (o FetchOptions) upload(ctx context.Context, conn *meteredConn, target *url.URL, m *meter) (Report, error) {
	c, s, err := described(target)
	if err != nil {
		return Report{}, err
	}
	stop := context.AfterFunc(ctx, func() { conn.TCPConn.Close() })
	defer stop()
	head := fmt.Sprintf("PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n%s: %s\r\n%s: %s\r\n\r\n",
		target.RequestURI(), target.Host, c.size, intervalHeader, o.Interval, limitHeader, o.Limit)
	if _, err := io.WriteString(conn, head); err != nil {
		return Report{}, err
	}
	writing, halt := context.WithCancel(ctx)
	sent := make(chan error, 1)
	go func() { sent <- o.put(writing, conn, c, s, m) }()
	r, err := readReport(conn)
	halt()
	// The server answers before the end only at the limit. What is not sent then is discarded.
	if err == nil && o.Limit > 0 {
		stop()
		_ = conn.SetWriteDeadline(time.Now())
		<-sent
		return r, nil
	}
	if failed := <-sent; err == nil && failed != nil {
		err = failed
	}
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = cause
	}
	return r, err
}

// described returns the content that a URL of the server describes, and the schedule of a constant
// bit rate.
func described(target *url.URL) (*filler, *schedule, error) {
	if size, ok := strings.CutPrefix(target.Path, "/bytes/"); ok {
		n, err := unit.ParseSize(size)
		if err == nil && n > maxContent {
			err = fmt.Errorf("size must be at most %s, got %s", maxContent, n)
		}
		return &filler{size: int64(n)}, nil, err
	}
	if target.Path == "/cbr" {
		s, _, err := parseSchedule(target.RawQuery)
		return &filler{size: s.total()}, &s, err
	}
	return nil, nil, fmt.Errorf("want a URL like http://server/bytes/100MB or http://server/cbr?rate=25Mbit/s&duration=30s, got path %q", target.Path)
}

// put writes the content, on the schedule if there is one. m counts what the peer has acknowledged.
func (o FetchOptions) put(ctx context.Context, conn *meteredConn, c *filler, s *schedule, m *meter) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	w := &acknowledged{conn: conn, m: m, unsent: func() (n int) {
		_ = raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		return n
	}}
	if s != nil {
		return pace(ctx, *s, c, w, func() error { return nil })
	}
	// The server may answer, which ends ctx, before this goroutine returns from its last write.
	for c.at < c.size {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := c.sendTo(w, uploadPiece); err != nil {
			return err
		}
	}
	return nil
}

// uploadPiece is how much is written before the acknowledged bytes are counted again.
const uploadPiece = 64 << 10

// acknowledged is a connection that counts what its peer has acknowledged.
type acknowledged struct {
	conn    *meteredConn
	m       *meter
	unsent  func() int // bytes in the send queue
	written int64
	counted int64
}

func (a *acknowledged) Write(b []byte) (int, error) {
	n, err := a.conn.Write(b)
	a.written += int64(n)
	if done := a.written - int64(a.unsent()); done > a.counted {
		a.m.count(int(done-a.counted), 0)
		a.counted = done
	}
	return n, err
}

// readReport reads the server's response to an upload.
func readReport(conn io.Reader) (Report, error) {
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodPut})
	if err != nil {
		return Report{}, err
	}
	defer response.Body.Close()
	return decodeReport(response)
}

// decodeReport reads the report in the body of a response.
func decodeReport(response *http.Response) (r Report, err error) {
	if response.StatusCode != http.StatusOK {
		return r, fmt.Errorf("server responds %q%s", response.Status, complaint(response.Body))
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxReport)).Decode(&r); err != nil {
		return r, fmt.Errorf("read the server's report: %w", err)
	}
	return r, nil
}

// measures returns the meter that a request of an upload asks for, and its limit.
func measures(r *http.Request) (m *meter, limit time.Duration, err error) {
	interval := defaultInterval
	for name, d := range map[string]*time.Duration{intervalHeader: &interval, limitHeader: &limit} {
		text := r.Header.Get(name)
		if text == "" {
			continue
		}
		if *d, err = time.ParseDuration(text); err != nil || *d < 0 {
			return nil, 0, fmt.Errorf("header %s %q is not understood; want a time like \"10s\"", name, text)
		}
	}
	if interval < MinInterval || limit/interval > maxIntervals {
		return nil, 0, fmt.Errorf("header %s must be at least %s, and the limit at most %d intervals", intervalHeader, MinInterval, maxIntervals)
	}
	start := time.Now()
	return &meter{interval: interval, now: func() time.Duration { return time.Since(start) }}, limit, nil
}

// maxIntervals bounds the report of an upload.
const maxIntervals = 1_000_000

// receiveUpload discards the content of an upload and responds with a Report of its arrival, from
// the arrival of the request on. It responds at the limit, whatever is still on its way.
func receiveUpload(w http.ResponseWriter, r *http.Request) {
	m, limit, err := measures(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// Or the response would wait for the end of the request.
	control := http.NewResponseController(w)
	if err := control.EnableFullDuplex(); err != nil {
		http.Error(w, err.Error(), http.StatusHTTPVersionNotSupported)
		return
	}
	ended := make(chan error, 1)
	go func() {
		buffer := make([]byte, readBuffer)
		for {
			err := control.SetReadDeadline(time.Now().Add(maxSilence))
			n := 0
			if err == nil {
				n, err = r.Body.Read(buffer)
			}
			m.count(n, limit)
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	var expired <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit - m.now())
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			return // the client is gone
		}
		respond(w, m.report(m.last))
	case <-expired:
		respond(w, m.report(limit))
		<-ended // the client closes the connection
	}
}

// respond sends a report completely.
func respond(w http.ResponseWriter, r Report) {
	b, err := json.Marshal(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	_, _ = w.Write(b) // an error means that the client is gone
	_ = http.NewResponseController(w).Flush()
}
