package route

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Links returns all links.
func (c *Conn) Links() ([]Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Link
	req := message(unix.RTM_GETLINK, netlink.Dump, linkRequest("", 0))
	err := c.dumpEach(req, func() { all = all[:0] }, func(b []byte) error {
		l, err := decodeLink(b)
		all = append(all, l)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	return all, nil
}

// Link returns a link. If it does not exist, the error matches fs.ErrNotExist.
func (c *Conn) Link(name string) (Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.link(name, 0)
	if err != nil {
		return Link{}, fmt.Errorf("read link %q: %w", name, err)
	}
	return l, nil
}

// SetLinkUp sets a link administratively up or down. If it does not exist, the error matches
// fs.ErrNotExist.
func (c *Conn) SetLinkUp(name string, up bool) error {
	return c.setLink(name, func(b []byte) []byte {
		native.PutUint32(b[12:], unix.IFF_UP) // ifi_change: the flags to change
		if up {
			native.PutUint32(b[8:], unix.IFF_UP)
		}
		return b
	})
}

// SetLinkMTU sets the MTU of a link in bytes. If it does not exist, the error matches
// fs.ErrNotExist.
func (c *Conn) SetLinkMTU(name string, mtu int) error {
	return c.setLink(name, func(b []byte) []byte { return putUint32(b, unix.IFLA_MTU, uint32(mtu)) })
}

// setLink changes a link by a message, to which change adds what is changed.
func (c *Conn) setLink(name string, change func([]byte) []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.link(name, 0)
	if err != nil {
		return fmt.Errorf("set link %q: %w", name, err)
	}
	b := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint32(b[4:], uint32(l.Index))
	if _, err := c.execute(message(unix.RTM_NEWLINK, netlink.Acknowledge, change(b))); err != nil {
		return fmt.Errorf("set link %q: %w", name, err)
	}
	return nil
}

// link reads one link by name, or by index if the name is empty.
func (c *Conn) link(name string, index uint32) (Link, error) {
	if name != "" {
		if err := checkLink(name); err != nil {
			return Link{}, err
		}
	}
	got, err := c.execute(message(unix.RTM_GETLINK, 0, linkRequest(name, index)))
	switch {
	case errors.Is(err, unix.ENODEV):
		return Link{}, fmt.Errorf("link %q: %w", name, fs.ErrNotExist)
	case err != nil:
		return Link{}, err
	}
	for _, m := range got {
		if m.Header.Type == unix.RTM_NEWLINK {
			return decodeLink(m.Data)
		}
	}
	return Link{}, errors.New("no answer")
}

func linkRequest(name string, index uint32) []byte {
	const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	b := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint32(b[4:], index)
	if name != "" {
		b = putAttr(b, unix.IFLA_IFNAME, append([]byte(name), 0))
	}
	return putUint32(b, unix.IFLA_EXT_MASK, skipStats)
}

// names returns a function from the index of a link to its name. The function cannot query the
// kernel during a dump, so names reads all links first; a link created later counts as nonexistent
// until its event is received.
func (c *Conn) names() links {
	known := map[uint32]string{}
	req := message(unix.RTM_GETLINK, netlink.Dump, linkRequest("", 0))
	err := c.dumpEach(req, func() { clear(known) }, func(b []byte) error {
		l, err := decodeLink(b)
		known[uint32(l.Index)] = l.Name
		return err
	})
	return func(index uint32) (string, error) { return known[index], err }
}

// links returns the name of the link with an index; the name is empty if the link no longer exists.
type links func(index uint32) (string, error)

// A Link is a network interface and its state in the kernel.
type Link struct {
	Index int
	Name  string
	Admin bool // administratively up (IFF_UP)
	Up    bool // administratively up and with carrier (IFF_UP and IFF_LOWER_UP)
	MTU   int  // bytes
}

func decodeLink(b []byte) (Link, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return Link{}, errShort
	}
	const up = unix.IFF_UP | unix.IFF_LOWER_UP
	flags := native.Uint32(b[8:])
	l := Link{Index: int(int32(native.Uint32(b[4:]))), Admin: flags&unix.IFF_UP != 0, Up: flags&up == up}
	at := attrs{b: b[unix.SizeofIfInfomsg:]}
	for at.next() {
		switch at.typ {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(at.data)
		case unix.IFLA_MTU:
			l.MTU = int(at.uint32())
		}
	}
	if at.err != nil {
		return Link{}, at.err
	}
	if l.Index <= 0 || l.Name == "" {
		return Link{}, errAttr
	}
	return l, nil
}
