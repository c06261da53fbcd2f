// Package condition has what daemons need of their host besides the objects that they own: kernel
// parameters, and the rules of other programs. A Condition is examined before a daemon starts,
// again while it runs, and by tabane doctor, so that all of them report the same problem in the
// same words.
//
// It decides neither when a condition is examined nor what its failure means for the daemon.
package condition

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/mptcp"
)

// Condition is something of the host that a daemon needs. Its functions work in the network
// namespace of the calling thread.
type Condition struct {
	// Name is what is examined, as tabane doctor lists it, and Good what holds without a problem.
	Name, Good string
	// Examine returns what is wrong; nothing if the condition holds. An error is why it could not
	// be examined.
	Examine func() ([]health.Problem, error)
	// Restore makes the condition hold again. It is nil if the condition is not the daemon's to
	// change.
	Restore func() error
	// Required: the daemon does not start without it.
	Required bool
}

// Require returns an error with the remedy if one of the required conditions does not hold.
func Require(list []Condition) error {
	for _, c := range list {
		if !c.Required {
			continue
		}
		switch problems, err := c.Examine(); {
		case err != nil:
			return err
		case len(problems) > 0:
			return &problems[0]
		}
	}
	return nil
}

// reader reads a kernel parameter; netns.ReadSysctl is one.
type reader func(key string) (string, error)

// off is the value of a parameter that is switched off; the kernel takes any other number for on.
const off = "0"

// parameter returns the problem if a parameter is off and must be on, or the other way round.
func parameter(read reader, key, want, text string) ([]health.Problem, error) {
	value, err := read(key)
	if err != nil || (value == off) == (want == off) {
		return nil, err
	}
	return []health.Problem{{Text: text, Remedy: "sysctl -w " + key + "=" + want}}, nil
}

// each returns the problems of all interfaces that exist, of which it returns the number.
func each(links []string, examine func(link string) ([]health.Problem, error)) (all []health.Problem, found int, err error) {
	for _, link := range links {
		problems, err := examine(link)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, found, err
		}
		found++
		all = append(all, problems...)
	}
	return all, found, nil
}

// Forwarding is that this host forwards packets of an IP version. In IPv4, an interface can be
// exempted from it: links are those that packets to be forwarded arrive at. Missing ones have no
// effect.
func Forwarding(v bgp.IP, links ...string) Condition {
	return forwarding(netns.ReadSysctl, v, links)
}

func forwarding(read reader, v bgp.IP, links []string) Condition {
	name, key := "IPv6", "net.ipv6.conf.all.forwarding"
	if v == bgp.IPv4 {
		name, key = "IPv4", "net.ipv4.ip_forward"
	}
	return Condition{
		Name: "forwarding of " + name, Good: "packets are forwarded, as a router must", Required: true,
		Examine: func() ([]health.Problem, error) {
			problems, err := parameter(read, key, "1", fmt.Sprintf("this host does not forward %s, as a router must", name))
			switch {
			case v == bgp.IPv6 && errors.Is(err, fs.ErrNotExist):
				return noIPv6, nil
			case v == bgp.IPv6, err != nil, len(problems) > 0:
				return problems, err
			}
			problems, _, err = each(links, func(link string) ([]health.Problem, error) {
				return parameter(read, of("ipv4", link, "forwarding"), "1", fmt.Sprintf("interface %q does not forward IPv4, as a router must", link))
			})
			return problems, err
		},
	}
}

// of returns the key of an interface's parameter, with slashes if the interface's name has a dot
// (sysctl(8)).
func of(ip, link, name string) string {
	separator := "."
	if strings.Contains(link, separator) {
		separator = "/"
	}
	return strings.Join([]string{"net", ip, "conf", link, name}, separator)
}

// IPv6 is that the kernel has IPv6, and that it is switched on on interfaces. Missing ones have no
// effect, unless none exists: the setting of all is that of new interfaces.
func IPv6(links ...string) Condition { return ipv6(netns.ReadSysctl, links) }

func ipv6(read reader, links []string) Condition {
	return Condition{
		Name: "IPv6", Good: "IPv6 is on", Required: true,
		Examine: func() ([]health.Problem, error) {
			host, err := parameter(read, of("ipv6", "all", "disable_ipv6"), off, "IPv6 is switched off on this host")
			if errors.Is(err, fs.ErrNotExist) {
				return noIPv6, nil
			}
			if err != nil {
				return nil, err
			}
			problems, found, err := each(links, func(link string) ([]health.Problem, error) {
				return parameter(read, of("ipv6", link, "disable_ipv6"), off, fmt.Sprintf("IPv6 is switched off on interface %q", link))
			})
			if found == 0 || len(problems) > 0 && len(host) > 0 { // one command for all interfaces
				return host, err
			}
			return problems, err
		},
	}
}

