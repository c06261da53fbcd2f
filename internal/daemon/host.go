package daemon

import (
	"fmt"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/netns"
)

// CheckForwarding returns an error with what to do if this host does not forward packets of one of
// the versions.
func CheckForwarding(versions ...bgp.IP) error {
	for _, v := range versions {
		name, key := "IPv6", "net.ipv6.conf.all.forwarding"
		if v == bgp.IPv4 {
			name, key = "IPv4", "net.ipv4.ip_forward"
		}
		value, err := netns.ReadSysctl(key)
		if err != nil {
			return err
		}
		if value == "0" {
			return fmt.Errorf("this host does not forward %s, as a router must: sysctl -w %s=1", name, key)
		}
	}
	return nil
}

// CheckReversePath returns an error with what to do if an interface drops IPv4 packets by strict
// reverse path filtering (RFC 3704 section 2.2), because the best path to their source is through
// another. The larger of the two settings applies.
func CheckReversePath(link string) error {
	const strict = "1"
	effective := ""
	for _, name := range []string{"all", link} {
		value, err := netns.ReadSysctl("net.ipv4.conf." + name + ".rp_filter")
		if err != nil {
			return err
		}
		effective = max(effective, value)
	}
	if effective == strict {
		return fmt.Errorf("interface %q drops IPv4 packets whose best return path is another: sysctl -w net.ipv4.conf.%s.rp_filter=2", link, link)
	}
	return nil
}
