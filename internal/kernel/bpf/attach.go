package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Programs are tc programs for the directions of an interface; nil is none.
type Programs struct {
	Ingress, Egress *ebpf.Program
}

// AttachOptions say where programs go.
type AttachOptions struct {
	// Link is the name of the interface.
	Link string
	// Ethernet is for links whose packets begin with an Ethernet header, Raw for those whose
	// packets begin with the IP header, such as tun.
	Ethernet, Raw Programs
	// Untagged: the programs read no tags in frames, which the interface of a VLAN keeps with
	// reorder_hdr off.
	Untagged bool
	// Name is that of the filters in cls_bpf.
	Name string
	// Legacy uses cls_bpf even where the kernel has tcx.
	Legacy bool
	// Last has the ingress program run after other ones, because it redirects packets.
	Last bool
	// Pin is where the tcx link of the ingress program is pinned, if anywhere. One that is pinned
	// there, and is on the interface, gets the program and keeps its place: no packet passes
	// without one.
	Pin string
}

// Attachment is a pair of programs on an interface.
type Attachment interface {
	// Detach removes the programs. An interface that is gone is no error.
	Detach() error
}

// Attach attaches programs to an interface in the calling thread's network namespace, before other
// tcx programs: one of these that accepts a packet (TCX_PASS) ends the list. It uses tcx (Linux
// 6.6), otherwise cls_bpf. It returns a *feature.Error when the kernel or the type of the interface
// is not supported, and an error that wraps fs.ErrNotExist when there is no such interface.
func Attach(o AttachOptions) (Attachment, error) {
	l, err := findLink(o.Link)
	if err != nil {
		return nil, err
	}
	var programs Programs
	switch kind := l.Attrs().EncapType; kind {
	case "ether", "loopback":
		programs = o.Ethernet
	case "none", "ppp", "rawip":
		programs = o.Raw
	default:
		return nil, missing(fmt.Sprintf("link type %q is not supported", kind), "name an Ethernet or tun interface", nil)
	}
	if o.Untagged && keepsTags(l) {
		return nil, missing("the VLAN keeps tags in its frames (reorder_hdr off)", fmt.Sprintf("ip link set %s type vlan reorder_hdr on", o.Link), nil)
	}
	if programs == (Programs{}) {
		return nil, missing(fmt.Sprintf("link type %q is not supported", l.Attrs().EncapType), "name an Ethernet interface", nil)
	}
	index := l.Attrs().Index
	if !o.Legacy {
		a, err := attachTCX(index, programs, o.Last, o.Pin)
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return a, err
		}
	}
	return attachClassifier(index, o.Name, programs, o.Last)
}

func keepsTags(l netlink.Link) bool {
	v, ok := l.(*netlink.Vlan)
	return ok && v.ReorderHdr != nil && !*v.ReorderHdr
}

// findLink returns an interface of the calling thread's network namespace, or an error that wraps
// fs.ErrNotExist when there is none of that name.
func findLink(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, noLink{}
	}
	return l, err
}

// noLink is fs.ErrNotExist in the words of interfaces.
type noLink struct{}

func (noLink) Error() string { return "no such interface" }
func (noLink) Unwrap() error { return fs.ErrNotExist }

// tcx is the tcx links of an interface. The kernel removes those that are not pinned with the
// process.
type tcx []link.Link

func (t tcx) Detach() error {
	var errs []error
	for _, l := range t {
		// Without Detach the program runs for another moment, and cannot be attached again
		// meanwhile. Unpin does nothing without a pin.
		errs = append(errs, l.Detach(), l.Unpin(), l.Close())
	}
	return errors.Join(errs...)
}

// Overtaken reports whether a program that was attached later runs before one of the attachment, or
// one of the attachment or its interface is gone.
func Overtaken(a Attachment) (bool, error) {
	place, err := PlaceOf(a)
	return err == nil && place != Placed, err
}

// takeOver gives the program to a pinned link, if it is on the interface.
func takeOver(pin string, index int, program *ebpf.Program) (link.Link, error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open pin: %w", err)
	}
	if on, err := interfaceOf(l); err == nil && on == uint32(index) {
		if err := l.Update(program); err != nil {
			return nil, errors.Join(fmt.Errorf("replace program: %w", err), l.Close())
		}
		return l, nil
	}
	// The interface is gone, and another one may have its index.
	return nil, errors.Join(l.Unpin(), l.Close())
}

