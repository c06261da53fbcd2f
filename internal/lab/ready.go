package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/health"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/role"
)

const (
	// askEvery is how often a node that is not ready is asked again, and askFor how long one answer
	// may take.
	askEvery = 25 * time.Millisecond
	askFor   = 2 * time.Second
	// maxStatus bounds an answer, in bytes.
	maxStatus = 16 << 20
	logLines  = 5
	// settleTime is how long a lab for interactive use waits for what a degraded daemon lacks:
	// longer than two attempts to open a BGP session.
	settleTime = 10 * time.Second
)

// get fetches a URL whose host is an address from inside a namespace.
func get(ctx context.Context, namespace, url string) ([]byte, error) {
	return ask(ctx, namespace, http.MethodGet, url, nil)
}

// ask makes a request to a URL whose host is an address from inside a namespace, and returns the
// answer's body.
func ask(ctx context.Context, namespace, method, url string, body io.Reader) ([]byte, error) {
	return request(ctx, &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			// The name resolver and happy eyeballs would leave the namespace's thread; one literal
			// address does not.
			if _, err := netip.ParseAddrPort(address); err != nil {
				return nil, fmt.Errorf("BUG: dial %q from a namespace: %w", address, err)
			}
			var d net.Dialer
			err = netns.Do(namespace, func() error {
				conn, err = d.DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}, method, url, body)
}

// request returns the body of the response; the error of one other than 2xx is a *ResponseError.
func request(ctx context.Context, client *http.Client, method, url string, body io.Reader) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		text := resp.Status
		if line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n"); line != "" {
			text += ": " + line
		}
		return nil, fmt.Errorf("%s %s: %w", strings.ToLower(method), url, &ResponseError{resp.StatusCode, text})
	}
	return b, nil
}

// ResponseError is an HTTP response other than 2xx.
type ResponseError struct {
	Code int
	text string
}

func (e *ResponseError) Error() string { return e.text }

// waiting is one condition of readiness: what is waited for, and the log that says why in vain.
type waiting struct {
	what, log string
	ask       func(ctx context.Context) error
	failed    error
	// settle is how long a daemon must have been degraded for the same reason until that is
	// accepted; 0: it never is. degraded is the last such reason.
	settle   time.Duration
	degraded string
	settled  bool // it is accepted so
}

// WaitReady returns when every daemon is ready and not degraded, and the client reaches the server.
// It fails as soon as a daemon ends.
func (l *Lab) WaitReady(ctx context.Context, timeout time.Duration) error {
	return l.waitReady(ctx, timeout, 0)
}

