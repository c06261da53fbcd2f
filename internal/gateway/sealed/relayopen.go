package sealed

import (
	"net"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// Open messages are relayed by the kernel (dataplane.Relays), between the addresses and ports that
// sealed ones are relayed between, so that NAT maps both alike and the path that probes measure is
// theirs.

// openRelay is what the kernel relays of a relay.
type openRelay struct {
	wanted bool
	// to and answered are what set was made for at that time: it also depends on addresses and
	// interfaces.
	to       place
	answered bool
	at       time.Duration
}

// canRelayOpen reports whether open messages can be relayed between a path to a leader and a home
// agent over a line: addresses of one IP version are replaced, headers are not, and nothing paces
// the messages to a strict rate.
func (x *relaying) canRelayOpen(l *link, over *line, home netip.AddrPort) bool {
	return x.peer.plane.opens != nil && over != nil && over.strict() == 0 && l.address.remote.Addr().Unmap().Is4() == home.Addr().Unmap().Is4()
}

// placeOpen has the kernel relay from and to where the leader and this gateway are. It reports
// false if it cannot.
func (x *relaying) placeOpen(now time.Duration) bool {
	y, p := x.current, x.peer.plane
	o, to, answered := &y.open, y.to.Load(), y.answered.Load()
	if !o.wanted || to == nil || *to == o.to && answered == o.answered && now-o.at < checkSockets {
		return true
	}
	if o.to, o.answered, o.at = *to, answered, now; !x.canRelayOpen(&x.peer.links[y.path], p.routing.Load().line(y.overName), y.homeAgent) {
		return false
	}
	set := dataplane.OpenRelay{Down: announced(x.peer.conf.Alliance.Down), Mark: y.out.mark}
	if answered {
		set.Up = y.rate
	}
	err := p.enter(func() (err error) {
		if set.Short, err = relayEnd(to.line, to.from); err != nil {
			return err
		}
		if set.Line, err = relayEnd(y.out, y.homeAgent); err != nil {
			return err
		}
		return p.opens.Relay(x.peer.conf.Name, set)
	})
	if err != nil {
		x.peer.log.Warn("open messages are not relayed", "peer", x.peer.conf.Name, "err", err)
	}
	return err == nil
}

// relayEnd returns the end of a relay on a path, towards an address.
func relayEnd(l *line, to netip.AddrPort) (e dataplane.RelayEnd, err error) {
	e.Interface, e.Remote = l.device, to
	socket := l.socket.Load()
	if socket == nil {
		return e, net.ErrClosed
	}
	if e.Index, _, err = udp.Interface(l.device); err != nil {
		return e, err
	}
	source, err := udp.Source(udp.Options{Interface: l.device, Mark: l.mark}, to)
	e.Local = netip.AddrPortFrom(source, socket.Local().Port())
	return e, err
}

// endOpen ends what the kernel relays of a relay that has ended.
func (x *relaying) endOpen(y *relay) {
	if !y.open.wanted {
		return
	}
	var o dataplane.OpenRelayed
	// The function returns no error.
	_ = x.peer.plane.enter(func() error { o = x.peer.plane.opens.End(x.peer.conf.Name); return nil })
	x.counts.up.add(int(o.Up.Packets), int(o.Up.Bytes))
	x.counts.down.add(int(o.Down.Packets), int(o.Down.Bytes))
	x.counts.dropped.Add(o.Dropped)
}
