package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// FlowKey is a flow in one direction on one interface, in the layout of the kernel's map.
type FlowKey flowsFlowKey

// Family is that of the flow's packets themselves, not of what they are encapsulated in: 4 or 6.
func (k *FlowKey) family(a [16]byte) netip.Addr {
	if k.Family == 4 {
		return netip.AddrFrom4([4]byte(a[12:]))
	}
	return netip.AddrFrom16(a)
}

// From is where the flow's packets come from. An address of IPv4 is given as such.
func (k *FlowKey) From() netip.AddrPort { return netip.AddrPortFrom(k.family(k.Source), k.SourcePort) }

// To is where the flow's packets go to.
func (k *FlowKey) To() netip.AddrPort {
	return netip.AddrPortFrom(k.family(k.Destination), k.DestinationPort)
}

// SegmentID is the SID that the packets are on their way to, and the zero Addr when they are not encapsulated.
func (k *FlowKey) SegmentID() netip.Addr {
	if k.Sid == [16]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16(k.Sid)
}

// Sent tells packets that the interface sends from those it receives.
func (k *FlowKey) Sent() bool { return k.Direction == 1 }

// Count is a number of packets as they are on the wire, where segments that the kernel handles as one are many, and
// their bytes from the link layer's header on, with every header of every segment. Preamble, FCS and gap are not in it.
type Count struct {
	Packets, Bytes uint64
}

// Reason is why packets are counted under no flow, or Counted.
type Reason uint8

// The reasons, as the program numbers them.
const (
	Counted    = Reason(flowsReasonREASON_COUNTED)
	Truncated  = Reason(flowsReasonREASON_TRUNCATED)
	Malformed  = Reason(flowsReasonREASON_MALFORMED)
	NotIP      = Reason(flowsReasonREASON_NOT_IP)
	Protocol   = Reason(flowsReasonREASON_PROTOCOL)
	Fragment   = Reason(flowsReasonREASON_FRAGMENT)
	Extensions = Reason(flowsReasonREASON_EXTENSIONS)
	Nested     = Reason(flowsReasonREASON_NESTED)
	Full       = Reason(flowsReasonREASON_FULL)
)

// NumReasons is how many reasons there are.
const NumReasons = int(flowsReasonREASONS)

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
	// DefaultMaxFlows is how many flows are kept unless told otherwise.
	DefaultMaxFlows = 1 << 15
	// MaxMaxFlows bounds what can be asked for: each takes about 280 bytes, whether it is there or not.
	MaxMaxFlows = 1 << 20
)

// FlowsOptions say how flows are counted.
type FlowsOptions struct {
	// MaxFlows is how many flows there is room for; 0 means DefaultMaxFlows. Packets of others are counted under Full
	// until Reuse makes room.
	MaxFlows int
	// Legacy attaches with cls_bpf even where the kernel has tcx.
	Legacy bool
}

// Flows counts the packets of network interfaces per flow and SID. Each flow has a slot, from its first packet until Reuse.
// It is not safe for concurrent use.
type Flows struct {
	objects  flowsObjects
	legacy   bool
	attached []attachment
	mapped   []byte
	// slots are the kernel's own memory.
	slots []flowsSlot
	// known are slots whose owner has been seen whole, and used is above all that had one so far.
	known   []bool
	used    int
	reasons []flowsCount
}

// NewFlows loads the programs; nothing is counted before Attach. Close it. It returns a *feature.Error when this host
// cannot load them.
func NewFlows(o FlowsOptions) (*Flows, error) {
	if o.MaxFlows == 0 {
		o.MaxFlows = DefaultMaxFlows
	}
	if o.MaxFlows < 1 || o.MaxFlows > MaxMaxFlows {
		return nil, fmt.Errorf("load flow counter: number of flows must be between 1 and %d, got %d", MaxMaxFlows, o.MaxFlows)
	}
	f := &Flows{legacy: o.Legacy}
	if err := f.load(o.MaxFlows); err != nil {
		return nil, fmt.Errorf("load flow counter: %w", err)
	}
	return f, nil
}

