package cli

import (
	"context"
	"encoding/json"
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
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/cli/doctor"
	"github.com/tabane/tabane/internal/kernel/handover"
	"github.com/tabane/tabane/internal/kernel/privilege"
	"github.com/tabane/tabane/internal/kernel/realtime"
	"github.com/tabane/tabane/internal/kernel/sighup"
	"github.com/tabane/tabane/internal/kernel/systemd"
	"github.com/tabane/tabane/internal/role"
)

// Require returns an error if this host lacks a requirement. The checks change nothing.
func Require(what string, needs ...role.Need) error {
	for _, n := range needs {
		switch err := doctor.Provides(n); {
		case err == nil, errors.Is(err, doctor.ErrNotChecked): // the daemon reports it itself
		case n == role.NetAdmin:
			return &Failure{What: what, Why: err, Do: "run it as root, or grant the capability"}
		case n == role.Namespaces:
			return &Failure{What: what, Why: err, Do: "run it as root"}
		case errors.Is(err, errors.ErrUnsupported): // the error names the feature and the remedy
			return &Failure{What: what, Why: err}
		default:
			return &Failure{What: what, Why: fmt.Errorf("check %s: %w", n, err), Do: "see tabane doctor"}
		}
	}
	return nil
}

func (a *App) daemonCommands() []*cobra.Command {
	var list []*cobra.Command
	for _, r := range role.All() {
		if !r.Startable() || r.Program != role.Product {
			continue
		}
		c := a.DaemonCommand(r)
		if r.Drains {
			c.AddCommand(a.drainCommand(r))
		}
		if r.Name == role.Gateway {
			c.AddCommand(a.gatewayInitCommand(r), a.gatewayJoinCommand(r), a.gatewayInviteCommand(r), a.gatewayLeaveCommand(), a.gatewayKeyCommand())
		}
		list = append(list, c)
	}
	return list
}

func (a *App) DaemonCommand(r role.Descriptor) *cobra.Command {
	var (
		file string
		keep bool
	)
	c := &cobra.Command{
		Use:     r.Name + " -c FILE",
		Short:   r.Short,
		GroupID: daemonGroup,
		Long: r.Long + `

It reads the section "` + r.Name + `:" of the file, runs until SIGINT or SIGTERM and then stops cleanly; a second signal, half a second
later or more, kills it.
Its state is served as /status (JSON) and /metrics (Prometheus), on ` + r.DefaultStatus().String() + ` unless the file says otherwise,
or on the same port of 127.0.0.1 if IPv6 is switched off on this host.`,
		Example: "  tabane " + r.Name + " -c /etc/tabane/" + r.Name + ".yaml",
		Args:    Arguments(0, 0, "no arguments besides -c FILE"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.runDaemon(c.Context(), r, file, keep)
		},
	}
	FileFlag(c, &file)
	if r.Protocol != 0 {
		c.Flags().BoolVar(&keep, "keep", false, "leave the kernel state at a clean stop, for the next start to take over")
	}
	return c
}

// gcPercent is a daemon's GOGC in percent unless the environment sets it, and gcPercentBGP that of
// one with routing tables. Most of these have no pointers, so that a collection costs little, and
// memory that is used for the first time costs more.
const gcPercent, gcPercentBGP = 200, 60

