package measure

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/analysis/traffic"
)

// Mode is how a trial is delivered.
type Mode struct {
	// Name is the text that ParseMode reads.
	Name      string
	Transport traffic.Transport
	// Peer is the name of the egress peer whose path is used alone, if set.
	Peer string
	// Connections is the number of connections at the same time.
	Connections int
	// Delivery is what the server is to switch the connection to, if set.
	Delivery string
}

// The names of modes, and of the deliveries of MPTCP.
const (
	TCP           = "tcp"
	Multipath     = "multipath"
	MultipathBest = "multipath-best"
	Single        = "single"
	Parallel      = "parallel"

	// DeliverBest has only the best path's subflow carry data, DeliverAll those of all egress
	// peers.
	DeliverBest = "best"
	DeliverAll  = "all"

	maxParallel = 64
)

// modes are the kinds of modes. A mode that is none of them is an ordinary connection that the
// server delivers by that name.
var modes = []struct {
	name, argument, about string
	make                  func(m *Mode, argument string) error
}{
	{TCP, "", "one TCP connection over BGP's best path", func(*Mode, string) error { return nil }},
	{Multipath, "", "one MPTCP connection over all egress paths", func(m *Mode, _ string) error {
		m.Transport = traffic.MPTCP
		return nil
	}},
	{MultipathBest, "", "one MPTCP connection over the best path only", func(m *Mode, _ string) error {
		m.Transport, m.Delivery = traffic.MPTCP, DeliverBest
		return nil
	}},
	{Single, "PEER", "one TCP connection over that egress peer", func(m *Mode, peer string) error {
		if !isName(peer) {
			return errors.New("want the name of an egress peer, as in single:transit-b")
		}
		m.Peer = peer
		return nil
	}},
	{Parallel, "N", "N TCP connections over the best path at the same time", func(m *Mode, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxParallel {
			return fmt.Errorf("want a number of connections from 1 to %d, as in parallel:3", maxParallel)
		}
		m.Connections = n
		return nil
	}},
}

// ModesHelp describes the modes, a line each.
func ModesHelp() string {
	var b strings.Builder
	for _, k := range modes {
		name := k.name
		if k.argument != "" {
			name += ":" + k.argument
		}
		fmt.Fprintf(&b, "  %-15s %s\n", name, k.about)
	}
	fmt.Fprintf(&b, "  %-15s %s", "NAME", "one TCP connection delivered by a mode of the edge: auto, spread, spray, through.PEER")
	return b.String()
}

// ParseMode reads a mode such as "tcp", "single:transit-b" or "parallel:3".
func ParseMode(text string) (Mode, error) {
	name, argument, has := strings.Cut(text, ":")
	m := Mode{Name: text, Transport: traffic.TCP, Connections: 1}
	for _, k := range modes {
		if k.name != name {
			continue
		}
		err := k.make(&m, argument)
		if has && k.argument == "" {
			err = errors.New("it takes no argument")
		}
		if err != nil {
			return Mode{}, fmt.Errorf("parse mode %q: %w", text, err)
		}
		return m, nil
	}
	if !isName(text) {
		return Mode{}, fmt.Errorf("parse mode %q: it is not the name of a mode", text)
	}
	m.Delivery = text
	return m, nil
}

// Switched returns the delivery that the mode is in a connection that is switched between modes,
// and false if it needs a connection of its own.
func (m Mode) Switched() (delivery string, ok bool) {
	switch {
	case m.Transport == traffic.MPTCP && m.Delivery == "":
		return DeliverAll, true
	case m.Name == TCP:
		return DeliverBest, true
	}
	return m.Delivery, m.Delivery != ""
}

// Multipath reports whether the mode needs MPTCP on both ends.
func (m Mode) Multipath() bool { return m.Transport == traffic.MPTCP }

// Parallel reports whether the client opens the connections of the mode, as many as it names.
func (m Mode) Parallel() bool { return strings.HasPrefix(m.Name, Parallel+":") }

// Names returns the modes that the server offers.
func (o Offer) Names() []string {
	names := []string{TCP, Multipath}
	for _, d := range o.Deliveries {
		switch d {
		case DeliverAll:
		case DeliverBest:
			names = append(names, MultipathBest)
		default:
			names = append(names, d)
		}
	}
	for _, p := range o.Peers {
		names = append(names, Single+":"+p.Name)
	}
	return append(names, Parallel+":N")
}

// Check returns why the server does not have a mode.
func (o Offer) Check(m Mode) error {
	known := m.Delivery == "" || slices.Contains(o.Deliveries, m.Delivery)
	if m.Peer != "" {
		_, known = o.peer(m.Peer)
	}
	if !known {
		return fmt.Errorf("the server does not have the mode %q; it has %s", m.Name, strings.Join(o.Names(), ", "))
	}
	return nil
}

func (o Offer) peer(name string) (netip.Addr, bool) {
	i := slices.IndexFunc(o.Peers, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return netip.Addr{}, false
	}
	return o.Peers[i].Address, true
}
