// Package site is the server of the two web services of the package content: HTTP/1.1, and HTTP/2
// over TLS, over MPTCP or TCP, with a congestion control for each listening socket.
//
// It answers GET and HEAD, takes nothing from clients and keeps nothing of them. What it serves is
// page's.
package site

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
)

// Options are the parameters of New.
type Options struct {
	Config httpd.Config
	// Log receives one line per request at level debug, with the client's address.
	Log *slog.Logger
	// Wrap returns the handler of a listener, by its index in Config.Listen, which may pass
	// requests on to that of the services. Default: the services'.
	Wrap func(listener int, services http.Handler) http.Handler
}

// imageBytes bounds the images that are kept.
const imageBytes = 128 << 20

// Bounds of a connection and of those of a listener. A first view of 10 MB takes less than
// sendTimeout from 1 Mbit/s on.
const (
	maxHeader      = 16 << 10
	headerTimeout  = 10 * time.Second
	sendTimeout    = 2 * time.Minute
	idleTimeout    = time.Minute
	maxConnections = 2048
)

// Site serves the pages of one world.
type Site struct {
	world     *content.World
	log       *slog.Logger
	images    *cache
	listeners []*listener
	wrap      func(listener int, services http.Handler) http.Handler
	// maxOpen bounds the connections of each listener.
	maxOpen int64
	errors  atomic.Uint64
}

// listener is one listening socket with its counters.
type listener struct {
	*net.TCPListener

	config      httpd.Listen
	tls         *tls.Config // nil without TLS
	connections atomic.Int64
	requests    atomic.Uint64
	bytes       atomic.Uint64
}

// New reads the certificates and opens the listening sockets in the network namespace of the
// calling thread. Run and Close release the sockets.
func New(o Options) (*Site, error) {
	s := &Site{world: content.New(o.Config.Seed), log: o.Log, images: newCache(imageBytes), wrap: o.Wrap, maxOpen: maxConnections}
	for _, l := range o.Config.Listen {
		one := &listener{config: l}
		if l.Certificate != "" {
			c, err := l.Load()
			if err != nil {
				return nil, errors.Join(err, s.Close())
			}
			one.tls = &tls.Config{Certificates: []tls.Certificate{c}, MinVersion: tls.VersionTLS12}
		}
		listen := mptcp.Listen
		if l.MPTCP != nil && !*l.MPTCP {
			listen = mptcp.ListenTCP
		}
		var err error
		if one.TCPListener, err = listen(l.Address, l.Congestion); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.listeners = append(s.listeners, one)
	}
	return s, nil
}

// Close releases the sockets of a site that is not running.
func (s *Site) Close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.TCPListener.Close())
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends or a listener fails. It then closes all connections and waits for their
// goroutines. It returns nil if ctx ended.
func (s *Site) Run(ctx context.Context) error {
	group, ended := errgroup.WithContext(ctx)
	var connections sync.WaitGroup
	for i, l := range s.listeners {
		handler := s.Handler()
		if s.wrap != nil {
			handler = s.wrap(i, handler)
		}
		server := s.server(ctx, l, handler, &connections)
		group.Go(func() error {
			serve := server.Serve
			if l.tls != nil {
				serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
			}
			if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve on %q: %w", l.Addr(), err)
			}
			return nil
		})
		group.Go(func() error {
			<-ended.Done()
			return server.Close()
		})
	}
	err := group.Wait()
	connections.Wait()
	return err
}

// server returns the HTTP server of a listener.
func (s *Site) server(ctx context.Context, l *listener, handler http.Handler, connections *sync.WaitGroup) *http.Server {
	return &http.Server{
		Handler:           l.count(contain.Handler(s.log, handler)),
		TLSConfig:         l.tls,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      sendTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnState: func(conn net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				connections.Add(1)
				if l.connections.Add(1) > s.maxOpen {
					_ = conn.Close() // one too many
				}
			case http.StateClosed:
				l.connections.Add(-1)
				connections.Done()
			default:
			}
		},
	}
}

// count counts what a handler answers on the listener.
func (l *listener) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.requests.Add(1)
		h.ServeHTTP(&countedWriter{w, &l.bytes}, r)
	})
}

// countedWriter counts the bytes of a body.
type countedWriter struct {
	http.ResponseWriter

	bytes *atomic.Uint64
}

func (w *countedWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.bytes.Add(uint64(n))
	return n, err
}

// policy lets a page have its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// constantAge and otherAge are the Cache-Control of resources that are functions of their path, and
// of the others.
const (
	constantAge = "public, max-age=600"
	otherAge    = "no-cache"
)

// Handler returns the handler of requests.
func (s *Site) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			h.Set("Connection", "close") // what the client sends is not read
			s.refuse(w, r, http.StatusMethodNotAllowed, "this site takes nothing: use GET")
			return
		}
		language := content.Preferred(r.Header.Get("Accept-Language"))
		found, err := s.world.In(language).Resource(r.URL.Path, r.URL.RawQuery)
		switch {
		case errors.Is(err, content.ErrQuery):
			s.refuse(w, r, http.StatusBadRequest, err.Error())
			return
		case err != nil:
			s.refuse(w, r, http.StatusNotFound, err.Error())
			return
		}
		var c rendered
		if found.Type == "image/png" {
			c = s.images.rendered(r.URL.Path, found)
		} else {
			c = newContent(found)
		}
		h.Set("Etag", c.tag)
		h.Set("Cache-Control", otherAge)
		if found.Constant {
			h.Set("Cache-Control", constantAge)
		}
		if found.Localized {
			h.Set("Content-Language", string(language))
			h.Set("Vary", "Accept-Language")
		}
		if r.Header.Get("If-None-Match") == c.tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		h.Set("Content-Type", found.Type)
		h.Set("Content-Length", strconv.Itoa(len(c.body)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(c.body) // the client is gone
		}
		s.log.Debug("request served", "client", r.RemoteAddr, "protocol", r.Proto, "uri", r.RequestURI)
	})
}

func (s *Site) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	s.errors.Add(1)
	s.log.Debug("request refused", "client", r.RemoteAddr, "method", r.Method, "uri", r.RequestURI, "status", status)
	http.Error(w, why, status)
}

// Status is what /status serves.
type Status struct {
	health.Status
	Seed      string     `json:"seed"`
	Listeners []Listener `json:"listeners"`
	Images    Images     `json:"images"`
	// ErrorResponses counts responses of status 4xx: another method, path or query.
	ErrorResponses uint64 `json:"error_responses"`
}

// Listener is the status of a listening socket.
type Listener struct {
	// Name is its address and port.
	Name        string `json:"name"`
	TLS         bool   `json:"tls"`
	Congestion  string `json:"congestion,omitempty"`
	Connections int64  `json:"connections"`
	// Requests and Bytes count answers and the bytes of their bodies.
	Requests uint64 `json:"requests"`
	Bytes    uint64 `json:"bytes"`
}

// Status returns the value that /status serves as JSON.
func (s *Site) Status() any {
	var report health.Report
	contain.Report(&report)
	st := Status{Status: report.Status(), Seed: fmt.Sprint(s.world.Seed()), Images: s.images.status(), ErrorResponses: s.errors.Load()}
	for _, l := range s.listeners {
		st.Listeners = append(st.Listeners, Listener{l.Addr().String(), l.tls != nil, l.config.Congestion, l.connections.Load(), l.requests.Load(), l.bytes.Load()})
	}
	return st
}
