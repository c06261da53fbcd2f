package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/asbr"
	"github.com/tabane/tabane/internal/config"
	"github.com/tabane/tabane/internal/doctor"
	"github.com/tabane/tabane/internal/edge"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/reflector"
	"github.com/tabane/tabane/internal/router"
)

// machine is a running daemon.
type machine interface {
	// Run blocks until ctx ends, and then cleans up.
	Run(ctx context.Context) error
	// Status is what /status tells, as JSON.
	Status() any
}

// role is one of the daemons.
type role struct {
	name, short, long string
	// status is where /status and /metrics are served unless the file says otherwise.
	status netip.AddrPort
	// needs are looked at before anything is opened; nothing in the kernel has changed when one of them fails.
	needs []need
	// section finds the role's part of a file: where its status is to be served, and how to start it. nil when there is none.
	section func(*config.File) (netip.AddrPort, starter)
	// reload makes a running machine follow the file; nil when it cannot.
	reload func(machine, *config.File) error
}

// starter makes the machine. It has not changed the kernel yet when it returns.
type starter func(ctx context.Context, log *slog.Logger, keep bool) (machine, error)

func local(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.IPv6Loopback(), port) }

// roles are all daemons. Their default ports are next to each other so that one host may run them all.
var roles = []role{
	{
		name: "asbr", short: "Give each egress peer of a border router a SID of its own", status: local(9116),
		long: `Asbr runs a border router's part: it speaks BGP with its egress peers and the route reflectors, gives every peer an SRv6 SID
and a table with exactly what that peer announced, and tells the servers both.`,
		needs: []need{needPrivilege, needSegmentRouting},
		section: func(f *config.File) (netip.AddrPort, starter) {
			if f.ASBR == nil {
				return netip.AddrPort{}, nil
			}
			return f.ASBR.Status, func(ctx context.Context, log *slog.Logger, keep bool) (machine, error) {
				return asbr.New(ctx, asbr.Options{Config: *f.ASBR, Keep: keep, Log: log})
			}
		},
	},
	{
		name: "edge", short: "Deliver a server's content over every egress path", status: local(9117),
		long: `Edge runs on a content server: it learns from the route reflectors which egress peers lead to whom, gives each peer an
address of its own on this server, and lets MPTCP use them.`,
		needs: []need{needPrivilege, needMultipath, needSegmentRouting},
		section: func(f *config.File) (netip.AddrPort, starter) {
			if f.Edge == nil {
				return netip.AddrPort{}, nil
			}
			return f.Edge.Status, func(ctx context.Context, log *slog.Logger, keep bool) (machine, error) {
				return edge.New(ctx, edge.Options{Config: *f.Edge, Keep: keep, Log: log})
			}
		},
	},
	{
		name: "router", short: "Run a plain BGP router, such as a transit provider in a lab", status: local(9118),
		long: `Router speaks eBGP with its neighbors and forwards by the best paths: what a transit provider or an access network is to
the others. SIGHUP makes it read its file again and follow it: networks, neighbors, and what each of them is told. A file that is
wrong is refused, and the old one stays in force.`,
		needs: []need{needPrivilege},
		section: func(f *config.File) (netip.AddrPort, starter) {
			if f.Router == nil {
				return netip.AddrPort{}, nil
			}
			return f.Router.Status, func(ctx context.Context, log *slog.Logger, keep bool) (machine, error) {
				return router.New(ctx, router.Options{Config: *f.Router, Keep: keep, Log: log})
			}
		},
		reload: func(m machine, f *config.File) error { return m.(*router.Router).Reload(*f.Router) },
	},
	{
		name: "reflector", short: "Reflect routes between border routers and servers", status: local(9119),
		long: `Reflector is a BGP route reflector for IPv6 and VPNv6 routes. It changes no next hop and touches nothing in the kernel.`,
		section: func(f *config.File) (netip.AddrPort, starter) {
			if f.Reflector == nil {
				return netip.AddrPort{}, nil
			}
			return f.Reflector.Status, func(ctx context.Context, log *slog.Logger, _ bool) (machine, error) {
				return reflector.New(ctx, reflector.Options{Config: *f.Reflector, Log: log})
			}
		},
	},
}

// need is something that this host must have. Looking for it changes nothing.
type need func(what string) error

// require returns what is missing for what is to be done.
func require(what string, needs ...need) error {
	for _, n := range needs {
		if err := n(what); err != nil {
			return err
		}
	}
	return nil
}

func needPrivilege(what string) error {
	if err := doctor.Privileged(); err != nil {
		return &failure{what: what, why: err, do: "run it as root, or grant the capability"}
	}
	return nil
}

