package iproute

import (
	"errors"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/netns"
)

// monitorBuffer holds what happens until it is read at the end, in bytes.
const monitorBuffer = 4 << 20

// Monitor watches the IPv6 routes, the rules and the nexthop objects of a network namespace from
// now on. The function that it returns ends that and returns what changed, a line for each in the
// format of `ip monitor`; it must be called.
func Monitor(namespace string) (end func() (string, error), err error) {
	var s *nl.NetlinkSocket
	err = netns.Do(namespace, func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP)
		if err == nil {
			err = s.SetReceiveBufferSize(monitorBuffer, true)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return func() (string, error) {
		defer s.Close()
		var out strings.Builder
		// What has happened is in the socket's buffer already; an overrun is an error of
		// Receive.
		err := netns.Do(namespace, func() error {
			if err := s.SetReceiveTimeout(&unix.Timeval{Usec: 1000}); err != nil {
				return err
			}
			for {
				messages, from, err := s.Receive()
				if errors.Is(err, unix.EAGAIN) {
					return nil
				}
				if err != nil {
					return err
				}
				if from.Pid != nl.PidKernel {
					continue
				}
				for _, m := range messages {
					if err := describe(&out, m.Header.Type, m.Data); err != nil {
						return err
					}
				}
			}
		})
		return out.String(), err
	}, nil
}

func describe(out *strings.Builder, kind uint16, b []byte) error {
	text, deleted := "", false
	var err error
	switch kind {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		var r route
		if r, err = decodeRoute(b); r.cloned {
			return err
		}
		text, deleted = r.text(0), kind == unix.RTM_DELROUTE
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		text, err = nexthopText(b)
		deleted = kind == unix.RTM_DELNEXTHOP
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		text, deleted = describeRule(b), kind == unix.RTM_DELRULE
	default:
		return nil
	}
	if deleted {
		text = "Deleted " + text
	}
	out.WriteString(text + "\n")
	return err
}

// describeRule shows a rule of a notification, for which the library has no decoder.
func describeRule(b []byte) string {
	if len(b) < unix.SizeofRtMsg {
		return "rule"
	}
	m, err := parse(b[unix.SizeofRtMsg:])
	if err != nil {
		return err.Error()
	}
	r := netlink.Rule{Priority: m.number(nl.FRA_PRIORITY), Mark: uint32(m.number(nl.FRA_FWMARK)), Table: m.number(nl.FRA_TABLE)}
	if src, ok := m[nl.FRA_SRC]; ok {
		r.Src = &net.IPNet{IP: src, Mask: net.CIDRMask(int(b[2]), 8*len(src))}
	}
	if p := m[nl.FRA_PROTOCOL]; len(p) == 1 {
		r.Protocol = p[0]
	}
	return ruleText(r)
}
