// Package traffic serves and fetches the content of experiments over HTTP/1.1, as fast as the path
// allows or at a constant bit rate, over TCP or MPTCP, and measures its arrival.
//
// Nothing but the path should affect the measurement: there is no TLS, compression, caching or
// redirection, and each fetch has its own connection.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// maxConnections bounds the descriptors and memory that clients can take. One client of the
	// load generator has a connection for each request at a time.
	maxConnections = 10_000
	// maxSilence is how long nothing of an upload may arrive: longer than any cut of an experiment.
	maxSilence = 5 * time.Minute
)

// Options are the parameters of New.
type Options struct {
	// Listen are the addresses to serve on, at least one. Port 0 selects a free one. [::] means
	// all addresses, including IPv4.
	Listen []netip.AddrPort
	// Congestion is the congestion control of the connections; empty means the namespace's default.
	// Subflows that join a connection have that of the listening socket, so it cannot be set later.
	Congestion string
	// Also serves further paths: those that begin with a key, such as "/measure/".
	Also map[string]http.Handler
	// Log receives one line per request at level debug.
	Log *slog.Logger
}

// Server serves content over HTTP.
type Server struct {
	listeners []net.Listener
	also      map[string]http.Handler
	log       *slog.Logger
	// maxOpen is maxConnections, except in tests.
	maxOpen int64
}

// New opens the listening sockets in the network namespace of the calling thread. Clients may
// connect over MPTCP or TCP, or only over TCP if the kernel has no MPTCP. Run and Close release the
// sockets.
func New(o Options) (*Server, error) {
	if len(o.Listen) == 0 {
		return nil, errors.New("listen: no address")
	}
	s := &Server{also: o.Also, log: o.Log, maxOpen: maxConnections}
	for _, a := range o.Listen {
		l, err := mptcp.Listen(a, o.Congestion)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.listeners = append(s.listeners, l)
	}
	return s, nil
}

// Addrs returns the addresses that the server listens on, in the order of Options.Listen.
func (s *Server) Addrs() []netip.AddrPort {
	addrs := make([]netip.AddrPort, len(s.listeners))
	for i, l := range s.listeners {
		addrs[i] = l.Addr().(*net.TCPAddr).AddrPort()
	}
	return addrs
}

// Close releases the sockets of a server that is not running.
func (s *Server) Close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Run serves until the context ends or a listener fails. It then closes all connections and waits
// for their goroutines. It returns nil if the context ended.
func (s *Server) Run(ctx context.Context) error {
	var conns sync.WaitGroup
	var open atomic.Int64
	srv := &http.Server{
		Handler:           contain.Handler(s.log, handler(s.also, s.log)),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, conn)
		},
		ConnState: func(conn net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				conns.Add(1)
				if open.Add(1) > s.maxOpen {
					s.log.Debug("connection refused: too many", "client", conn.RemoteAddr(), "most", s.maxOpen)
					_ = conn.Close() // the server finds it closed
				}
			case http.StateClosed:
				open.Add(-1)
				conns.Done()
			default:
			}
		},
	}
	group, ended := errgroup.WithContext(ctx)
	for _, l := range s.listeners {
		group.Go(func() error {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve on %q: %w", l.Addr(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ended.Done()
		return srv.Close()
	})
	err := group.Wait()
	conns.Wait()
	return err
}

const help = `Content for experiments, as binary data that does not compress:

GET /bytes/N                             N bytes, as fast as the path allows. N is a number of bytes or a size, like 100MB.
                                         Ranges are served.
GET /cbr?rate=25Mbit/s&duration=30s      a constant bit rate; &chunk=10ms is how often a piece is sent.
PUT to either of them                    is discarded; the answer says how it arrived.
GET /datagrams?rate=6Mbit/s&duration=30s&size=1000&port=N
                                         numbered UDP datagrams of that payload, to that port of the client.
PUT /datagrams?rate=6Mbit/s&duration=30s&size=1000
                                         expects them at the port in the header Tabane-Port; the answer says how they arrived.
The header Tabane-Congestion names the congestion control of the answer's connection.
`

