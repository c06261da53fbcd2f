package traffic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Transport is the protocol under HTTP.
type Transport string

// The transports.
const (
	TCP   Transport = "tcp"
	MPTCP Transport = "mptcp"
)

// FetchOptions are the parameters of Fetch.
type FetchOptions struct {
	// URL is what to fetch, with the scheme http.
	URL string
	// Transport is TCP or MPTCP. MPTCP falls back to TCP if this host or the server does not
	// support it; see Report.Fallback.
	Transport Transport
	// Interval is the length of a sample; 0 means 100 ms.
	Interval time.Duration
	// Limit ends the fetch this long after the request; 0 means no limit.
	Limit time.Duration
	// Address, if valid, is the address to connect to instead of the URL's host.
	Address netip.AddrPort
	// Source, if valid, is the local address of the connection; by default routing selects it.
	Source netip.Addr
	// Resolve returns the addresses of the URL's host; nil uses the system's resolver. It is
	// not called if the host is an address or Address is set.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Progress, if set, is called at the end of each interval, even without data. Calls do not
	// overlap. It blocks the counting and must return quickly.
	Progress func(Sample)
}

// Report is the result of a fetch, measured by the monotonic clock of the receiver. Bytes are those
// of the content, without headers.
type Report struct {
	Bytes int64 `json:"bytes"`
	// FirstByte is the time from the start of dialing to the first byte of content; 0 if none
	// arrived.
	FirstByte time.Duration `json:"first_byte_ns"`
	// Duration is the time from writing the request to the last byte of content, or to the end
	// of an incomplete fetch.
	Duration time.Duration `json:"duration_ns"`
	// GoodputBps is Bytes over Duration in bit/s.
	GoodputBps float64 `json:"goodput_bps"`
	// UsedMPTCP is whether both ends used MPTCP when the response began.
	UsedMPTCP bool `json:"used_mptcp"`
	// Fallback is whether MPTCP was requested and TCP was used.
	Fallback bool `json:"fallback"`
	// Series has the intervals without gaps, starting at 0. The last may be shorter.
	Series []Sample `json:"series"`
	// LongestGap is the longest time without a byte, from 1 s after the request to the end of
	// Duration.
	LongestGap time.Duration `json:"longest_gap_ns"`
	// EmptyIntervals counts the whole intervals without a byte that began 1 s after the request or
	// later.
	EmptyIntervals int `json:"empty_intervals"`
}

const (
	defaultInterval = 100 * time.Millisecond
	minInterval     = time.Millisecond
	readBuffer      = 256 << 10
	maxComplaint    = 512
)

var errLimit = errors.New("time limit reached")

// Fetch requests the URL on a new connection and measures the content that arrives. The socket is
// in the network namespace of the calling thread. Reaching the limit is no error, even if nothing
// arrived. On other errors the report has what was measured so far.
func Fetch(ctx context.Context, o FetchOptions) (Report, error) {
	r, err := fetch(ctx, o)
	if err != nil {
		return r, fmt.Errorf("fetch %q: %w", o.URL, err)
	}
	return r, nil
}

func fetch(ctx context.Context, o FetchOptions) (Report, error) {
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	target, err := o.check()
	if err != nil {
		return Report{}, err
	}
	addrs, err := o.resolve(ctx, target)
	if err != nil {
		return Report{}, err
	}
	dialed := time.Now()
	tcp, err := o.dial(ctx, addrs)
	if err != nil {
		return Report{}, err
	}
	caller := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	conn := &meteredConn{TCPConn: tcp, written: make(chan struct{})}
	conn.unfinished = func() bool { return caller.Err() != nil || o.Limit > 0 && conn.started() && conn.elapsed() >= o.Limit }
	defer conn.Close()
	if o.Limit > 0 {
		conn.onWrite = func() (cancel func() bool) {
			return time.AfterFunc(o.Limit, func() { stop(errLimit) }).Stop
		}
	}

	m := &meter{interval: o.Interval, progress: o.Progress, now: conn.elapsed}
	var ticking sync.WaitGroup
	if o.Progress != nil {
		ticking.Go(func() { tickUntil(ctx, m, conn.written) })
	}
	first, end, err := o.receive(ctx, conn, m)
	if err != nil && errors.Is(context.Cause(ctx), errLimit) || errors.Is(err, errLimit) {
		err, end = nil, o.Limit
	}
	stop(nil)
	ticking.Wait()
	if !conn.started() {
		return Report{}, err
	}
	if conn.cancel != nil {
		conn.cancel()
	}
	multipath := conn.multipath.Load()
	m.finish(end)
	r := Report{
		Bytes:          m.total,
		Duration:       end,
		UsedMPTCP:      multipath,
		Fallback:       o.Transport == MPTCP && !multipath,
		Series:         m.series,
		LongestGap:     m.longest,
		EmptyIntervals: m.empty,
	}
	if m.total > 0 {
		r.FirstByte = conn.start.Sub(dialed) + first
	}
	if end > 0 {
		r.GoodputBps = float64(r.Bytes) * 8 / end.Seconds()
	}
	return r, err
}

// check validates the options and returns the parsed URL.
func (o FetchOptions) check() (*url.URL, error) {
	u, err := url.Parse(o.URL)
	switch {
	case err != nil:
		return nil, errors.Unwrap(err)
	case u.Scheme != "http" || u.Hostname() == "":
		return nil, errors.New("want a URL like http://server/bytes/100MB")
	case o.Transport != TCP && o.Transport != MPTCP:
		return nil, fmt.Errorf("transport must be %q or %q, got %q", TCP, MPTCP, o.Transport)
	case o.Interval < minInterval:
		return nil, fmt.Errorf("interval must be at least %s, got %s", minInterval, o.Interval)
	case o.Limit < 0:
		return nil, fmt.Errorf("limit must be >= 0, got %s", o.Limit)
	}
	return u, nil
}

