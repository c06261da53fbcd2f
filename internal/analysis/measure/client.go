package measure

import (
	"bytes"
	"context"
	"encoding/json"
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
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/base/unit"
)

// Errors of servers that a user can do something about.
var (
	// ErrKey means that the key is missing or wrong.
	ErrKey = errors.New("the server refuses the key")
	// ErrPortal means that something else answers, such as the portal of a wireless network.
	ErrPortal = errors.New("a captive portal or proxy answers instead of the server")
	// ErrBlocked means that the port does not answer.
	ErrBlocked = errors.New("no answer: a firewall may block the port")
	// ErrFallback means that a connection that was to use MPTCP used TCP.
	ErrFallback = errors.New("the connection fell back to TCP: the server has no MPTCP, or a middlebox removes its options")
	// ErrSession means that the server has no such session any more.
	ErrSession = errors.New("the server has forgotten the session")
)

const (
	// connectTimeout bounds the time to connect, and requestTimeout that of a short request, which
	// waits for a turn up to waitTurn.
	connectTimeout = 10 * time.Second
	requestTimeout = waitTurn + 15*time.Second
	// pings before the load, and the time between those under load.
	idlePings = 5
	pingEvery = 100 * time.Millisecond
	// pingTimeout bounds one ping.
	pingTimeout = 5 * time.Second
	// LeastPhase is the shortest time in each mode of a switched connection.
	LeastPhase = 2 * time.Second
	// Interval is the length of a sample of the series.
	Interval = 100 * time.Millisecond
)

// Client measures with one server. It is not safe for concurrent use.
type Client struct {
	base  *url.URL
	key   []byte
	http  *http.Client
	offer Offer
	// local and remote are the addresses of the last short connection.
	mu            sync.Mutex
	local, remote netip.Addr
}

// NewClient returns a client of the server at a URL like "http://server:8080/". The key may be nil.
func NewClient(server string, key []byte) (*Client, error) {
	u, err := url.Parse(server)
	switch {
	case err != nil:
		return nil, errors.Unwrap(err)
	case u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil || u.Fragment != "":
		return nil, errors.New("want a URL like http://server:8080/")
	}
	u.Path = ""
	c := &Client{base: u, key: key}
	dial := net.Dialer{Timeout: connectTimeout}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial.DialContext(ctx, network, address)
				if err == nil {
					c.mu.Lock()
					c.local, c.remote = addrPort(conn.LocalAddr()).Addr(), addrPort(conn.RemoteAddr()).Addr()
					c.mu.Unlock()
				}
				return conn, err
			},
			DisableCompression: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       requestTimeout,
	}
	return c, nil
}

// Addresses returns the addresses of the last short connection, the client's and the server's.
func (c *Client) Addresses() (local, remote netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local, c.remote
}

// Open opens a session and returns what the server offers.
func (c *Client) Open(ctx context.Context) (Offer, error) {
	b, err := c.short(ctx, http.MethodGet, Path, nil)
	if err != nil {
		return Offer{}, err
	}
	hello, err := decodeHello(b)
	if err != nil {
		return Offer{}, notOurs(b, err)
	}
	opening := Opening{Challenge: hello.Challenge}
	switch {
	case hello.Key && len(c.key) == 0:
		return Offer{}, fmt.Errorf("%w: it needs one, and none is given", ErrKey)
	case hello.Key:
		opening.Proof = prove(c.key, hello.Challenge)
	}
	body, err := json.Marshal(opening)
	if err != nil {
		return Offer{}, err
	}
	if b, err = c.short(ctx, http.MethodPost, Path, body); err != nil {
		return Offer{}, err
	}
	if c.offer, err = decodeOffer(b); err != nil {
		return Offer{}, notOurs(b, err)
	}
	return c.offer, nil
}

// notOurs says what an answer is that is not a server's.
func notOurs(b []byte, err error) error {
	if errors.Is(err, ErrProtocol) && bytes.Contains(bytes.ToLower(b[:min(len(b), 1024)]), []byte("<html")) {
		return fmt.Errorf("%w: it sends a web page", ErrPortal)
	}
	return err
}

