package traffic

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
)

// LoadOptions are the parameters of Load.
type LoadOptions struct {
	// URL is that of a site, like "http://server"; with the scheme https, HTTP/2 is used if the
	// site supports it.
	URL string
	// Visits are made in this order, which is that of their Start. They may be without end.
	Visits iter.Seq[Visit]
	// Rate is the rate at which the visits together request bodies, for the report.
	Rate unit.Bandwidth
	// Duration is how long to load the site.
	Duration time.Duration
	// Transport is TCP or MPTCP. MPTCP falls back to TCP if this host or the server does not
	// support it.
	Transport Transport
	// HTTP1 uses HTTP/1.1 with https as well.
	HTTP1 bool
	// Roots are the certificates that are trusted; nil means the system's.
	Roots *x509.CertPool
	// Interval is the length of a sample; 0 means 100 ms.
	Interval time.Duration
	// Progress, if set, is called at the end of each interval. See FetchOptions.
	Progress func(Sample)
}

// Visit is what one person does on a site: pages, one after the other.
type Visit struct {
	// Start is when the first page is requested. It is negative for visits that began before the
	// load is measured.
	Start time.Duration
	Pages []Page
}

// Page is what a browser requests for a first view, or for a step after it.
type Page struct {
	// Think is the time since the previous page was complete.
	Think    time.Duration
	Requests []Request
}

// bytes returns the length of all bodies.
func (p Page) bytes() (n int64) {
	for _, r := range p.Requests {
		n += int64(r.Bytes)
	}
	return n
}

// Request is a GET request of a page.
type Request struct {
	// URI is the path with its query.
	URI string
	// Bytes is the length of the body; another length is a failure of the page.
	Bytes int
	// After is the request of the same page whose body has to be complete before, by its index; -1
	// for none.
	After int
}

// LoadReport is the result of a load. Bytes are those of bodies.
type LoadReport struct {
	// Rate is the configured one. OfferedBps is what was requested within Duration, and AchievedBps
	// what arrived, in bit/s.
	Rate        unit.Bandwidth `json:"rate"`
	Duration    time.Duration  `json:"duration_ns"`
	OfferedBps  float64        `json:"offered_bps"`
	AchievedBps float64        `json:"achieved_bps"`
	Bytes       int64          `json:"bytes"`
	// Visits, Pages and Requests count what was begun; a page is a first view or what a step loads.
	Visits   int `json:"visits"`
	Pages    int `json:"pages"`
	Requests int `json:"requests"`
	// Failed counts pages that did not load, after which a visit ends, and Unfinished those that
	// were loading at the end. Skipped counts visits that did not begin because too many had not
	// ended.
	Failed     int `json:"failed"`
	Unfinished int `json:"unfinished"`
	Skipped    int `json:"skipped"`
	// Failures are the reasons of the first failures.
	Failures []string `json:"failures,omitempty"`
	// FirstViews and Steps are the times of complete pages, from their first request to their last
	// byte.
	FirstViews []time.Duration `json:"first_views_ns"`
	Steps      []time.Duration `json:"steps_ns"`
	// Connections counts connections and MPTCP those of them that both ends used MPTCP on.
	Connections int `json:"connections"`
	MPTCP       int `json:"mptcp"`
	// Protocol is that of the last response, "HTTP/1.1" or "HTTP/2.0".
	Protocol string `json:"protocol"`
	// CPU is the processor time of this process during the load.
	CPU time.Duration `json:"cpu_ns"`
	// Series has the bytes of each interval.
	Series []Sample `json:"series"`
}

// FirstView returns a quantile of the times of first views, Step of those of steps. They return 0
// if there are none.
func (r LoadReport) FirstView(p float64) time.Duration { return quantileOf(p, r.FirstViews) }

// Step is described at FirstView.
func (r LoadReport) Step(p float64) time.Duration { return quantileOf(p, r.Steps) }

func quantileOf(p float64, times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return quantile(p, times)
}

const (
	// connectionsPerHost is how many connections browsers open to a host over HTTP/1.1.
	connectionsPerHost = 6
	// maxVisits bounds the visits at a time.
	maxVisits = 512
	// pageLimit bounds the time of a page.
	pageLimit = time.Minute
	// maxFailures bounds the failures that are reported.
	maxFailures = 5
	// MaxLoadTime bounds the duration of a load.
	MaxLoadTime = 24 * time.Hour
)

