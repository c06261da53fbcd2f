// Package mptcp is a client of the kernel's MPTCP path manager API, generic netlink family
// mptcp_pm: it configures the endpoints and limits of the in-kernel path manager, and carries the
// events and commands of a user-space path manager. It reads connections and subflows from
// sock_diag, and opens listening sockets.
//
// A Conn works in the network namespace in which it was dialed. The package keeps no state of
// connections; a caller that adds endpoints passes to Plan which addresses it owns and may remove.
package mptcp

import (
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// missing returns the *feature.Error for MPTCP support that this kernel or network namespace lacks.
func missing(reason, remedy string) error {
	return &feature.Error{Feature: "MPTCP", Reason: reason, Remedy: remedy}
}

const (
	familyName    = "mptcp_pm"
	familyVersion = 1
	sysctlDir     = "/proc/sys/net/mptcp/"
	needLinux     = "use Linux 5.6 or newer with CONFIG_MPTCP=y"
)

// Supported returns nil if MPTCP and its path manager are available in the network namespace of the
// caller, and a *feature.Error otherwise.
func Supported() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	if err := refusal(err); err != nil {
		return err
	}
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close mptcp socket: %w", err)
	}
	c, err := Dial()
	if err != nil {
		return err
	}
	return c.Close()
}

// refusal converts the errno of socket(2) for an MPTCP socket to an error (see mptcp_init_sock and
// inet_create in the kernel).
func refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOPROTOOPT):
		return missing("net.mptcp.enabled is 0", "sysctl -w net.mptcp.enabled=1")
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return missing("not built into this kernel", needLinux)
	}
	return fmt.Errorf("open mptcp socket: %w", err)
}

// Conn is a connection to the path manager API of one network namespace. It is safe for concurrent
// use.
type Conn struct {
	genl   *genetlink.Conn
	family genetlink.Family
	// links is a socket used only to look up interfaces in the namespace where the Conn was
	// dialed, regardless of the calling thread's namespace.
	links int
}

// Dial opens a connection to the path manager of the network namespace that the calling thread is
// in. Close it. It returns a *feature.Error when the kernel has no path manager.
func Dial() (_ *Conn, err error) {
	genl, family, err := dialFamily()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = genl.Close()
		}
	}()
	if err := genl.SetOption(netlink.ExtendedAcknowledge, true); err != nil {
		return nil, fmt.Errorf("ask netlink for reasons: %w", err)
	}
	links, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	return &Conn{genl: genl, family: family, links: links}, nil
}

// dialFamily opens a generic netlink socket and resolves the mptcp_pm family.
func dialFamily() (*genetlink.Conn, genetlink.Family, error) {
	genl, err := genetlink.Dial(nil)
	if err != nil {
		return nil, genetlink.Family{}, fmt.Errorf("dial generic netlink: %w", err)
	}
	family, err := genl.GetFamily(familyName)
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = missing("this kernel has no netlink family "+familyName, needLinux)
	case err != nil:
		err = fmt.Errorf("find netlink family %q: %w", familyName, err)
	}
	if err != nil {
		return nil, family, errors.Join(err, genl.Close())
	}
	return genl, family, nil
}

// Close closes the connection. Endpoints and limits remain.
func (c *Conn) Close() error {
	return errors.Join(c.genl.Close(), unix.Close(c.links))
}

// Endpoints returns all endpoints of the namespace, in the order of the kernel.
func (c *Conn) Endpoints() ([]Endpoint, error) {
	msgs, err := c.execute(cmdGetAddr, nil, netlink.Dump)
	if err != nil {
		return nil, fmt.Errorf("list mptcp endpoints: %w", err)
	}
	endpoints := make([]Endpoint, 0, len(msgs))
	for _, m := range msgs {
		e, index, err := decodeEndpoint(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list mptcp endpoints: decode: %w", err)
		}
		if index != 0 {
			if e.Link, err = c.linkName(index); err != nil {
				return nil, fmt.Errorf("list mptcp endpoints: %w", err)
			}
		}
		endpoints = append(endpoints, e)
	}
	return endpoints, nil
}

// Add adds an endpoint. Existing connections use it too.
func (c *Conn) Add(e Endpoint) error {
	err := e.check()
	if err == nil {
		err = c.add(e)
	}
	if err != nil {
		return fmt.Errorf("add mptcp endpoint %q: %w", e.Address, err)
	}
	return nil
}

