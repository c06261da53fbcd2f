// Package wire makes veth interfaces send frames as real Ethernet interfaces do, with an eBPF
// program: padded to 60 bytes, and optionally with a trailer and a tag.
//
// It neither makes interfaces nor changes their offloads. The program is in bpf/lab/wire.
package wire

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/kernel/bpf"
)

// MaxTrailer bounds Options.Trailer, in bytes.
const MaxTrailer = 64

// priority is that of tags (IEEE 802.1Q): critical applications, as some access lines send.
const priority = 3

// Options say what frames are like.
type Options struct {
	// MTU is that of the interface, in bytes. Frames of full size have no trailer, as a receiver
	// would drop them.
	MTU int
	// Trailer is the bytes behind each frame, after its padding.
	Trailer int
	// Tagged frames have a tag with a priority and without a virtual LAN (VID 0).
	Tagged bool
}

// Program is the loaded program. It stays on the interfaces that it is attached to, also after
// Close, until they are removed.
type Program struct{ objects programObjects }

// ethernetHeader is the bytes before the IP header.
const ethernetHeader = 14

// Load loads the program. The caller calls Close. It returns a *feature.Error when this host cannot
// load it.
func Load(o Options) (*Program, error) {
	p := &Program{}
	spec, err := loadProgram()
	if err != nil {
		return nil, fmt.Errorf("load program of Ethernet frames: %w", err)
	}
	for name, value := range map[string]any{
		"trailer": uint32(o.Trailer), "longest": uint32(o.MTU + ethernetHeader), "tagged": flag(o.Tagged), "priority": uint8(priority),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("load program of Ethernet frames: set %q: %w", name, err)
		}
	}
	if err := bpf.Load(spec, &p.objects); err != nil {
		return nil, fmt.Errorf("load program of Ethernet frames: %w", err)
	}
	return p, nil
}

func flag(on bool) uint8 {
	if on {
		return 1
	}
	return 0
}

// Close releases the program.
func (p *Program) Close() error { return p.objects.Close() }

// Attach has an interface of the calling thread's network namespace send such frames, as long as it
// exists.
func (p *Program) Attach(iface string) error {
	l, err := netlink.LinkByName(iface)
	if err == nil {
		// Not by a link, which would need a pin to outlive this process.
		err = link.RawAttachProgram(link.RawAttachProgramOptions{
			Target: l.Attrs().Index, Program: p.objects.Ethernet, Attach: ebpf.AttachTCXEgress, Anchor: link.Head(),
		})
	}
	if err != nil {
		return fmt.Errorf("have interface %q send Ethernet frames: %w", iface, err)
	}
	return nil
}
