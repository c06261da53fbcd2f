package route

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/contain"
)

// A Group is what a Watcher reports.
type Group uint8

const (
	Links Group = iota
	Addresses
	Routes
	Rules
	Nexthops
	Parameters
)

// multicast are rtnetlink's multicast groups of each Group.
var multicast = [...][]uint32{
	Links:      {unix.RTNLGRP_LINK},
	Addresses:  {unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR},
	Routes:     {unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE},
	Rules:      {unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE},
	Nexthops:   {unix.RTNLGRP_NEXTHOP},
	Parameters: {unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF},
}

// An Event is a LinkChange, ObjectChange, ParameterChange or Overrun.
type Event interface{ event() }

// A LinkChange is the new state of a link, or its deletion. Consecutive ones may be equal.
type LinkChange struct {
	Link    Link
	Deleted bool
}

// An ObjectChange is an object that was added, replaced or deleted. The kernel does not report
// nexthop objects that it deletes because their link goes down or loses its carrier, nor IPv4
// routes that it deletes with their nexthop object.
type ObjectChange struct {
	Object   Object
	Protocol Protocol
	Deleted  bool
	Time     time.Time // when it was read from the kernel
}

// A ParameterChange means that parameters of a link or of all links have changed, such as
// forwarding and rp_filter: those in RTM_NEWNETCONF. Others change without an event.
type ParameterChange struct{}

// An Overrun means that events were lost; links and objects must be read again.
type Overrun struct{ Reason error }

func (LinkChange) event()      {}
func (ObjectChange) event()    {}
func (ParameterChange) event() {}
func (Overrun) event()         {}

const (
	// watchBuffer holds about ten thousand route events.
	watchBuffer = 8 << 20
	// watchQueue is the number of decoded events that are queued for the caller.
	watchQueue = 1024
)

// A Watcher reports the events of one network namespace.
type Watcher struct {
	events chan Event
	nl     *netlink.Conn
	cancel context.CancelFunc
	// links are the names of links by index; emitLinks is set if the caller subscribed to
	// Links.
	links     map[uint32]string
	emitLinks bool

	mu  sync.Mutex
	err error
}

// Watch subscribes to groups in the network namespace of the calling thread. Events that happen
// after it returns are reported until ctx ends or Close is called; a slow reader receives an
// Overrun in place of lost events.
func Watch(ctx context.Context, groups ...Group) (*Watcher, error) {
	return watch(ctx, watchBuffer, nil, groups...)
}

// WatchOwned is like Watch, but reports only changes that other programs make to objects with the
// protocol number. It reports neither changes made through c nor routes that the kernel deletes
// together with a link or a nexthop object. An object of another owner is reported if it replaced
// an existing one. c must be in the network namespace of the calling thread.
func (c *Conn) WatchOwned(ctx context.Context, p Protocol, groups ...Group) (*Watcher, error) {
	port, err := c.port()
	if err != nil {
		return nil, fmt.Errorf("watch rtnetlink: %w", err)
	}
	filter, err := bpf.Assemble(ownedFilter(port, p))
	if err != nil {
		return nil, fmt.Errorf("watch rtnetlink: assemble filter: %w", err)
	}
	return watch(ctx, watchBuffer, filter, groups...)
}

