package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli/dashboard"
	"github.com/tabane/tabane/internal/epe/flows"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/privilege"
	"github.com/tabane/tabane/internal/role"
)

// defaultDashboard is the address of the dashboard, next to those of the daemons' status.
const defaultDashboard = "[::1]:9121"

type dashboardFlags struct {
	listen     string
	names      []string
	interfaces []string
}

func (a *App) dashboardCommand() *cobra.Command {
	var o dashboardFlags
	c := &cobra.Command{
		Use:     "dashboard [DAEMON|ADDRESS|NAME=ADDRESS]...",
		Short:   "Serve a web page with the daemons, the rate over each path, and events",
		GroupID: "tools",
		Long: `Dashboard serves one page for a browser: the daemons with their sessions and egress peers, the rate over each egress path and
subflow, the routes to a destination, events, and what is degraded and why. It shows the daemons of this host, or those that are
named, which may run on other hosts that it reaches. Rates are those of this host's interfaces; they need CAP_NET_ADMIN, without
which all else is shown. The page loads nothing from elsewhere and changes nothing; events are kept as long as it runs.

It has no password: serve it on loopback, and reach it from elsewhere through ssh.`,
		Example: `  tabane dashboard
  ssh -L 9121:[::1]:9121 server       # then open http://localhost:9121/
  tabane dashboard edge 'asbr1=[2001:db8::1]:9116' 'asbr2=[2001:db8::2]:9116'
  tabane lab exec server -- tabane dashboard`,
		ValidArgsFunction: CompleteAll(answeringDaemons),
		RunE: func(c *cobra.Command, args []string) error {
			daemons, err := dashboardDaemons(c.Context(), args)
			if err != nil {
				return err
			}
			return a.dashboard(c.Context(), o, daemons)
		},
	}
	f := c.Flags()
	f.StringVar(&o.listen, "listen", defaultDashboard, "`address` and port of the page")
	f.StringSliceVar(&o.names, "name", nil, "also answer to this host `name`, may be given several times (default: addresses and localhost only)")
	f.StringSliceVarP(&o.interfaces, "interface", "i", nil, "`interface` to count on, may be given several times (default all that are up but loopback)")
	CompleteFlag(c, "interface", interfaceNames)
	return c
}

// dashboardDaemons returns the daemons of the arguments, or all daemons of this host.
func dashboardDaemons(ctx context.Context, args []string) ([]dashboard.Daemon, error) {
	const what = "show daemon"
	if len(args) == 0 {
		all, err := statusSources(ctx, nil)
		var daemons []dashboard.Daemon
		for _, s := range all {
			daemons = append(daemons, dashboard.Daemon{Name: s.name, At: s.at, Optional: true})
		}
		return daemons, err
	}
	var daemons []dashboard.Daemon
	taken := map[string]bool{}
	for _, arg := range args {
		name, at, given := strings.Cut(arg, "=")
		if !given {
			name, at = "", arg
		}
		found, err := statusSources(ctx, []string{at})
		if err != nil {
			return nil, err
		}
		one := dashboard.Daemon{Name: name, At: found[0].at}
		if one.Name == "" {
			one.Name = found[0].name
		}
		if one.Name == "" {
			one.Name = one.At.String()
		}
		if taken[one.Name] {
			return nil, &Failure{What: what, Name: one.Name, Why: errors.New("it is named twice"), Do: "give each its own name, as NAME=ADDRESS"}
		}
		taken[one.Name] = true
		daemons = append(daemons, one)
	}
	return daemons, nil
}

func (a *App) dashboard(ctx context.Context, o dashboardFlags, daemons []dashboard.Daemon) error {
	log, err := a.Logger(a.Err, slog.LevelInfo)
	if err != nil {
		return err
	}
	at, err := netip.ParseAddrPort(o.listen)
	if err != nil {
		return Invalid("--listen", o.listen, fmt.Sprintf("an address and port like %q", defaultDashboard))
	}
	at = role.Here(at)
	var board *dashboard.Dashboard
	options := flows.Options{
		Interfaces: o.interfaces, Interval: time.Second, Log: log,
		Sink: func(s *flows.Snapshot) error { return board.Count(s) },
	}
	counter, uncounted := newCounter(options)
	if uncounted != nil && len(o.interfaces) > 0 {
		return watchFailure(strings.Join(o.interfaces, ", "), uncounted)
	}
	shown := dashboard.Options{Daemons: daemons, Ask: ask}
	if uncounted != nil {
		shown.Uncounted = uncounted.Error()
		log.Warn("rates are not shown", "err", uncounted)
	}
	board = dashboard.New(shown)
	return errors.Join(a.serveDashboard(ctx, log, at, o.names, board, counter), closeCounter(counter))
}

// newCounter returns a flow counter, or why there is none.
func newCounter(o flows.Options) (*flows.Watcher, error) {
	if err := Require("count packets", role.NetAdmin); err != nil {
		return nil, err
	}
	if len(o.Interfaces) == 0 {
		var err error
		if o.Interfaces, err = watchable(); err != nil {
			return nil, err
		}
	}
	return flows.New(o)
}

func closeCounter(w *flows.Watcher) error {
	if w == nil {
		return nil
	}
	return w.Close()
}

// serveDashboard serves the page until the context ends.
func (a *App) serveDashboard(ctx context.Context, log *slog.Logger, at netip.AddrPort, names []string, board *dashboard.Dashboard, counter *flows.Watcher) error {
	l, err := listen(ctx, at)
	if err != nil {
		return &Failure{What: "serve dashboard at", Name: at.String(), Why: err, Do: "choose another address with --listen"}
	}
	// A port below 1024 is open by now. The counter also attaches to interfaces that come later.
	if err := privilege.Keep(privilege.NetAdmin, privilege.BPF, privilege.Perfmon); err != nil {
		log.Warn("capabilities are kept", "err", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: contain.Handler(log, board.Handler(names...)), ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout}
	ended := make(chan error, 3)
	start := func(run func(context.Context) error) {
		go func() {
			err := run(ctx)
			cancel() // without one part the page would show what is old
			ended <- err
		}()
	}
	parts := 2
	start(board.Run)
	start(func(context.Context) error { return server.Serve(l) })
	if counter != nil {
		start(counter.Run)
		parts++
	}
	log.Info("serving the dashboard", "url", "http://"+l.Addr().String()+"/")
	<-ctx.Done()
	err = server.Close()
	for range parts {
		if e := <-ended; !errors.Is(e, context.Canceled) && !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return &Failure{What: "serve dashboard at", Name: at.String(), Why: err}
	}
	return nil
}
