package route

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrForeign: the object exists with another protocol number.
var ErrForeign = errors.New("exists and belongs to another protocol")

// An OpError is an operation that failed its check or that the kernel rejected.
type OpError struct {
	Op      Op
	Err     error
	Message string // extended ack message of the kernel, may be empty
}

func (e *OpError) Error() string {
	verb := "add"
	if e.Op.Delete {
		verb = "delete"
	}
	s := fmt.Sprintf("%s %s %q: %v", verb, e.Op.Object.Key().class, e.Op.Object, e.Err)
	if e.Message != "" {
		s += " (" + strings.TrimSuffix(e.Message, ".") + ")"
	}
	return s
}

// Unwrap returns Err.
func (e *OpError) Unwrap() error { return e.Err }

// A step is one message of an operation.
type step struct {
	op   int
	msg  netlink.Message
	gone bool // deleting an object that does not exist is a success
}

// Apply executes the operations in order and returns an error for each, nil for success; a failed
// operation does not stop the others. Adding an object that exists or deleting one that does not
// exist is a success. An operation that has to delete an old rule, or an address of another length,
// completes after all others.
//
// An object atomically replaces the previous one with its key, except an IPv4 address and one whose
// prefix length changes. An IPv4 address of another length is another one to the kernel and is
// replaced only if the operation names it (Op.Old). Deleting a nexthop object makes the kernel drop
// the routes that use it.
func (c *Conn) Apply(ops []Op) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arena.reset()
	errs := make([]error, len(ops))
	r := c.resolver()
	first := slices.Grow(c.steps[:0], len(ops))
	var second []step
	for i, op := range ops {
		start := len(first)
		var err error
		if first, err = encode(first, op, r); err != nil {
			errs[i] = &OpError{Op: op, Err: err}
			continue
		}
		for j := range first[start:] {
			first[start+j].op = i
		}
		if rest := start + 1; len(first) > rest {
			second = append(second, first[rest:]...)
			first = first[:rest]
		}
	}
	c.steps = first
	c.send(ops, first, errs)
	c.takeOver(ops, errs, r)
	kept := second[:0]
	for _, s := range second {
		if errs[s.op] == nil {
			kept = append(kept, s)
		}
	}
	c.send(ops, kept, errs)
	if slices.ContainsFunc(ops, leavesCached) {
		c.expireCached()
	}
	return errs
}

// takeOver replaces objects of the same owner that prevented an addition.
func (c *Conn) takeOver(ops []Op, errs []error, r resolver) {
	type slot struct {
		protocol Protocol
		class    Class
	}
	there := map[slot]map[Key]Object{}
	var again []step
	for i, op := range ops {
		if !errors.Is(errs[i], unix.EEXIST) || op.Delete {
			continue
		}
		s := slot{op.Protocol, op.Object.Key().class}
		// A rule is not replaced in place, so it can exist together with the old one.
		if op.Old != nil && s.class != ClassRule {
			continue
		}
		if there[s] == nil {
			there[s] = map[Key]Object{}
			objects, err := c.dump(s.protocol, s.class)
			if err != nil {
				errs[i] = &OpError{Op: op, Err: err}
				delete(there, s)
				continue
			}
			for _, o := range objects {
				if _, altered := there[s][o.Key()].(Altered); altered || there[s][o.Key()] == nil {
					there[s][o.Key()] = o
				}
			}
		}
		op.Old = there[s][op.Object.Key()]
		switch op.Old {
		case nil:
			errs[i] = &OpError{Op: op, Err: ErrForeign}
			continue
		case op.Object.Normal():
			errs[i] = nil
			continue
		}
		steps, err := encode(nil, op, r)
		if err != nil {
			errs[i] = &OpError{Op: op, Err: err}
			continue
		}
		errs[i] = nil
		for _, s := range steps {
			s.op = i
			again = append(again, s)
		}
	}
	c.send(ops, again, errs)
}

