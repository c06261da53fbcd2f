package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/handover"
	"github.com/tabane/tabane/internal/kernel/systemd"
	"github.com/tabane/tabane/internal/role"
)

// service is a running daemon with its configuration file.
type service struct {
	role    role.Descriptor
	machine role.Machine
	file    string
	log     *slog.Logger
	manager systemd.Notifier
	// status and control are the sockets of the status and of commands; control is nil without any.
	status  net.Listener
	control net.Listener
	// ending is closed when the daemon is to stop.
	ending <-chan struct{}

	reloading sync.Mutex
}

// notify logs an error of a notification to the service manager.
func (s *service) notify(err error) {
	if err != nil {
		s.log.Warn("service manager not informed", "err", err)
	}
}

// follow reloads the file at each signal until ctx ends.
func (s *service) follow(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			// Errors are logged.
			_ = contain.Do(contain.Request, s.log, []byte("SIGHUP"), func() { _, _ = s.reload(ctx) })
		}
	}
}

// reload applies the configuration file and returns the changes, and warnings of interfaces that
// this host does not have. An error means that nothing has changed.
func (s *service) reload(ctx context.Context) ([]string, error) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	s.notify(s.manager.Reloading())
	return s.report(s.apply(ctx))
}

var errStopping = errors.New("the daemon stops meanwhile; start it again to apply the file")

// report logs the outcome of a reload, and returns what the command prints.
func (s *service) report(changes, warnings []string, err error) ([]string, error) {
	select {
	case <-s.ending:
		// What was applied, and what was not because the daemon has stopped, goes with it.
		s.log.Info("reload ends with the daemon", "file", s.file)
		return nil, errStopping
	default:
	}
	if err != nil {
		s.notify(s.manager.Ready("reload rejected: " + err.Error()))
		s.log.Error("reload rejected, running configuration unchanged", "file", s.file, "err", err)
		return nil, err
	}
	s.notify(s.manager.Ready("running"))
	s.log.Info("configuration reloaded", "file", s.file, "changes", len(changes))
	for _, line := range changes {
		s.log.Info("configuration changed: " + line)
	}
	warn(s.log, warnings)
	for _, w := range warnings {
		changes = append(changes, "warning: "+w)
	}
	return changes, nil
}

func (s *service) apply(ctx context.Context) (changes, warnings []string, err error) {
	f, err := load(ctx, s.file)
	if err != nil {
		return nil, nil, err
	}
	warn(s.log, f.Warnings)
	if changes, err = s.role.Reload(s.machine, &f.Sections); err != nil {
		return nil, nil, err
	}
	return changes, absent(s.role, &f.Sections), nil
}

// The paths of commands on a control socket.
const (
	// drainPath takes a daemon out of service (POST), or back into it (DELETE).
	drainPath = "/drain"
	// reloadPath reloads the configuration (POST).
	reloadPath = "/reload"
	// clearPath resets a BGP session (POST).
	clearPath = "/clear"
	// panicsPath has the panics so far not reported any more (DELETE).
	panicsPath = "/panics"
)

// commandTimeout bounds a command: with a full table, a policy change takes seconds.
const commandTimeout = 2 * time.Minute

// commands returns the handler of the daemon's commands.
func (s *service) commands() http.Handler {
	mux := http.NewServeMux()
	answer := func(f func(*http.Request) (string, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var text string
			var err error
			if panicked := contain.Do(contain.Request, s.log, []byte(r.Method+" "+r.URL.Path), func() { text, err = f(r) }); panicked != nil {
				err = panicked
			}
			var unknown *unknownPeerError
			switch {
			case errors.As(err, &unknown):
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			case err != nil:
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
			w.WriteHeader(http.StatusAccepted)
			// An error means that the client has closed the connection.
			_, _ = io.WriteString(w, text)
		}
	}
	if s.role.Reloads() {
		mux.HandleFunc("POST "+reloadPath, answer(func(r *http.Request) (string, error) {
			changes, err := s.reload(r.Context())
			return strings.Join(changes, "\n"), err
		}))
	}
	mux.HandleFunc("DELETE "+panicsPath, answer(func(*http.Request) (string, error) {
		contain.Acknowledge()
		return "", nil
	}))
	if m, ok := s.machine.(speaking); ok {
		mux.HandleFunc("POST "+clearPath, answer(func(r *http.Request) (string, error) {
			q := r.URL.Query()
			done, err := m.Speaker().Clear(q.Get("peer"), q.Get("hard") != "")
			if errors.Is(err, bgp.ErrUnknownNeighbor) {
				err = unknownPeer(q.Get("peer"), m.Speaker())
			}
			return done, err
		}))
	}
	if d, ok := s.machine.(drainable); ok {
		mux.HandleFunc("POST "+drainPath, answer(func(r *http.Request) (string, error) {
			wait, err := drainWait(r.URL.Query())
			if err != nil {
				return "", err
			}
			return "", d.Drain(wait)
		}))
		mux.HandleFunc("DELETE "+drainPath, answer(func(*http.Request) (string, error) { return "", d.Undrain() }))
	}
	if m, ok := s.machine.(borrowable); ok {
		borrowCommands(mux, m, answer)
	}
	return mux
}

// serveCommands serves the commands on the control socket at path until stop is called.
func (s *service) serveCommands(ctx context.Context, path string, inherited *handover.Sockets) (stop func() error, err error) {
	var l net.Listener
	// A nil *net.UnixListener is not a nil net.Listener.
	if u, e := handover.Unix(inherited, path); e != nil {
		return nil, e
	} else if u != nil {
		l = u
	} else if l, err = control.Listen(ctx, path); err != nil {
		return nil, err
	}
	s.control = l
	server := &http.Server{Handler: s.commands(), ReadHeaderTimeout: headerTimeout, WriteTimeout: commandTimeout}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return func() error {
		err := server.Close()
		if e := <-served; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, fmt.Errorf("serve commands: %w", e))
		}
		return err
	}, nil
}