// waitReady is WaitReady that accepts, and logs, daemons that stay degraded for settle; 0: none.
func (l *Lab) waitReady(ctx context.Context, timeout, settle time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not ready after %s", timeout))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	started := slices.DeleteFunc(l.daemons.children.all(), func(c *child) bool { return !l.plan.awaits(c.daemon) })
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer fail(nil) // ends the watchers
	for _, c := range started {
		watchers.Go(func() {
			select {
			case <-c.exited:
				fail(exitOf(l.name, c))
			case <-ctx.Done():
			}
		})
	}

	all := l.conditions()
	var asking sync.WaitGroup
	for _, w := range all {
		w.settle = settle
		asking.Go(func() {
			w.failed = w.wait(ctx)
			if w.failed == nil && w.settled {
				l.log.Warn("daemon is degraded", "daemon", w.what, "reason", w.degraded)
			}
		})
	}
	asking.Wait()

	cause := context.Cause(ctx)
	var ended *exitError
	if errors.As(cause, &ended) {
		return ended
	}
	var b strings.Builder
	for _, w := range all {
		if w.failed == nil {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %v", w.what, w.failed)
		if tail := lastLines(w.log, logLines); tail != "" {
			b.WriteString("; its log ends:\n" + tail)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	if errors.Is(cause, context.Canceled) {
		return cause
	}
	return fmt.Errorf("%w: %s", cause, strings.TrimPrefix(b.String(), "\n"))
}

// exitError is a daemon that ended when it should not have.
type exitError struct {
	child *child
	tail  string
}

func exitOf(lab string, c *child) *exitError {
	return &exitError{c, lastLines(logFile(dirOf(lab), c.daemon), logLines)}
}

func (e *exitError) Error() string {
	text := fmt.Sprintf("%s ended: %v", e.child.daemon, e.child.how())
	if e.tail != "" {
		text += "; its log ends:\n" + e.tail
	}
	return text
}

func (c *child) how() string {
	if c.err == nil {
		return "exit status 0"
	}
	return c.err.Error()
}

// condition is the condition under which a daemon is ready, nil for a daemon without a status.
func (ds *Daemons) condition(d daemon) *waiting {
	w := &waiting{what: d.String(), log: logFile(dirOf(ds.lab), d)}
	switch {
	case d.status.IsValid():
		w.ask = func(ctx context.Context) error {
			b, err := get(ctx, d.netns, "http://"+d.status.String()+"/status")
			if err != nil {
				return err
			}
			return readiness(b)
		}
	case d.role == RoleBGPD:
		w.ask = func(context.Context) error {
			n, err := ds.plan.node(d.node)
			if err != nil {
				return err
			}
			return askFRR(dirOf(ds.lab), n)
		}
	case d.role == role.Serve:
		w.ask = func(ctx context.Context) error {
			n, err := ds.plan.node(d.node)
			if err != nil {
				return err
			}
			_, err = get(ctx, d.netns, "http://"+netip.AddrPortFrom(netip.IPv6Loopback(), n.sections.Serve.Port).String()+"/bytes/1")
			return err
		}
	default:
		return nil
	}
	return w
}

// conditions are what the lab is ready after.
func (l *Lab) conditions() []*waiting {
	var all []*waiting
	for _, d := range l.plan.daemons() {
		if w := l.daemons.condition(d); w != nil && l.plan.awaits(d) {
			all = append(all, w)
		}
	}
	e := l.spec.Experiment
	if e == nil {
		return all
	}
	server := netip.AddrPortFrom(addressOf(l.spec, e.Server), l.spec.Nodes[e.Server].Serve.Port)
	return append(all, &waiting{
		what: fmt.Sprintf("%s does not reach %s", e.Client, e.Server),
		log:  logFile(dirOf(l.name), daemon{node: e.Server, role: role.Serve}),
		ask: func(ctx context.Context) error {
			_, err := get(ctx, namespaceOf(l.name, e.Client), "http://"+server.String()+"/bytes/1")
			return err
		},
	})
}

// degradedError is a daemon that is ready, but not with everything that it is configured for.
type degradedError struct{ reason string }

func (e *degradedError) Error() string { return "degraded: " + e.reason }

// readiness reads the health of a daemon from its status. One that is ready but degraded is a
// *degradedError.
func readiness(status []byte) error {
	var s health.Status
	switch err := json.Unmarshal(status, &s); {
	case err != nil:
		return fmt.Errorf("read status: %w", err)
	case s.Ready && s.Degraded:
		return &degradedError{s.Reason}
	case s.Ready:
		return nil
	case s.Reason != "":
		return errors.New(s.Reason)
	}
	return errors.New("is not ready")
}

// wait asks until there is no error, or until a daemon has been degraded for the same reason for as
// long as it may. When ctx ends first it returns the last error that was not ctx's own.
func (w *waiting) wait(ctx context.Context) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	var last error
	var since time.Time // degraded for the same reason
	for {
		err := w.ask(ctx)
		if err == nil {
			return nil
		}
		var degraded *degradedError
		switch {
		case !errors.As(err, &degraded):
			since = time.Time{}
		case since.IsZero() || w.degraded != degraded.reason:
			since, w.degraded = time.Now(), degraded.reason
		case w.settle > 0 && time.Since(since) >= w.settle:
			w.settled = true
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// WaitReady returns when the daemons of the nodes are ready.
func (ds *Daemons) WaitReady(ctx context.Context, nodes ...string) error {
	for _, d := range ds.plan.daemons() {
		w := ds.condition(d)
		if w == nil || !slices.Contains(nodes, d.node) {
			continue
		}
		if err := w.wait(ctx); err != nil {
			return fmt.Errorf("%s: %w: %w", w.what, context.Cause(ctx), err)
		}
	}
	return nil
}
