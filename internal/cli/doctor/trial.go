package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/spray"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/role"
)

// ErrNotChecked is wrapped if a probe could not run, so that it is not known whether the feature is
// available.
var ErrNotChecked = errors.New("could not be checked")

// isolated runs f on a thread in a new network namespace, which is removed when f has returned and
// closed its sockets.
func isolated(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("%w: open own network namespace: %w", ErrNotChecked, err)
			return
		}
		defer home.Close()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("%w: make a network namespace: %w", ErrNotChecked, err)
			return
		}
		err = f()
		// A thread that cannot return stays locked, and ends with this goroutine.
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

const probe = "probe0"

var (
	probeAddress = netip.MustParsePrefix("2001:db8::1/64")
	probePeer    = netip.MustParseAddr("2001:db8::2")
	probeSID     = netip.MustParseAddr("fc00::1")
	probeTable   = uint32(100)
)

// trial is the probe of one feature, in a namespace with the interface probe.
type trial struct {
	check, good, remedy string
	needed              bool
	users               []string
	try                 func(*route.Conn) error
}

// pair creates the interface that the probes need.
func pair() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = probe
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "probe1"}); err != nil {
		return fmt.Errorf("add veth pair: %w", err)
	}
	for _, name := range []string{probe, "probe1", "lo"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find link %q: %w", name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set link %q up: %w", name, err)
		}
	}
	return nil
}

func put(c *route.Conn, objects ...route.Object) error {
	ops := make([]route.Op, len(objects))
	for i, o := range objects {
		ops[i] = route.Op{Protocol: route.ASBR, Object: o}
	}
	return errors.Join(c.Apply(ops)...)
}

// overSRv6 are the daemons that need SRv6.
var overSRv6 = []string{role.ASBR, role.Edge}

const seg6Remedy = "use a kernel with CONFIG_IPV6_SEG6_LWTUNNEL=y"

var (
	tryEncapRed = trial{"SRv6 encap.red", "servers encapsulate to an ASBR's SID, 40 bytes per packet", seg6Remedy + ", Linux 6.0 or newer", true, overSRv6,
		func(c *route.Conn) error {
			return put(c, route.Nexthop{ID: 2, Link: probe, SID: probeSID, Encap: route.EncapRed})
		}}
	tryEncap = trial{"SRv6 encap", "the same with a segment routing header, 64 bytes", seg6Remedy, false, overSRv6,
		func(c *route.Conn) error {
			return put(c, route.Nexthop{ID: 3, Link: probe, SID: probeSID, Encap: route.EncapFull})
		}}
	tryTable = trial{"SRv6 End.DT6", "ASBRs forward by the table of the egress peer", seg6Remedy, true, overSRv6,
		func(c *route.Conn) error {
			return put(c, route.Route{Dst: netip.PrefixFrom(probeSID, 128), Link: probe, Local: route.LocalAction{Behavior: route.EndDT6, Table: probeTable}})
		}}
	tryNeighbor = trial{"SRv6 End.DX6", "ASBRs forward to the egress peer without a lookup", seg6Remedy, false, []string{role.ASBR},
		func(c *route.Conn) error {
			return put(c, route.Route{Dst: netip.PrefixFrom(probeSID.Next(), 128), Link: probe, Local: route.LocalAction{Behavior: route.EndDX6, Nexthop: probePeer}})
		}}
	tryNexthop = trial{"nexthop objects", "all routes to an SID change at once", "use Linux 5.3 or newer", true, overSRv6,
		func(c *route.Conn) error {
			return put(c, route.Address{Link: probe, Prefix: probeAddress}, route.Nexthop{ID: 1, Link: probe, Gateway: probePeer})
		}}
	tryGroup = trial{"resilient groups", "a server spreads flows over egress peers", "use Linux 5.13 or newer", false, []string{role.Edge},
		func(c *route.Conn) error {
			members := route.JoinMembers([]route.GroupMember{{ID: 5, Weight: 1}, {ID: 6, Weight: 1}})
			return put(c, route.Nexthop{ID: 5, Link: probe}, route.Nexthop{ID: 6, Link: probe}, route.NexthopGroup{ID: 4, Members: members})
		}}
	trySpray = trial{"packets of a connection by BPF", "a server sprays packets over egress peers", "use Linux 5.17 or newer with CONFIG_LWTUNNEL_BPF=y", false, []string{role.Edge},
		func(*route.Conn) error {
			s, err := spray.New([]string{probe})
			if err != nil {
				return err
			}
			return s.Close()
		}}
	tryRule = trial{"policy rules", "each EPE address, and the tunnel of a gateway, has its own table", "use a kernel with CONFIG_IPV6_MULTIPLE_TABLES=y", true, []string{role.ASBR, role.Edge, role.Gateway},
		func(c *route.Conn) error {
			return put(c, route.Rule{Priority: 1000, From: netip.PrefixFrom(probeAddress.Addr(), 128), Table: probeTable})
		}}
	tryBridge = trial{"bridge", "a lab has switches", "modprobe bridge", true, []string{lab},
		func(*route.Conn) error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "probe2"
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		}}
	tryShaper = trial{"token bucket (TBF)", "a lab limits its links", "modprobe sch_tbf", true, []string{lab},
		func(*route.Conn) error {
			return tc.SetRate(probe, tc.Rate{Rate: 10 * unit.MbitPerSecond, Burst: 32 * unit.KiB, Queue: 50 * time.Millisecond})
		}}
)

