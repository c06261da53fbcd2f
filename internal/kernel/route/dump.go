package route

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumpTries limits how often a dump is attempted when the tables change during it.
const dumpTries = 10

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
