package bpf

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachment is a program where it was put.
type attachment interface {
	detach() error
}

// Attach counts from now on what the interface of the calling thread's network namespace receives and sends: what it
// receives before other programs of tcx see it, what it sends after them. It returns a
// *feature.Error when the kernel or the type of interface is not supported, and an error that wraps fs.ErrNotExist when
// there is no such interface.
func (f *Flows) Attach(name string) error {
	if err := f.attach(name); err != nil {
		return fmt.Errorf("attach flow counter to interface %q: %w", name, err)
	}
	return nil
}

func (f *Flows) attach(name string) error {
	l, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return noInterface{}
	}
	if err != nil {
		return err
	}
	received, sent := f.objects.Received, f.objects.Sent
	switch kind := l.Attrs().EncapType; kind {
	case "ether", "loopback":
	case "none", "ppp", "rawip":
		received, sent = f.objects.ReceivedRaw, f.objects.SentRaw
	default:
		return missing(fmt.Sprintf("link type %q is not supported", kind), "name an Ethernet or tun interface", nil)
	}
	index := l.Attrs().Index
	if !f.legacy {
		err := f.attachTCX(index, received, sent)
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return err
		}
	}
	return f.attachClassifier(index, received, sent)
}

// noInterface is fs.ErrNotExist in the words of interfaces.
type noInterface struct{}

func (noInterface) Error() string { return "there is no such interface" }
func (noInterface) Unwrap() error { return fs.ErrNotExist }

// tcx is a program on a link of tcx (Linux 6.6). The kernel takes it away with the process and with the interface.
type tcx struct{ link.Link }

func (t tcx) detach() error { return t.Close() }

func (f *Flows) attachTCX(index int, received, sent *ebpf.Program) error {
	in, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: received, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
	if err != nil {
		return err
	}
	out, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: sent, Attach: ebpf.AttachTCXEgress, Anchor: link.Tail()})
	if err != nil {
		return errors.Join(err, in.Close())
	}
	f.attached = append(f.attached, tcx{in}, tcx{out})
	return nil
}

// classifier are the programs as filters of the qdisc clsact, for kernels without tcx. Unlike tcx they would outlive the
// process, and one that was killed may have left them; the next to start takes their place.
type classifier struct {
	conn    *netlink.Handle
	qdisc   netlink.Qdisc // nil when it was there before
	filters []netlink.Filter
}

const (
	filterName = "tabane_flows"
	// The place of the filters. They let packets pass on to whoever is next, so they come first.
	filterPriority = 1
	filterHandle   = 0x7ab4
)

func (f *Flows) attachClassifier(index int, received, sent *ebpf.Program) (err error) {
	conn, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	c := &classifier{conn: conn}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.detach())
		}
	}()
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	switch err := conn.QdiscAdd(qdisc); {
	case err == nil:
		c.qdisc = qdisc
	case errors.Is(err, unix.EEXIST):
	case errors.Is(err, unix.ENOENT):
		return missing("this kernel has neither tcx nor clsact", "use Linux 6.6 or newer, or CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF", nil)
	default:
		return fmt.Errorf("add clsact: %w", err)
	}
	for _, hook := range []struct {
		parent  uint32
		program *ebpf.Program
	}{{netlink.HANDLE_MIN_INGRESS, received}, {netlink.HANDLE_MIN_EGRESS, sent}} {
		filter := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: hook.parent, Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL},
			Fd:          hook.program.FD(), Name: filterName, DirectAction: true,
		}
		switch err := conn.FilterReplace(filter); {
		case errors.Is(err, unix.ENOENT):
			return missing("this kernel has neither tcx nor cls_bpf", "use Linux 6.6 or newer, or CONFIG_NET_CLS_BPF", nil)
		case err != nil:
			return fmt.Errorf("add filter: %w", err)
		}
		c.filters = append(c.filters, filter)
	}
	f.attached = append(f.attached, c)
	return nil
}

func (c *classifier) detach() error {
	defer c.conn.Close()
	var errs []error
	for _, filter := range c.filters {
		errs = append(errs, gone(c.conn.FilterDel(filter)))
	}
	// Only an empty one is removed: others may have put filters there meanwhile.
	if c.qdisc != nil && c.empty() {
		errs = append(errs, gone(c.conn.QdiscDel(c.qdisc)))
	}
	return errors.Join(errs...)
}

// empty tells whether no filter is left on either side.
func (c *classifier) empty() bool {
	l := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: c.qdisc.Attrs().LinkIndex}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if filters, err := c.conn.FilterList(l, parent); err != nil || len(filters) > 0 {
			return false
		}
	}
	return true
}

// gone forgives that what is to be removed is not there, because its interface is not.
func gone(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
