package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

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

// captures returns the captures of the running listeners.
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

// count returns the number of captures.
func (w *wanted) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.list)
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
	n, err := nft.Captures()
	if err != nil || n == 0 {
		return nil // this kernel has no nf_tables, or there are none
	}
	return nft.SetCaptures(nil)
}

// release removes the captures at a clean stop.
func (p *Proxy) release() error {
	if p.wanted.count() == 0 {
		return nil
	}
	return p.wanted.set(nil)
}

// Conditions implements daemon.Conditioned.
func (p *Proxy) Conditions() []condition.Condition {
	if p.wanted.count() == 0 {
		return nil
	}
	return []condition.Condition{{
		Name: "captures", Good: "connections of transparent listeners are captured",
		Examine: func() ([]health.Problem, error) {
			n, err := nft.Captures()
			want := p.wanted.count()
			if err != nil || n == want {
				return nil, err
			}
			return []health.Problem{{
				Text:   fmt.Sprintf("another program changed the table tabane-proxy of nf_tables: it has %d rules of %d", n, want),
				Remedy: "the proxy restores it; have the other program leave the tables of others in place",
			}}, nil
		},
		Restore: p.wanted.restore,
	}}
}
