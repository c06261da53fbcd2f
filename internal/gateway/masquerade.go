package gateway

import (
	"context"
	"fmt"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/kernel/nft"
)

// natTable is the table of nftables that the gateway owns.
const natTable = "tabane-gateway"

func (c *Config) checkMasquerade(faults *fault.List) {
	if !c.Masquerade {
		return
	}
	for i, p := range c.Peers {
		for j, prefix := range p.Prefixes {
			if prefix.IsValid() && prefix.Bits() == 0 {
				faults.Add("masquerade", "must be left out: peers[%d].prefixes[%d] is %v, so that packets from everywhere would be masqueraded; the key is for the gateway that has the way to the Internet", i, j, prefix)
			}
		}
	}
}

// translation returns the desired table.
func (c *Config) translation() *nft.Translation {
	t := &nft.Translation{Table: natTable, Links: c.interfaces()}
	for _, p := range c.Peers {
		t.Sources = append(t.Sources, p.Prefixes...)
	}
	return t
}

// translate makes the table in the kernel, or removes that of a previous instance or configuration.
func (g *Gateway) translate() error {
	if t := g.config.translation(); g.config.Masquerade {
		return g.namespace.Do(t.Set)
	}
	return g.untranslate()
}

func (g *Gateway) untranslate() error {
	return g.namespace.Do(func() error { return nft.Delete(natTable) })
}

// masquerading is that the table is as the gateway has made it. The configuration is read when the
// condition is examined: a reload may have replaced it since.
func (g *Gateway) masquerading() condition.Condition {
	desired := func() (t *nft.Translation) {
		g.loop.Do(context.Background(), func() {
			if g.config.Masquerade {
				t = g.config.translation()
			}
		})
		return t
	}
	return condition.Condition{
		Name: "masquerading", Good: "packets from peers to the Internet are masqueraded",
		Examine: func() ([]health.Problem, error) {
			t := desired()
			if t == nil {
				return nil, nil
			}
			if ok, err := t.Holds(); ok || err != nil {
				return nil, err
			}
			return []health.Problem{{
				Text:   fmt.Sprintf("another program changed the table %q of nftables, so that packets from peers may not be masqueraded", natTable),
				Remedy: fmt.Sprintf("stop what changes it, such as a firewall that flushes all tables (nft list table inet %s)", natTable),
			}}, nil
		},
		Restore: func() error {
			if t := desired(); t != nil {
				return t.Set()
			}
			return nil
		},
	}
}
