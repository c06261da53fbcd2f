// Package nic reads how fast network interfaces are and what they have sent. It changes nothing.
package nic

import (
	"errors"
	"fmt"
	"math"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Conn reads the interfaces of the network namespace that it was opened in. It is not safe for
// concurrent use.
type Conn struct {
	links   *rtnetlink.Handle
	ethtool *genetlink.Conn
	family  uint16 // of ethtool; 0: the kernel has none
}

// Open connects to the kernel.
func Open() (*Conn, error) {
	links, err := rtnetlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("connect to rtnetlink: %w", err)
	}
	ethtool, err := genetlink.Dial(nil)
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("connect to generic netlink: %w", err)
	}
	c := &Conn{links: links, ethtool: ethtool}
	if f, err := ethtool.GetFamily(unix.ETHTOOL_GENL_NAME); err == nil {
		c.family = f.ID
	}
	return c, nil
}

// Close disconnects from the kernel.
func (c *Conn) Close() error {
	c.links.Close()
	return c.ethtool.Close()
}

// Sent returns the number of an interface, and how many bytes it has sent.
func (c *Conn) Sent(name string) (index int, bytes uint64, err error) {
	l, err := c.links.LinkByName(name)
	if err != nil {
		return 0, 0, fmt.Errorf("read counters of interface %q: %w", name, err)
	}
	a := l.Attrs()
	if a.Statistics == nil {
		return 0, 0, fmt.Errorf("read counters of interface %q: the kernel has none", name)
	}
	return a.Index, a.Statistics.TxBytes, nil
}

// Speed returns the speed of an interface in bit/s, 0 if its driver does not know it or has no
// link.
func (c *Conn) Speed(name string) (bitsPerSecond int64, err error) {
	if c.family == 0 {
		return 0, nil
	}
	e := netlink.NewAttributeEncoder()
	e.Nested(unix.ETHTOOL_A_LINKMODES_HEADER, func(e *netlink.AttributeEncoder) error {
		e.String(unix.ETHTOOL_A_HEADER_DEV_NAME, name)
		return nil
	})
	data, err := e.Encode()
	if err != nil {
		return 0, fmt.Errorf("read speed of interface %q: %w", name, err)
	}
	request := genetlink.Message{Header: genetlink.Header{Command: unix.ETHTOOL_MSG_LINKMODES_GET, Version: unix.ETHTOOL_GENL_VERSION}, Data: data}
	replies, err := c.ethtool.Execute(request, c.family, netlink.Request)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return 0, nil // as of a tunnel
	}
	if err != nil {
		return 0, fmt.Errorf("read speed of interface %q: %w", name, err)
	}
	for _, r := range replies {
		d, err := netlink.NewAttributeDecoder(r.Data)
		if err != nil {
			return 0, fmt.Errorf("read speed of interface %q: %w", name, err)
		}
		for d.Next() {
			// It is in Mbit/s; all bits are set if it is not known.
			if d.Type() == unix.ETHTOOL_A_LINKMODES_SPEED && d.Uint32() < math.MaxInt32 {
				bitsPerSecond = int64(d.Uint32()) * 1e6
			}
		}
		if err := d.Err(); err != nil {
			return 0, fmt.Errorf("read speed of interface %q: %w", name, err)
		}
	}
	return bitsPerSecond, nil
}