func (a *App) runDaemon(ctx context.Context, r role.Descriptor, file string, keep bool) (err error) {
	log, err := a.Logger(a.Err, slog.LevelInfo)
	if err != nil {
		return err
	}
	if !r.Reloads() {
		sighup.Default()
	}
	// A log that nobody reads any more, as of a pipe, is no reason to end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	f, err := load(ctx, file)
	if err != nil {
		return err
	}
	if r.In(&f.Sections) == nil {
		return missingSection(r.Name, file, f)
	}
	if os.Getenv("GOGC") == "" {
		percent := gcPercent
		if r.Host(&f.Sections).ASN != 0 {
			percent = gcPercentBGP
		}
		debug.SetGCPercent(percent)
	}
	warn(log, f.Warnings)
	configured := r.Status(&f.Sections)
	at := role.Here(configured)
	if err := Require("start "+r.Name, r.Needs...); err != nil {
		return err
	}
	inherited := &handover.Sockets{}
	if r.HandsOver {
		if inherited, err = handover.Inherited(); err != nil {
			return startFailure("start "+r.Name, "", err)
		}
	}
	listener, err := handover.TCP(inherited, at)
	if listener == nil && err == nil {
		listener, err = listen(ctx, at)
	}
	if err != nil {
		what := "serve status of " + r.Name + " at"
		if other := daemonAt(ctx, at); other != "" && errors.Is(err, syscall.EADDRINUSE) {
			return &Failure{What: what, Name: at.String(), Why: errors.New("a running " + other + " has this address"), Do: "stop it, or give this one another with status: in its file"}
		}
		return startFailure(what, at.String(), err)
	}
	manager, err := systemd.New()
	if err != nil {
		return errors.Join(startFailure("start "+r.Name, "", err), listener.Close())
	}
	m, err := r.Start(ctx, &f.Sections, role.Options{Keep: keep, Inherited: inherited, Log: log})
	if err != nil {
		return errors.Join(startFailure("start "+r.Name+" with", file, err), listener.Close())
	}
	if m, ok := m.(keeper); ok {
		var stop context.CancelFunc
		ctx, stop = stopKeeping(ctx, m)
		defer stop()
	}
	d := &service{role: r, machine: m, file: file, log: log, manager: manager, status: listener, ending: ctx.Done()}
	if path := r.Control(&f.Sections); path != "" {
		stop, e := d.serveCommands(ctx, path, inherited)
		if e != nil {
			return errors.Join(startFailure("start "+r.Name+" with", file, e), listener.Close())
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	realtime.Permit()
	if err := privilege.Keep(r.Kept(&f.Sections)...); err != nil {
		log.Warn("capabilities are kept", "err", err)
	}
	if r.Reloads() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go d.follow(ctx, sighup.Received())
	}
	if m, ok := m.(replaceable); ok {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go d.followReplace(ctx, m)
	}
	if err := inherited.Ready(); err != nil {
		log.Warn("the process that this one replaces may go on", "err", err)
	}
	d.notify(manager.Ready("running"))
	defer context.AfterFunc(ctx, func() { d.notify(manager.Stopping()) })()
	log.Info("started", "role", r.Name, "version", a.Version, "status", "http://"+at.String()+"/status")
	warn(log, absent(r, &f.Sections))
	if err := monitor(ctx, log, configured, listener, r.Name, a.Version, m); err != nil {
		return startFailure("run "+r.Name+" with", file, err)
	}
	log.Info("stopped", "role", r.Name)
	return nil
}

// keeper is a daemon that can leave its kernel state to the next start.
type keeper interface{ KeepState() }

// stopKeeping returns a context that also ends at SIGUSR1, once the daemon keeps its kernel state.
func stopKeeping(ctx context.Context, m keeper) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		select {
		case <-signals:
			m.KeepState()
			stop()
		case <-ctx.Done():
		}
	}()
	return ctx, stop
}

// warn logs what has no effect in a file, or does not fit.
func warn(log *slog.Logger, warnings []string) {
	for _, w := range warnings {
		log.Warn("configuration: " + w)
	}
}

// absent returns a warning of each interface that the section of a daemon names and this host does
// not have. It may come later: whether the daemon can run without is its own decision.
func absent(r role.Descriptor, s *role.Sections) (warnings []string) {
	for _, u := range r.Host(s).Uses {
		if u.Interface == "" {
			continue
		}
		_, err := netlink.LinkByName(u.Interface)
		if none := (netlink.LinkNotFoundError{}); errors.As(err, &none) {
			warnings = append(warnings, fmt.Sprintf("%s.%s: this host has no interface %q", r.Name, u.Path, u.Interface))
		}
	}
	return warnings
}

// daemonAt returns which daemon answers at an address, "" if none does.
func daemonAt(ctx context.Context, at netip.AddrPort) string {
	body, err := ask(ctx, at, "/status")
	if err != nil {
		return ""
	}
	var s struct{ Role string }
	if err := json.Unmarshal(body, &s); err != nil {
		return ""
	}
	return s.Role
}

// missingSection returns the failure of a daemon without a section in its file.
func missingSection(daemon, file string, f *config.File) error {
	return &Failure{What: "start " + daemon + " with", Name: file, Why: fmt.Errorf("it has no section %q (it holds %s)", daemon+":", f.Summary()), Do: "add the section"}
}

// startFailure returns the failure of a daemon to start, with a remedy for the usual causes.
func startFailure(what, name string, err error) error {
	do := ""
	var problem *health.Problem
	switch {
	case errors.As(err, &problem), strings.Contains(err.Error(), "; "): // the error includes a remedy
	case errors.Is(err, syscall.EADDRINUSE):
		do = "stop the program that uses it, or choose another"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		do = "add the address to an interface first"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		do = "run it as root"
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOSPC):
		do = "free space there, or give control a path that can be written"
	default:
		do = "see tabane doctor"
	}
	return &Failure{What: what, Name: name, Why: err, Do: do}
}
