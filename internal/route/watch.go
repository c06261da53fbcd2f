package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A Group is a multicast group of rtnetlink.
type Group uint32

const (
	Links    Group = unix.RTNLGRP_LINK
	Routes   Group = unix.RTNLGRP_IPV6_ROUTE
	Nexthops Group = unix.RTNLGRP_NEXTHOP
	Rules    Group = unix.RTNLGRP_IPV6_RULE
)

// An Event is a LinkChange, RouteChange, NexthopChange, RuleChange or Overrun.
type Event interface{ event() }

// A LinkChange is the new state of a link, or that it is gone. Consecutive ones may be equal.
type LinkChange struct {
	Link    Link
	Deleted bool
}

// A RouteChange is a route that was added, replaced or deleted.
type RouteChange struct {
	Table    uint32
	Dst      netip.Prefix
	Protocol Protocol
	Deleted  bool
	Time     time.Time // when it was read from the kernel
}

// A NexthopChange is a nexthop object that was added, replaced or deleted. The kernel does not
// report those that it deletes because their link goes down or loses its carrier: only a LinkChange
// follows.
type NexthopChange struct {
	ID       uint32
	Protocol Protocol
	Deleted  bool
}

// A RuleChange is a rule that was added or deleted.
type RuleChange struct {
	Rule     Object // a Rule, or one as Altered
	Protocol Protocol
	Deleted  bool
}

// An Overrun: events were lost, so links and routes must be read again.
type Overrun struct{}

func (LinkChange) event()    {}
func (RouteChange) event()   {}
func (NexthopChange) event() {}
func (RuleChange) event()    {}
func (Overrun) event()       {}

// watchBuffer holds about ten thousand route events.
const watchBuffer = 8 << 20

// A Watcher reports the events of one network namespace.
type Watcher struct {
	events chan Event
	nl     *netlink.Conn
	cancel context.CancelFunc

	mu  sync.Mutex
	err error
}

// Watch subscribes to groups in the network namespace of the calling thread. Events that happen
// after it returns are reported until ctx ends or Close is called; a slow reader sees an Overrun
// instead of what it missed.
func Watch(ctx context.Context, groups ...Group) (*Watcher, error) {
	return watch(ctx, watchBuffer, groups...)
}

func watch(ctx context.Context, buffer int, groups ...Group) (*Watcher, error) {
	nl, err := dial(buffer)
	if err != nil {
		return nil, fmt.Errorf("watch rtnetlink: %w", err)
	}
	for _, g := range groups {
		if err := nl.JoinGroup(uint32(g)); err != nil {
			return nil, errors.Join(fmt.Errorf("watch rtnetlink group %d: %w", g, cause(err)), nl.Close())
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{events: make(chan Event), nl: nl, cancel: cancel}
	// Closing the socket is what ends a blocked read.
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
			if !w.emit(ctx, Overrun{}) {
				return nil
			}
			continue
		case err != nil:
			return fmt.Errorf("watch rtnetlink: %w", cause(err))
		}
		now := time.Now()
		for _, m := range msgs {
			e, err := decodeEvent(uint16(m.Header.Type), m.Data, now)
			if err != nil {
				return fmt.Errorf("watch rtnetlink: decode message type %d: %w", m.Header.Type, err)
			}
			if e != nil && !w.emit(ctx, e) {
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

// decodeEvent returns nil for a message that is no event.
func decodeEvent(typ uint16, b []byte, now time.Time) (Event, error) {
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(b) > 0 && b[0] != unix.AF_UNSPEC {
			// A bridge reports its ports in the same group; the link stays.
			return nil, nil
		}
		l, err := decodeLink(b)
		if err != nil {
			return nil, err
		}
		return LinkChange{Link: l, Deleted: typ == unix.RTM_DELLINK}, nil
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		f, err := decodeRoute(b, func(uint32) (string, error) { return "", nil })
		if err != nil || f.object == nil {
			return nil, err
		}
		k := f.object.Key()
		return RouteChange{Table: k.a, Dst: k.prefix, Protocol: f.protocol, Deleted: typ == unix.RTM_DELROUTE, Time: now}, nil
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		f, err := decodeNexthop(b, func(uint32) (string, error) { return "", nil })
		if err != nil {
			return nil, err
		}
		return NexthopChange{ID: f.object.Key().a, Protocol: f.protocol, Deleted: typ == unix.RTM_DELNEXTHOP}, nil
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		f, err := decodeRule(b)
		if err != nil || f.object == nil {
			return nil, err
		}
		return RuleChange{Rule: f.object, Protocol: f.protocol, Deleted: typ == unix.RTM_DELRULE}, nil
	}
	return nil, nil
}
