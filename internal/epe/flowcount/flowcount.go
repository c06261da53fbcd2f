// Package flowcount counts packets and bytes of each flow and SID on network interfaces, with an
// eBPF program.
//
// It gives no meaning to what it counts: which path a SID leads to, and which flows belong to one
// connection, is known elsewhere. The program is in bpf/epe/flowcount.
package flowcount

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/bpf"
)

// Key identifies a flow in one direction on one interface, in the layout of the kernel's map.
type Key counterFlowKey

// addr converts an address of the flow's family, which is that of its own packets and not of an
// encapsulation.
func (k *Key) addr(a [16]byte) netip.Addr {
	if k.Family == 4 {
		return netip.AddrFrom4([4]byte(a[12:]))
	}
	return netip.AddrFrom16(a)
}

// Src returns the flow's source. An IPv4 address is not mapped to IPv6.
func (k *Key) Src() netip.AddrPort { return netip.AddrPortFrom(k.addr(k.Source), k.SourcePort) }

// Dst returns the flow's destination, as Src.
func (k *Key) Dst() netip.AddrPort {
	return netip.AddrPortFrom(k.addr(k.Destination), k.DestinationPort)
}

// SID returns the outer destination address of encapsulated packets, and the zero Addr for others.
func (k *Key) SID() netip.Addr {
	if k.Sid == [16]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16(k.Sid)
}

// Sent reports whether the interface sends the packets; otherwise it receives them.
func (k *Key) Sent() bool { return k.Direction == 1 }

// Count is a number of packets as on the wire, where each segment of a GSO packet counts, and their
// bytes from the link layer's header on, with the headers of every segment, without preamble, FCS
// and inter-packet gap.
type Count struct {
	Packets, Bytes uint64
}

// Reason is why packets belong to no flow, or Counted.
type Reason uint8

// The reasons, numbered as in the program.
const (
	Counted    = Reason(counterReasonREASON_COUNTED)
	Truncated  = Reason(counterReasonREASON_TRUNCATED)
	Malformed  = Reason(counterReasonREASON_MALFORMED)
	NotIP      = Reason(counterReasonREASON_NOT_IP)
	Protocol   = Reason(counterReasonREASON_PROTOCOL)
	Fragment   = Reason(counterReasonREASON_FRAGMENT)
	Extensions = Reason(counterReasonREASON_EXTENSIONS)
	Nested     = Reason(counterReasonREASON_NESTED)
	Full       = Reason(counterReasonREASON_FULL)
)

// NumReasons is the number of reasons.
const NumReasons = int(counterReasonREASONS)

var reasonNames = [NumReasons]string{
	Counted: "counted", Truncated: "truncated", Malformed: "malformed", NotIP: "not-ip", Protocol: "other-protocol",
	Fragment: "fragment", Extensions: "too-many-extension-headers", Nested: "nested-encapsulation", Full: "table-full",
}

