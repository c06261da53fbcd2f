package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// A Requester sends requests on one connection, which it opens with the first one.
type Requester interface {
	http.RoundTripper
	io.Closer
}

// Downloads returns the handler of a Server's downloads, for a server of another protocol.
func Downloads() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bytes/{n}", serveBytes)
	mux.HandleFunc("GET /cbr", SendCBR)
	return mux
}

// fetchOver fetches the URL by Over.
func (o FetchOptions) fetchOver(ctx context.Context) (Report, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if o.Limit > 0 {
		defer time.AfterFunc(o.Limit, func() { stop(errLimit) }).Stop()
	}
	start := time.Now()
	m := &meter{interval: o.Interval, progress: o.Progress, now: func() time.Duration { return time.Since(start) }}
	written := make(chan struct{})
	close(written)
	var ticking sync.WaitGroup
	if o.Progress != nil {
		ticking.Go(func() { tickUntil(ctx, m, written) })
	}
	var times []time.Duration
	var over Requester
	var err error
	end := time.Duration(0)
	for len(times) < max(o.Objects, 1) && err == nil {
		asked := time.Since(start)
		if over != nil && o.NewConnections {
			err, over = over.Close(), nil
		}
		if over == nil {
			over = o.Over()
		}
		if err == nil {
			end, err = o.getOver(ctx, over, m)
		}
		if err == nil {
			times = append(times, end-asked)
		}
	}
	if errors.Is(context.Cause(ctx), errLimit) || errors.Is(err, errLimit) {
		err, end = nil, o.Limit
	}
	stop(nil)
	ticking.Wait()
	err = errors.Join(err, over.Close())
	r := m.report(end)
	if o.Objects > 0 {
		r.Objects = times
	}
	return r, err
}

// getOver fetches the URL once and returns the time of the last byte, or of the error that ended
// it.
func (o FetchOptions) getOver(ctx context.Context, over Requester, m *meter) (end time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL, nil)
	if err != nil {
		return m.now(), err
	}
	response, err := over.RoundTrip(request)
	if err != nil {
		return m.now(), err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return m.now(), refused(response)
	}
	return m.body(response.Body, o.Limit)
}

// body counts what arrives of a response. It returns the time of the last byte, or of the error
// that ended it.
func (m *meter) body(from io.Reader, limit time.Duration) (end time.Duration, err error) {
	buffer := make([]byte, readBuffer)
	for {
		n, err := from.Read(buffer)
		at := m.count(n, limit)
		if n > 0 {
			end = at
		}
		switch {
		case limit > 0 && at >= limit:
			return at, errLimit
		case errors.Is(err, io.EOF):
			return end, nil
		case err != nil:
			return at, err
		}
	}
}

// checkOver validates the options of a fetch by Over.
func (o FetchOptions) checkOver(u *url.URL) error {
	switch {
	case u.Scheme != "https" || u.Hostname() == "":
		return errors.New("want a URL like https://server/bytes/100MB")
	case o.Upload || o.Datagram != 0 || o.Congestion != "" || o.Address.IsValid() || o.Source.IsValid() || o.Transport == MPTCP:
		return fmt.Errorf("only downloads have no connection of %s or %s", TCP, MPTCP)
	}
	return nil
}
