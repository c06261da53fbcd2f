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

	"github.com/tabane/tabane/internal/mptcp"
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
	// URL is what to fetch, with the scheme http, or https with Over.
	URL string
	// Over, if set, opens what sends requests in place of connections of Transport, as for HTTP/3.
	// The Duration of the report is since it was opened first.
	Over func() Requester
	// Transport is TCP or MPTCP. MPTCP falls back to TCP if this host or the server does not
	// support it; see Report.Fallback.
	Transport Transport
	// Upload sends the content that the URL describes to the server, which measures its arrival
	// from that of the request on; the limit is the server's.
	Upload bool
	// Datagram, if not 0, transfers a constant bit rate as numbered UDP datagrams with that payload
	// in bytes. Those from the server come to a port that its response cannot open in a NAT.
	Datagram int
	// After is how long after the request the server sends the first datagram. The report and its
	// samples are of the time from then on. Accepted, if set, is called when the server has
	// accepted the request.
	After    time.Duration
	Accepted func()
	// Objects, if not 0, fetches the URL that many times, one after the other, on one connection
	// or, with NewConnections, each on its own.
	Objects        int
	NewConnections bool
	// Interval is the length of a sample; 0 means 100 ms.
	Interval time.Duration
	// Limit ends the fetch this long after the request, and bounds the time to connect before it; 0
	// means no limit.
	Limit time.Duration
	// Congestion, if set, is the congestion control that the server uses for a download.
	Congestion string
	// Address, if valid, is the address to connect to instead of the URL's host.
	Address netip.AddrPort
	// Source, if valid, is the local address of the connection; by default routing selects it.
	Source netip.Addr
	// Resolve returns the addresses of the URL's host; nil uses the system's resolver. It is
	// not called if the host is an address or Address is set.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Progress, if set, is called at the end of each interval, even without data. Calls do not
	// overlap. It blocks the counting and must return quickly. The samples of an upload are what
	// the server has acknowledged, or the datagrams that were sent.
	Progress func(Sample)
}

// Report is the result of a fetch, measured by the monotonic clock of the receiver. Bytes are those
// of the content, without headers.
type Report struct {
	Bytes int64 `json:"bytes"`
	// FirstByte is the time from the start of dialing, or with After from then, to the first byte
	// of content; 0 if none arrived.
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
	// Subflows is the number of subflows of an MPTCP connection at its end, without that of
	// objects.
	Subflows int `json:"subflows,omitempty"`
	// Series has the intervals without gaps, starting at 0. The last may be shorter.
	Series []Sample `json:"series"`
	// LongestGap is the longest time without a byte, from 1 s after the request to the end of
	// Duration.
	LongestGap time.Duration `json:"longest_gap_ns"`
	// EmptyIntervals counts the whole intervals without a byte that began 1 s after the request or
	// later.
	EmptyIntervals int `json:"empty_intervals"`
	// Objects are the times of complete objects in their order, each from its request, or from the
	// start of dialing, to its last byte.
	Objects []time.Duration `json:"objects_ns,omitempty"`
	// Datagrams has the counts of numbered datagrams.
	Datagrams *Datagrams `json:"datagrams,omitempty"`
}

// MinInterval is the shortest length of a sample.
const MinInterval = time.Millisecond

const (
	defaultInterval = 100 * time.Millisecond
	readBuffer      = 256 << 10
	maxComplaint    = 512
)

var errLimit = errors.New("time limit reached")

// FetchLine is one line of the output of `tabane fetch --progress json`: a sample for each
// interval, and the report as the last line. Exactly one of the fields is set.
type FetchLine struct {
	// Accepted: the server has accepted a request for datagrams that it sends later.
	Accepted bool    `json:"accepted,omitempty"`
	Sample   *Sample `json:"sample,omitempty"`
	Report   *Report `json:"report,omitempty"`
}

// Fetch requests the URL on a new connection and measures the content that arrives. The socket is
// in the network namespace of the calling thread. Reaching the limit is no error, even if nothing
// arrived, but no connection within it is one. On errors the report has what was measured so far.
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
	switch {
	case o.Over != nil:
		return o.fetchOver(ctx)
	case o.Objects > 0:
		return o.fetchObjects(ctx, target)
	}
	tcp, dialed, err := o.connect(ctx, target)
	if err != nil {
		return Report{}, err
	}
	caller := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	conn := &meteredConn{TCPConn: tcp, written: make(chan struct{})}
	conn.unfinished = func() bool { return caller.Err() != nil || o.Limit > 0 && conn.started() && conn.elapsed() >= o.Limit }
	defer conn.Close()
	if o.Limit > 0 && !o.Upload {
		conn.onWrite = func() (cancel func() bool) {
			return time.AfterFunc(o.Limit, func() { stop(errLimit) }).Stop
		}
	}

	m := &meter{interval: o.Interval, progress: o.Progress, now: func() time.Duration { return max(0, conn.elapsed()-o.After) }}
	var ticking sync.WaitGroup
	if o.Progress != nil {
		ticking.Go(func() { tickUntil(ctx, m, conn.written) })
	}
	r, err := o.transfer(ctx, conn, target, m)
	stop(nil)
	ticking.Wait()
	if !conn.started() {
		return Report{}, err
	}
	if conn.cancel != nil {
		conn.cancel()
	}
	r.UsedMPTCP = conn.multipath.Load()
	r.Fallback = o.Transport == MPTCP && !r.UsedMPTCP
	_ = conn.Close() // net/http may have closed it
	r.Subflows = int(conn.subflows.Load())
	if r.Bytes > 0 && o.After == 0 {
		r.FirstByte += conn.start.Sub(dialed)
	}
	return r, err
}