func (r Reason) String() string {
	if int(r) < NumReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

const (
	// DefaultMaxFlows is the default of Options.MaxFlows.
	DefaultMaxFlows = 1 << 15
	// MaxMaxFlows bounds Options.MaxFlows. A flow takes about 280 bytes, which are allocated at
	// once.
	MaxMaxFlows = 1 << 20
)

// Options configure a Counter.
type Options struct {
	// MaxFlows is the number of flows; 0 means DefaultMaxFlows. When it is reached, packets of
	// further flows are counted under Full until Reuse.
	MaxFlows int
	// Legacy attaches with cls_bpf even where the kernel has tcx.
	Legacy bool
}

// place is where the programs are attached.
type place struct {
	bpf.Attachment
	index int // of the interface
}

// Counter counts the packets of network interfaces per flow and SID. A flow has a slot from its
// first packet until Reuse. A Counter is not safe for concurrent use.
type Counter struct {
	objects  counterObjects
	legacy   bool
	attached map[string]place // by the name of the interface
	mapped   []byte
	// slots are in memory that is shared with the kernel.
	slots []counterSlot
	// known marks slots whose owner has been read completely; used is above every slot that has had
	// one.
	known   []bool
	used    int
	reasons []counterCount
}

// New loads the programs; nothing is counted before Attach. The caller calls Close. It returns a
// *feature.Error when this host cannot load them.
func New(o Options) (*Counter, error) {
	if o.MaxFlows == 0 {
		o.MaxFlows = DefaultMaxFlows
	}
	if o.MaxFlows < 1 || o.MaxFlows > MaxMaxFlows {
		return nil, fmt.Errorf("load flow counter: number of flows must be between 1 and %d, got %d", MaxMaxFlows, o.MaxFlows)
	}
	c := &Counter{legacy: o.Legacy, attached: map[string]place{}}
	if err := c.load(o.MaxFlows); err != nil {
		return nil, fmt.Errorf("load flow counter: %w", err)
	}
	return c, nil
}

func (c *Counter) load(maxFlows int) error {
	spec, err := loadCounter()
	if err != nil {
		return err
	}
	for _, name := range []string{counterMapSlots, counterMapPlaces, counterMapSpare} {
		spec.Maps[name].MaxEntries = uint32(maxFlows)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	if err := bpf.Load(spec, &c.objects); err != nil {
		return err
	}
	c.reasons = make([]counterCount, cpus)
	c.known = make([]bool, maxFlows)
	err = c.mapSlots()
	for slot := maxFlows - 1; slot >= 0 && err == nil; slot-- {
		err = c.objects.Spare.Put(nil, uint32(slot))
	}
	if err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

// Attach starts counting on an interface of the calling thread's network namespace, before other
// tcx programs see a packet, which may end its way. It returns the errors of bpf.Attach.
func (c *Counter) Attach(link string) error {
	a, err := bpf.Attach(bpf.AttachOptions{
		Link: link, Name: "tabane_flows", Legacy: c.legacy,
		Ethernet: bpf.Programs{Ingress: c.objects.Received, Egress: c.objects.Sent},
		Raw:      bpf.Programs{Ingress: c.objects.ReceivedRaw, Egress: c.objects.SentRaw},
	})
	if err != nil {
		return fmt.Errorf("attach flow counter to interface %q: %w", link, err)
	}
	i, err := net.InterfaceByName(link)
	if err != nil { // it has gone meanwhile
		return errors.Join(fmt.Errorf("attach flow counter to interface %q: %w", link, err), a.Detach())
	}
	c.attached[link] = place{a, i.Index}
	return nil
}

// Index returns the index of the interface that Attach was called for, 0 without.
func (c *Counter) Index(link string) int { return c.attached[link].index }

// Attached returns the names of the interfaces on which it counts.
func (c *Counter) Attached() []string { return slices.Collect(maps.Keys(c.attached)) }

// Renew attaches the counter again to an interface of the calling thread's network namespace that
// was made again under its name, or at which another program was attached before it. An interface
// that is gone is detached. It reports whether it changed anything.
func (c *Counter) Renew(link string) (bool, error) {
	at, ok := c.attached[link]
	i, err := net.InterfaceByName(link)
	switch gone := err != nil; {
	case gone && !ok:
		return false, nil
	case gone:
		delete(c.attached, link)
		return true, at.Detach()
	case ok && i.Index == at.index:
		if overtaken, err := bpf.Overtaken(at.Attachment); err != nil || !overtaken {
			return false, err
		}
	}
	if ok {
		delete(c.attached, link)
		if err := at.Detach(); err != nil {
			return true, fmt.Errorf("detach flow counter from interface %q: %w", link, err)
		}
	}
	return true, c.Attach(link)
}

// mapSlots maps the memory of the slots.
func (c *Counter) mapSlots() (err error) {
	n := int(c.objects.Slots.MaxEntries())
	if c.mapped, err = unix.Mmap(c.objects.Slots.FD(), 0, n*int(unsafe.Sizeof(counterSlot{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map memory of counters: %w", err)
	}
	c.slots = unsafe.Slice((*counterSlot)(unsafe.Pointer(unsafe.SliceData(c.mapped))), n)
	return nil
}

// complete reports whether the program has written all of the slot's owner, which may take some
// nanoseconds longer than the flow's first count.
func (s *counterSlot) complete() bool {
	words := (*[unsafe.Sizeof(s.Owner) / 8]uint64)(unsafe.Pointer(&s.Owner))
	mark := uint64(0)
	for i := range words {
		word := atomic.LoadUint64(&words[i])
		if i == len(words)-1 {
			// The upper half is the mark itself.
			word &= 1<<32 - 1
		}
		mark = (mark + word) * 0x9e3779b97f4a7c15
	}
	return atomic.LoadUint32(&s.Owner.Mark) == max(uint32(mark>>32), 1)
}

// ahead is how many slots Each reads past the last one in use. Unused slots are handed out in
// order, but a processor may use its slot before another one that took an earlier slot.
const ahead = 256

// Each calls f for every flow with its counts since it got its slot, in the order of slots. The key
// is valid until Reuse. Packets and bytes are read one after the other, so that one of them may
// miss the latest packet.
func (c *Counter) Each(f func(slot int, key *Key, count Count)) {
	for slot := 0; slot < len(c.slots) && slot < c.used+ahead; slot++ {
		s := &c.slots[slot]
		packets := atomic.LoadUint64(&s.Count.Packets)
		if packets == 0 {
			continue
		}
		c.used = max(c.used, slot+1)
		if !c.known[slot] {
			if !s.complete() {
				continue
			}
			c.known[slot] = true
		}
		f(slot, (*Key)(&s.Owner.Key), Count{packets, atomic.LoadUint64(&s.Count.Bytes)})
	}
}

// Remove removes the flow of a slot: its next packet starts a flow with another slot. Only packets
// that are being counted at this moment are still added to this one.
func (c *Counter) Remove(slot int) error {
	owner := &c.slots[slot].Owner
	key := (*Key)(&owner.Key)
	if err := c.objects.Places.Delete(key); err != nil {
		return fmt.Errorf("remove flow from %v to %v: %w", key.Src(), key.Dst(), err)
	}
	// A hint may still lead the program to the slot; an invalid key makes it ignore that.
	atomic.OrUint32((*uint32)(unsafe.Pointer(&owner.Key.Family)), 0xff<<24)
	return nil
}

// Reuse clears a slot and frees it for another flow. Its flow must have been removed so long ago
// that no packet is being counted in it.
func (c *Counter) Reuse(slot int) error {
	c.known[slot] = false
	s := &c.slots[slot]
	s.Owner.Key = counterFlowKey{}
	atomic.StoreUint64(&s.Count.Packets, 0)
	atomic.StoreUint64(&s.Count.Bytes, 0)
	if err := c.objects.Spare.Put(nil, uint32(slot)); err != nil {
		return fmt.Errorf("reuse slot %d: %w", slot, err)
	}
	return nil
}

// Reasons returns the packets of all interfaces that belong to no flow, by reason; Counted has
// none.
func (c *Counter) Reasons() ([NumReasons]Count, error) {
	var counts [NumReasons]Count
	for r := range counts {
		if err := c.objects.Reasons.Lookup(uint32(r), c.reasons); err != nil {
			return counts, fmt.Errorf("read reason %q: %w", Reason(r), err)
		}
		for _, v := range c.reasons {
			counts[r].Packets += v.Packets
			counts[r].Bytes += v.Bytes
		}
	}
	return counts, nil
}

// Close detaches the programs and releases the maps.
func (c *Counter) Close() error {
	var errs []error
	for _, a := range c.attached {
		errs = append(errs, a.Detach())
	}
	clear(c.attached)
	if c.mapped != nil {
		errs = append(errs, unix.Munmap(c.mapped))
	}
	c.mapped, c.slots = nil, nil
	return errors.Join(append(errs, c.objects.Close())...)
}
