package reflector

import (
	"context"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// Routes are the paths to a destination.
type Routes struct {
	Destination netip.Prefix    `json:"destination"`
	BGP         []bgp.Candidate `json:"bgp"`
}

// Routes looks a destination up: the unicast route, and the VPN route of rd if it is valid. A
// reflector does not know which route distinguishers are in use.
func (r *Reflector) Routes(_ context.Context, dst netip.Prefix, rd vpn.ID) (any, error) {
	found, err := r.speaker.Lookup(dst, rd)
	return Routes{dst, found}, err
}
