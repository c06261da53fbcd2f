package reflector

import (
	"fmt"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
)

// difference returns the changes of the clients' sessions from one configuration to another, or the
// faults of what cannot change while the reflector runs.
func difference(old, now Config) (bgp.Changes, fault.List) {
	var faults fault.List
	fault.Fixed(&faults, "asn", old.ASN, now.ASN)
	fault.Fixed(&faults, "router_id", old.RouterID, now.RouterID)
	fault.Fixed(&faults, "address", old.Address, now.Address)
	fault.Fixed(&faults, "port", old.Port, now.Port)
	fault.Fixed(&faults, "control", old.Control, now.Control)
	fault.Fixed(&faults, "status", old.Status, now.Status)
	before, after := old.neighbors(), now.neighbors()
	bgp.CheckRenamed(&faults, "clients", before, after)
	return bgp.Compare(before, after), faults
}

// Reload applies another list of clients, and returns what changed. Sessions of unchanged clients
// stay up. An invalid configuration, or one that needs a restart, is rejected as a whole. Before
// Run, it replaces the clients that Run will add.
func (r *Reflector) Reload(now Config) ([]string, error) {
	if err := now.Check().Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, faults := difference(r.config, now)
	if err := faults.Err(); err != nil {
		return nil, err
	}
	old := r.config
	if r.running {
		if err := r.speaker.Change(old.neighbors(), now.neighbors()); err != nil {
			return nil, err
		}
	}
	r.config.Clients, r.config.Listen = now.Clients, now.Listen
	before, after := old.groups(), now.groups()
	if r.running {
		if err := r.speaker.ChangeGroups(before, after); err != nil {
			return nil, fmt.Errorf("configuration applied partially: %w; restart the daemon", err)
		}
	}
	return append(c.Lines(), bgp.CompareGroups(before, after)...), nil
}
