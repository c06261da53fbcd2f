package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

const (
	// deliveryWithin is how long the edge has to deliver in another mode; it may have to load a
	// program. deliveryPoll is how often it is asked.
	deliveryWithin, deliveryPoll = 30 * time.Second, 50 * time.Millisecond
)

// SetDelivery has the edge of a node deliver packets to a client in another mode, and forget what
// it learned of paths and networks: where it learns or sprays, it starts again for that. A zero
// mode is that of the scenario.
func (l *Lab) SetDelivery(ctx context.Context, node, client string, mode edge.Mode) error {
	n, err := l.plan.node(node)
	if err != nil {
		return err
	}
	if n.sections.Edge == nil {
		return fmt.Errorf("node %q runs no edge", node)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deliveryWithin, fmt.Errorf("no delivery %s within %s", mode.String(), deliveryWithin))
	defer cancel()
	c := *n.sections.Edge
	before := c.Delivery.Default
	if c.Delivery = n.spec.Edge.Delivery; !mode.IsZero() {
		c.Delivery.Default = mode
	}
	n.sections.Edge = &c
	if err := l.writeConfig(n); err != nil {
		return err
	}
	remembers := func(m edge.Mode) bool { return m.Learns() || len(m.Spray) > 0 }
	switch at := (scenario.Daemon{Node: node, Role: role.Edge}); {
	case !l.daemons.Running(at): // an event killed it; it reads the file when it starts
		return nil
	case remembers(before) || remembers(c.Delivery.Default):
		err = l.startEmpty(ctx, at, c.NetworksFile())
	default:
		err = l.daemons.Command(ctx, at, http.MethodPost, "/reload")
	}
	if err != nil {
		return err
	}
	return l.awaitDelivery(ctx, node, client, c.Delivery.Default)
}

// startEmpty starts an edge again without what it knows of networks.
func (l *Lab) startEmpty(ctx context.Context, at scenario.Daemon, file string) error {
	if err := l.daemons.Stop(ctx, at, syscall.SIGTERM); err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := l.daemons.Start(at); err != nil {
		return err
	}
	return l.ask(ctx, at, "/status", func(b []byte) (bool, error) {
		var s health.Status
		err := json.Unmarshal(b, &s)
		return s.Ready, err
	})
}

// awaitDelivery waits until packets to a client are delivered in a mode.
func (l *Lab) awaitDelivery(ctx context.Context, node, client string, mode edge.Mode) error {
	to, ok := l.addressOf(client)
	if !mode.Delivers() || !ok {
		return nil
	}
	q := url.Values{"limit": {"1"}, "within": {to.String()}}
	return l.ask(ctx, scenario.Daemon{Node: node, Role: role.Edge}, "/networks?"+q.Encode(), func(b []byte) (bool, error) {
		var found edge.Networks
		if err := json.Unmarshal(b, &found); err != nil || len(found.List) == 0 {
			return false, err
		}
		switch state := found.List[0].State; state {
		case "in use", "pending":
			return state == "in use", nil
		default:
			return false, fmt.Errorf("delivery %s of node %q: %s", mode.String(), node, state)
		}
	})
}

// ask requests a path of a daemon, which may not listen yet, until done reports true.
func (l *Lab) ask(ctx context.Context, at scenario.Daemon, path string, done func([]byte) (bool, error)) error {
	for {
		if b, err := l.daemons.Request(ctx, at, http.MethodGet, path); err == nil {
			if ok, err := done(b); ok || err != nil {
				return err
			}
		} else if exited := l.daemons.Exited(); exited != nil {
			return exited
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(deliveryPoll):
		}
	}
}

// addressOf returns an address of a node, false if it has none.
func (l *Lab) addressOf(node string) (netip.Addr, bool) {
	spec := l.Spec()
	for _, name := range spec.LinkNames() {
		for _, end := range spec.Links[name].Ends {
			if end.Node == node && len(end.Addresses) > 0 {
				return end.Addresses[0].Addr(), true
			}
		}
	}
	return netip.Addr{}, false
}
