package mptcp

import "net/netip"

// Changes are the changes from the existing endpoints to the desired ones. Apply them in the order
// of the fields: an address must be removed before it is added with other properties, and the
// kernel limits the number of endpoints.
type Changes struct {
	// Remove are the IDs of endpoints to delete.
	Remove []uint8
	// Flags are endpoints, with their IDs, to pass to SetFlags.
	Flags []Endpoint
	// Add are endpoints to add.
	Add []Endpoint
}

// Empty reports whether there are no changes.
func (c Changes) Empty() bool { return len(c.Remove) == 0 && len(c.Flags) == 0 && len(c.Add) == 0 }

type key struct {
	address netip.Addr
	port    uint16
}

func (e Endpoint) key() key { return key{e.Address, e.Port} }

// Plan computes the changes from have to want. Endpoints are matched by address and port, since the
// kernel assigns the IDs. If want has the same address and port twice, the first is used.
//
// Endpoints whose address is not owned are neither removed nor changed: if one of them has a
// desired address with other properties, Add contains the desired endpoint and the kernel rejects
// it. Implicit endpoints belong to the kernel and are ignored.
func Plan(want, have []Endpoint, owned func(netip.Addr) bool) Changes {
	wanted := make(map[key]Endpoint, len(want))
	for _, w := range want {
		if _, twice := wanted[w.key()]; !twice {
			wanted[w.key()] = w
		}
	}
	var c Changes
	satisfied := make(map[key]bool, len(want))
	for _, h := range have {
		if h.Implicit {
			continue
		}
		w, ok := wanted[h.key()]
		alike := ok && !satisfied[h.key()] && w.Link == h.Link && w.Signal == h.Signal && w.Subflow == h.Subflow
		flags := w.Backup == h.Backup && w.Fullmesh == h.Fullmesh
		switch {
		case alike && flags:
			satisfied[h.key()] = true
		case !owned(h.Address):
		case alike:
			satisfied[h.key()] = true
			w.ID = h.ID
			c.Flags = append(c.Flags, w)
		default:
			c.Remove = append(c.Remove, h.ID)
		}
	}
	for _, w := range want {
		if !satisfied[w.key()] {
			satisfied[w.key()] = true
			c.Add = append(c.Add, w)
		}
	}
	return c
}
