package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Place is where the programs of attachments are on an interface.
type Place uint8

const (
	// Placed: all are attached, and no other tcx program runs before.
	Placed Place = iota
	// Behind: another tcx program runs before the last of them.
	Behind
	// Detached: at least one is not on the interface any more.
	Detached
)

// PlaceOf returns the place of the programs of attachments to one interface of the calling thread's
// network namespace. It needs CAP_NET_ADMIN.
func PlaceOf(all ...Attachment) (Place, error) {
	own := map[hook][]ebpf.ProgramID{}
	for _, a := range all {
		switch a := a.(type) {
		case tcx:
			for _, l := range a {
				info, err := l.Info()
				if err != nil {
					return Detached, fmt.Errorf("read tcx link: %w", err)
				}
				on := info.TCX()
				if on == nil || on.Ifindex == 0 {
					return Detached, nil
				}
				h := hook{int(on.Ifindex), ebpf.AttachType(on.AttachType)}
				own[h] = append(own[h], info.Program)
			}
		case *classifier:
			if ok, err := a.attached(); err != nil || !ok {
				return Detached, err
			}
		}
	}
	place := Placed
	for h, ids := range own {
		list, err := link.QueryPrograms(link.QueryOptions{Target: h.index, Attach: h.at})
		if err != nil {
			return Detached, fmt.Errorf("list tcx programs: %w", err)
		}
		found := 0
		for i, p := range list.Programs {
			if slices.Contains(ids, p.ID) {
				if found++; i >= len(ids) {
					place = Behind
				}
			}
		}
		if found < len(ids) {
			return Detached, nil
		}
	}
	return place, nil
}

// hook is a list of tcx programs.
type hook struct {
	index int
	at    ebpf.AttachType
}

// attached reports whether all filters are there.
func (c *classifier) attached() (bool, error) {
	for _, want := range c.filters {
		l, err := c.conn.LinkByIndex(want.LinkIndex)
		if none := (netlink.LinkNotFoundError{}); errors.As(err, &none) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("find interface of filter: %w", err)
		}
		list, err := c.conn.FilterList(l, want.Parent)
		if err := ignoreGone(err); err != nil {
			return false, fmt.Errorf("list filters: %w", err)
		}
		if !slices.ContainsFunc(list, func(f netlink.Filter) bool {
			b, ok := f.(*netlink.BpfFilter)
			return ok && b.Handle == filterHandle && placeOf(b) == placeOf(want)
		}) {
			return false, nil
		}
	}
	return true, nil
}
