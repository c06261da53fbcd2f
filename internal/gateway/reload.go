package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// Reload replaces the configuration, which has passed Files, and returns what has changed, one line
// each. Sessions with peers that are not replaced stay. An error means that nothing has changed.
func (g *Gateway) Reload(now Config) ([]string, error) {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if err := now.Check().Err(); err != nil {
		return nil, err
	}
	secrets, err := readKeys(&now)
	if err != nil {
		return nil, err
	}
	if err := condition.Require(now.conditions()); err != nil {
		return nil, err
	}
	err = errors.New("gateway is not running")
	var lines []string
	g.loop.Change(context.Background(), func() {
		if err = g.checkFixed(&now, secrets).Err(); err == nil {
			lines, err = g.replace(now, secrets)
		}
	})
	return lines, err
}

// checkFixed returns the faults of values that only a restart can change.
func (g *Gateway) checkFixed(now *Config, secrets keys) fault.List {
	var faults fault.List
	fault.Fixed(&faults, "listen", g.config.Port(), now.Port())
	fault.Fixed(&faults, "tunnel.interface", g.config.tunnelName(), now.tunnelName())
	fault.Fixed(&faults, "status", g.config.Status, now.Status)
	fault.Fixed(&faults, "control", g.config.Control, now.Control)
	if now.Open() && !g.config.Open() {
		// What loads programs has been dropped since.
		faults.Add("peers", "the first peer with another mode than %s: it cannot be added while the daemon runs; a restart is needed", dataplane.Tunnel)
	}
	if secrets.own != g.keys.own {
		faults.Add("key", "is another key, which cannot change while the daemon runs; a restart is needed")
	}
	return faults
}

// replace applies a configuration, or leaves everything as it is.
func (g *Gateway) replace(now Config, secrets keys) ([]string, error) {
	old, oldKeys := g.config, g.keys
	lines := differences(&old, &now)
	if !maps.Equal(oldKeys.preshared, secrets.preshared) {
		lines = append(lines, "preshared keys replaced")
	}
	g.config, g.keys = now, secrets
	g.mtu = g.tunnelMTU()
	if err := g.apply(); err != nil {
		g.config, g.keys = old, oldKeys
		g.mtu = g.tunnelMTU()
		return nil, err
	}
	g.configure()
	g.rejected = nil
	if err := g.translate(); err != nil {
		g.log.Error("masquerading was not changed, retrying in half a minute", "err", err)
	}
	return lines, nil
}

// differences describes what changes from one configuration to the next.
func differences(old, now *Config) []string {
	same := func(a, b any) bool { return reflect.DeepEqual(a, b) }
	lines := slices.Concat(
		daemon.Compare(old.Paths, now.Paths, func(p Path) string { return p.Name }, func(a, b Path) bool { return same(a, b) }).Lines("path"),
		daemon.Compare(old.Peers, now.Peers, func(p Peer) string { return p.Name }, func(a, b Peer) bool { return same(a, b) }).Lines("peer"),
		daemon.Compare(old.Leaders, now.Leaders, func(l Leader) string { return l.Name }, func(a, b Leader) bool { return same(a, b) }).Lines("leader"),
	)
	for _, part := range []struct {
		name    string
		old, is any
	}{{"role", old.Role, now.Role}, {"registration", old.Registration, now.Registration}, {"short_links", old.ShortLinks, now.ShortLinks}, {"lan", old.LAN, now.LAN}, {"masquerade", old.Masquerade, now.Masquerade}, {"tunnel", old.Tunnel, now.Tunnel}, {"policy", old.Policy, now.Policy}} {
		if !same(part.old, part.is) {
			lines = append(lines, fmt.Sprintf("%s replaced", part.name))
		}
	}
	return lines
}