// Load visits a site as people do, without a browser: each visit has its requests, think times
// and connections of its own. The sockets are in the network namespace of
// the process. A page that fails is no error, unless no page was loaded; nor is one that does not
// end in time, unless nothing arrived at all. Where nothing has arrived and a connection fails for
// a reason that further ones would fail for, such as the certificate of the site, it returns at
// once.
func Load(ctx context.Context, o LoadOptions) (LoadReport, error) {
	r, err := load(ctx, o)
	if err != nil {
		return r, fmt.Errorf("load %q: %w", o.URL, err)
	}
	return r, nil
}

func (o LoadOptions) check() (*url.URL, error) {
	u, err := url.Parse(o.URL)
	switch {
	case err != nil:
		return nil, errors.Unwrap(err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "":
		return nil, errors.New("want a URL like http://server")
	case o.Transport != TCP && o.Transport != MPTCP:
		return nil, fmt.Errorf("transport must be %q or %q, got %q", TCP, MPTCP, o.Transport)
	case o.Rate <= 0:
		return nil, fmt.Errorf("rate must be > 0, got %v", o.Rate)
	case o.Duration <= 0 || o.Duration > MaxLoadTime:
		return nil, fmt.Errorf("duration must be > 0 and at most %s, got %s", MaxLoadTime, o.Duration)
	case o.Interval < MinInterval:
		return nil, fmt.Errorf("interval must be at least %s, got %s", MinInterval, o.Interval)
	}
	u.Path = ""
	return u, nil
}

func load(ctx context.Context, o LoadOptions) (LoadReport, error) {
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	site, err := o.check()
	if err != nil {
		return LoadReport{}, err
	}
	before := processorTime()
	caller := ctx
	ctx, stop := context.WithTimeoutCause(ctx, o.Duration, errLimit)
	defer stop()
	l := &loader{LoadOptions: o, site: site, start: time.Now(), stop: stop, report: LoadReport{Rate: o.Rate, Duration: o.Duration}}
	l.meter = &meter{interval: o.Interval, progress: o.Progress, now: func() time.Duration { return time.Since(l.start) }}
	begun := make(chan struct{})
	close(begun)
	var ticking sync.WaitGroup
	if o.Progress != nil {
		ticking.Go(func() { tickUntil(ctx, l.meter, begun) })
	}
	l.visits(ctx)
	stop()
	ticking.Wait()

	r := l.report
	measured := l.meter.report(min(o.Duration, time.Since(l.start)))
	r.Duration, r.Bytes, r.AchievedBps, r.Series = measured.Duration, measured.Bytes, measured.GoodputBps, measured.Series
	r.OfferedBps = float64(l.offered) * 8 / r.Duration.Seconds()
	r.CPU = processorTime() - before
	switch {
	case caller.Err() != nil:
		return r, caller.Err()
	case r.Failed > 0 && len(r.FirstViews)+len(r.Steps) == 0:
		return r, fmt.Errorf("no page was loaded: %w", l.failure)
	case r.Bytes == 0:
		return r, fmt.Errorf("nothing arrived in %s", o.Duration)
	}
	return r, nil
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return time.Duration(unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime))
}

// loader is the state of a load.
type loader struct {
	LoadOptions

	site  *url.URL
	start time.Time
	meter *meter
	stop  func()

	mu     sync.Mutex
	report LoadReport
	// failure is that of the first page that failed.
	failure error
	active  int
	offered int64
}

// visits makes all visits until ctx ends.
func (l *loader) visits(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for v := range l.Visits {
		if v.Start >= l.Duration {
			break
		}
		// Of a visit that began before, what is left.
		at := v.Start
		pages := v.Pages
		first := 0
		for at < 0 && first < len(pages) {
			if first++; first < len(pages) {
				at += pages[first].Think
			}
		}
		if first == len(pages) {
			continue
		}
		if v.Start >= 0 && !sleepUntil(ctx, l.start.Add(at)) {
			break
		}
		running.Go(func() {
			if sleepUntil(ctx, l.start.Add(at)) {
				l.visit(ctx, pages, first)
			}
		})
	}
	<-ctx.Done()
}

