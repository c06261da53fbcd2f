package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/offload"
	"github.com/tabane/tabane/internal/kernel/tc"
)

// detourPrefix, followed by the index of an interface, is the name of the detour of that interface:
// the interface that connects its node to an emulator put into the wire.
const detourPrefix = "emulator"

// detourOf returns the index of the interface whose detour this is, and whether it is a detour.
func detourOf(name string) (index int, is bool) {
	number, is := strings.CutPrefix(name, detourPrefix)
	if !is {
		return 0, false
	}
	index, err := strconv.Atoi(number)
	return index, err == nil && index > 0
}

// interposed turns the plan's wire into an emulated link with detours.
func (l *link) interposed(lab string) error {
	l.netns = namespaceOf(lab, "link-"+l.name)
	l.relay = &daemon{node: l.name, netns: l.netns, role: RoleLink, status: relayStatus}
	l.detours = map[spot]spot{}
	for _, p := range []port{l.wires[0].a, l.wires[0].b} {
		index, err := p.index()
		if err != nil {
			return err
		}
		l.detours[p.spot()] = spot{p.netns, detourPrefix + strconv.Itoa(index)}
	}
	return nil
}

func (p port) index() (index int, err error) {
	err = netns.Do(p.netns, func() error {
		l, err := netlink.LinkByName(p.iface)
		if err != nil {
			return fmt.Errorf("find interface %q: %w", p.iface, err)
		}
		index = l.Attrs().Index
		return nil
	})
	return index, err
}

// nodePorts returns the link's ends at nodes.
func (l *link) nodePorts() []port {
	var ports []port
	for _, w := range l.wires {
		ports = append(ports, w.a)
		if l.netns == "" || l.detours != nil {
			ports = append(ports, w.b)
		}
	}
	return ports
}

// gate returns the interface whose qdisc can hold back packets sent by the port.
func (l *link) gate(p port) spot {
	if d, ok := l.detours[p.spot()]; ok {
		return d
	}
	return p.spot()
}

// refresh reads from the lab's state which wires other processes have turned into emulated links.
func (l *Links) refresh() error {
	s, err := readState(l.lab)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range s.Interposed {
		k, err := l.plan.link(name)
		if err != nil {
			return err
		}
		if k.relay == nil {
			if err := k.interposed(l.lab); err != nil {
				return err
			}
		}
	}
	return nil
}

// interpose puts an emulator into a wire while traffic runs. The interfaces of the nodes keep their
// addresses, routes and carrier. Each end gets a detour, an interface connected to the emulator:
// packets that the end sends are redirected to the detour, and packets from the emulator arrive on
// it.
func (l *Links) interpose(ctx context.Context, k *link, s scenario.Shape) (err error) {
	if len(k.wires) != 1 {
		return fmt.Errorf("it is a switch of %d ends, which has a rate and a queue; more takes a link of two ends", len(k.wires))
	}
	unlock, err := lock(ctx, l.lab, false)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := readState(l.lab)
	if err != nil {
		return err
	}
	if slices.Contains(state.Interposed, k.name) {
		return l.refresh()
	}
	planned := *k
	if err := planned.interposed(l.lab); err != nil {
		return err
	}
	planned.shape = s
	if len(planned.netns) > maxNamespace {
		return fmt.Errorf("namespace name %q has %d bytes, more than %d: choose a shorter lab or link name", planned.netns, len(planned.netns), maxNamespace)
	}
	existing, err := netns.List(prefix)
	if err != nil {
		return err
	}
	if slices.Contains(existing, planned.netns) {
		return fmt.Errorf("namespace %q exists already", planned.netns)
	}
	// If this process is killed before it is done, Down removes this namespace as well.
	before := *state
	state.Namespaces = append(slices.Clone(state.Namespaces), planned.netns)
	if err := state.write(l.lab); err != nil {
		return err
	}
	var (
		relay *child
		made  []spot
	)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.withdraw(&planned, relay, made), before.write(l.lab))
		}
	}()
	if made, err = planned.makeDetours(ctx); err != nil {
		return err
	}
	if relay, err = l.startRelay(&planned); err != nil {
		return err
	}
	state.Processes = append(slices.Clone(state.Processes), relay.process)
	if err := state.write(l.lab); err != nil {
		return err
	}
	ready, cancel := context.WithTimeoutCause(ctx, DefaultTimeout, fmt.Errorf("not ready after %s", DefaultTimeout))
	defer cancel()
	if err := l.daemons.condition(*planned.relay).wait(ready); err != nil {
		return errors.Join(err, context.Cause(ready))
	}
	for _, p := range planned.nodePorts() {
		through := planned.detours[p.spot()]
		if err := netns.Do(p.netns, func() error { return tc.Redirect(p.iface, through.iface) }); err != nil {
			return err
		}
	}
	state.Interposed = append(state.Interposed, k.name)
	k.netns, k.relay, k.detours = planned.netns, planned.relay, planned.detours
	if l.daemons.state != nil {
		l.daemons.state.merge(state)
	}
	return state.write(l.lab)
}

