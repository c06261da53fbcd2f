package route

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// nowhere is an address of the discard prefix (RFC 6666).
var nowhere = netip.MustParseAddr("100::")

// SupportsSEG6 returns nil if this kernel supports seg6 encapsulation and seg6local actions and the
// caller has the privilege to configure them, and a *feature.Error if the kernel does not support
// them. It changes nothing: it requests the replacement of objects that do not exist, and the
// kernel validates their encapsulation first.
func SupportsSEG6() error {
	return probe(
		Nexthop{ID: math.MaxUint32, Link: "lo", SID: nowhere},
		absent(LocalAction{Behavior: EndDT6, Table: MainTable}),
		absent(LocalAction{Behavior: EndDX4, Nexthop: netip.MustParseAddr("192.0.2.1")}),
	)
}

// SupportsMark returns nil if this kernel supports routes with a mark and the caller has the
// privilege to configure them, and a *feature.Error if the kernel does not support them. It changes
// nothing.
func SupportsMark() error {
	return probe(Route{Table: MainTable, Dst: netip.MustParsePrefix("240.0.0.0/32"), Metric: math.MaxUint32, Link: "lo", Mark: 1})
}

// SupportsSentMark is SupportsMark for nexthop objects with a mark.
func SupportsSentMark() error {
	return probe(Nexthop{ID: math.MaxUint32, Link: "lo", Mark: 1})
}

// absent returns a route with the action that does not exist.
func absent(l LocalAction) Route {
	return Route{Table: MainTable, Dst: netip.PrefixFrom(nowhere, nowhere.BitLen()), Metric: math.MaxUint32, Link: "lo", Local: l}
}

// probe returns the first error of refusal.
func probe(objects ...Object) error {
	c, err := Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, o := range objects {
		if err := c.refusal(o); err != nil {
			return err
		}
	}
	return nil
}

// refusal requests the replacement of an object that does not exist. It returns an error if the
// kernel does not support the object or the caller lacks the privilege, and nil otherwise.
func (c *Conn) refusal(o Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	lo, err := c.link("lo", 0)
	if err != nil {
		return err
	}
	var m netlink.Message
	marked := false
	switch o := o.(type) {
	case Nexthop:
		var program uint32
		if marked = o.Mark != 0; marked {
			if program, err = c.marks.program(marking{o.Mark, true}); err != nil {
				return err
			}
		}
		m = message(unix.RTM_NEWNEXTHOP, 0, putNexthop(nil, o, unix.RTPROT_STATIC, uint32(lo.Index), program, false))
	case Route:
		var program uint32
		if marked = o.Mark != 0; marked {
			if program, err = c.marks.program(marking{mark: o.Mark}); err != nil {
				return err
			}
		}
		m = message(unix.RTM_NEWROUTE, 0, putRoute(nil, o, unix.RTPROT_STATIC, uint32(lo.Index), program, false))
	}
	m.Header.Flags |= netlink.Acknowledge | netlink.Replace
	switch _, err := c.execute(m); {
	case errors.Is(err, unix.EOPNOTSUPP) && marked:
		return &feature.Error{Feature: "routing by marks", Err: err, Remedy: "use a kernel with CONFIG_LWTUNNEL_BPF=y"}
	case errors.Is(err, unix.EOPNOTSUPP):
		return &feature.Error{Feature: "SRv6", Err: err, Remedy: "use a kernel with CONFIG_IPV6_SEG6_LWTUNNEL=y"}
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("change routes: %w: run as root or with CAP_NET_ADMIN", err)
	}
	return nil
}