// Close ends the session. The server ends it by itself where that fails.
func (c *Client) Close(ctx context.Context) {
	if c.offer.Session != "" {
		_, _ = c.short(ctx, http.MethodDelete, c.path(), nil)
	}
	c.http.CloseIdleConnections()
}

func (c *Client) path(parts ...string) string {
	return strings.Join(append([]string{Path, c.offer.Session}, parts...), "/")
}

// short makes a request with a short answer.
func (c *Client) short(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, connectionError(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, connectionError(err)
	}
	return b, statusError(response, b)
}

// statusError returns the error of a status other than those of success.
func statusError(response *http.Response, body []byte) error {
	text, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	text = printable(text)
	switch code := response.StatusCode; {
	case code == http.StatusOK, code == http.StatusNoContent:
		return nil
	case code >= 300 && code < 400, code == http.StatusNetworkAuthenticationRequired, code == http.StatusProxyAuthRequired:
		return fmt.Errorf("%w: it answers %q and refers to %q", ErrPortal, response.Status, printable(response.Header.Get("Location")))
	case code == http.StatusForbidden:
		return fmt.Errorf("%w: %s", ErrKey, text)
	case code == http.StatusGone:
		return ErrSession
	case code == http.StatusNotFound:
		return fmt.Errorf("%w: %s", ErrProtocol, response.Status)
	case text != "":
		return fmt.Errorf("the server refuses: %s", text)
	}
	return fmt.Errorf("the server answers %q", response.Status)
}

// connectionError gives an error its cause in the words of a user.
func connectionError(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the caller names the URL
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, context.Canceled) || errors.Is(err, syscall.EHOSTUNREACH) {
		return fmt.Errorf("%w (%w)", ErrBlocked, err)
	}
	return err
}

// round is the shortest time between two requests for a turn, whatever the server answers.
const round = time.Second

// Turn waits until it is this client's turn, for a trial of that time. waiting, if set, is called
// while others are before it.
func (c *Client) Turn(ctx context.Context, length time.Duration, waiting func(Turn)) error {
	for {
		pause := time.After(round)
		b, err := c.short(ctx, http.MethodPost, c.path("turn")+"?"+timeKey+"="+length.String(), nil)
		if err != nil {
			return err
		}
		var t Turn
		if err := json.Unmarshal(b, &t); err != nil {
			return notOurs(b, ErrProtocol)
		}
		if t.Granted {
			return nil
		}
		if waiting != nil {
			waiting(t)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause:
		}
	}
}

// EndTurn ends the client's turn. The server ends it by itself where that fails.
func (c *Client) EndTurn(ctx context.Context) {
	_, _ = c.short(ctx, http.MethodDelete, c.path("turn"), nil)
}

// Load is what a trial transfers. Exactly one of Bytes, Time and Rate is the kind: bulk by bytes or
// by time, or a steady stream for Time.
type Load struct {
	// Bytes of bulk, or of each object.
	Bytes unit.Size
	// Time is how long the bulk or the stream lasts; bulk by bytes and objects end then at the
	// latest.
	Time time.Duration
	// Objects is the number of objects, one after the other; 0 means bulk or a stream.
	Objects int
	// Rate is that of a steady stream.
	Rate unit.Bandwidth
}

// Trial is what a client measured.
type Trial struct {
	Bytes    int64         `json:"bytes"`
	Duration time.Duration `json:"duration_ns"`
	// GoodputBps is in bit/s, of all connections.
	GoodputBps float64       `json:"goodput_bps"`
	FirstByte  time.Duration `json:"first_byte_ns"`
	LongestGap time.Duration `json:"longest_gap_ns"`
	// Subflows is the largest number of subflows of a connection, 0 for TCP.
	Subflows int `json:"subflows,omitempty"`
	// Objects are the times of objects.
	Objects []time.Duration `json:"objects_ns,omitempty"`
	// Series has the bytes of each Interval.
	Series []int64 `json:"-"`
	// Idle are the round-trip times of requests before the load, and Loaded those beside it.
	Idle   Latency `json:"idle"`
	Loaded Latency `json:"loaded"`
}