// resolve returns the addresses to connect to, in order of preference.
func (o FetchOptions) resolve(ctx context.Context, u *url.URL) ([]netip.AddrPort, error) {
	if o.Address.IsValid() {
		return []netip.AddrPort{o.Address}, nil
	}
	port := uint64(80)
	if p := u.Port(); p != "" {
		var err error
		if port, err = strconv.ParseUint(p, 10, 16); err != nil || port == 0 {
			return nil, fmt.Errorf("port must be from 1 to 65535, got %q", p)
		}
	}
	addrs := make([]netip.Addr, 1)
	var err error
	if addrs[0], err = netip.ParseAddr(u.Hostname()); err != nil {
		lookup := o.Resolve
		if lookup == nil {
			lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
				return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
			}
		}
		if addrs, err = lookup(ctx, u.Hostname()); err != nil {
			return nil, err
		}
		if len(addrs) == 0 {
			return nil, fmt.Errorf("host %q has no address", u.Hostname())
		}
	}
	targets := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		targets[i] = netip.AddrPortFrom(a.Unmap(), uint16(port))
	}
	return targets, nil
}

// dial connects to the first address that accepts. It runs on the caller's goroutine: an HTTP
// transport dials on another one, which may be in another network namespace.
func (o FetchOptions) dial(ctx context.Context, addrs []netip.AddrPort) (*net.TCPConn, error) {
	var d net.Dialer
	d.SetMultipathTCP(o.Transport == MPTCP)
	if o.Source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(o.Source, 0))
	}
	var errs []error
	for _, a := range addrs {
		conn, err := d.DialContext(ctx, "tcp", a.String())
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// receive sends the request and counts the content. It returns the times of the first and the last
// byte, or of the error that ended it, since the request.
func (o FetchOptions) receive(ctx context.Context, conn *meteredConn, m *meter) (first, end time.Duration, err error) {
	client := http.Client{
		Transport: &http.Transport{
			DialContext:        func(context.Context, string, string) (net.Conn, error) { return conn, nil },
			DisableKeepAlives:  true,
			DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL, nil)
	if err != nil {
		return 0, 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the caller adds the URL
		}
		if conn.started() {
			end = conn.elapsed()
		}
		return 0, end, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, conn.elapsed(), fmt.Errorf("server responds %q%s", response.Status, complaint(response.Body))
	}
	buffer := make([]byte, readBuffer)
	for {
		n, err := response.Body.Read(buffer)
		at := m.count(n, o.Limit)
		if n > 0 {
			end = at
			if first == 0 {
				first = at
			}
		}
		switch {
		case o.Limit > 0 && at >= o.Limit:
			return first, at, errLimit
		case errors.Is(err, io.EOF):
			return first, end, nil
		case err != nil:
			return first, at, err
		}
	}
}

// complaint returns the first line of an error response, to be printed after its status.
func complaint(body io.Reader) string {
	line, _ := bufio.NewReader(io.LimitReader(body, maxComplaint)).ReadString('\n')
	if line = strings.TrimSpace(line); line == "" {
		return ""
	}
	return fmt.Sprintf(": %q", line)
}

// tickUntil closes the meter's intervals until the context ends, starting with the request.
func tickUntil(ctx context.Context, m *meter, written <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-written:
	}
	timer := time.NewTimer(m.tick())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(m.tick())
		}
	}
}

// meteredConn records when the request was written and which transport is used when the response
// begins.
type meteredConn struct {
	*net.TCPConn
	// onWrite, if set, is called when the request is written; Fetch calls the returned function
	// at the end.
	onWrite func() (cancel func() bool)
	// unfinished reports whether the connection is closed before the end of the content.
	unfinished func() bool

	write   sync.Once
	start   time.Time
	cancel  func() bool
	written chan struct{} // closed once start and cancel are set

	read      sync.Once
	multipath atomic.Bool
}

func (c *meteredConn) Write(b []byte) (int, error) {
	c.write.Do(func() {
		c.start = time.Now()
		if c.onWrite != nil {
			c.cancel = c.onWrite()
		}
		close(c.written)
	})
	return c.TCPConn.Write(b)
}

// ReadFrom overrides that of the TCP connection, which would bypass Write.
func (c *meteredConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 {
		c.read.Do(func() {
			// An error means that the kernel has no MPTCP.
			multipath, _ := c.MultipathTCP()
			c.multipath.Store(multipath)
		})
	}
	return n, err
}

// Close resets an unfinished connection on all its subflows. An MPTCP socket that is only closed
// remains for net.mptcp.close_timeout, 60 s, and receives until its buffer is full: megabytes of
// unread content that would disturb the next measurement.
func (c *meteredConn) Close() error {
	if c.unfinished() {
		// An error means that the connection is closed already.
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(disconnect)
		}
	}
	return c.TCPConn.Close()
}

// disconnect resets a connection: connect(2) with AF_UNSPEC, which package unix has no type for.
func disconnect(fd uintptr) {
	unspec := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
}

func (c *meteredConn) started() bool {
	select {
	case <-c.written:
		return true
	default:
		return false
	}
}

// elapsed returns the time since the request was written. It must have been written.
func (c *meteredConn) elapsed() time.Duration { return time.Since(c.start) }
