package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrForeign: the object exists with another protocol number.
var ErrForeign = errors.New("exists and belongs to another protocol")

// Limits of one batch. The kernel processes the batch and queues its answers before sendmsg
// returns, so the answers to a batch of failures must fit into the receive buffer.
const (
	batchMessages = 512
	batchBytes    = 64 << 10
	readBuffer    = 2 << 20
	// messageBuffer is large enough for dump messages of 32 kB, the kernel's maximum.
	messageBuffer = 64 << 10
)

// answerTimeout is the timeout of a request. The kernel normally answers at once.
const answerTimeout = 30 * time.Second

// dumpTries limits how often a dump is attempted when the tables change during it.
const dumpTries = 10

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

// A Conn is an rtnetlink connection to a network namespace. It is safe for concurrent use.
type Conn struct {
	mu  sync.Mutex
	nl  *netlink.Conn
	raw syscall.RawConn
	// sequence is the number of the last message of a batch. The others have the space for a batch,
	// its messages and their steps, which is used again.
	sequence uint32
	buffer   []byte
	arena    arena
	steps    []step
	// marks are the programs of routes with a mark.
	marks marks
}

// Dial opens a connection to the network namespace of the calling thread.
func Dial() (*Conn, error) {
	nl, err := dial(readBuffer)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	raw, err := nl.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open rtnetlink: %w", err), nl.Close())
	}
	return &Conn{nl: nl, raw: raw}, nil
}

// dial opens a socket with extended acks and strict checks. NETLINK_CAP_ACK is not set: the netlink
// package expects the extended ack after the copy of the request, which that option omits.
func dial(buffer int) (*netlink.Conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Strict: true, MessageBufferSize: messageBuffer})
	if err != nil {
		return nil, err
	}
	if err := nl.SetReadBuffer(buffer); err != nil {
		return nil, errors.Join(err, nl.Close())
	}
	return nl, nil
}

// Close closes the connection. Objects remain in the kernel.
func (c *Conn) Close() error { return errors.Join(c.marks.close(), c.nl.Close()) }

// port returns the port number of the connection, which is nlmsg_pid of the notifications that its
// requests cause.
func (c *Conn) port() (port uint32, err error) {
	var failed error
	err = c.raw.Control(func(fd uintptr) {
		address, e := unix.Getsockname(int(fd))
		if a, ok := address.(*unix.SockaddrNetlink); ok {
			port = a.Pid
		}
		failed = e
	})
	return port, errors.Join(err, failed)
}

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

// leavesCached reports whether sockets may go on sending along an IPv6 route that the operation
// deletes, or to a member that it takes from a group. A socket caches its route, and the kernel
// validates a cached route with a nexthop object by a number that it changes only when an IPv6
// route is added, in any table (Linux 5.7 and later).
func leavesCached(op Op) bool {
	if !op.Delete {
		_, group := op.Object.(NexthopGroup)
		return group && op.Old != nil
	}
	key := op.Object.Key()
	return key.class == ClassNexthop || key.class == ClassRoute && key.prefix.Addr().Is6()
}

// discarded is of the discard-only prefix (RFC 6666).
var discarded = netip.MustParsePrefix("100::/128")