// handler returns the handler of requests.
func handler(also map[string]http.Handler, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	for path, h := range also {
		mux.Handle(path, h)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, help) // the client is gone
	})
	mux.HandleFunc("GET /bytes/{n}", serveBytes)
	mux.HandleFunc("GET /cbr", SendCBR)
	mux.HandleFunc("PUT /bytes/{n}", receiveUpload)
	mux.HandleFunc("PUT /cbr", receiveUpload)
	mux.HandleFunc("GET /datagrams", serveDatagrams)
	mux.HandleFunc("PUT /datagrams", receiveDatagrams)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		if name := r.Header.Get(congestionHeader); name != "" {
			if err := useCongestion(r, name); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		mux.ServeHTTP(w, r)
		log.Debug("request served", "client", r.RemoteAddr, "method", r.Method, "uri", r.RequestURI, "duration", time.Since(start))
	})
}

// congestionHeader is the header of a request with the congestion control of the response.
const congestionHeader = "Tabane-Congestion"

// useCongestion sets the congestion control of the connection of a request, of its subflows and of
// those that will join it.
func useCongestion(r *http.Request, name string) error {
	raw, err := Connection(r).(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	return mptcp.SetCongestion(raw, name)
}

func serveBytes(w http.ResponseWriter, r *http.Request) {
	n, err := unit.ParseSize(r.PathValue("n"))
	if err == nil && n > maxContent {
		err = fmt.Errorf("size must be at most %s, got %s", maxContent, n)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	SendBytes(w, r, n)
}

// SendBytes answers a request with n bytes of content, or with the range that it asks for.
func SendBytes(w http.ResponseWriter, r *http.Request, n unit.Size) {
	describe(w)
	http.ServeContent(direct{w}, r, "", time.Time{}, &filler{size: int64(n)})
}

// describe sets headers that prevent proxies from changing or caching the content.
func describe(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store, no-transform")
}

// direct is a response writer to which content is written without a copy through a buffer.
type direct struct{ http.ResponseWriter }

// ReadFrom implements io.ReaderFrom, which io.Copy uses.
func (d direct) ReadFrom(r io.Reader) (int64, error) {
	if limited, ok := r.(*io.LimitedReader); ok {
		if c, ok := limited.R.(*filler); ok {
			return c.sendTo(d.ResponseWriter, limited.N)
		}
	}
	return io.Copy(d.ResponseWriter, r)
}

// SendCBR answers a request with the constant bit rate of its query. It writes the bytes of each
// chunk when they are due. Chunks that become due while the socket blocks follow at once, as from
// the buffer of a live stream. Go sets TCP_NODELAY, so that no chunk waits for the previous one.
// TCP_NOTSENT_LOWAT is not set: it would only move the queue from the socket to this loop.
func SendCBR(w http.ResponseWriter, r *http.Request) {
	s, _, err := parseSchedule(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	describe(w)
	total := s.total()
	w.Header().Set("Content-Length", strconv.FormatInt(total, 10))
	if r.Method == http.MethodHead {
		return
	}
	// Errors mean that the client has closed the connection.
	_ = pace(r.Context(), s, &filler{size: total}, w, http.NewResponseController(w).Flush)
}

// pace writes the content to w on the schedule, and flushes after each chunk.
func pace(ctx context.Context, s schedule, c *filler, w io.Writer, flush func() error) error {
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		elapsed := time.Since(start)
		if n := s.due(elapsed) - c.at; n > 0 {
			if _, err := c.sendTo(w, n); err != nil {
				return err
			}
			if err := flush(); err != nil {
				return err
			}
		}
		if c.at == c.size {
			return nil
		}
		timer.Reset(s.next(elapsed) - time.Since(start))
	}
}