func (c *Conn) add(e Endpoint) error {
	var index uint32
	if e.Link != "" {
		var err error
		if index, err = c.linkIndex(e.Link); err != nil {
			return err
		}
	}
	return c.send(cmdAddAddr)(encodeEndpoint(e, index))
}

// Delete removes the endpoint with the ID. Its address is withdrawn from the peers of existing
// connections, and subflows from it are closed.
func (c *Conn) Delete(id uint8) error {
	err := checkID(id)
	if err == nil {
		err = c.send(cmdDelAddr)(encodeID(id))
	}
	if err != nil {
		return fmt.Errorf("delete mptcp endpoint %d: %w", id, err)
	}
	return nil
}

// SetFlags sets Backup and Fullmesh of the endpoint with e.ID to those of e, also for existing
// connections. The other fields of an existing endpoint cannot be changed.
func (c *Conn) SetFlags(e Endpoint) error {
	err := checkID(e.ID)
	if err == nil {
		changeable := Endpoint{Backup: e.Backup, Fullmesh: e.Fullmesh}
		err = c.send(cmdSetFlags)(encodeID(e.ID, changeable.flags()))
	}
	if err != nil {
		return fmt.Errorf("change mptcp endpoint %d: %w", e.ID, err)
	}
	return nil
}

// checkID rejects ID 0, which the kernel treats as the address of the initial subflow of every
// connection.
func checkID(id uint8) error {
	if id == 0 {
		return errors.New("no endpoint has ID 0")
	}
	return nil
}

// Limits returns the limits of the namespace.
func (c *Conn) Limits() (Limits, error) {
	msgs, err := c.execute(cmdGetLimits, nil, 0)
	if err != nil {
		return Limits{}, fmt.Errorf("read mptcp limits: %w", err)
	}
	if len(msgs) != 1 {
		return Limits{}, fmt.Errorf("read mptcp limits: got %d answers, want 1", len(msgs))
	}
	l, err := decodeLimits(msgs[0].Data)
	if err != nil {
		return Limits{}, fmt.Errorf("read mptcp limits: decode: %w", err)
	}
	return l, nil
}

// SetLimits sets the limits of the namespace.
func (c *Conn) SetLimits(l Limits) error {
	if err := c.send(cmdSetLimits)(encodeLimits(l)); err != nil {
		return fmt.Errorf("set mptcp limits to %d subflows, %d accepted addresses: %w", l.Subflows, l.AddAddrAccepted, err)
	}
	return nil
}

// send returns a function that sends a command with encoded attributes; its parameters are the
// results of an encoder.
func (c *Conn) send(command uint8) func(data []byte, err error) error {
	return func(data []byte, err error) error {
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		_, err = c.execute(command, data, netlink.Acknowledge)
		return err
	}
}

// execute sends a command and returns the answers. Errors include the kernel's extended ack
// message, if any.
func (c *Conn) execute(command uint8, data []byte, flags netlink.HeaderFlags) ([]genetlink.Message, error) {
	msgs, err := c.genl.Execute(genetlink.Message{
		Header: genetlink.Header{Command: command, Version: familyVersion},
		Data:   data,
	}, c.family.ID, netlink.Request|flags)
	var op *netlink.OpError
	if errors.As(err, &op) && op.Message != "" {
		return nil, fmt.Errorf("%w: %s", op.Err, op.Message)
	}
	return msgs, err
}

func (c *Conn) linkIndex(name string) (uint32, error) {
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(c.links, unix.SIOCGIFINDEX, request)
	}
	if err != nil {
		return 0, fmt.Errorf("find link %q: %w", name, err)
	}
	return request.Uint32(), nil
}

func (c *Conn) linkName(index uint32) (string, error) {
	request, err := unix.NewIfreq("")
	if err != nil {
		return "", fmt.Errorf("find link %d: %w", index, err)
	}
	request.SetUint32(index)
	switch err := unix.IoctlIfreq(c.links, unix.SIOCGIFNAME, request); {
	case errors.Is(err, unix.ENODEV):
		return fmt.Sprintf("#%d", index), nil
	case err != nil:
		return "", fmt.Errorf("find link %d: %w", index, err)
	}
	return request.Name(), nil
}
