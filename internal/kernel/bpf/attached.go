package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Attached is a tcx program or a filter of tc on an interface.
type Attached struct {
	// Name is the name of the program; empty if it has none.
	Name string
	// Kind is that of a filter, as tc has it: bpf, u32, ...; empty for a tcx program.
	Kind string
	// Priority is that of a filter.
	Priority uint16
}

// Own reports whether Load has loaded the program.
func (a Attached) Own() bool { return strings.HasPrefix(a.Name, namePrefix) }

func (a Attached) String() string {
	switch {
	case a.Kind == "":
		return fmt.Sprintf("tcx program %q", a.Name)
	case a.Name == "":
		return fmt.Sprintf("%s filter of pref %d", a.Kind, a.Priority)
	}
	return fmt.Sprintf("%s filter %q of pref %d", a.Kind, a.Name, a.Priority)
}

// AllAttached returns what runs at ingress and at egress of an interface of the calling thread's
// network namespace, in that order: filters run after tcx programs. It returns an error that wraps
// fs.ErrNotExist when there is no such interface.
func AllAttached(name string) (ingress, egress []Attached, err error) {
	l, err := findLink(name)
	if err != nil {
		return nil, nil, err
	}
	ingress, err = attachedAt(l, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS)
	if err == nil {
		egress, err = attachedAt(l, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS)
	}
	return ingress, egress, err
}

func attachedAt(l netlink.Link, at ebpf.AttachType, parent uint32) ([]Attached, error) {
	list, err := tcxPrograms(l.Attrs().Index, at)
	if err != nil {
		return nil, fmt.Errorf("list tcx programs: %w", err)
	}
	filters, err := netlink.FilterList(l, parent)
	if err := ignoreGone(err); err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	for _, f := range filters {
		a := Attached{Kind: f.Type(), Priority: f.Attrs().Priority}
		if b, ok := f.(*netlink.BpfFilter); ok {
			a.Name = b.Name
		}
		list = append(list, a)
	}
	// A filter may have many handles.
	return slices.Compact(list), nil
}

func tcxPrograms(index int, at ebpf.AttachType) (list []Attached, err error) {
	all, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return nil, nil // before Linux 6.6
	}
	if err != nil {
		return nil, err
	}
	for _, attached := range all.Programs {
		name, err := programName(attached.ID)
		if errors.Is(err, fs.ErrNotExist) {
			continue // detached meanwhile
		}
		if err != nil {
			return nil, err
		}
		list = append(list, Attached{Name: name})
	}
	return list, nil
}

func programName(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	return info.Name, nil
}