func needLabPrivilege(what string) error {
	if err := doctor.PrivilegedForLab(); err != nil {
		return &failure{what: what, why: err, do: "run it as root"}
	}
	return nil
}

func needMultipath(what string) error {
	if err := mptcp.Supported(); err != nil {
		return &failure{what: what, on: "MPTCP", why: err}
	}
	return nil
}

// needSegmentRouting fails only when the kernel says no. Where this process may not try, the daemon finds out itself.
func needSegmentRouting(what string) error {
	err := doctor.SegmentRouting()
	if err == nil || errors.Is(err, doctor.ErrNotChecked) {
		return nil
	}
	return &failure{what: what, on: "SRv6", why: err, do: "see tabane doctor"}
}

func (a *app) daemonCommands() []*cobra.Command {
	var list []*cobra.Command
	for _, r := range roles {
		c := a.daemonCommand(r)
		if r.name == "asbr" {
			c.AddCommand(a.drainCommand(r))
		}
		list = append(list, c)
	}
	return list
}

func (a *app) daemonCommand(r role) *cobra.Command {
	var (
		file string
		keep bool
	)
	c := &cobra.Command{
		Use:     r.name + " -c FILE",
		Short:   r.short,
		GroupID: "daemons",
		Long: r.long + `

It reads the section "` + r.name + `:" of the file, runs until SIGINT or SIGTERM and then stops cleanly; a second signal ends it at
once. Its state is served as /status (JSON) and /metrics (Prometheus), on ` + r.status.String() + ` unless the file says otherwise.`,
		Example: "  tabane " + r.name + " -c /etc/tabane/" + r.name + ".yaml",
		Args:    arguments(0, 0, "no arguments beside -c FILE"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.runDaemon(c.Context(), r, file, keep)
		},
	}
	fileFlag(c, &file)
	if r.name != "reflector" {
		c.Flags().BoolVar(&keep, "keep", false, "leave everything in the kernel at a clean stop, for the next start to take over")
	}
	return c
}

// gcPercent is the growth of the heap at which a daemon collects garbage, in percent, unless GOGC says otherwise: with a full
// table of routes arriving, Go's own 100 costs a third of the CPU.
const gcPercent = 200

func (a *app) runDaemon(ctx context.Context, r role, file string, keep bool) error {
	log, err := a.logger(a.err, slog.LevelInfo)
	if err != nil {
		return err
	}
	f, err := load(file)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	at, start := r.section(f)
	hangups := make(chan os.Signal, 1)
	if r.reload != nil {
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
	}
	if start == nil {
		return &failure{what: "start " + r.name, on: file, why: fmt.Errorf("it has no section %q (it holds %s)", r.name+":", summary(f)), do: "add the section"}
	}
	if !at.IsValid() {
		at = r.status
	}
	if err := require("start "+r.name, r.needs...); err != nil {
		return err
	}
	listener, err := listen(ctx, at)
	if err != nil {
		return startFailure(r, "the status address "+at.String(), err)
	}
	m, err := start(ctx, log, keep)
	if err != nil {
		return errors.Join(startFailure(r, file, err), listener.Close())
	}
	if r.reload != nil {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go a.reloads(ctx, r, m, file, log, hangups)
	}
	log.Info("started", "role", r.name, "version", a.version, "status", "http://"+at.String()+"/status")
	if err := monitor(ctx, listener, r.name, a.version, m); err != nil {
		return &failure{what: "run " + r.name, on: file, why: err}
	}
	log.Info("stopped", "role", r.name)
	return nil
}

// reloads follows the file at each SIGHUP until ctx ends.
func (a *app) reloads(ctx context.Context, r role, m machine, file string, log *slog.Logger, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			if err := reload(r, m, file); err != nil {
				log.Error("configuration is not reloaded, the old one stays in force", "file", file, "err", err)
			}
		}
	}
}

func reload(r role, m machine, file string) error {
	f, err := load(file)
	if err != nil {
		return err
	}
	if _, start := r.section(f); start == nil {
		return fmt.Errorf("it has no section %q", r.name+":")
	}
	return r.reload(m, f)
}

// startFailure says why a daemon did not start, with what to do about the usual reasons.
func startFailure(r role, on string, err error) error {
	do := ""
	switch {
	case strings.Contains(err.Error(), "; "): // it says what to do itself
	case errors.Is(err, syscall.EADDRINUSE):
		do = "end the program that uses it, or choose another"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		do = "add the address to an interface first"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		do = "run it as root"
	default:
		do = "see tabane doctor"
	}
	return &failure{what: "start " + r.name, on: on, why: err, do: do}
}
