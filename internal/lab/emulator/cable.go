package emulator

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cable propagates the carrier: when one node's interface goes down, the other node's interface
// loses its carrier.
//
// A veth end has a carrier when both ends of its pair are up. When the link's end i has none, the
// link's other end is set down, and up again when i has its carrier back. An end that the cable has
// set down has no carrier whatever its node does, so the cable never sets both ends down.
type cable struct {
	link   *Link
	handle *netlink.Handle
	events *os.File

	pulled [2]atomic.Bool // end set down by the cable, because the other end has no carrier
	pulls  atomic.Uint64
}

// openCable subscribes to link events in the network namespace of the calling thread, and sets both
// ends up.
func openCable(l *Link) (_ *cable, err error) {
	c := &cable{link: l}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	c.events = os.NewFile(uintptr(fd), "netlink socket")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		return nil, fmt.Errorf("listen for changes of interfaces: %w", err)
	}
	if c.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	for i := range l.ends {
		if err := c.turn(i, true); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *cable) close() error {
	var err error
	if c.events != nil {
		err = c.events.Close()
	}
	if c.handle != nil {
		c.handle.Close()
	}
	return err
}

// turn sets an end administratively up or down.
func (c *cable) turn(i int, up bool) error {
	end := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: c.link.ends[i].index}}
	set, name := c.handle.LinkSetDown, "down"
	if up {
		set, name = c.handle.LinkSetUp, "up"
	}
	if err := set(end); err != nil {
		return fmt.Errorf("set interface %q %s: %w", c.link.ends[i].name, name, err)
	}
	return nil
}

// watch handles link events until stop. It rereads the state from the kernel after each event, so
// lost events have no effect.
func (c *cable) watch() error {
	buffer := make([]byte, 1<<16)
	for {
		if err := c.settle(); err != nil {
			return err
		}
		_, err := c.events.Read(buffer)
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		default:
			return fmt.Errorf("read changes of interfaces: %w", err)
		}
	}
}

// stop ends watch.
func (c *cable) stop() {
	// It fails only if the file is closed, which watch has reported.
	_ = c.events.SetReadDeadline(time.Unix(1, 0))
}

// settle sets each end up or down according to the carrier of the other end.
func (c *cable) settle() error {
	for i := range c.link.ends {
		o := 1 - i
		if c.pulled[i].Load() {
			continue
		}
		carrier, err := c.carrier(i)
		if err != nil {
			return err
		}
		if carrier == !c.pulled[o].Load() {
			continue
		}
		if err := c.turn(o, carrier); err != nil {
			return err
		}
		c.pulled[o].Store(!carrier)
		if carrier {
			c.link.log.Info("link is connected", "a", c.link.config.A, "b", c.link.config.B)
			continue
		}
		c.pulls.Add(1)
		c.link.log.Info("link is cut: an interface has no carrier", "interface", c.link.ends[i].name)
		// Frames in flight are lost when the cable is cut. If the link has stopped
		// meanwhile, do fails and there are none.
		if err := c.link.do(func(time.Duration) {
			for _, w := range c.link.ways {
				w.flush()
			}
		}); err != nil && !errors.Is(err, ErrClosed) {
			return err
		}
	}
	return nil
}

// carrier reports whether the end has a carrier: whether its node's interface is up.
func (c *cable) carrier(i int) (bool, error) {
	end, err := c.handle.LinkByIndex(c.link.ends[i].index)
	if err != nil {
		return false, fmt.Errorf("read state of interface %q: %w", c.link.ends[i].name, err)
	}
	const wanted = unix.IFF_UP | unix.IFF_LOWER_UP
	return end.Attrs().RawFlags&wanted == wanted, nil
}

// connected reports that both nodes' interfaces are up.
func (c *cable) connected() bool { return !c.pulled[0].Load() && !c.pulled[1].Load() }

// down sets both ends down.
func (c *cable) down() error {
	return errors.Join(c.turn(0, false), c.turn(1, false))
}