// sleepUntil returns false if ctx ends first.
func sleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// visit makes one visit, from one of its pages on.
func (l *loader) visit(ctx context.Context, pages []Page, first int) {
	l.mu.Lock()
	full := l.active >= maxVisits
	if full {
		l.report.Skipped++
	} else {
		l.report.Visits++
		l.active++
	}
	l.mu.Unlock()
	if full {
		return
	}
	defer func() {
		l.mu.Lock()
		l.active--
		l.mu.Unlock()
	}()
	transport := l.transport(ctx)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for i, one := range pages[first:] {
		if i > 0 && !sleepUntil(ctx, time.Now().Add(one.Think)) {
			return
		}
		if !l.page(ctx, client, one, first+i) {
			return
		}
	}
}

// transport returns the connections of one visit.
func (l *loader) transport(ctx context.Context) *http.Transport {
	t := &http.Transport{
		MaxConnsPerHost: connectionsPerHost, MaxIdleConnsPerHost: connectionsPerHost, DisableCompression: true, ReadBufferSize: 32 << 10,
		TLSClientConfig: &tls.Config{RootCAs: l.Roots}, Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	if l.site.Scheme == "https" && !l.HTTP1 {
		t.Protocols.SetHTTP2(true)
		t.MaxConnsPerHost = 1
	}
	var d net.Dialer
	d.SetMultipathTCP(l.Transport == MPTCP)
	t.DialContext = func(dialing context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		tcp := conn.(*net.TCPConn)
		multipath, _ := tcp.MultipathTCP() // an error means that the kernel has none
		l.mu.Lock()
		l.report.Connections++
		if multipath {
			l.report.MPTCP++
		}
		l.mu.Unlock()
		return &meteredConn{TCPConn: tcp, written: make(chan struct{}), unfinished: func() bool { return ctx.Err() != nil }}, nil
	}
	return t
}

// page loads a page and reports whether it is complete.
func (l *loader) page(ctx context.Context, client *http.Client, one Page, number int) bool {
	l.mu.Lock()
	l.report.Pages++
	l.report.Requests += len(one.Requests)
	l.offered += one.bytes()
	l.mu.Unlock()
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, pageLimit)
	defer cancel()
	group, loading := errgroup.WithContext(limited)
	complete := make([]chan struct{}, len(one.Requests))
	for i := range complete {
		complete[i] = make(chan struct{})
	}
	for i, r := range one.Requests {
		group.Go(func() error {
			if r.After >= 0 {
				select {
				case <-loading.Done():
					return loading.Err()
				case <-complete[r.After]:
				}
			}
			defer close(complete[i])
			return l.get(loading, client, r)
		})
	}
	err := group.Wait()
	took := time.Since(begun)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && number == 0:
		l.report.FirstViews = append(l.report.FirstViews, took)
	case err == nil:
		l.report.Steps = append(l.report.Steps, took)
	case ctx.Err() != nil:
		l.report.Unfinished++
	default:
		l.report.Failed++
		if l.failure == nil {
			l.failure = err
		}
		if isPermanent(err) && l.meter.received() == 0 {
			l.stop()
		}
		if len(l.report.Failures) < maxFailures {
			l.report.Failures = append(l.report.Failures, err.Error())
		}
	}
	return err == nil
}

// isPermanent reports whether further connections would fail for the same reason.
func isPermanent(err error) bool {
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	var name *net.DNSError
	return errors.As(err, &certificate) || errors.As(err, &alert) || errors.Is(err, http.ErrSchemeMismatch) ||
		errors.Is(err, unix.ECONNREFUSED) || errors.As(err, &name) && name.IsNotFound
}

// buffers are for bodies, which are discarded.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// get requests one resource and counts its body.
func (l *loader) get(ctx context.Context, client *http.Client, r Request) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.site.String()+r.URI, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %w", r.URI, refused(response))
	}
	buffer := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buffer)
	total := 0
	for {
		n, err := response.Body.Read(buffer[:])
		l.meter.count(n, l.Duration)
		total += n
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.URI, err)
		}
	}
	l.mu.Lock()
	l.report.Protocol = response.Proto
	l.mu.Unlock()
	if total != r.Bytes {
		return fmt.Errorf("%s has %d bytes, want %d: the site has another seed, or is of another version", r.URI, total, r.Bytes)
	}
	return nil
}
