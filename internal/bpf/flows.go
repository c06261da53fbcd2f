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
	// MaxMaxFlows bounds what can be asked for: each takes about 230 bytes, whether it is there or not.
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
	mapped   [][]byte
	// counts and owners are the kernel's own memory.
	counts []flowsCount
	owners []flowsOwner
	// known are slots whose owner has been seen whole.
	known   []bool
	reasons []flowsCount
}

// NewFlows loads the programs; nothing is counted before Attach. Close it. Errors wrap ErrNotSupported when this host
// cannot.
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
	for _, name := range []string{flowsMapCounts, flowsMapOwners, flowsMapSlots, flowsMapSpare} {
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
	if f.counts, err = share[flowsCount](f, f.objects.Counts); err == nil {
		f.owners, err = share[flowsOwner](f, f.objects.Owners)
	}
	for slot := maxFlows - 1; slot >= 0 && err == nil; slot-- {
		err = f.objects.Spare.Put(nil, uint32(slot))
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// share maps the memory of an array. The kernel rounds entries up to 8 bytes, which those here are a multiple of.
func share[T any](f *Flows, m *ebpf.Map) ([]T, error) {
	var entry T
	n := int(m.MaxEntries())
	b, err := unix.Mmap(m.FD(), 0, n*int(unsafe.Sizeof(entry)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map memory of counters: %w", err)
	}
	f.mapped = append(f.mapped, b)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n), nil
}

// whole tells whether the program has written all of an owner; the last of it may come some nanoseconds after the flow's
// first count.
func (o *flowsOwner) whole() bool {
	words := (*[unsafe.Sizeof(o.Key) / 8]uint64)(unsafe.Pointer(&o.Key))
	mark := uint64(1)
	for i := range words {
		mark = mark*0x9e3779b97f4a7c15 + atomic.LoadUint64(&words[i])
	}
	return atomic.LoadUint64(&o.Mark) == max(mark, 1)
}

// Each calls each for every flow with what was counted in its slot, in the order of slots. The key is valid until Reuse.
// A packet may be in a count before its bytes are, or the other way round; the next one makes up for it.
func (f *Flows) Each(each func(slot int, key *FlowKey, count Count)) {
	for slot := range f.counts {
		c := &f.counts[slot]
		packets := atomic.LoadUint64(&c.Packets)
		if packets == 0 {
			continue
		}
		o := &f.owners[slot]
		if !f.known[slot] {
			if !o.whole() {
				continue
			}
			f.known[slot] = true
		}
		each(slot, (*FlowKey)(&o.Key), Count{packets, atomic.LoadUint64(&c.Bytes)})
	}
}

// Remove takes the flow of a slot away: its next packet begins another flow, with another slot. Only packets that are just
// being counted still come to this one.
func (f *Flows) Remove(slot int) error {
	key := (*FlowKey)(&f.owners[slot].Key)
	if err := f.objects.Slots.Delete(key); err != nil {
		return fmt.Errorf("remove flow from %v to %v: %w", key.From(), key.To(), err)
	}
	return nil
}

// Reuse forgets what a slot has counted and lets another flow have it. Its flow must have been removed so long ago that no
// packet is being counted in it.
func (f *Flows) Reuse(slot int) error {
	f.known[slot] = false
	f.owners[slot] = flowsOwner{}
	atomic.StoreUint64(&f.counts[slot].Packets, 0)
	atomic.StoreUint64(&f.counts[slot].Bytes, 0)
	if err := f.objects.Spare.Put(nil, uint32(slot)); err != nil {
		return fmt.Errorf("reuse slot %d: %w", slot, err)
	}
	return nil
}

// Reasons returns how many packets there were, of all interfaces: those that were counted in flows under Counted, and the others by why they are not.
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
	for _, b := range f.mapped {
		errs = append(errs, unix.Munmap(b))
	}
	f.mapped, f.counts, f.owners = nil, nil, nil
	return errors.Join(append(errs, f.objects.Close())...)
}