func watch(ctx context.Context, buffer int, filter []bpf.RawInstruction, groups ...Group) (*Watcher, error) {
	nl, err := dial(buffer)
	if err != nil {
		return nil, fmt.Errorf("watch rtnetlink: %w", err)
	}
	if filter != nil {
		if err := nl.SetBPF(filter); err != nil {
			return nil, errors.Join(fmt.Errorf("watch rtnetlink: %w", cause(err)), nl.Close())
		}
	}
	// Links are always subscribed to, for their names.
	for _, g := range append([]Group{Links}, groups...) {
		for _, m := range multicast[g] {
			if err := nl.JoinGroup(m); err != nil {
				return nil, errors.Join(fmt.Errorf("watch rtnetlink group %d: %w", m, cause(err)), nl.Close())
			}
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{
		events: make(chan Event, watchQueue), nl: nl, cancel: cancel,
		links: map[uint32]string{}, emitLinks: slices.Contains(groups, Links),
	}
	if err := w.readLinks(); err != nil {
		cancel()
		return nil, errors.Join(err, nl.Close())
	}
	// Closing the socket unblocks a pending read.
	stop := context.AfterFunc(ctx, func() { _ = nl.Close() })
	go func() {
		defer close(w.events)
		err := w.run(ctx)
		if stop() {
			err = errors.Join(err, nl.Close())
		}
		cancel()
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
	}()
	return w, nil
}

// readLinks reads the names of the links that exist when the watcher starts.
func (w *Watcher) readLinks() error {
	c, err := Dial()
	if err != nil {
		return err
	}
	all, err := c.Links()
	for _, l := range all {
		w.links[uint32(l.Index)] = l.Name
	}
	return errors.Join(err, c.Close())
}

// name returns the name of a link. The name of a deleted link is kept for the events of objects
// deleted with it.
func (w *Watcher) name(index uint32) (string, error) { return w.links[index], nil }

// ownedFilter returns the socket filter of WatchOwned. Other programs may have a million routes,
// and the owner may change a hundred thousand at once; their notifications must not fill the
// receive buffer.
func ownedFilter(port uint32, p Protocol) []bpf.Instruction {
	// Loads are big-endian, netlink headers in host order.
	swap16 := func(v uint16) uint32 { return uint32(binary.BigEndian.Uint16(native.AppendUint16(nil, v))) }
	swap32 := func(v uint32) uint32 { return binary.BigEndian.Uint32(native.AppendUint32(nil, v)) }
	// Offsets in struct nlmsghdr, struct rtmsg and struct nhmsg.
	const (
		typeOffset, flagsOffset, portOffset = 4, 6, 12
		routeProtocol, nexthopProtocol      = unix.NLMSG_HDRLEN + 5, unix.NLMSG_HDRLEN + 2
		nexthop, owner, accept, drop        = 14, 15, 18, 19 // indices in the program
	)
	at := 0
	to := func(index int) uint8 { return uint8(index - at - 1) }
	var program []bpf.Instruction
	add := func(i bpf.Instruction) { program, at = append(program, i), at+1 }
	equal := func(v uint32, then int) { add(bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: to(then)}) }

	add(bpf.LoadAbsolute{Off: typeOffset, Size: 2})
	equal(swap16(unix.RTM_NEWLINK), accept)
	equal(swap16(unix.RTM_DELLINK), accept)
	add(bpf.LoadAbsolute{Off: portOffset, Size: 4})
	equal(swap32(port), drop)
	add(bpf.LoadAbsolute{Off: typeOffset, Size: 2})
	equal(swap16(unix.RTM_NEWNEXTHOP), nexthop)
	equal(swap16(unix.RTM_DELNEXTHOP), nexthop)
	equal(swap16(unix.RTM_NEWROUTE), at+2)
	add(bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: swap16(unix.RTM_DELROUTE), SkipTrue: to(accept)})
	// Routes. Port 0 is the kernel.
	add(bpf.LoadAbsolute{Off: portOffset, Size: 4})
	equal(0, drop)
	add(bpf.LoadAbsolute{Off: routeProtocol, Size: 1})
	add(bpf.Jump{Skip: uint32(to(owner))})
	add(bpf.LoadAbsolute{Off: nexthopProtocol, Size: 1})
	equal(uint32(p), accept)
	// Objects of another owner.
	add(bpf.LoadAbsolute{Off: flagsOffset, Size: 2})
	add(bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: swap16(unix.NLM_F_REPLACE), SkipTrue: to(drop)})
	add(bpf.RetConstant{Val: math.MaxUint32})
	add(bpf.RetConstant{Val: 0})
	return program
}

// Events returns the channel of events. It is closed when the watcher ends.
func (w *Watcher) Events() <-chan Event { return w.events }

// Err returns why the watcher ended; nil while it runs and after a canceled context or Close.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close ends the watcher and waits until its channel is closed.
func (w *Watcher) Close() error {
	w.cancel()
	for range w.events {
	}
	return w.Err()
}

func (w *Watcher) run(ctx context.Context) error {
	for {
		msgs, err := w.nl.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			if !w.emit(ctx, Overrun{Reason: err}) {
				return nil
			}
			continue
		case err != nil:
			return fmt.Errorf("watch rtnetlink: %w", cause(err))
		}
		now := time.Now()
		for _, m := range msgs {
			if e := w.event(uint16(m.Header.Type), m.Data, now); e != nil && !w.emit(ctx, e) {
				return nil
			}
		}
	}
}

func (w *Watcher) emit(ctx context.Context, e Event) bool {
	select {
	case w.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// event returns that of a message, or nil for a message that is none. A message that cannot be
// decoded counts as one that is missing.
func (w *Watcher) event(typ uint16, b []byte, now time.Time) (e Event) {
	var err error
	if fault := contain.Do(contain.KernelEvent, nil, b, func() { e, err = w.decode(typ, b, now) }); fault != nil {
		err = fault
	}
	if err != nil {
		return Overrun{Reason: fmt.Errorf("decode message type %d: %w", typ, err)}
	}
	return e
}

// decode returns nil for a message that is no event.
func (w *Watcher) decode(typ uint16, b []byte, now time.Time) (Event, error) {
	e, err := decodeEvent(typ, b, w.name, now)
	l, ok := e.(LinkChange)
	if !ok {
		return e, err
	}
	w.links[uint32(l.Link.Index)] = l.Link.Name
	if !w.emitLinks {
		return nil, nil
	}
	return e, nil
}

// decodeEvent returns nil for a message that is no event.
func decodeEvent(typ uint16, b []byte, names links, now time.Time) (Event, error) {
	var (
		f       found
		err     error
		deleted bool
	)
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(b) > 0 && b[0] != unix.AF_UNSPEC {
			// AF_BRIDGE: a bridge reports its ports in the same group; the link itself
			// is unchanged.
			return nil, nil
		}
		l, err := decodeLink(b)
		if err != nil {
			return nil, err
		}
		return LinkChange{Link: l, Deleted: typ == unix.RTM_DELLINK}, nil
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		return ParameterChange{}, nil
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		deleted = typ == unix.RTM_DELADDR
		f, err = decodeAddress(b, names)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		deleted = typ == unix.RTM_DELROUTE
		f, err = decodeRoute(b, names)
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		deleted = typ == unix.RTM_DELNEXTHOP
		f, err = decodeNexthop(b, names)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		deleted = typ == unix.RTM_DELRULE
		f, err = decodeRule(b)
	}
	if err != nil || f.object == nil {
		return nil, err
	}
	return ObjectChange{Object: f.object, Protocol: f.protocol, Deleted: deleted, Time: now}, nil
}
