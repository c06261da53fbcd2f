package openbpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/bpf"
)

// Mark is that of packets of peers' hosts in the kernel, and of ICMP errors to hosts about packets
// to peers: what Join, Restore and Count have passed on. Firewalls know them by it. It is in
// MarkBits; what other programs have in the others stays.
const Mark, MarkBits = uint32(programMarkingMARK_OF_PEER), uint32(programMarkingMARK_BITS)

// Count has the program mark the packets of peers with mode plain that an interface receives, and
// count them (SetLines). It is otherwise as Join.
func (p *Program) Count(link string) (bpf.Attachment, error) {
	return p.attach(link, "count", "counter", bpf.AttachOptions{
		Name: nameCount, Ethernet: bpf.Programs{Ingress: p.objects.Count}, Raw: bpf.Programs{Ingress: p.raw.Count},
	})
}

// Line is where packets of a peer arrive.
type Line struct{ Interface, Peer int }

// SetLines replaces the paths whose packets arrive there, by their numbers. Those of MaxPaths are
// not counted. The map belongs to the callee.
func (p *Program) SetLines(lines map[Line]int) error {
	var errs []error
	var key programLine
	var path uint32
	var stale []programLine
	all := p.objects.Lines.Iterate()
	for all.Next(&key, &path) {
		l := Line{int(key.Ifindex), int(key.Peer)}
		if want, ok := lines[l]; !ok {
			stale = append(stale, key)
		} else if uint32(want) == path {
			delete(lines, l)
		}
	}
	errs = append(errs, all.Err())
	for l, path := range lines {
		errs = append(errs, p.objects.Lines.Put(&programLine{Ifindex: uint32(l.Interface), Peer: uint32(l.Peer)}, uint32(path)))
	}
	for i := range stale {
		if err := p.objects.Lines.Delete(&stale[i]); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set lines of paths: %w", err)
	}
	return nil
}

// Counted returns the packets from a peer with NAT or mode plain that have arrived since Reset, by
// path: with NAT those without a session included.
func (p *Program) Counted(peer int) (all [MaxPaths]dataplane.Count, err error) {
	var each []programCounted
	if err := p.objects.Arrivals.Lookup(uint32(peer), &each); err != nil {
		return all, fmt.Errorf("read what has arrived from peer %d: %w", peer, err)
	}
	for i := range each {
		for j, c := range each[i].Path {
			all[j].Packets += c.Packets
			all[j].Bytes += c.Bytes
		}
	}
	return all, nil
}

// resetCounted clears what Counted returns.
func (p *Program) resetCounted(peer int) error {
	processors, err := ebpf.PossibleCPU()
	if err == nil {
		err = p.objects.Arrivals.Put(uint32(peer), make([]programCounted, processors))
	}
	if err != nil {
		return fmt.Errorf("reset peer %d: %w", peer, err)
	}
	return nil
}
