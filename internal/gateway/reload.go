package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"

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

// reloadable is what Reload does with a change of a key.
type reloadable struct {
	key string
	// value returns what counts: the default where the key is absent.
	value func(*Config) any
	// restart: only a restart changes it.
	restart bool
	// lines describe the change. Default: that the key is replaced
	lines func(old, now *Config) []string
}

// reloadables has every key of the section (TestEveryKeyReloads). A key inside of one that is
// listed stands before it.
var reloadables = []reloadable{
	{key: "listen", restart: true, value: func(c *Config) any { return c.Port() }},
	{key: "tunnel.interface", restart: true, value: func(c *Config) any { return c.tunnelName() }},
	{key: "status", restart: true, value: func(c *Config) any { return c.Status }},
	{key: "control", restart: true, value: func(c *Config) any { return c.Control }},
	{key: "key", value: func(c *Config) any { return c.Key }}, // checkFixed compares what the files have
	{key: "role", value: func(c *Config) any { return c.Role }},
	{key: "lan", value: func(c *Config) any { return c.LAN }},
	{key: "masquerade", value: func(c *Config) any { return c.Masquerade }},
	{key: "routed", value: func(c *Config) any { return c.Routed }},
	{key: "inbound", value: func(c *Config) any { return c.Inbound }},
	{key: "firewall", value: func(c *Config) any { return cmp.Or(c.Firewall, FirewallReport) }},
	{key: "tunnel", value: func(c *Config) any {
		t := c.Tunnel
		t.Interface = "" // a key of its own
		return t
	}},
	{key: "paths", value: func(c *Config) any { return c.Paths }, lines: func(old, now *Config) []string {
		return named("path", old.Paths, now.Paths, func(p Path) string { return p.Name })
	}},
	{key: "peers", value: func(c *Config) any { return c.Peers }, lines: func(old, now *Config) []string {
		return named("peer", old.Peers, now.Peers, func(p Peer) string { return p.Name })
	}},
	{key: "leaders", value: func(c *Config) any { return c.Leaders }, lines: func(old, now *Config) []string {
		return named("leader", old.Leaders, now.Leaders, func(l Leader) string { return l.Name })
	}},
	{key: "registration", value: func(c *Config) any { return c.Registration }},
	{key: "short_links", value: func(c *Config) any { return c.ShortLinks }},
	{key: "policy", value: func(c *Config) any { return c.Policy }},
	{key: "probes", value: func(c *Config) any { return c.Probes }},
	{key: "quota_file", value: func(c *Config) any { return c.QuotaFile }},
}

// named describes what changes in a list whose elements have names.
func named[T any](what string, old, now []T, name func(T) string) []string {
	lines := daemon.Compare(old, now, name, func(a, b T) bool { return reflect.DeepEqual(a, b) }).Lines(what)
	if len(lines) == 0 {
		lines = []string{fmt.Sprintf("order of %ss changed", what)}
	}
	return lines
}

// checkFixed returns the faults of values that only a restart can change.
func (g *Gateway) checkFixed(now *Config, secrets keys) fault.List {
	var faults fault.List
	for _, r := range reloadables {
		if r.restart {
			fault.Fixed(&faults, r.key, r.value(&g.config), r.value(now))
		}
	}
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
	lock, err := g.metering.claim(&now)
	if err != nil {
		return nil, err
	}
	g.countQuotas(true) // before the plane replaces lines
	g.config, g.keys = now, secrets
	g.mtu = g.tunnelMTU()
	if err := g.apply(); err != nil {
		g.config, g.keys = old, oldKeys
		g.mtu = g.tunnelMTU()
		if lock != nil {
			_ = lock.Close()
		}
		return nil, err
	}
	g.configure()
	g.rejected = nil
	g.metering.keep(&now, lock)
	g.metering.configure(&now)
	if g.countQuotas(true) {
		g.applyChanged()
	}
	if err := g.translate(); err != nil {
		g.log.Error("masquerading was not changed, retrying in half a minute", "err", err)
	}
	g.permitOrLog()
	return lines, nil
}

// differences describes what changes from one configuration to the next.
func differences(old, now *Config) []string {
	var lines []string
	for _, r := range reloadables {
		switch {
		case r.restart || reflect.DeepEqual(r.value(old), r.value(now)):
		case r.lines != nil:
			lines = append(lines, r.lines(old, now)...)
		default:
			lines = append(lines, fmt.Sprintf("%s replaced", r.key))
		}
	}
	return lines
}
