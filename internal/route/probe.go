package route

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/feature"
)

// SupportsSEG6 returns nil if this kernel supports seg6 encapsulation and seg6local actions and the
// caller has the privilege to configure them, and a *feature.Error if the kernel does not support
// them. It changes nothing: it requests the replacement of objects that do not exist, and the
// kernel validates their encapsulation first.
func SupportsSEG6() error {
	c, err := Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	nowhere := netip.MustParseAddr("100::") // the discard prefix, RFC 6666
	for _, o := range []Object{
		Nexthop{ID: math.MaxUint32, Link: "lo", SID: nowhere},
		Route{
			Table: MainTable, Dst: netip.PrefixFrom(nowhere, 128), Metric: math.MaxUint32, Link: "lo",
			Local: LocalAction{Behavior: EndDT6, Table: MainTable},
		},
	} {
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
	switch o := o.(type) {
	case Nexthop:
		m = message(unix.RTM_NEWNEXTHOP, 0, putNexthop(nil, o, unix.RTPROT_STATIC, uint32(lo.Index), false))
	case Route:
		m = message(unix.RTM_NEWROUTE, 0, putRoute(nil, o, unix.RTPROT_STATIC, uint32(lo.Index), false))
	}
	m.Header.Flags |= netlink.Acknowledge | netlink.Replace
	switch _, err := c.execute(m); {
	case errors.Is(err, unix.EOPNOTSUPP):
		return &feature.Error{Feature: "SRv6", Err: err, Remedy: "use a kernel with CONFIG_IPV6_SEG6_LWTUNNEL=y"}
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("change routes: %w: run as root or with CAP_NET_ADMIN", err)
	}
	return nil
}
