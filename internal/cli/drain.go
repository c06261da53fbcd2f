package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/role"
)

// drainable is a machine that can be taken out of service without packet loss.
type drainable interface {
	Drain(wait time.Duration) error
	Undrain() error
}

// defaultDrainWait is the time for other nodes to move traffic. They react within a second; a
// client reacts to a change of addresses within its round-trip time.
const defaultDrainWait = 5 * time.Second

// drainWait returns the wait parameter of a request.
func drainWait(query url.Values) (time.Duration, error) {
	text := query.Get("wait")
	if text == "" {
		return defaultDrainWait, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf(`drain: wait must be a duration like "5s", got %q`, text)
	}
	return wait, nil
}

func (a *App) drainCommand(r role.Descriptor) *cobra.Command {
	var (
		at   string
		wait time.Duration
		undo bool
	)
	c := &cobra.Command{
		Use:   "drain [--wait DURATION | --undo]",
		Short: "Take a running border router out of service, or back, without packet loss",
		Long: `Drain prepares the maintenance of a border router. Its daemon advertises its routes with GRACEFUL_SHUTDOWN (RFC 8326), so that
servers and egress peers move to other paths while its own still work. After the wait it withdraws its routes, and last its
SIDs. Then no traffic passes through it, and it can be stopped.

Traffic that has no other path is lost when the routes are withdrawn. A restart of the daemon ends the drain.`,
		Example: `  tabane asbr drain
  tabane asbr drain --wait 30s
  tabane asbr drain --undo`,
		Args: Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			to, err := netip.ParseAddrPort(at)
			if err != nil {
				return Invalid("--status", at, `an address and port like "`+r.DefaultStatus().String()+`"`)
			}
			if wait < 0 {
				return Invalid("--wait", wait.String(), "a duration like 5s")
			}
			if undo && c.Flags().Changed("wait") {
				return Usage(c, errors.New("--wait and --undo exclude each other"))
			}
			return a.drain(c.Context(), to, wait, undo)
		},
	}
	c.Flags().StringVar(&at, "status", r.DefaultStatus().String(), "`address` and port of the daemon's status")
	c.Flags().DurationVar(&wait, "wait", defaultDrainWait, "how long the routes stay while traffic moves to other paths")
	c.Flags().BoolVar(&undo, "undo", false, "bring it back into service")
	return c
}

// drainPoll is the interval of status requests, drainPatience the time allowed in addition to the
// wait: a full table is withdrawn within seconds.
const (
	drainPoll     = 100 * time.Millisecond
	drainPatience = time.Minute
)

func (a *App) drain(ctx context.Context, at netip.AddrPort, wait time.Duration, undo bool) error {
	what, method, query, want := "drain", http.MethodPost, url.Values{"wait": {wait.String()}}, asbr.Drained
	if undo {
		what, method, query, want = "undo drain of", http.MethodDelete, nil, asbr.Serving
	}
	if _, err := command(ctx, at, method, drainPath, query); err != nil {
		return commandFailure(what, source{role.ASBR, at}, err)
	}
	last := asbr.Stage("none")
	for deadline := time.Now().Add(wait + drainPatience); ; {
		stage, err := drainStage(ctx, at)
		if err != nil {
			return &Failure{What: what + " asbr", Name: at.String(), Why: err}
		}
		if stage != last {
			fmt.Fprintln(a.Out, stageText(stage, wait))
		}
		last = stage
		if stage == want {
			return nil
		}
		if time.Now().After(deadline) {
			return &Failure{What: what + " asbr", Name: at.String(), Why: fmt.Errorf("it is still %q", stage), Do: "see tabane status asbr"}
		}
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
			return &Failure{What: what + " asbr", Name: at.String(), Why: ctx.Err(), Do: "the drain continues; --undo reverts it"}
		}
	}
}

func stageText(s asbr.Stage, wait time.Duration) string {
	switch s {
	case asbr.Moving:
		return fmt.Sprintf("moving: traffic moves to other paths, for %s", wait)
	case asbr.Withdrawn:
		return "withdrawn: all routes are withdrawn"
	case asbr.Drained:
		return "drained: the SIDs are removed, the daemon can be stopped"
	default:
		return "in service"
	}
}

// commandFailure returns the failure of a command that a daemon did not receive or refused, with a
// remedy for the usual causes.
func commandFailure(what string, to source, err error) error {
	do := ""
	switch {
	case errors.Is(err, fs.ErrPermission):
		do = "run it as root or as the daemon's user"
	case errors.Is(err, syscall.ECONNREFUSED):
		do = "start the daemon, or name its status address"
	case errors.Is(err, io.EOF):
		err, do = errors.New("it ended before it answered"), "see its log"
	case errors.Is(err, fs.ErrNotExist):
		do = "restart the daemon, whose socket was removed; SIGHUP reloads without it"
	}
	return &Failure{What: what + " " + to.kind(), Name: to.at.String(), Why: err, Do: do}
}

var errNoControl = errors.New("it has no control socket")

// controlSocket returns the path of a daemon's control socket from its status.
func controlSocket(ctx context.Context, at netip.AddrPort) (string, error) {
	body, err := ask(ctx, at, "/status")
	if err != nil {
		return "", err
	}
	var s struct{ Control string }
	if err := json.Unmarshal(body, &s); err != nil {
		return "", fmt.Errorf("its status is not JSON: %w", err)
	}
	if s.Control == "" {
		return "", errNoControl
	}
	return s.Control, nil
}

func drainStage(ctx context.Context, at netip.AddrPort) (asbr.Stage, error) {
	body, err := ask(ctx, at, "/status")
	if err != nil {
		return "", err
	}
	var s struct{ Drain asbr.Stage }
	if err := json.Unmarshal(body, &s); err != nil {
		return "", fmt.Errorf("its answer is not JSON: %w", err)
	}
	return s.Drain, nil
}