// expireCached has the kernel look up again all routes that sockets have cached: it adds an IPv6
// route that no packet takes and deletes it in the same request.
func (c *Conn) expireCached() {
	r := Route{Table: MainTable, Dst: discarded, Metric: math.MaxUint32, Kind: Unreachable}
	add := putRoute(nil, r, unix.RTPROT_BOOT, 0, 0, false)
	remove := putRoute(nil, r, unix.RTPROT_BOOT, 0, 0, true)
	steps := []step{
		{msg: message(unix.RTM_NEWROUTE, netlink.Create|netlink.Replace, add)},
		{msg: message(unix.RTM_DELROUTE, 0, remove), gone: true},
	}
	errs := make([]error, 1)
	// An error concerns the request as a whole, as does that of the next one.
	c.send([]Op{{Object: r}}, steps, errs)
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

// Dump returns all objects of the owner, nexthops first and then in the order of Class. Objects
// with attributes that this package never sets are returned as Altered.
func (c *Conn) Dump(p Protocol) (all []Object, err error) {
	_, err = c.DumpEach(p, func(objects []Object) { all = append(all, objects...) })
	return all, err
}

// dumpPartObjects is the number of routes that DumpEach passes on together.
const dumpPartObjects = 1000

// DumpEach is Dump in parts, whose memory is used again: a million objects take a lot. If routes
// change meanwhile, some may be left out or returned twice; consistent is false if the kernel
// reports that.
func (c *Conn) DumpEach(p Protocol, each func([]Object)) (consistent bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	consistent = true
	for class := range classes {
		if class != ClassRoute {
			objects, err := c.dump(p, class)
			if err != nil {
				return false, err
			}
			each(objects)
			continue
		}
		var part []Object
		for _, d := range c.dumps(p, class) {
			interrupted, err := c.dumpOnce(d.request, d.into(p, &part, func() {
				if len(part) == dumpPartObjects {
					each(part) // which may wait
					part = part[:0]
					_ = c.nl.SetReadDeadline(time.Now().Add(answerTimeout)) // else it is closed
				}
			}))
			if err != nil {
				return false, dumpError(p, class, err)
			}
			consistent = consistent && !interrupted
		}
		each(part)
	}
	return consistent, nil
}

// Unicast returns the unicast routes in some tables, those of other programs included. Of those
// that this package could not have installed, table, destination and metric alone are meaningful.
func (c *Conn) Unicast(table func(uint32) bool) (routes []Route, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.dumps(0, ClassRoute) {
		before := len(routes)
		err := c.dumpEach(d.request, func() { routes = routes[:before] }, func(b []byte) error {
			f, err := d.decode(b)
			if r, ok := unaltered(f.object).(Route); ok && r.Kind == Unicast && table(r.Table) {
				routes = append(routes, r)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read routes: %w", err)
		}
	}
	return routes, nil
}

// Addresses returns the IP addresses of all links, those of other programs included.
func (c *Conn) Addresses() (addresses []Address, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.dumps(0, ClassAddress) {
		before := len(addresses)
		err := c.dumpEach(d.request, func() { addresses = addresses[:before] }, func(b []byte) error {
			f, err := d.decode(b)
			if a, ok := unaltered(f.object).(Address); ok {
				addresses = append(addresses, a)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read addresses: %w", err)
		}
	}
	return addresses, nil
}

func dumpError(p Protocol, class Class, err error) error {
	return fmt.Errorf("read %ss of protocol %d: %w", class, p, err)
}

// dump returns the objects of one class. It repeats a dump that is not consistent.
func (c *Conn) dump(p Protocol, class Class) ([]Object, error) {
	if p == 0 {
		return nil, errors.New("protocol is missing")
	}
	var objects []Object
	for _, d := range c.dumps(p, class) {
		before := len(objects)
		err := c.dumpEach(d.request, func() { objects = objects[:before] }, d.into(p, &objects, func() {}))
		if err != nil {
			return nil, dumpError(p, class, err)
		}
	}
	return objects, nil
}

// ResolveAgain deletes the neighbor entries of an address that the kernel has not resolved, on any
// link: with the next packet it solicits the neighbor at once, instead of a second after the last
// time (RFC 4861 section 10, RETRANS_TIMER; ARP alike).
func (c *Conn) ResolveAgain(a netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	a = a.WithZone("")
	var links []uint32
	header := make([]byte, sizeofNdmsg)
	header[0] = family(a)
	_, err := c.dumpOnce(message(unix.RTM_GETNEIGH, netlink.Dump, header), func(b []byte) error {
		n, err := decodeNeighbor(b)
		if n.address == a && n.state&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) != 0 {
			links = append(links, n.link)
		}
		return err
	})
	for _, link := range links {
		b := make([]byte, sizeofNdmsg)
		b[0] = family(a)
		native.PutUint32(b[4:], link)
		_, failed := c.nl.Execute(message(unix.RTM_DELNEIGH, netlink.Acknowledge, putAddr(b, unix.NDA_DST, a)))
		if !isGone(failed) {
			err = errors.Join(err, cause(failed))
		}
	}
	if err != nil {
		return fmt.Errorf("resolve neighbor %s again: %w", a, err)
	}
	return nil
}

// A dumping is a request for a dump and the decoder of its messages.
type dumping struct {
	request netlink.Message
	decode  func([]byte) (found, error)
}

// into returns a function that appends the object of a message to objects and then calls added.
func (d dumping) into(p Protocol, objects *[]Object, added func()) func([]byte) error {
	return func(b []byte) error {
		f, err := d.decode(b)
		if err != nil {
			return err
		}
		if f.object != nil && f.protocol == p {
			*objects = append(*objects, f.object)
			added()
		}
		return nil
	}
}

// dumps returns the dumps of all objects of a class.
func (c *Conn) dumps(p Protocol, class Class) []dumping {
	names := c.names()
	var (
		typ    uint16
		header []byte
		decode func([]byte) (found, error)
	)
	families := []uint8{unix.AF_INET, unix.AF_INET6}
	switch class {
	case ClassNexthop:
		families = []uint8{unix.AF_UNSPEC}
		typ, header = unix.RTM_GETNEXTHOP, make([]byte, sizeofNhmsg)
		decode = func(b []byte) (found, error) { return decodeNexthop(b, names) }
	case ClassRoute:
		typ, header = unix.RTM_GETROUTE, make([]byte, unix.SizeofRtMsg)
		header[5] = uint8(p)
		decode = func(b []byte) (found, error) { return decodeRoute(b, names) }
	case ClassRule:
		typ, header = unix.RTM_GETRULE, make([]byte, ruleHeader)
		decode = decodeRule
	case ClassAddress:
		typ, header = unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg)
		decode = func(b []byte) (found, error) { return decodeAddress(b, names) }
	default:
		panic("BUG: no dump of " + class.String())
	}
	all := make([]dumping, len(families))
	for i, family := range families {
		h := slices.Clone(header)
		h[0] = family
		all[i] = dumping{message(typ, netlink.Dump, h), decode}
	}
	return all
}

// dumpEach calls each for every message of a dump. If the kernel marks the dump as inconsistent,
// dumpEach calls reset and repeats it.
func (c *Conn) dumpEach(req netlink.Message, reset func(), each func([]byte) error) error {
	for range dumpTries {
		reset()
		interrupted, err := c.dumpOnce(req, each)
		if err != nil {
			return err
		}
		if !interrupted {
			return nil
		}
	}
	return fmt.Errorf("dump was interrupted %d times: %w", dumpTries, unix.EAGAIN)
}

func (c *Conn) dumpOnce(req netlink.Message, each func([]byte) error) (interrupted bool, err error) {
	if err := c.nl.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return false, err
	}
	sent, err := c.nl.Send(req)
	if err != nil {
		return false, cause(err)
	}
	// All messages are read even after an error; otherwise the next request would receive the
	// remaining ones.
	for m, e := range c.nl.ReceiveIter() {
		if e != nil {
			c.drain()
			return false, cause(e)
		}
		if m.Header.Sequence != sent.Header.Sequence {
			continue
		}
		interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		if err == nil {
			err = each(m.Data)
		}
	}
	return interrupted, err
}

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

// ErrNoRoute: the kernel has no route to an address.
var ErrNoRoute = errors.New("no route")

// noRoute reports whether the kernel's error means that there is no route: no entry, or an
// unreachable, prohibit or blackhole route.
func noRoute(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}, func(e error) bool { return errors.Is(err, e) })
}