func attachTCX(index int, p Programs, last bool, pin string) (Attachment, error) {
	first := link.Head()
	if last {
		first = link.Tail()
	}
	var t tcx
	for _, hook := range []struct {
		program *ebpf.Program
		at      ebpf.AttachType
		anchor  link.Anchor
	}{{p.Ingress, ebpf.AttachTCXIngress, first}, {p.Egress, ebpf.AttachTCXEgress, link.Head()}} {
		if hook.program == nil {
			continue
		}
		pinned := pin != "" && hook.at == ebpf.AttachTCXIngress
		if pinned {
			l, err := takeOver(pin, index, hook.program)
			if err != nil {
				return nil, errors.Join(err, t.Detach())
			}
			if l != nil {
				t = append(t, l)
				continue
			}
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: hook.program, Attach: hook.at, Anchor: hook.anchor})
		if err != nil {
			return nil, errors.Join(err, t.Detach())
		}
		t = append(t, l)
		if pinned {
			if err := l.Pin(pin); err != nil {
				return nil, errors.Join(fmt.Errorf("pin link: %w", err), t.Detach())
			}
		}
	}
	return t, nil
}

// classifier is a pair of cls_bpf filters on the clsact qdisc, for kernels without tcx. Unlike tcx
// links they outlive the process; the next instance replaces those of one that was killed.
type classifier struct {
	conn    *netlink.Handle
	qdisc   netlink.Qdisc // nil when it existed before
	filters []*netlink.BpfFilter
}

const (
	// The filters have the first priority, because they pass every packet on to the next, or the
	// second.
	filterPriority = 1
	lastPriority   = 2
	filterHandle   = 0x7ab4
)

func attachClassifier(index int, name string, p Programs, last bool) (_ Attachment, err error) {
	conn, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	c := &classifier{conn: conn}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Detach())
		}
	}()
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	switch err := conn.QdiscAdd(qdisc); {
	case err == nil:
		c.qdisc = qdisc
	case errors.Is(err, unix.EEXIST):
	case errors.Is(err, unix.ENOENT):
		return nil, missing("this kernel has neither tcx nor clsact", "use Linux 6.6 or newer, or CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF", nil)
	default:
		return nil, fmt.Errorf("add clsact: %w", err)
	}
	priority := uint16(filterPriority)
	if last {
		priority = lastPriority
	}
	for _, hook := range []struct {
		parent  uint32
		program *ebpf.Program
	}{{netlink.HANDLE_MIN_INGRESS, p.Ingress}, {netlink.HANDLE_MIN_EGRESS, p.Egress}} {
		if hook.program == nil {
			continue
		}
		filter := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: hook.parent, Handle: filterHandle, Priority: priority, Protocol: unix.ETH_P_ALL},
			Fd:          hook.program.FD(), Name: name, DirectAction: true,
		}
		switch err := conn.FilterReplace(filter); {
		case errors.Is(err, unix.ENOENT):
			return nil, missing("this kernel has neither tcx nor cls_bpf", "use Linux 6.6 or newer, or CONFIG_NET_CLS_BPF", nil)
		case err != nil:
			return nil, fmt.Errorf("add filter: %w", err)
		}
		c.filters = append(c.filters, filter)
	}
	return c, nil
}

// place is where a filter is.
type place struct {
	index  int
	parent uint32
	name   string
}

func placeOf(f *netlink.BpfFilter) place { return place{f.LinkIndex, f.Parent, f.Name} }

// SweepFilters removes the cls_bpf filters of these names, but for those of attachments to keep,
// from all interfaces of the calling thread's network namespace: a process that was killed has left
// them. clsact stays, because another program may use it.
func SweepFilters(names []string, keep []Attachment) error {
	kept := map[place]bool{}
	for _, a := range keep {
		if c, ok := a.(*classifier); ok {
			for _, f := range c.filters {
				kept[placeOf(f)] = true
			}
		}
	}
	conn, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer conn.Close()
	links, err := conn.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := conn.FilterList(l, parent)
			errs = append(errs, ignoreGone(err))
			for _, f := range filters {
				b, ok := f.(*netlink.BpfFilter)
				if ok && b.Handle == filterHandle && slices.Contains(names, b.Name) && !kept[placeOf(b)] {
					errs = append(errs, ignoreGone(conn.FilterDel(f)))
				}
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove filters of a previous instance: %w", err)
	}
	return nil
}

func (c *classifier) Detach() error {
	defer c.conn.Close()
	var errs []error
	for _, filter := range c.filters {
		errs = append(errs, ignoreGone(c.conn.FilterDel(filter)))
	}
	// Another program may have added filters meanwhile.
	if c.qdisc != nil && c.empty() {
		errs = append(errs, ignoreGone(c.conn.QdiscDel(c.qdisc)))
	}
	return errors.Join(errs...)
}

// empty reports whether the qdisc has no filters.
func (c *classifier) empty() bool {
	l := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: c.qdisc.Attrs().LinkIndex}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if filters, err := c.conn.FilterList(l, parent); err != nil || len(filters) > 0 {
			return false
		}
	}
	return true
}

// ignoreGone drops the errors of removing from an interface that is gone.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
