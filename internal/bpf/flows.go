package bpf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
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

// FlowCount is what has been counted of a flow since its entry was made.
type FlowCount struct {
	Count
	// Born is when the entry was made, in nanoseconds of the kernel's monotonic clock. Two counts of one flow with
	// different Born are of different entries: the first has been thrown out between them to make room.
	Born uint64
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
	// MaxMaxFlows bounds what can be asked for: an entry takes about 150 bytes and 24 more for every CPU.
	MaxMaxFlows = 1 << 20
)

// FlowsOptions say how flows are counted.
type FlowsOptions struct {
	// MaxFlows is how many flows are kept; the one that was idle for longest makes room for a new one. 0 means
	// DefaultMaxFlows.
	MaxFlows int
	// Legacy attaches with cls_bpf even where the kernel has tcx.
	Legacy bool
}

// Flows counts the packets of network interfaces per flow and SID. It is not safe for concurrent use.
type Flows struct {
	objects  flowsObjects
	legacy   bool
	attached []attachment
	cpus     int
	keys     []FlowKey
	values   []flowsFlowCount
	one      []flowsFlowCount
	reasons  []flowsReasonCount
}

// readAtOnce is how many flows one system call reads.
const readAtOnce = 4096

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
	spec.Maps[flowsMapFlows].MaxEntries = uint32(maxFlows)
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	if err := refusal(spec.LoadAndAssign(&f.objects, nil)); err != nil {
		return err
	}
	f.cpus = cpus
	chunk := min(readAtOnce, maxFlows)
	f.keys = make([]FlowKey, chunk)
	f.values = make([]flowsFlowCount, chunk*cpus)
	f.one = make([]flowsFlowCount, cpus)
	f.reasons = make([]flowsReasonCount, cpus)
	return nil
}

// Each calls each for every flow. The key is valid during the call only. Flows that come and go meanwhile may be left out;
// flows that stay are in it once, in an order that stays the same as long as they do.
func (f *Flows) Each(each func(*FlowKey, FlowCount)) error {
	var cursor ebpf.MapBatchCursor
	for {
		n, err := f.objects.Flows.BatchLookup(&cursor, f.keys, f.values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read flows: %w", err)
		}
		for i := range n {
			each(&f.keys[i], sum(f.values[i*f.cpus:][:f.cpus]))
		}
		if err != nil {
			return nil
		}
	}
}

// Take returns the count of a flow and forgets it, or false when it is not there.
func (f *Flows) Take(key *FlowKey) (FlowCount, bool, error) {
	err := f.objects.Flows.LookupAndDelete(key, f.one)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return FlowCount{}, false, nil
	}
	if err != nil {
		return FlowCount{}, false, fmt.Errorf("take flow from %v to %v: %w", key.From(), key.To(), err)
	}
	return sum(f.one), true, nil
}

func sum(values []flowsFlowCount) FlowCount {
	var c FlowCount
	for i := range values {
		v := &values[i]
		c.Packets += v.Packets
		c.Bytes += v.Bytes
		// On all CPUs but one it is 0.
		c.Born |= v.Born
	}
	return c
}

// Reasons returns how many packets there were, of all interfaces: those that are counted in flows under Counted, also
// when the flow is no longer there, and the others by why they are not.
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
	return errors.Join(append(errs, f.objects.Close())...)
}
