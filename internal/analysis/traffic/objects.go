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

// objectSeries is the state of a fetch of several objects, one after the other.
type objectSeries struct {
	FetchOptions
	target *url.URL
	meter  *meter
	start  time.Time
	// reused is the client of a connection that all objects share.
	reused *http.Client
	conn   *meteredConn
	report Report
}

// fetchObjects fetches the URL Objects times, each time when the previous object is complete. The
// time of an object is from the request, or from the start of dialing, to its last byte.
func (o FetchOptions) fetchObjects(ctx context.Context, target *url.URL) (Report, error) {
	s := &objectSeries{FetchOptions: o, target: target, start: time.Now()}
	caller := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if o.Limit > 0 {
		defer time.AfterFunc(o.Limit, func() { stop(errLimit) }).Stop()
	}
	since := func() time.Duration { return time.Since(s.start) }
	s.meter = &meter{interval: o.Interval, progress: o.Progress, now: since}
	written := make(chan struct{})
	close(written)
	var ticking sync.WaitGroup
	if o.Progress != nil {
		ticking.Go(func() { tickUntil(ctx, s.meter, written) })
	}
	var times []time.Duration
	var err error
	end := time.Duration(0)
	for len(times) < o.Objects && err == nil {
		asked := since()
		if end, err = s.next(ctx, caller); err == nil {
			times = append(times, end-asked)
		}
	}
	if errors.Is(context.Cause(ctx), errLimit) || errors.Is(err, errLimit) {
		err, end = nil, o.Limit
	}
	stop(nil)
	ticking.Wait()
	s.close()
	r := s.meter.report(end)
	r.Objects = times
	r.UsedMPTCP, r.Fallback = s.report.UsedMPTCP, o.Transport == MPTCP && !s.report.UsedMPTCP
	return r, err
}

// next fetches one object and returns the time of its last byte.
func (s *objectSeries) next(ctx, caller context.Context) (end time.Duration, err error) {
	if s.conn == nil || s.NewConnections {
		if err := s.open(ctx, caller); err != nil {
			return time.Since(s.start), err
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	if err != nil {
		return 0, err
	}
	response, err := s.reused.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the caller adds the URL
		}
		return time.Since(s.start), err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return time.Since(s.start), refused(response)
	}
	s.report.UsedMPTCP = s.conn.multipath.Load()
	return s.meter.body(response.Body, s.Limit)
}

// open opens the connection of the next objects and closes the previous one.
func (s *objectSeries) open(ctx, caller context.Context) error {
	s.close()
	tcp, _, err := s.connect(ctx, s.target)
	if err != nil {
		return err
	}
	s.conn = &meteredConn{TCPConn: tcp, written: make(chan struct{})}
	s.conn.unfinished = func() bool { return caller.Err() != nil || s.Limit > 0 && time.Since(s.start) >= s.Limit }
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