func (f *Flows) load(maxFlows int) error {
	// Before Linux 5.11 maps counted against what may be locked.
	if err := rlimit.RemoveMemlock(); err != nil {
		return refusal(err)
	}
	spec, err := loadFlows()
	if err != nil {
		return err
	}
	for _, name := range []string{flowsMapSlots, flowsMapPlaces, flowsMapSpare} {
		spec.Maps[name].MaxEntries = uint32(maxFlows)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	if err := refusal(spec.LoadAndAssign(&f.objects, nil)); err != nil {
		return err
	}
	f.reasons = make([]flowsCount, cpus)
	f.known = make([]bool, maxFlows)
	err = f.share()
	for slot := maxFlows - 1; slot >= 0 && err == nil; slot-- {
		err = f.objects.Spare.Put(nil, uint32(slot))
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// share maps the memory of the slots.
func (f *Flows) share() (err error) {
	n := int(f.objects.Slots.MaxEntries())
	if f.mapped, err = unix.Mmap(f.objects.Slots.FD(), 0, n*int(unsafe.Sizeof(flowsSlot{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map memory of counters: %w", err)
	}
	f.slots = unsafe.Slice((*flowsSlot)(unsafe.Pointer(unsafe.SliceData(f.mapped))), n)
	return nil
}

// whole tells whether the program has written all of the slot's owner; the last of it may come some nanoseconds after the
// flow's first count.
func (s *flowsSlot) whole() bool {
	words := (*[unsafe.Sizeof(s.Owner) / 8]uint64)(unsafe.Pointer(&s.Owner))
	mark := uint64(0)
	for i := range words {
		word := atomic.LoadUint64(&words[i])
		if i == len(words)-1 {
			// The mark is the last of it.
			word &= 1<<32 - 1
		}
		mark = (mark + word) * 0x9e3779b97f4a7c15
	}
	return atomic.LoadUint32(&s.Owner.Mark) == max(uint32(mark>>32), 1)
}

// ahead is how far behind the last slot in use Each looks for another. Slots that were never used go in their order, so the
// next one is mostly just behind; but it may be in use before one that another processor took earlier.
const ahead = 256

// Each calls each for every flow with what was counted in its slot, in the order of slots. The key is valid until Reuse, and
// after Remove it says so.
// A packet may be in a count before its bytes are, or the other way round; the next one makes up for it.
func (f *Flows) Each(each func(slot int, key *FlowKey, count Count)) {
	for slot := 0; slot < len(f.slots) && slot < f.used+ahead; slot++ {
		s := &f.slots[slot]
		packets := atomic.LoadUint64(&s.Count.Packets)
		if packets == 0 {
			continue
		}
		f.used = max(f.used, slot+1)
		if !f.known[slot] {
			if !s.whole() {
				continue
			}
			f.known[slot] = true
		}
		each(slot, (*FlowKey)(&s.Owner.Key), Count{packets, atomic.LoadUint64(&s.Count.Bytes)})
	}
}

// Remove takes the flow of a slot away: its next packet begins another flow, with another slot. Only packets that are just
// being counted still come to this one.
func (f *Flows) Remove(slot int) error {
	owner := &f.slots[slot].Owner
	key := (*FlowKey)(&owner.Key)
	if err := f.objects.Places.Delete(key); err != nil {
		return fmt.Errorf("remove flow from %v to %v: %w", key.From(), key.To(), err)
	}
	// The program may still be led to the slot by a hint, and then finds no key that it looks for.
	atomic.OrUint32((*uint32)(unsafe.Pointer(&owner.Key.Family)), 0xff<<24)
	return nil
}

// Reuse forgets what a slot has counted and lets another flow have it. Its flow must have been removed so long ago that no
// packet is being counted in it.
func (f *Flows) Reuse(slot int) error {
	f.known[slot] = false
	s := &f.slots[slot]
	s.Owner.Key = flowsFlowKey{}
	atomic.StoreUint64(&s.Count.Packets, 0)
	atomic.StoreUint64(&s.Count.Bytes, 0)
	if err := f.objects.Spare.Put(nil, uint32(slot)); err != nil {
		return fmt.Errorf("reuse slot %d: %w", slot, err)
	}
	return nil
}

// Reasons returns how many packets of all interfaces are in no flow, by why they are not; there are none under Counted.
func (f *Flows) Reasons() ([NumReasons]Count, error) {
	var counts [NumReasons]Count
	for r := range counts {
		if err := f.objects.Reasons.Lookup(uint32(r), f.reasons); err != nil {
			return counts, fmt.Errorf("read reason %q: %w", Reason(r), err)
		}
		for _, v := range f.reasons {
			counts[r].Packets += v.Packets
			counts[r].Bytes += v.Bytes
		}
	}
	return counts, nil
}

// Close stops counting and forgets what was counted.
func (f *Flows) Close() error {
	var errs []error
	for _, a := range f.attached {
		errs = append(errs, a.detach())
	}
	f.attached = nil
	if f.mapped != nil {
		errs = append(errs, unix.Munmap(f.mapped))
	}
	f.mapped, f.slots = nil, nil
	return errors.Join(append(errs, f.objects.Close())...)
}
