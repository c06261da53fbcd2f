package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/role"
)

const (
	// headerTimeout and writeTimeout limit how long a slow client can hold a connection.
	headerTimeout = 5 * time.Second
	writeTimeout  = 30 * time.Second
)

// listen opens the status address. It disables MPTCP, which Go uses by default: a daemon that
// manages MPTCP must not use it itself.
func listen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	return lc.Listen(ctx, "tcp", at.String())
}

// relistenEvery is the time between two looks at where this host can be asked for a status.
const relistenEvery = time.Second

// relisten serves a status on ::1 also on 127.0.0.1 once IPv6 has been switched off, and one that
// began on 127.0.0.1 on ::1 once there is that, until ctx ends. at is the address of the
// configuration, l what is served already. A listener outlives its address, and is reached again
// when that is back.
func relisten(ctx context.Context, log *slog.Logger, at netip.AddrPort, l net.Listener, serve func(net.Listener)) {
	served := l.Addr().String()
	if at.Addr() != netip.IPv6Loopback() {
		return
	}
	every := time.NewTicker(relistenEvery)
	defer every.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		wanted := role.Here(at)
		if wanted.String() == served {
			continue
		}
		more, err := listen(ctx, wanted)
		switch {
		case err == nil:
			log.Info("status is served on another address, too", "status", "http://"+wanted.String()+"/status")
			serve(more)
			return
		case !failed && ctx.Err() == nil:
			log.Warn("status is not served where it can be reached", "err", err)
		}
		failed = true
	}
}

// monitor runs a machine and serves its state on the listener until the machine ends. It closes the
// listener. at is the address of the configuration, where the listener is unless this host has no
// IPv6.
func monitor(ctx context.Context, log *slog.Logger, at netip.AddrPort, l net.Listener, name, version string, m role.Machine) error {
	handler, err := handler(log, name, version, m)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		err := server.Serve(l)
		if !wasReplaced(m) {
			cancel() // the daemon must not run without its status
		}
		served <- err
	}()
	if r, ok := m.(replaceable); ok {
		go func() {
			select {
			case <-r.Draining():
				_ = server.Close() // the process that replaces this one serves the status
			case <-ctx.Done():
			}
		}()
	}
	go relisten(ctx, log, at, l, func(more net.Listener) {
		if err := server.Serve(more); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("status is not served any more", "address", more.Addr(), "err", err)
		}
	})
	err = m.Run(ctx)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	err = errors.Join(err, server.Close())
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("serve status: %w", e))
	}
	return err
}

// liveHeap is the memory that the last garbage collection found in use: unlike what the process
// occupies, it grows only if something is kept.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}

// handler serves /status, /metrics and the paths of serveDetails. A machine that is a
// prometheus.Collector exports its own metrics instead of those derived from its status. Requests
// for another host are refused.
func handler(log *slog.Logger, name, version string, m role.Machine) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tabane_build_info", Help: "Which daemon this is, of which version; always 1.",
		ConstLabels: prometheus.Labels{"role": name, "version": version},
	})
	build.Set(1)
	own, ok := m.(prometheus.Collector)
	if !ok {
		own = statusMetrics{m.Status}
	}
	for _, c := range []prometheus.Collector{
		build, contained{own, log}, panics{}, collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		var status any
		if err := contain.Do(contain.Request, log, []byte("GET /status"), func() { status = m.Status() }); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		control.WriteJSON(w, status)
	})
	serveDetails(mux, m)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return control.OwnHost(contain.Handler(log, mux)), nil
}