// transfer transfers the content and returns the report of its receiver.
func (o FetchOptions) transfer(ctx context.Context, conn *meteredConn, target *url.URL, m *meter) (Report, error) {
	switch {
	case o.Datagram > 0 && o.Upload:
		return o.uploadDatagrams(ctx, conn, target, m)
	case o.Datagram > 0:
		return o.receiveDatagrams(ctx, conn, target, m)
	case o.Upload:
		return o.upload(ctx, conn, target, m)
	}
	end, err := o.receive(ctx, conn, m)
	if err != nil && errors.Is(context.Cause(ctx), errLimit) || errors.Is(err, errLimit) {
		err, end = nil, o.Limit
	}
	return m.report(end), err
}

// check validates the options and returns the parsed URL.
func (o FetchOptions) check() (*url.URL, error) {
	u, err := url.Parse(o.URL)
	switch {
	case err != nil:
		return nil, errors.Unwrap(err)
	case o.Over == nil && (u.Scheme != "http" || u.Hostname() == ""):
		return nil, errors.New("want a URL like http://server/bytes/100MB")
	case o.Over == nil && o.Transport != TCP && o.Transport != MPTCP:
		return nil, fmt.Errorf("transport must be %q or %q, got %q", TCP, MPTCP, o.Transport)
	case o.Interval < MinInterval:
		return nil, fmt.Errorf("interval must be at least %s, got %s", MinInterval, o.Interval)
	case o.Limit < 0:
		return nil, fmt.Errorf("limit must be >= 0, got %s", o.Limit)
	case o.Datagram != 0 && (o.Datagram < MinDatagram || o.Datagram > MaxDatagram):
		return nil, fmt.Errorf("datagrams must have %d to %d bytes, got %d", MinDatagram, MaxDatagram, o.Datagram)
	case o.After != 0 && (o.After < 0 || o.Datagram == 0 || o.Upload):
		return nil, fmt.Errorf("only datagrams from the server begin later, after a duration > 0, got %s", o.After)
	case o.Objects < 0:
		return nil, fmt.Errorf("objects must be >= 0, got %d", o.Objects)
	case o.Objects > 0 && (o.Upload || o.Datagram != 0):
		return nil, errors.New("objects are downloaded over TCP or MPTCP")
	case o.NewConnections && o.Objects == 0:
		return nil, errors.New("new connections need a number of objects")
	case o.Congestion != "" && (o.Upload || o.Datagram != 0 || o.Objects > 0):
		return nil, errors.New("the congestion control is for one download over TCP or MPTCP")
	case o.Datagram != 0 && o.Limit > 0:
		return nil, errors.New("datagrams have the duration of their URL and no limit")
	case o.Over != nil:
		return u, o.checkOver(u)
	}
	return u, nil
}

// connect resolves the host and connects to it. dialed is when it began to connect.
func (o FetchOptions) connect(ctx context.Context, u *url.URL) (conn *net.TCPConn, dialed time.Time, err error) {
	if o.Limit > 0 {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		defer time.AfterFunc(o.Limit, func() { cancel(errLimit) }).Stop()
	}
	addrs, err := o.resolve(ctx, u)
	if err == nil {
		dialed = time.Now()
		conn, err = o.dial(ctx, addrs)
	}
	if err != nil && errors.Is(context.Cause(ctx), errLimit) {
		err = fmt.Errorf("connect: no connection within %s", o.Limit)
	}
	return conn, dialed, err
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

// request sends a request on the connection and returns the response. Once the request is written,
// it returns the time of an error.
func (o FetchOptions) request(ctx context.Context, conn *meteredConn, method, target string) (response *http.Response, end time.Duration, err error) {
	client := http.Client{
		Transport:     oneConnection(conn, true),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, 0, err
	}
	if o.Upload {
		request.Header.Set(intervalHeader, o.Interval.String())
	}
	if o.Congestion != "" {
		request.Header.Set(congestionHeader, o.Congestion)
	}
	response, err = client.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the caller adds the URL
		}
		if conn.started() {
			end = conn.elapsed()
		}
		return nil, end, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, conn.elapsed(), refused(response)
	}
	return response, 0, nil
}

// oneConnection returns an HTTP transport that sends its requests on an open connection, or with
// last, one request.
func oneConnection(conn net.Conn, last bool) *http.Transport {
	return &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives:  last,
		DisableCompression: true,
	}
}

// refused returns the error of a response without the content.
func refused(response *http.Response) error {
	return fmt.Errorf("server responds %q%s", response.Status, complaint(response.Body))
}

// receive sends the request and counts the content. It returns the time of the last byte, or of the
// error that ended it, since the request.
func (o FetchOptions) receive(ctx context.Context, conn *meteredConn, m *meter) (end time.Duration, err error) {
	response, end, err := o.request(ctx, conn, http.MethodGet, o.URL)
	if err != nil {
		return end, err
	}
	defer response.Body.Close()
	return m.body(response.Body, o.Limit)
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
	// subflows is the number at the first Close.
	close    sync.Once
	subflows atomic.Int32
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
	c.close.Do(func() {
		// An error means that the connection is closed already.
		if raw, err := c.SyscallConn(); err == nil && c.multipath.Load() {
			if n, err := mptcp.SubflowCount(raw); err == nil {
				c.subflows.Store(int32(n))
			}
		}
	})
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
