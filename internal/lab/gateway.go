package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/sockdiag"
	"github.com/tabane/tabane/internal/role"
)

// keyFile is the file of the key of a node's gateway.
func keyFile(dir, node string) string { return filepath.Join(dir, node+".key") }

// socketFile is the control socket of a node's daemon: the nodes of a lab share the host's file
// system.
func socketFile(dir, node, role string) string { return filepath.Join(dir, node+"."+role+".sock") }

// writeKey writes the key of the node's gateway, if it has one.
func (n *node) writeKey() error {
	if n.sections.Gateway == nil {
		return nil
	}
	return writeFile(n.sections.Gateway.Key, []byte(scenario.GatewayKey(n.name).Text()+"\n"))
}

// RestartGateways restarts the gateways of nodes with other sections, without their sessions and
// measurements, and waits until they are ready. The files of keys and the control sockets stay.
func (l *Lab) RestartGateways(ctx context.Context, sections map[string]*gateway.Config) error {
	nodes := slices.Sorted(maps.Keys(sections))
	for _, name := range nodes {
		n, err := l.plan.node(name)
		if err != nil {
			return err
		}
		c := *sections[name]
		c.Key, c.Control = keyFile(dirOf(l.name), name), socketFile(dirOf(l.name), name, role.Gateway)
		n.sections.Gateway = &c
		if err := errors.Join(l.writeConfig(n), l.stopGateway(ctx, n)); err != nil {
			return fmt.Errorf("restart gateway of node %q: %w", name, err)
		}
	}
	for _, name := range nodes {
		if err := l.daemons.Start(gatewayOf(name)); err != nil {
			return fmt.Errorf("restart gateway of node %q: %w", name, err)
		}
	}
	return l.daemons.WaitReady(ctx, nodes...)
}

// StopGateways stops the gateways of the nodes that have routes here, which carry the packets then,
// until the gateways are restarted.
func (l *Lab) StopGateways(ctx context.Context, routes map[string][]scenario.StaticRoute) error {
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		n, err := l.plan.node(name)
		if err != nil {
			return err
		}
		if err := l.stopGateway(ctx, n); err != nil {
			return fmt.Errorf("stop gateway of node %q: %w", name, err)
		}
		err = netns.Do(n.netns, func() error {
			for _, r := range routes[name] {
				if err := replaceRoute(r); err != nil {
					return err
				}
				n.substitutes = append(n.substitutes, r)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("route around the gateway of node %q: %w", name, err)
		}
	}
	return nil
}

func gatewayOf(node string) scenario.Daemon { return scenario.Daemon{Node: node, Role: role.Gateway} }

// stopGateway stops a node's gateway, if it runs, and removes the routes in its place.
func (l *Lab) stopGateway(ctx context.Context, n *node) error {
	if l.daemons.Running(gatewayOf(n.name)) {
		if err := l.daemons.Stop(ctx, gatewayOf(n.name), syscall.SIGTERM); err != nil {
			return err
		}
	}
	return netns.Do(n.netns, func() error {
		for _, r := range n.substitutes {
			if err := sockdiag.DeleteRoute(r.Dst, r.Via); err != nil {
				return err
			}
		}
		n.substitutes = nil
		return nil
	})
}
