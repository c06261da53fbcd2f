package condition

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/kernel/afpacket"
)

const (
	// claimWait is how long an examination waits for hosts of a LAN to answer.
	claimWait = 200 * time.Millisecond
	// claimMost bounds the addresses of an interface that are probed.
	claimMost = 64
)

// Unclaimed is that no other host on the networks of the interfaces answers for one of their
// addresses: the kernel looks for that in IPv6 alone, once, and not for addresses that were added
// with nodad. Each examination sends one broadcast or multicast frame for each address. Missing
// interfaces, and those that are not Ethernet, have no effect.
func Unclaimed(links ...string) Condition { return unclaimed(net.Interfaces, afpacket.Claims, links) }

type claims func(at *net.Interface, addresses []netip.Addr, own []net.HardwareAddr, wait time.Duration) ([]afpacket.Claim, error)

func unclaimed(interfaces func() ([]net.Interface, error), probe claims, links []string) Condition {
	return Condition{
		Name: "claimed addresses", Good: "no other host answers for an address of this one",
		Examine: func() (problems []health.Problem, err error) {
			all, err := interfaces()
			if err != nil {
				return nil, fmt.Errorf("list interfaces: %w", err)
			}
			var own []net.HardwareAddr
			for i := range all {
				own = append(own, all[i].HardwareAddr)
			}
			var errs []error
			for i := range all {
				at := &all[i]
				if !slices.Contains(links, at.Name) || at.Flags&(net.FlagUp|net.FlagBroadcast) != net.FlagUp|net.FlagBroadcast || len(at.HardwareAddr) != 6 {
					continue
				}
				addresses, err := addressesOf(at)
				if err != nil || len(addresses) == 0 {
					errs = append(errs, err)
					continue
				}
				found, err := probe(at, addresses, own, claimWait)
				if len(found) > 0 {
					// Two routers that share an address have it both for a moment, at a failover.
					addresses = addresses[:0]
					for _, c := range found {
						addresses = append(addresses, c.Address)
					}
					found, err = probe(at, addresses, own, claimWait)
				}
				errs = append(errs, err)
				for _, c := range found {
					problems = append(problems, health.Problem{
						Text:   fmt.Sprintf("another host on interface %q, with MAC address %v, has the address %v, too", at.Name, c.MAC, c.Address),
						Remedy: "give one of them another address, disconnect the other, or exclude the address from a proxy of ARP or neighbor discovery",
					})
				}
			}
			return problems, errors.Join(errs...)
		},
	}
}

// addressesOf returns the addresses of an interface that are probed.
func addressesOf(at *net.Interface) (list []netip.Addr, err error) {
	all, err := at.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of interface %q: %w", at.Name, err)
	}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && len(list) < claimMost {
			list = append(list, prefix.Addr().Unmap())
		}
	}
	return list, nil
}