// NexthopTo resolves an address, such as a BGP next hop. The address is on-link if the returned
// gateway is not valid. If there is no route, the error matches ErrNoRoute and the kernel's error.
func (c *Conn) NexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error) {
	if err := checkAddr("destination", dst); err != nil {
		return netip.Addr{}, "", fmt.Errorf("resolve next hop: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	gateway, link, err = c.nexthopTo(dst)
	if noRoute(err) {
		err = fmt.Errorf("%w: %w", ErrNoRoute, err)
	}
	if err != nil {
		return netip.Addr{}, "", fmt.Errorf("resolve next hop %q: %w", dst, err)
	}
	return gateway, link, nil
}

func (c *Conn) nexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error) {
	r, err := c.routeTo(dst, nil)
	if err != nil {
		return netip.Addr{}, "", err
	}
	l, err := c.link("", r.index)
	return r.gateway, l.Name, err
}

// NeighborOn returns the neighbor on an interface that packets to dst with a mark are sent to
// there: the gateway of the route, whose IP version may differ (RFC 8950), or dst itself if it is
// on the link. In IPv4 it is dst, too, if there is no route over the interface, as for the kernel.
// source is the address that the kernel sends them from, not valid if it has none.
func (c *Conn) NeighborOn(dst netip.Addr, index int, mark uint32) (neighbor, source netip.Addr, err error) {
	if err := checkAddr("destination", dst); err != nil {
		return netip.Addr{}, netip.Addr{}, fmt.Errorf("resolve neighbor: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.routeTo(dst, putUint32(putUint32(nil, unix.RTA_OIF, uint32(index)), unix.RTA_MARK, mark))
	switch {
	case err != nil:
		return netip.Addr{}, netip.Addr{}, fmt.Errorf("resolve neighbor for %q on interface %d: %w", dst, index, err)
	case !r.gateway.IsValid():
		r.gateway = dst
	}
	return r.gateway, r.source, nil
}

// RoutedOn reports whether a route over an interface leads to dst, for packets with a mark that are
// bound to it. Without one, the kernel takes an IPv4 address to be on the link.
func (c *Conn) RoutedOn(dst netip.Addr, index int, mark uint32) (bool, error) {
	if err := checkAddr("destination", dst); err != nil {
		return false, fmt.Errorf("look up route: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.route(dst, netip.Addr{}, unix.RTM_F_FIB_MATCH, putUint32(putUint32(nil, unix.RTA_OIF, uint32(index)), unix.RTA_MARK, mark))
	switch {
	case noRoute(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up route to %q on interface %d: %w", dst, index, err)
	}
	return true, nil
}

// SIDOf returns the SID that the kernel encapsulates the packets of a TCP connection to; it is not
// valid if it encapsulates none.
func (c *Conn) SIDOf(local, remote netip.AddrPort) (netip.Addr, error) {
	if err := errors.Join(checkAddr("source", local.Addr()), checkAddr("destination", remote.Addr())); err != nil {
		return netip.Addr{}, fmt.Errorf("look up connection: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := putAddr(nil, unix.RTA_SRC, local.Addr())
	b = putAttr(b, unix.RTA_IP_PROTO, []byte{unix.IPPROTO_TCP})
	b = putAttr(b, unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, local.Port()))
	b = putAttr(b, unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, remote.Port()))
	r, err := c.route(remote.Addr(), local.Addr(), 0, b)
	if err == nil && r.mark != 0 { // the packets are routed again, with the mark of a Nexthop
		r, err = c.route(remote.Addr(), local.Addr(), 0, putUint32(b, unix.RTA_MARK, r.mark))
	}
	if err != nil && !noRoute(err) {
		return netip.Addr{}, fmt.Errorf("look up connection %s to %s: %w", local, remote, err)
	}
	return r.sid, nil
}

// A Match is the route, of any program, that the kernel finds for packets to an address. It is the zero
// Match if there is none.
type Match struct {
	Protocol Protocol
	Table    uint32
	Dst      netip.Prefix
}

// MatchOf returns the route that the kernel finds for packets of this host to an address.
func (c *Conn) MatchOf(dst netip.Addr) (Match, error) {
	if err := checkAddr("destination", dst); err != nil {
		return Match{}, fmt.Errorf("look up route: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	flags := uint32(unix.RTM_F_FIB_MATCH)
	if dst.Is4() { // IPv6 has the table in any case, and refuses the flag
		flags |= unix.RTM_F_LOOKUP_TABLE
	}
	r, err := c.route(dst, netip.Addr{}, flags, nil)
	if err != nil && !noRoute(err) {
		return Match{}, fmt.Errorf("look up route to %s: %w", dst, err)
	}
	return r.match, nil
}

// resolved is how the kernel sends a packet. The gateway is not valid if its destination is on the
// link.
type resolved struct {
	gateway, source netip.Addr
	index           uint32     // of the interface
	sid             netip.Addr // that it encapsulates it to; not valid if it does not
	mark            uint32     // that it sets, to route the packet again; 0: it does not
	match           Match      // of an answer with RTM_F_FIB_MATCH
}

// routeTo asks the kernel for its route to dst, with further attributes of the packet.
func (c *Conn) routeTo(dst netip.Addr, more []byte) (r resolved, err error) {
	return c.route(dst, netip.Addr{}, 0, more)
}

// route is routeTo with flags of the request (rtnetlink(7)). more has the source, if there is one.
func (c *Conn) route(dst, src netip.Addr, flags uint32, more []byte) (r resolved, err error) {
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[1], b[2] = family(dst), uint8(dst.BitLen()), uint8(src.BitLen())
	binary.NativeEndian.PutUint32(b[8:], flags) // rtm_flags
	got, err := c.execute(message(unix.RTM_GETROUTE, 0, append(putAddr(b, unix.RTA_DST, dst), more...)))
	if err != nil {
		return resolved{}, err
	}
	for _, m := range got {
		if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
			continue
		}
		at := attrs{b: m.Data[unix.SizeofRtMsg:], v4: dst.Is4()}
		var encap []byte
		var kind uint16
		r.match.Table, r.match.Protocol = uint32(m.Data[4]), Protocol(m.Data[5])
		to := unspecified(dst)
		for at.next() {
			switch at.typ {
			case unix.RTA_DST:
				to = at.addr()
			case unix.RTA_TABLE:
				r.match.Table = at.uint32()
			case unix.RTA_ENCAP:
				encap = at.data
			case unix.RTA_ENCAP_TYPE:
				kind = at.uint16()
			case unix.RTA_GATEWAY:
				r.gateway = at.addr()
			case unix.RTA_VIA:
				r.gateway = at.via()
			case unix.RTA_PREFSRC:
				r.source = at.addr()
			case unix.RTA_OIF:
				r.index = at.uint32()
			}
		}
		switch kind {
		case unix.LWTUNNEL_ENCAP_SEG6:
			r.sid, _, _ = decodeSegment(encap)
		case unix.LWTUNNEL_ENCAP_BPF:
			r.mark, _ = decodeSentMark(encap)
		}
		r.match.Dst = netip.PrefixFrom(to, int(m.Data[1])).Masked()
		return r, at.err
	}
	return resolved{}, errors.New("no answer")
}

// unspecified returns 0.0.0.0 or ::, as dst is.
func unspecified(dst netip.Addr) netip.Addr {
	if dst.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
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

// execute sends one request and returns its answers; an error is the kernel's errno with its
// extended ack message.
func (c *Conn) execute(m netlink.Message) ([]netlink.Message, error) {
	if err := c.nl.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	got, err := c.nl.Execute(m)
	var nlerr *netlink.OpError
	if errors.As(err, &nlerr) {
		if nlerr.Message != "" {
			return nil, fmt.Errorf("%w (%s)", nlerr.Err, nlerr.Message)
		}
		return nil, nlerr.Err
	}
	return got, err
}

// A resolver returns the kernel's numbers for what objects name, and space for their messages.
type resolver struct {
	index   func(link string) (uint32, error)
	program func(marking) (uint32, error) // a file descriptor
	arena   *arena
}

// An arena has the space for the messages of an Apply.
type arena struct{ space []byte }

const (
	// messageRoom is the space for a message; seldom more is needed.
	messageRoom = 160
	// arenaRooms is the number of messages that an arena has space for: those of the operations
	// that a Reconciler applies together.
	arenaRooms = maxApplyBatch
)

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