var noIPv6 = []health.Problem{{Text: "this kernel runs without IPv6", Remedy: "boot without ipv6.disable=1"}}

// strict is the value of rp_filter with which a packet is dropped unless its best return path is
// the interface that it arrived at (RFC 3704 section 2.2).
const strict = "1"

// ReversePath is that interfaces accept IPv4 packets although the best path to their source is
// through another. The larger one of an interface's setting and that of all applies. Missing
// interfaces have no effect: one may appear later.
func ReversePath(links ...string) Condition { return reversePath(netns.ReadSysctl, links) }

func reversePath(read reader, links []string) Condition {
	return Condition{
		Name: "rp_filter", Good: "no strict reverse path filter for IPv4; IPv6 has none", Required: true,
		Examine: func() ([]health.Problem, error) {
			problems, _, err := each(links, func(link string) ([]health.Problem, error) {
				all, err := read(of("ipv4", "all", "rp_filter"))
				own, other := read(of("ipv4", link, "rp_filter"))
				if err := errors.Join(err, other); err != nil || max(all, own) != strict {
					return nil, err
				}
				return []health.Problem{{
					Text:   fmt.Sprintf("interface %q drops IPv4 packets whose best return path is another", link),
					Remedy: "sysctl -w " + of("ipv4", link, "rp_filter") + "=2",
				}}, nil
			})
			return problems, err
		},
	}
}

// Forwarded is that no chain of nftables or iptables drops all that is forwarded between
// interfaces, in these IP versions.
func Forwarded(versions []bgp.IP, links ...string) Condition {
	return forwarded(nft.Blocking, versions, links)
}

func forwarded(blocking func([]nft.Passage) ([]nft.Block, error), versions []bgp.IP, links []string) Condition {
	links = slices.Compact(slices.Sorted(slices.Values(links)))
	return Condition{
		Name: "firewall", Good: "no chain of nftables or iptables drops all packets that are forwarded",
		Examine: func() (problems []health.Problem, err error) {
			for _, v := range versions {
				var all []nft.Passage
				for _, in := range links {
					for _, out := range links {
						all = append(all, nft.Passage{Version: map[bgp.IP]string{bgp.IPv4: "ip", bgp.IPv6: "ip6"}[v], In: in, Out: out})
					}
				}
				blocks, unknown := blocking(all)
				err = errors.Join(err, unknown)
				count := map[nft.Chain]int{}
				for _, b := range blocks {
					if count[b.Chain]++; count[b.Chain] == len(all) {
						p := health.Problem{Text: dropsForwarded(b.Chain), Remedy: b.Chain.Accept(links)}
						if !slices.Contains(problems, p) {
							problems = append(problems, p)
						}
					}
				}
			}
			return problems, err
		},
	}
}

func dropsForwarded(c nft.Chain) string {
	return fmt.Sprintf("chain %q drops the packets that this host forwards", c)
}

// Firewall is that no chain of nftables or iptables drops passages, which are those of the time of
// the examination. With an owner it is restored, by rules that have its name, also of marked packets.
func Firewall(owner string, passages func() []nft.Passage, marked ...nft.Packets) Condition {
	return firewall(nft.Blocking, owner, passages, marked...)
}

func firewall(blocking func([]nft.Passage) ([]nft.Block, error), owner string, passages func() []nft.Passage, marked ...nft.Packets) Condition {
	c := Condition{Name: "firewall", Good: "no chain of nftables or iptables drops all packets that are forwarded, or those of the tunnel"}
	c.Examine = func() (problems []health.Problem, err error) {
		list := passages()
		blocks, unknown := blocking(list)
		for _, b := range blocks {
			text := dropsForwarded(b.Chain)
			if b.Passage.Port != 0 {
				text = fmt.Sprintf("chain %q drops the packets to port %d, those of the tunnel", b.Chain, b.Passage.Port)
			}
			switch i := slices.IndexFunc(problems, func(p health.Problem) bool { return p.Text == text }); {
			case i < 0:
				problems = append(problems, health.Problem{Text: text, Remedy: b.Remedy()})
			case !strings.Contains(problems[i].Remedy, b.Remedy()): // one rule is for both versions
				problems[i].Remedy += "; " + b.Remedy()
			}
		}
		if owner == "" || len(problems) > 0 {
			return problems, unknown
		}
		if ok, err := nft.Permitted(owner, list, marked...); ok || err != nil {
			return nil, errors.Join(unknown, err)
		}
		return []health.Problem{{Text: "chains of nftables lack rules of the gateway, or have some that are not needed", Remedy: "restart the gateway"}}, unknown
	}
	if owner != "" {
		c.Restore = func() error {
			_, err := nft.Permit(owner, passages(), marked...)
			return err
		}
	}
	return c
}

