package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/proxy/relay"
)

const (
	// probeEvery is how often upstreams are probed, and probeTimeout how long one may take to
	// answer.
	probeEvery   = 5 * time.Second
	probeTimeout = 3 * time.Second
)

// probe connects to upstreams in turn until ctx ends: to those that are down, and to those of
// listeners with several, where a silent one would otherwise delay each connection that tries it
// first.
func (p *Proxy) probe(ctx context.Context) {
	every := time.NewTicker(probeEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		var probing sync.WaitGroup
		for _, u := range p.router.probed(p.groups()) {
			probing.Go(func() {
				_ = contain.Do(contain.ProxyConnection, p.log, nil, func() { p.router.probe(ctx, u) })
			})
		}
		probing.Wait()
	}
}

// groups returns the upstreams of each listener.
func (p *Proxy) groups() [][]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all [][]int
	for _, r := range p.running {
		all = append(all, r.served.upstreams)
	}
	return all
}

// probed returns the upstreams of the groups that are to be probed.
func (r *router) probed(groups [][]int) []*upstream {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[int]bool{}
	var list []*upstream
	for _, g := range groups {
		for _, i := range g {
			if u := r.upstreams[i]; !seen[i] && (len(g) > 1 || u.state.Down()) {
				seen[i] = true
				list = append(list, u)
			}
		}
	}
	return list
}

// probe connects to an upstream by TCP and records the result.
func (r *router) probe(ctx context.Context, u *upstream) {
	d := net.Dialer{Timeout: probeTimeout}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.at.Host, strconv.Itoa(int(u.at.Port))))
	if err == nil {
		if a, e := netip.ParseAddrPort(c.RemoteAddr().String()); e == nil {
			r.mu.Lock()
			err = r.check(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
			r.mu.Unlock()
		}
		_ = c.Close() // nothing was sent
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case ctx.Err() != nil, relay.Local(err), unresolved(err), r.lacksPort(err): // the upstream was not asked
	case err != nil:
		r.failed(u, fmt.Errorf("probe: %w", err))
	default:
		r.answered(u)
	}
}

// lacksPort reports whether a probe failed where connections had no local port just before. The
// caller has locked mu.
func (r *router) lacksPort(err error) bool {
	var op *net.OpError
	if !errors.Is(err, unix.EADDRNOTAVAIL) || !errors.As(err, &op) || op.Addr == nil {
		return false
	}
	a, e := netip.ParseAddrPort(op.Addr.String())
	return e == nil && r.portless.Has(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), r.now())
}
