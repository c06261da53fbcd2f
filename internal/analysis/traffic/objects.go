package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
)

// ObjectTime returns a quantile of the times of objects. The report must have one.
func (r Report) ObjectTime(p float64) time.Duration { return quantile(p, r.Objects) }

// quantile returns a quantile of times, of which there must be one.
func quantile(p float64, times []time.Duration) time.Duration {
	seconds := make([]float64, len(times))
	for i, t := range times {
		seconds[i] = t.Seconds()
	}
	q, err := stat.Quantile(p, seconds)
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return time.Duration(q * float64(time.Second))
}

// series fetches n objects, each by next when the previous one is complete. The time of an object
// is from the call of next to its last byte, which next returns.
func (o FetchOptions) series(ctx context.Context, n int, next func(context.Context, *meter) (end time.Duration, err error)) (Report, error) {
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
	var err error
	end := time.Duration(0)
	for len(times) < n && err == nil {
		asked := m.now()
		if end, err = next(ctx, m); err == nil {
			times = append(times, end-asked)
		}
	}
	if errors.Is(context.Cause(ctx), errLimit) || errors.Is(err, errLimit) {
		err, end = nil, o.Limit
	}
	stop(nil)
	ticking.Wait()
	r := m.report(end)
	r.Objects = times
	return r, err
}

// get fetches the URL once by do and returns the time of the last byte, or of the error that ended
// it.
func (o FetchOptions) get(ctx context.Context, m *meter, do func(*http.Request) (*http.Response, error)) (end time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL, nil)
	if err != nil {
		return m.now(), err
	}
	response, err := do(request)
	if err != nil {
		return m.now(), err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return m.now(), refused(response)
	}
	return m.body(response.Body, o.Limit)
}

// objectSeries is the connection of a fetch of several objects.
type objectSeries struct {
	FetchOptions
	target *url.URL
	// reused is the client of a connection that all objects share.
	reused *http.Client
	conn   *meteredConn
	// usedMPTCP: the last object was fetched over MPTCP.
	usedMPTCP bool
}

// fetchObjects fetches the URL Objects times, each time when the previous object is complete. The
// time of an object is from the request, or from the start of dialing, to its last byte.
func (o FetchOptions) fetchObjects(ctx context.Context, target *url.URL) (Report, error) {
	s := &objectSeries{FetchOptions: o, target: target}
	r, err := o.series(ctx, o.Objects, func(within context.Context, m *meter) (time.Duration, error) { return s.next(within, ctx, m) })
	s.close()
	r.UsedMPTCP, r.Fallback = s.usedMPTCP, o.Transport == MPTCP && !s.usedMPTCP
	return r, err
}

// next fetches one object and returns the time of its last byte.
func (s *objectSeries) next(ctx, caller context.Context, m *meter) (end time.Duration, err error) {
	if s.conn == nil || s.NewConnections {
		if err := s.open(ctx, caller, m); err != nil {
			return m.now(), err
		}
	}
	return s.get(ctx, m, func(request *http.Request) (*http.Response, error) {
		response, err := s.reused.Do(request)
		var wrapped *url.Error
		switch {
		case errors.As(err, &wrapped):
			err = wrapped.Err // the caller adds the URL
		case err == nil:
			s.usedMPTCP = s.conn.multipath.Load()
		}
		return response, err
	})
}

// open opens the connection of the next objects and closes the previous one.
func (s *objectSeries) open(ctx, caller context.Context, m *meter) error {
	s.close()
	tcp, _, err := s.connect(ctx, s.target)
	if err != nil {
		return err
	}
	s.conn = &meteredConn{TCPConn: tcp, written: make(chan struct{})}
	s.conn.unfinished = func() bool { return caller.Err() != nil || s.Limit > 0 && m.now() >= s.Limit }
	s.reused = &http.Client{
		Transport:     oneConnection(s.conn, s.NewConnections),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return nil
}

func (s *objectSeries) close() {
	if s.conn != nil {
		s.reused.CloseIdleConnections()
		_ = s.conn.Close() // net/http has usually closed it
	}
}
