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

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/role"
)

const (
	// askEvery is the interval between requests to a daemon that is not ready, askFor the
	// timeout of a request.
	askEvery = 25 * time.Millisecond
	askFor   = 2 * time.Second
	// maxStatus bounds the size of a response in bytes.
	maxStatus = 16 << 20
	logLines  = 5
	// settleTime is how long a lab for interactive use waits for a degraded daemon to recover:
	// longer than two attempts to establish a BGP session.
	settleTime = 10 * time.Second
)

// get requests a URL from a namespace. The host of the URL is an address.
func get(ctx context.Context, namespace, url string) ([]byte, error) {
	return ask(ctx, namespace, http.MethodGet, url, nil)
}

// ask sends a request from a namespace and returns the body of the response. The host of the URL is
// an address.
func ask(ctx context.Context, namespace, method, url string, body io.Reader) ([]byte, error) {
	return request(ctx, &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			// Only literal addresses: the resolver and Happy Eyeballs dial on other
			// threads, which are not in the namespace.
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

// request returns the body of the response. The error of a response other than 2xx is a
// *ResponseError.
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

// waiting is one condition of readiness: what is awaited, and the log to quote when it fails.
type waiting struct {
	what, log string
	ask       func(ctx context.Context) error
	failed    error
	// settle is how long a daemon must be degraded for the same reason before that is accepted;
	// 0 never accepts it. degraded is the last reason.
	settle   time.Duration
	degraded string
	settled  bool // the daemon was accepted as degraded
}

// WaitReady waits until every daemon is ready and not degraded, and the client reaches the server.
// It fails as soon as a daemon exits.
func (l *Lab) WaitReady(ctx context.Context, timeout time.Duration) error {
	return l.waitReady(ctx, timeout, 0)
}

// waitReady is WaitReady, but accepts and logs daemons that stay degraded for settle; 0 accepts
// none.
func (l *Lab) waitReady(ctx context.Context, timeout, settle time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not ready after %s", timeout))
	defer cancel()
	started := slices.DeleteFunc(l.daemons.children.all(), func(c *child) bool { return !l.plan.awaits(c.daemon) })
	ctx, stop := guard(ctx, l.name, started)
	defer stop()

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

// exitError is the error of a daemon that exited unexpectedly.
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

// condition returns the condition for a daemon to be ready, nil if it has none.
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

// conditions returns the conditions for the lab to be ready.
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
	url, from := l.content(e.Server)
	if url == "" {
		return all
	}
	return append(all, &waiting{
		what: fmt.Sprintf("%s does not reach %s", e.Client, e.Server),
		log:  logFile(dirOf(l.name), daemon{node: e.Server, role: from}),
		ask: func(ctx context.Context) error {
			_, err := get(ctx, namespaceOf(l.name, e.Client), url)
			return err
		},
	})
}

// content returns the URL of some content of a server and the role of its daemon; "" if all of it
// needs TLS.
func (l *Lab) content(server string) (url, from string) {
	n, address := l.spec.Nodes[server], l.spec.AddressOf(server)
	if n.Serve != nil {
		return "http://" + netip.AddrPortFrom(address, n.Serve.Port).String() + "/bytes/1", role.Serve
	}
	for _, s := range n.Site.Listen {
		if s.Certificate == "" {
			return "http://" + netip.AddrPortFrom(address, s.Address.Port()).String() + "/", role.Site
		}
	}
	return "", ""
}

// degradedError is the error of a daemon that is ready but lacks a part of its configuration.
type degradedError struct{ reason string }

func (e *degradedError) Error() string { return "degraded: " + e.reason }

// readiness returns nil if the status is that of a ready daemon, a *degradedError if it is
// degraded, and another error otherwise.
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

// wait polls until there is no error, or until a daemon has been degraded for the same reason for
// the time of settle. If ctx ends first, it returns the last error other than ctx's.
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

// WaitReady waits until the daemons of the nodes are ready.
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