// encode appends the messages of an operation: usually one, none when there is nothing to do or on
// an error.
func encode(steps []step, op Op, r resolver) ([]step, error) {
	if op.Protocol == 0 {
		return steps, errors.New("protocol is missing")
	}
	o := op.Object
	if op.Delete {
		o = unaltered(o)
	}
	if err := o.Check(); err != nil && !op.Delete {
		return steps, err
	}
	flags := netlink.Create | netlink.Excl
	if op.Old != nil {
		flags = netlink.Create | netlink.Replace
	}
	switch o := normal(o).(type) {
	case Address:
		return encodeAddress(steps, op, o, flags, r)
	case Rule:
		return encodeRule(steps, op, o), nil
	case Nexthop:
		if op.Delete {
			return append(steps, step{msg: message(unix.RTM_DELNEXTHOP, 0, putNexthop(nil, o, op.Protocol, 0, 0, true)), gone: true}), nil
		}
		i, err := r.index(o.Link)
		if err != nil {
			return steps, err
		}
		var program uint32
		if o.Mark != 0 {
			if program, err = r.program(marking{o.Mark, true}); err != nil {
				return steps, err
			}
		}
		return append(steps, step{msg: message(unix.RTM_NEWNEXTHOP, flags, putNexthop(nil, o, op.Protocol, i, program, false))}), nil
	case NexthopGroup:
		if op.Delete {
			return append(steps, step{msg: message(unix.RTM_DELNEXTHOP, 0, putNexthop(nil, Nexthop{ID: o.ID}, op.Protocol, 0, 0, true)), gone: true}), nil
		}
		return append(steps, step{msg: message(unix.RTM_NEWNEXTHOP, flags, putNexthopGroup(nil, o, op.Protocol))}), nil
	case Route:
		if op.Delete {
			return append(steps, step{msg: message(unix.RTM_DELROUTE, 0, putRoute(r.arena.room(), o, op.Protocol, 0, 0, true)), gone: true}), nil
		}
		var i, program uint32
		var err error
		if o.Link != "" {
			if i, err = r.index(o.Link); err != nil {
				return steps, err
			}
		}
		switch {
		case o.Program != 0:
			program, err = programFD(o.Program)
		case o.Mark != 0:
			program, err = r.program(marking{mark: o.Mark})
		}
		if err != nil {
			return steps, err
		}
		b := r.arena.room()
		return append(steps, step{msg: message(unix.RTM_NEWROUTE, flags, putRoute(b, o, op.Protocol, i, program, false))}), nil
	}
	return steps, fmt.Errorf("object type %T is unknown", o)
}

func encodeAddress(steps []step, op Op, a Address, flags netlink.HeaderFlags, r resolver) ([]step, error) {
	i, err := r.index(a.Link)
	if err != nil {
		if op.Delete && errors.Is(err, fs.ErrNotExist) {
			// The kernel deleted the address with its link.
			return steps, nil
		}
		return steps, err
	}
	remove := func(a Address) step {
		return step{msg: message(unix.RTM_DELADDR, 0, putAddress(nil, a, op.Protocol, i, true)), gone: true}
	}
	if op.Delete {
		return append(steps, remove(a)), nil
	}
	add := step{msg: message(unix.RTM_NEWADDR, flags, putAddress(nil, a, op.Protocol, i, false))}
	old, ok := unaltered(op.Old).(Address)
	// The kernel does not change the scope of an IPv4 address.
	if ok && (old.Prefix != a.Prefix || a.Prefix.Addr().Is4()) {
		return append(steps, remove(old), add), nil
	}
	return append(steps, add), nil
}

// encodeRule replaces a rule by adding the new one before deleting the old one. All fields are the
// key, so the old rule is an altered one, and RTM_DELRULE deletes it because it precedes the new
// one in the kernel's list.
func encodeRule(steps []step, op Op, r Rule) []step {
	b := putRule(nil, r, op.Protocol)
	remove := step{msg: message(unix.RTM_DELRULE, 0, b), gone: true}
	if op.Delete {
		return append(steps, remove)
	}
	add := step{msg: message(unix.RTM_NEWRULE, netlink.Create|netlink.Excl, b)}
	if op.Old != nil {
		return append(steps, add, remove)
	}
	return append(steps, add)
}

func message(typ uint16, flags netlink.HeaderFlags, b []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request | flags}, Data: b}
}

// send sends the steps in batches and records the errors that the kernel returns.
func (c *Conn) send(ops []Op, steps []step, errs []error) {
	for len(steps) > 0 {
		n, bytes := 0, 0
		for n < len(steps) && n < batchMessages && (n == 0 || bytes < batchBytes) {
			bytes += 16 + len(steps[n].msg.Data)
			n++
		}
		c.batch(ops, steps[:n], errs)
		steps = steps[n:]
	}
}

