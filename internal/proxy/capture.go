package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/kernel/privilege"
	"github.com/tabane/tabane/internal/kernel/route"
)

// captureMark is the mark of captured packets, the number of the table that delivers them to this
// host, and the priority of the rules that lead there, which precede those of tabane gateway.
const captureMark = 4788

// anywhere are the prefixes of all addresses.
var anywhere = []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}

// kernelObjects returns what delivers captured packets.
func kernelObjects() []route.Object {
	var list []route.Object
	for _, all := range anywhere {
		list = append(list,
			route.Route{Table: captureMark, Dst: all, Kind: route.Deliver}.Normal(),
			route.Rule{Priority: captureMark, From: all, Mark: captureMark, Table: captureMark}.Normal())
	}
	return list
}

// captures returns the captures of the running listeners, and ended ones of those that are gone and
// still have connections.
func (p *Proxy) captures() []nft.Capture {
	var list []nft.Capture
	for _, r := range p.running {
		if r.listener.Listen.Kind != Transparent {
			continue
		}
		for _, at := range r.at {
			list = append(list, nft.Capture{Interface: r.listener.Listen.Interface, Ports: r.listener.Match.Ports, To: at, Mark: captureMark})
		}
	}
	p.leaving = slices.DeleteFunc(p.leaving, func(r *running) bool {
		return slices.Contains(p.running, r) || r.service.Counts.Active.Load() == 0
	})
	for _, r := range p.leaving {
		list = append(list, nft.Capture{Interface: r.listener.Listen.Interface, Mark: captureMark, Ended: true})
	}
	return list
}

// wanted are the captures that are to be in the kernel. It is safe for concurrent use.
type wanted struct {
	mu   sync.Mutex
	list []nft.Capture
}

// set replaces the captures.
func (w *wanted) set(list []nft.Capture) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := nft.SetCaptures(list); err != nil {
		return err
	}
	w.list = list
	return nil
}

// restore repeats set.
func (w *wanted) restore() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return nft.SetCaptures(w.list)
}

// count returns the number of captures, all and those that have not ended.
func (w *wanted) count() (all, capturing int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.list {
		if all++; !c.Ended {
			capturing++
		}
	}
	return all, capturing
}

// anyPort stands for those of all services: rules that accept a service of this host, as SSH, are
// not for it.
const anyPort = 1

// passages are the captured packets, which a firewall of the host examines as those that arrive for
// it.
func (w *wanted) passages() []nft.Passage {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []nft.Passage
	for _, c := range w.list {
		if c.Ended {
			continue // firewalls know these connections
		}
		p := nft.Passage{Version: "ip6", In: c.Interface, Protocol: unix.IPPROTO_TCP, Captured: c.Mark}
		if c.To.Addr().Is4() {
			p.Version = "ip"
		}
		ports := c.Ports
		if len(ports) == 0 {
			ports = []uint16{anyPort}
		}
		for _, p.Port = range ports {
			list = append(list, p)
		}
	}
	return list
}

// capture applies the captures of the running listeners. change runs a function that changes the
// desired state of the loop.
func (p *Proxy) capture(change func(func())) error {
	list := p.captures()
	if !p.owner() {
		return nil
	}
	if err := p.wanted.set(list); err != nil {
		return err
	}
	change(func() {
		for _, o := range kernelObjects() {
			if len(list) > 0 {
				p.loop.Kernel.Set(o)
			} else {
				p.loop.Kernel.Delete(o.Key())
			}
		}
	})
	return nil
}

// clear removes the captures of a previous instance that was killed and had some, with their rules
// and routes, unless they are those of a proxy that runs, and then leaves the network namespace to
// others.
func (p *Proxy) clear() error {
	if p.lock == nil {
		return nil
	}
	return errors.Join(p.remove(), p.unlock())
}

func (p *Proxy) remove() error {
	lacking, err := privilege.Lacking(privilege.NetAdmin)
	if err != nil || len(lacking) > 0 {
		return err // nor had the previous one
	}
	p.loop.Kernel.Clear()
	if err := p.loop.Kernel.Flush(); err != nil {
		return fmt.Errorf("remove kernel state: %w", err)
	}
	if _, present, err := nft.Captures(); err != nil || !present {
		return nil // this kernel has no nf_tables, or there are none
	}
	return nft.SetCaptures(nil)
}

// release removes the captures at a clean stop.
func (p *Proxy) release() error {
	if all, _ := p.wanted.count(); all == 0 {
		return nil
	}
	return p.wanted.set(nil)
}

// Conditions implements daemon.Conditioned.
func (p *Proxy) Conditions() []condition.Condition {
	list := []condition.Condition{condition.Tracked()}
	if all, _ := p.wanted.count(); all == 0 {
		return list
	}
	return append(list, condition.Condition{
		Name: "captures", Good: "connections of transparent listeners are captured",
		Examine: func() ([]health.Problem, error) {
			n, present, err := nft.Captures()
			_, want := p.wanted.count()
			if err != nil || n == want && present {
				return nil, err
			}
			return []health.Problem{{
				Text:   fmt.Sprintf("another program changed the table tabane-proxy of nf_tables: it has %d rules of %d", n, want),
				Remedy: "the proxy restores it; have the other program leave the tables of others in place",
			}}, nil
		},
		Restore: p.wanted.restore,
	}, p.wanted.accepted(), condition.Cookies())
}

// accepted is that no firewall of the host drops what is captured: it would have been forwarded, and
// is delivered to this host.
func (w *wanted) accepted() condition.Condition {
	return condition.Condition{
		Name: "firewall", Good: "no chain of nftables or iptables drops the connections that are captured",
		Examine: func() (problems []health.Problem, err error) {
			blocks, err := nft.Blocking(w.passages())
			for _, b := range blocks {
				p := health.Problem{
					Text:   fmt.Sprintf("chain %q drops the connections that are captured at interface %q, which have the mark %d", b.Chain, b.Passage.In, b.Passage.Captured),
					Remedy: b.Remedy(),
				}
				if !slices.Contains(problems, p) {
					problems = append(problems, p)
				}
			}
			return problems, err
		},
	}
}