// refusedError lists the reasons why the daemon refused a command.
type refusedError []string

func (e refusedError) Error() string { return strings.Join(e, "\n") }

// absentError is the refusal of a daemon that does not have the object of a command, or the
// command.
type absentError struct {
	refusedError
	command bool // the command is unknown
}

func (e *absentError) Unwrap() error { return e.refusedError }

// faultLines are faults that are printed unchanged, one per line.
type faultLines []string

func (f faultLines) Error() string   { return strings.Join(f, "\n") }
func (f faultLines) Lines() []string { return f }

// command sends a command to the daemon with this status address, whose status has the path of the
// control socket, and returns the lines of the response. If the daemon refuses, the error is a
// refusedError, within an absentError if it does not have what is concerned; without a control
// socket it is errNoControl.
func command(ctx context.Context, at netip.AddrPort, method, path string, query url.Values) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	socket, err := controlSocket(ctx, at)
	if err != nil {
		return nil, err
	}
	to := url.URL{Scheme: "http", Host: "daemon", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := control.Client(socket).Do(req)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer resp.Body.Close()
	const maxStatus = 1 << 20
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	lines := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	switch {
	case resp.StatusCode == http.StatusAccepted:
		return lines, nil
	case len(lines) == 0:
		return nil, fmt.Errorf("it answers %s", resp.Status)
	case resp.StatusCode == http.StatusNotFound:
		// That is the text of http.ServeMux.
		return nil, &absentError{lines, lines[0] == "404 page not found"}
	}
	return nil, refusedError(lines)
}

func (a *App) reloadCommand() *cobra.Command {
	names := statusNames()
	return &cobra.Command{
		Use:     "reload [DAEMON|ADDRESS]",
		Short:   "Reload the configuration of the daemons on this host",
		GroupID: "tools",
		Long: `Reload has a running daemon read its file again, as SIGHUP does, and prints what changed: of all daemons that answer at their
default address, or of one, by its name (` + strings.Join(names, ", ") + `) or by its status address.

Sessions that do not change stay up. An invalid file is rejected with all its faults, and so is a change that needs a restart,
such as that of the AS number; the running configuration stays in force then. The other daemons reload all the same, and the
exit code is 2.`,
		Example: `  tabane reload
  tabane reload asbr`,
		Args:              Arguments(0, 1, "at most one daemon or address"),
		ValidArgsFunction: Complete(answeringDaemons),
		RunE:              func(c *cobra.Command, args []string) error { return a.reload(c.Context(), args) },
	}
}

func (a *App) reload(ctx context.Context, args []string) error {
	sources, err := statusSources(ctx, args)
	if err != nil {
		return err
	}
	return a.reloadOf(ctx, sources, len(args) > 0)
}

// reloadOf reloads these daemons, of which some may be absent unless they are named. A daemon that
// fails does not keep the others from reloading; the error has all failures.
func (a *App) reloadOf(ctx context.Context, sources []source, named bool) error {
	found := false
	var failed faultLines
	for _, s := range sources {
		lines, err := command(ctx, s.at, http.MethodPost, reloadPath, nil)
		if isSilent(err) && !named {
			continue
		}
		found = true
		if err != nil {
			failed = append(failed, reloadFaults(s, err)...)
			continue
		}
		if len(lines) == 0 {
			lines = []string{"no changes"}
		}
		for _, line := range lines {
			fmt.Fprintf(a.Out, "%s: %s\n", strings.TrimSpace(s.name+" "+s.at.String()), line)
		}
	}
	switch {
	case len(failed) > 0:
		return failed
	case !found:
		return noDaemon("reload")
	}
	return nil
}

// reloadFaults returns the lines that say why a daemon did not reload.
func reloadFaults(s source, err error) (lines faultLines) {
	var refused refusedError
	if errors.Is(err, errNoControl) {
		err = fmt.Errorf("%w; restart it to apply a changed file", err)
	}
	if !errors.As(err, &refused) {
		return faultLines{"tabane: " + OneLine(commandFailure("reload", s, err).Error())}
	}
	for _, line := range refused {
		lines = append(lines, fmt.Sprintf("tabane: reload %s %q: %s", s.kind(), s.at, line))
	}
	return lines
}