// withdraw reverts a partial interpose.
func (l *Links) withdraw(k *link, relay *child, detours []spot) error {
	var errs []error
	for _, p := range k.nodePorts() {
		errs = append(errs, netns.Do(p.netns, func() error { return tc.EndRedirect(p.iface) }))
	}
	if relay != nil {
		l.daemons.children.remove(relay.daemon)
		errs = append(errs, relay.signal(syscall.SIGKILL))
		<-relay.exited
	}
	// Deleting the namespace alone would remove them only later: the kernel cleans up
	// asynchronously.
	for _, d := range detours {
		errs = append(errs, netns.Do(d.netns, func() error {
			detour, err := netlink.LinkByName(d.iface)
			if err != nil {
				return err
			}
			return netlink.LinkDel(detour)
		}))
	}
	if err := netns.Delete(k.netns); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// makeDetours creates the emulator's namespace and the detours. On failure it returns those that it
// has created.
func (l *link) makeDetours(ctx context.Context) (made []spot, err error) {
	b := &builder{plan: &plan{}, spaces: map[string]*space{}}
	defer func() {
		for _, s := range b.spaces {
			s.close()
		}
	}()
	b.plan.links = []*link{l}
	if err := b.makeSpaces(ctx); err != nil {
		return nil, err
	}
	for i, p := range l.nodePorts() {
		there, err := b.makeDetour(l, p, relayEnds[i])
		if there {
			made = append(made, l.detours[p.spot()])
		}
		if err != nil {
			return made, fmt.Errorf("make the detour of interface %q: %w", p.iface, err)
		}
	}
	return made, nil
}

// makeDetour creates the detour of one end and reports whether it exists. It has the MAC address of
// the end, so that the kernel accepts frames that arrive on it.
func (b *builder) makeDetour(l *link, p port, end string) (there bool, err error) {
	name := l.detours[p.spot()].iface
	err = netns.Do(p.netns, func() error {
		iface, err := netlink.LinkByName(p.iface)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = name, l.mtu, iface.Attrs().HardwareAddr
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerMTU = end, uint32(l.mtu)
		veth.PeerNamespace = netlink.NsFd(int(b.spaces[l.netns].file.Fd()))
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		there = true
		// It has no address and must not send packets of its own.
		if err := netns.Sysctl("net/ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil {
			return err
		}
		// The detour completes the checksums of the end's frames, which are padded as the end's own
		// offloads say.
		if err := errors.Join(offload.Prepare(p.iface), offload.Prepare(name)); err != nil {
			return err
		}
		detour, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(detour)
	})
	return there, err
}

func (l *Links) startRelay(k *link) (*child, error) {
	if err := k.writeRelay(dirOf(l.lab)); err != nil {
		return nil, err
	}
	return l.daemons.startRelay(*k.relay)
}
