package openplane

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/offload"
)

// attachment is the program on an interface.
type attachment struct {
	index int
	bpf.Attachment
}

// attach attaches the programs to the interfaces of the LAN and of the paths. The
// mutex is locked.
func (p *Plane) attach(s *dataplane.State) error {
	if p.closed {
		return nil
	}
	var places []at
	for _, name := range s.LAN.Interfaces {
		places = append(places, at{link: name})
	}
	for _, m := range []struct {
		mode dataplane.Mode
		kind kind
	}{{dataplane.Unsealed, kindJoin}, {dataplane.NAT, kindRestore}, {dataplane.Plain, kindCount}} {
		if slices.ContainsFunc(s.Peers, func(c dataplane.Peer) bool { return c.Mode == m.mode }) {
			for _, c := range s.Paths {
				places = append(places, at{c.Interface, m.kind})
			}
		}
	}
	if p.segment(s) {
		places = append(places, at{link: program.Segmented})
	}
	for place, a := range p.attached {
		if !slices.Contains(places, place) {
			delete(p.attached, place)
			p.detach(place.link, a)
		}
	}
	// All are detached from interfaces that are gone, or have another name, before one is attached:
	// two may have swapped their names, and a program is on an interface only once.
	now := devices{}
	for _, place := range places {
		a := p.attached[place]
		if a == nil {
			a = &attachment{}
			p.attached[place] = a
		}
		if a.index != now.named(place.link).index {
			p.detach(place.link, a)
			a.Attachment, a.index = nil, 0
		}
	}
	var errs []error
	for _, place := range places {
		name, a := place.link, p.attached[place]
		index := now.named(name).index
		if index == a.index { // 0: it may come later
			continue
		}
		attach := p.program.Attach
		switch place.kind {
		case kindJoin:
			attach = p.program.Join
		case kindRestore:
			attach = p.program.Restore
		case kindCount:
			attach = p.program.Count
		case kindSplit:
		}
		made, err := attach(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil && place.kind == kindCount:
			// Packets are sent over an interface of any type.
			p.log.Warn("losses are not counted", "interface", name, "err", err)
		case err != nil:
			errs = append(errs, err)
			continue
		}
		a.Attachment, a.index = made, index
	}
	if err := errors.Join(errs...); err != nil || p.swept {
		return err
	}
	p.swept = true
	var attached []bpf.Attachment
	for _, a := range p.attached {
		attached = append(attached, a.Attachment)
	}
	return p.program.Sweep(attached)
}

// setPairFilter has the kernel accept segments from any source. The larger one of an interface's
// setting and that of all applies, of which 2 is the loose one.
func setPairFilter() error {
	value := "0"
	if all, err := netns.ReadSysctl("net.ipv4.conf.all.rp_filter"); err == nil && all == "1" {
		value = "2"
	}
	return netns.Sysctl("net.ipv4.conf."+program.Segmented+".rp_filter", value)
}

// segment has the kernel segment super-packets if there are open peers, and reports whether it
// does. Without the pair of interfaces they are sent as they are. The mutex is locked.
func (p *Plane) segment(s *dataplane.State) bool {
	if !slices.ContainsFunc(s.Peers, func(c dataplane.Peer) bool { return c.Mode.Open() }) {
		if p.segmented != 0 {
			p.unsegment()
		}
		return false
	}
	// Another program may have removed it.
	if index, _, err := udp.Interface(program.Segmented); err == nil && index == p.segmented {
		return true
	}
	p.segmented = 0
	pair, err := bpf.MakePair(program.Segmenter, program.Segmented)
	if err == nil {
		err = errors.Join(offload.Prepare(program.Segmenter), offload.Prepare(program.Segmented))
		// What the program leaves of the segments has sources behind other interfaces. A host that
		// drops them drops few.
		if err := setPairFilter(); err != nil {
			p.log.Debug("reverse path filter stays", "err", err)
		}
	}
	if err == nil {
		err = p.program.Segment(pair.First, pair.Second, pair.Address)
	}
	switch {
	case err == nil:
		p.segmented, p.whole = pair.Second, false
	case !p.whole:
		p.whole = true
		p.log.Warn("super-packets are not segmented for slow paths", "err", errors.Join(err, p.program.Segment(0, 0, nil)))
	}
	return err == nil
}

func (p *Plane) unsegment() {
	p.segmented = 0
	if err := errors.Join(p.program.Segment(0, 0, nil), bpf.RemovePair(program.Segmenter)); err != nil {
		p.log.Warn("pair of interfaces is not removed", "err", err)
	}
}

func (p *Plane) detach(name string, a *attachment) {
	if a.Attachment == nil {
		return
	}
	if err := a.Detach(); err != nil {
		p.log.Warn("program is not detached", "interface", name, "error", err)
	}
}

// leave has peers end NAT sessions before nobody restores their packets. Where the program stays,
// so do the sessions.
func (p *Plane) leave() {
	if p.keep {
		return
	}
	peers, err := p.nat.leave()
	if err != nil {
		p.log.Warn("NAT sessions do not end", "err", err)
	}
	for waited := time.Duration(0); peers && waited < leaveFor; waited += natRetry {
		time.Sleep(natRetry)
		p.nat.mu.Lock()
		p.nat.flush() // what there was no room for
		p.nat.mu.Unlock()
	}
}