// run runs probes in one namespace and returns the result of each. If the namespace or its veth
// pair cannot be created, it returns that error and no results.
func run(trials ...trial) (results []error, made error) {
	results = make([]error, len(trials))
	made = isolated(func() error {
		if err := pair(); err != nil {
			return &feature.Error{Feature: "veth pair", Err: err}
		}
		c, err := route.Dial()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotChecked, err)
		}
		for i, t := range trials {
			if err := t.try(c); err != nil {
				results[i] = &feature.Error{Feature: t.check, Err: err, Remedy: t.remedy}
			}
		}
		return c.Close()
	})
	return results, made
}

// Provides returns nil if this host provides what a daemon needs. Otherwise the error is a
// *feature.Error, or wraps ErrPrivilege or ErrNotChecked if this process could not probe it.
func Provides(n role.Need) error {
	switch n {
	case role.NetAdmin:
		return Privileged()
	case role.Namespaces:
		return PrivilegedForLab()
	case role.MPTCP:
		return mptcp.Supported()
	case role.TUN:
		_, err := tryTUN()
		return err
	case role.SRv6:
		results, made := run(tryEncapRed, tryTable)
		if made != nil {
			return made
		}
		return errors.Join(results...)
	}
	panic("BUG: nothing checks the need " + string(n))
}

func trials() []Finding {
	all := []trial{tryNexthop, tryGroup, trySpray, tryRule, tryEncapRed, tryEncap, tryTable, tryNeighbor, tryBridge, tryShaper}
	results, made := run(all...)

	veth := Finding{Check: "namespaces and veth", Needed: true, Users: []string{lab}, State: OK, Meaning: "labs have nodes and links"}
	if made != nil {
		veth.State, veth.Meaning, veth.Remedy = Missing, made.Error(), "use a kernel with CONFIG_NET_NS=y and CONFIG_VETH"
		if errors.Is(made, ErrNotChecked) {
			veth.State, veth.Remedy = Unknown, "run as root to check"
		}
	}
	list := []Finding{veth}
	for i, t := range all {
		f := Finding{Check: t.check, Needed: t.needed, Optional: !t.needed, Users: t.users, State: OK, Meaning: t.good}
		if made != nil {
			f.State, f.Remedy = Unknown, veth.Remedy
		} else {
			f.check(results[i])
		}
		list = append(list, f)
	}
	return list
}