// batch sends steps in one call. Only the last requests an acknowledgment; the kernel answers the
// others only if they fail.
func (c *Conn) batch(ops []Op, steps []step, errs []error) {
	note := func(s step, err error, message string) {
		if err != nil && !(s.gone && isGone(err)) {
			errs[s.op] = &OpError{Op: ops[s.op], Err: err, Message: message}
		}
	}
	fail := func(err error) {
		for _, s := range steps {
			note(s, err, "")
		}
	}
	if err := c.nl.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		fail(err)
		return
	}
	first := c.sequence + 1
	last := c.sequence + uint32(len(steps))
	if err := c.write(steps); err != nil {
		fail(err)
		return
	}
	for {
		var seq uint32
		var nlerr *netlink.OpError
		got, err := c.nl.Receive()
		switch {
		case err == nil && len(got) > 0:
			seq = got[0].Header.Sequence
		case err == nil:
			continue
		case errors.As(err, &nlerr) && nlerr.Sequence != 0:
			seq = nlerr.Sequence
		case errors.Is(err, unix.ENOBUFS) && len(steps) > 1:
			// Answers were lost, so it is unknown which steps failed. Repeating a step
			// is safe.
			c.drain()
			c.batch(ops, steps[:len(steps)/2], errs)
			c.batch(ops, steps[len(steps)/2:], errs)
			return
		default:
			c.drain()
			fail(cause(err))
			return
		}
		// Sequence numbers wrap around.
		i := seq - first
		if i >= uint32(len(steps)) {
			continue
		}
		if err != nil {
			note(steps[i], nlerr.Err, nlerr.Message)
		}
		if seq == last {
			return
		}
	}
}

// write sends the messages of steps; the last one requests an acknowledgment. Their sequence
// numbers follow c.sequence.
func (c *Conn) write(steps []step) error {
	b := c.buffer[:0]
	for i, s := range steps {
		flags := s.msg.Header.Flags
		if i == len(steps)-1 {
			flags |= netlink.Acknowledge
		}
		c.sequence++
		b = native.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(s.msg.Data)))
		b = native.AppendUint16(b, uint16(s.msg.Header.Type))
		b = native.AppendUint16(b, uint16(flags))
		b = native.AppendUint32(b, c.sequence)
		b = native.AppendUint32(b, 0) // the kernel has the port
		b = append(b, s.msg.Data...)
		for len(b)%unix.NLMSG_ALIGNTO != 0 {
			b = append(b, 0)
		}
	}
	c.buffer = b
	var failed error
	err := c.raw.Write(func(fd uintptr) bool {
		_, failed = unix.Write(int(fd), b)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	return errors.Join(err, failed)
}

// drain discards unread answers. After an overrun the kernel silently drops answers until the
// receive queue is empty.
func (c *Conn) drain() {
	// An error means that the connection is closed, which the next call also returns.
	_ = c.raw.Read(func(fd uintptr) bool {
		var b [64]byte
		for {
			_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
			if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
				return true
			}
		}
	})
}

// isGone reports whether the object to be deleted does not exist.
func isGone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EADDRNOTAVAIL) ||
		errors.Is(err, unix.ENODEV)
}

// cause returns the kernel's error without the wrapper of the netlink package.
func cause(err error) error {
	var nlerr *netlink.OpError
	if errors.As(err, &nlerr) {
		return nlerr.Err
	}
	return err
}

// A resolver returns the kernel's numbers for what objects name, and space for their messages.
type resolver struct {
	index   func(link string) (uint32, error)
	program func(marking) (uint32, error) // a file descriptor
	arena   *arena
}

// An arena has the space for the messages of an Apply.
type arena struct{ space []byte }

func (a *arena) reset() { a.space = a.space[:0] }

// room returns an empty slice with capacity for a message.
func (a *arena) room() []byte {
	if a == nil {
		return nil
	}
	if a.space == nil {
		a.space = make([]byte, 0, arenaRooms*messageRoom)
	}
	at := len(a.space)
	if cap(a.space)-at < messageRoom {
		return make([]byte, 0, messageRoom)
	}
	a.space = a.space[:at+messageRoom]
	return a.space[at : at : at+messageRoom]
}

// resolver queries the kernel once for each link.
func (c *Conn) resolver() resolver {
	type answer struct {
		index uint32
		err   error
	}
	known := map[string]answer{}
	var last string // successive routes mostly have the same link
	var lastAnswer answer
	index := func(name string) (uint32, error) {
		if name == last && last != "" {
			return lastAnswer.index, lastAnswer.err
		}
		a, ok := known[name]
		if !ok {
			l, err := c.link(name, 0)
			a = answer{uint32(l.Index), err}
			known[name] = a
		}
		last, lastAnswer = name, a
		return a.index, a.err
	}
	return resolver{index: index, program: c.marks.program, arena: &c.arena}
}