// Latency describes round-trip times of small requests on a connection of their own.
type Latency struct {
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P95   time.Duration `json:"p95_ns"`
	// RPM is how many such requests, one after the other, fit into a minute: 60 s over the mean of
	// the times up to the 95th percentile (draft-ietf-ippm-responsiveness trims the same share).
	RPM float64 `json:"rpm"`
}

// latencyOf describes times; of none it is zero.
func latencyOf(times []time.Duration) Latency {
	if len(times) == 0 {
		return Latency{}
	}
	seconds := make([]float64, len(times))
	for i, t := range times {
		seconds[i] = t.Seconds()
	}
	p50, _ := stat.Quantile(0.5, seconds) // they are finite
	p95, _ := stat.Quantile(0.95, seconds)
	sum, n := 0.0, 0
	for _, s := range seconds {
		if s <= p95 {
			sum, n = sum+s, n+1
		}
	}
	l := Latency{Count: len(times), P50: time.Duration(p50 * float64(time.Second)), P95: time.Duration(p95 * float64(time.Second))}
	if sum > 0 {
		l.RPM = 60 / (sum / float64(n))
	}
	return l
}

// target returns the URL of the load and the address to connect to, if it is not the URL's.
func (c *Client) target(m Mode, l Load, share int) (target string, at netip.AddrPort, err error) {
	if m.Peer != "" {
		addr, ok := c.offer.peer(m.Peer)
		if !ok {
			return "", at, c.offer.Check(m)
		}
		port := uint64(80)
		if p := c.base.Port(); p != "" {
			if port, err = strconv.ParseUint(p, 10, 16); err != nil {
				return "", at, err
			}
		}
		at = netip.AddrPortFrom(addr, uint16(port))
	}
	q := url.Values{}
	if m.Delivery != "" {
		q.Set(deliverKey, m.Delivery)
	}
	path := ""
	switch {
	case l.Rate > 0:
		path = c.path("cbr")
		q.Set("rate", (l.Rate / unit.Bandwidth(share)).String())
		q.Set("duration", l.Time.String())
	case l.Objects > 0:
		path = c.path("bytes", strconv.FormatInt(int64(l.Bytes), 10))
	default:
		n := int64(l.Bytes) / int64(share)
		if l.Bytes == 0 {
			n = int64(c.offer.Limits.Bytes) / int64(share)
		}
		path = c.path("bytes", strconv.FormatInt(n, 10))
	}
	target = c.base.String() + path
	if len(q) > 0 {
		target += "?" + q.Encode()
	}
	return target, at, nil
}

// timeLimit is how long a trial may take.
func (c *Client) timeLimit(l Load) time.Duration {
	if l.Time > 0 && l.Rate == 0 {
		return l.Time
	}
	if l.Rate > 0 {
		return min(l.Time+settleTime, c.offer.Limits.Time)
	}
	return c.offer.Limits.Time
}

// settleTime is how much longer than its duration a stream may take to arrive.
const settleTime = 5 * time.Second

// Trial makes a trial in a mode. It is the client's turn, which it does not end. progress, if set,
// is called with the bytes of each interval of the first connection.
func (c *Client) Trial(ctx context.Context, m Mode, l Load, progress func(int64)) (Trial, error) {
	p, err := c.pinger(ctx, m)
	if err != nil {
		return Trial{}, err
	}
	defer p.close()
	var t Trial
	idle, err := p.series(ctx, idlePings, 0)
	if err != nil {
		return Trial{}, err
	}
	t.Idle = latencyOf(idle)
	reports := make([]traffic.Report, m.Connections)
	loading, ended := context.WithCancel(ctx)
	defer ended()
	group, transferring := errgroup.WithContext(ctx)
	for i := range reports {
		target, at, err := c.target(m, l, m.Connections)
		if err != nil {
			return Trial{}, err
		}
		o := traffic.FetchOptions{
			URL: target, Transport: m.Transport, Address: at, Interval: Interval, Objects: l.Objects, Limit: c.timeLimit(l), Progress: func(traffic.Sample) {},
		}
		if i == 0 && progress != nil {
			o.Progress = func(s traffic.Sample) { progress(s.Bytes) }
		}
		group.Go(func() (err error) {
			reports[i], err = traffic.Fetch(transferring, o)
			return transferError(err)
		})
	}
	var loaded []time.Duration
	pinging := make(chan struct{})
	go func() {
		defer close(pinging)
		// Without an answer under load there is no latency, but there is goodput.
		loaded, _ = p.series(loading, 0, pingEvery)
	}()
	err = group.Wait()
	ended()
	<-pinging
	if err != nil {
		return Trial{}, err
	}
	t.Loaded = latencyOf(loaded)
	t.add(reports)
	if t.Bytes == 0 {
		return Trial{}, errors.New("nothing arrived")
	}
	if m.Multipath() && reports[0].Fallback {
		return Trial{}, ErrFallback
	}
	return t, nil
}

