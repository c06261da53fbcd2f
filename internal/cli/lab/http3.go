package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/quic-go/quic-go/http3"
	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/lab/browser"
	"github.com/tabane/tabane/internal/lab/certificate"
)

func (a *app) http3Command() *cobra.Command {
	c := &cobra.Command{
		Use:     "http3",
		Short:   "Serve content over HTTP/3, or fetch it and measure how it arrives",
		GroupID: "tools",
		Long: `Http3 does over HTTP/3, with quic-go as its server and its client, what "serve" and "fetch" do over TCP. The server makes a
certificate when it starts, which nobody can verify, and the client verifies none: what is transferred is discarded. With
--chromium the client is headless Chromium, which accepts the certificate with the pin that the server prints.`,
		Args: cli.Arguments(0, 0, "serve or fetch"),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var listen string
	serve := &cobra.Command{
		Use: "serve", Short: "Serve content over HTTP/3", Args: cli.Arguments(0, 0, "no arguments"),
		Example: "  tabane http3 serve --listen '[::]:443'",
		RunE:    func(c *cobra.Command, _ []string) error { return a.serveHTTP3(c.Context(), listen) },
	}
	serve.Flags().StringVar(&listen, "listen", "[::]:443", "`address` and UDP port to serve on")
	var o traffic.FetchOptions
	var pin string
	fetch := &cobra.Command{
		Use: "fetch URL", Short: "Fetch content over HTTP/3 and measure how it arrives", Args: cli.Arguments(1, 1, "one URL"),
		Example: `  tabane http3 fetch --limit 10s https://server/bytes/1GB
  tabane http3 fetch --objects 20 --new-connections https://server/bytes/15MB
  tabane http3 fetch --chromium XWBrZdBZ1pUqZ0+kQqvEb7KfnuOmXXcLpQ4vLg1GS0Q= https://server/bytes/1GB`,
		RunE: func(c *cobra.Command, args []string) error {
			o.URL = args[0]
			return a.fetchHTTP3(c.Context(), o, pin)
		},
	}
	flags := fetch.Flags()
	flags.IntVar(&o.Objects, "objects", 0, "get the URL `n` times, one after the other")
	flags.BoolVar(&o.NewConnections, "new-connections", false, "get each object on a new connection")
	flags.DurationVar(&o.Interval, "interval", 100*time.Millisecond, "length of the intervals that bytes are counted in")
	flags.DurationVar(&o.Limit, "limit", 0, "end the fetch this long after it began (default: fetch everything)")
	flags.StringVar(&pin, "chromium", "", "fetch in headless Chromium, which accepts the certificate with this `pin`")
	c.AddCommand(serve, fetch)
	return c
}

// serveHTTP3 serves until the context ends. It says on a line of its own when it listens.
func (a *app) serveHTTP3(ctx context.Context, listen string) error {
	own, err := certificate.New("localhost")
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(own.Chain, own.Key)
	if err != nil {
		return &cli.Failure{What: "use certificate", Why: err}
	}
	at, err := net.ResolveUDPAddr("udp", listen)
	if err != nil {
		return cli.Invalid("--listen", listen, "an address and a port")
	}
	conn, err := net.ListenUDP("udp", at)
	if err != nil {
		do := "choose another with --listen"
		if errors.Is(err, fs.ErrPermission) {
			do = "run it as root, or choose a port above 1023"
		}
		return &cli.Failure{What: "listen on", Name: listen, Why: err, Do: do}
	}
	defer conn.Close()
	s := &http3.Server{
		Handler:   contain.Handler(slog.New(slog.DiscardHandler), toPages(traffic.Downloads())),
		TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}),
	}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })() // Serve returns then
	if _, err := fmt.Fprintln(a.Out, "listening on", conn.LocalAddr(), "with the certificate", own.Pin); err != nil {
		return err
	}
	if err := s.Serve(conn); ctx.Err() == nil {
		return &cli.Failure{What: "serve on", Name: listen, Why: err}
	}
	return nil
}

// toPages lets scripts of any page read what a handler serves.
func toPages(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		h.ServeHTTP(w, r)
	})
}

// fetchHTTP3 prints a line for each interval, and the report, as JSON. It fetches in Chromium if
// there is the pin of a certificate.
func (a *app) fetchHTTP3(ctx context.Context, o traffic.FetchOptions, pin string) (err error) {
	if err := cli.FetchFlags(o); err != nil {
		return err
	}
	lines := json.NewEncoder(a.Out)
	o.Progress = func(s traffic.Sample) { _ = lines.Encode(traffic.FetchLine{Sample: &s}) }
	o.Over = func() traffic.Requester {
		return &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // what arrives is discarded
	}
	if pin != "" {
		over, closeAll, failed := chromium(ctx, pin)
		if failed != nil {
			return &cli.Failure{What: "fetch", Name: o.URL, Why: failed}
		}
		defer func() { err = errors.Join(err, closeAll()) }()
		o.Over = over
	}
	report, err := traffic.Fetch(ctx, o)
	if err != nil {
		if ctx.Err() != nil {
			err = cli.ErrInterrupted
		}
		if e := errors.Unwrap(err); e != nil {
			err = e // which has neither verb nor URL
		}
		return &cli.Failure{What: "fetch", Name: o.URL, Why: err, Do: cli.ConnectRemedy(err, "start the server, or check the port")}
	}
	return lines.Encode(traffic.FetchLine{Report: &report})
}

// chromium starts a browser, and returns what opens connections in it.
func chromium(ctx context.Context, pin string) (over func() traffic.Requester, closeAll func() error, err error) {
	b, err := browser.Start(ctx, browser.Options{Trust: []string{pin}, HTTP3: true})
	if err != nil {
		return nil, nil, err
	}
	next := b.Requester()
	// The first page of a browser takes longer than all others.
	if err := next.Open(ctx); err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	return func() traffic.Requester {
		r := next
		next = b.Requester()
		return r
	}, b.Close, nil
}