// Unique is that no IPv6 address of the interfaces is that of another host as well, as far as the
// kernel has detected it (RFC 4862 section 5.4): it does not use such an address. Missing
// interfaces have no effect.
func Unique(links ...string) Condition {
	return Condition{
		Name: "duplicate addresses", Good: "no other host was found to have an IPv6 address of this one",
		Examine: func() (problems []health.Problem, err error) {
			for _, name := range slices.Compact(slices.Sorted(slices.Values(links))) {
				link, err := netlink.LinkByName(name)
				if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("find interface %q: %w", name, err)
				}
				list, err := netlink.AddrList(link, netlink.FAMILY_V6)
				if err != nil {
					return nil, fmt.Errorf("list addresses of interface %q: %w", name, err)
				}
				for _, a := range list {
					if a.Flags&unix.IFA_F_DADFAILED != 0 {
						problems = append(problems, health.Problem{
							Text:   fmt.Sprintf("another host on interface %q has the address %v, too", name, a.IPNet),
							Remedy: fmt.Sprintf("give one of them another address, or once the other is gone: ip addr del %v dev %s; ip addr add %v dev %s", a.IPNet, name, a.IPNet, name),
						})
					}
				}
			}
			return problems, nil
		},
	}
}

// Multipath is that sockets of this host can use MPTCP.
func Multipath() Condition { return multipath(netns.ReadSysctl) }

func multipath(read reader) Condition {
	return Condition{
		Name: "MPTCP", Good: "new connections can use MPTCP",
		Examine: func() ([]health.Problem, error) {
			problems, err := parameter(read, "net.mptcp.enabled", "1", "new connections are TCP, because MPTCP is switched off on this host")
			if errors.Is(err, fs.ErrNotExist) {
				return []health.Problem{{Text: "new connections are TCP, because the kernel of this host has no MPTCP", Remedy: "use a kernel with CONFIG_MPTCP, and CONFIG_MPTCP_IPV6"}}, nil
			}
			return problems, err
		},
	}
}

// Cookies is that this host does not answer each SYN with a SYN cookie. Of a connection with one the
// kernel knows nothing until its next packet, which is not captured and goes on to the destination.
func Cookies() Condition { return cookies(netns.ReadSysctl) }

func cookies(read reader) Condition {
	return Condition{
		Name: "SYN cookies", Good: "captured connections are answered without SYN cookies",
		Examine: func() ([]health.Problem, error) {
			const key, always = "net.ipv4.tcp_syncookies", "2"
			value, err := read(key)
			switch {
			case errors.Is(err, fs.ErrNotExist): // without CONFIG_SYN_COOKIES there are none
				return nil, nil
			case err != nil || value != always:
				return nil, err
			}
			return []health.Problem{{
				Text:   "captured connections fail, because this host answers each SYN with a SYN cookie",
				Remedy: "sysctl -w " + key + "=1",
			}}, nil
		},
	}
}

// PathManager is that new connections use a path manager, which the caller has selected.
func PathManager(want mptcp.Manager) Condition {
	return Condition{
		Name: "MPTCP path manager", Good: fmt.Sprintf("new connections use the path manager %q", want),
		Examine: func() ([]health.Problem, error) {
			have, err := mptcp.CurrentManager()
			if err != nil || have == want {
				return nil, err
			}
			return []health.Problem{{
				Text:   fmt.Sprintf("new connections use the MPTCP path manager %q, not %q", have, want),
				Remedy: mptcp.ManagerCommand(want),
			}}, nil
		},
		Restore: func() error { return mptcp.SetManager(want) },
	}
}

// Examination is the result of examining conditions.
type Examination struct {
	// Problems are the conditions that do not hold.
	Problems []health.Problem
	// Unknown are those that could not be examined.
	Unknown []error
	// Restored are the names of those that were restored.
	Restored []string
}

// Examine examines conditions and restores those that can be. One that does not hold after that
// remains a problem.
func Examine(list []Condition) Examination {
	var x Examination
	for _, c := range list {
		problems, err := c.Examine()
		if len(problems) > 0 && c.Restore != nil {
			if failed := c.Restore(); failed != nil {
				x.Unknown = append(x.Unknown, fmt.Errorf("restore %s: %w", c.Name, failed))
			} else if problems, err = c.Examine(); err == nil && len(problems) == 0 {
				x.Restored = append(x.Restored, c.Name)
			}
		}
		if err != nil {
			x.Unknown = append(x.Unknown, fmt.Errorf("examine %s: %w", c.Name, err))
		}
		for _, p := range problems {
			if !slices.Contains(x.Problems, p) {
				x.Problems = append(x.Problems, p)
			}
		}
	}
	return x
}