// transferError gives an error of a transfer its cause.
func transferError(err error) error {
	if err == nil {
		return nil
	}
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), "fetch ") {
		err = inner // the caller names the server
	}
	return connectionError(err)
}

// add adds up the reports of connections at the same time.
func (t *Trial) add(reports []traffic.Report) {
	for _, r := range reports {
		t.Bytes += r.Bytes
		t.Duration = max(t.Duration, r.Duration)
		t.LongestGap = max(t.LongestGap, r.LongestGap)
		t.FirstByte = max(t.FirstByte, r.FirstByte)
		t.Subflows = max(t.Subflows, r.Subflows)
		t.Objects = append(t.Objects, r.Objects...)
		for i, s := range r.Series {
			if i == len(t.Series) {
				t.Series = append(t.Series, 0)
			}
			t.Series[i] += s.Bytes
		}
	}
	if t.Duration > 0 {
		t.GoodputBps = float64(t.Bytes) * 8 / t.Duration.Seconds()
	}
}

// Check makes a short connection over MPTCP and returns ErrFallback where that is not what is used.
func (c *Client) Check(ctx context.Context, m Mode) error {
	if !m.Multipath() {
		return nil
	}
	r, err := traffic.Fetch(ctx, traffic.FetchOptions{URL: c.base.String() + Path, Transport: traffic.MPTCP, Limit: connectTimeout})
	if err != nil {
		return transferError(err)
	}
	if r.Fallback {
		return ErrFallback
	}
	return nil
}

// pinger makes small requests on one connection.
type pinger struct {
	c    *Client
	http *http.Client
}

// pinger returns one that connects as the mode does.
func (c *Client) pinger(ctx context.Context, m Mode) (*pinger, error) {
	_, at, err := c.target(m, Load{Bytes: 1}, 1)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	d.Timeout = connectTimeout
	d.SetMultipathTCP(m.Multipath())
	p := &pinger{c: c, http: &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if at.IsValid() {
					address = at.String()
				}
				return d.DialContext(ctx, network, address)
			},
			DisableCompression: true, MaxConnsPerHost: 1,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       pingTimeout,
	}}
	if _, err := p.once(ctx); err != nil { // with the time to connect
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pinger) close() { p.http.CloseIdleConnections() }

// once makes one request.
func (p *pinger) once(ctx context.Context) (time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.c.base.String()+p.c.path("ping"), nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	response, err := p.http.Do(r)
	if err != nil {
		return 0, connectionError(err)
	}
	took := time.Since(start)
	defer response.Body.Close()
	b, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return 0, connectionError(err)
	}
	return took, statusError(response, b)
}

// series makes n requests, or requests until ctx ends, that far apart.
func (p *pinger) series(ctx context.Context, n int, every time.Duration) (times []time.Duration, err error) {
	for i := 0; n == 0 || i < n; i++ {
		begun := time.Now()
		took, err := p.once(ctx)
		if err != nil {
			if n == 0 {
				return times, nil // the load ended
			}
			return times, err
		}
		times = append(times, took)
		if rest := every - time.Since(begun); rest > 0 {
			timer := time.NewTimer(rest)
			select {
			case <-ctx.Done():
				timer.Stop()
				return times, nil
			case <-timer.C:
			}
		}
	}
	return times, nil
}
