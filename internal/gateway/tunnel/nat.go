package tunnel

import "net/netip"

// NATSession is about sessions of paper C, section 4: flows whose source the sender of the flow
// replaces by its address on each path, and the receiver restores.
type NATSession struct {
	Command Command
	// Flows are at most MaxFlows.
	Flows []Flow
}

// Command is what a NATSession is for.
type Command uint8

const (
	// CommandNAT asks for sessions for the flows, CommandOK accepts them.
	CommandNAT Command = iota + 1
	CommandOK
	// CommandFIN ends them, CommandFINOK acknowledges that they have ended.
	CommandFIN
	CommandFINOK
	// CommandRefused means that there are no sessions for the flows: they were requested and are
	// refused, or they are not known any more.
	CommandRefused
	// CommandReset means that the sender of the record has no sessions with the receiver, in either
	// direction.
	CommandReset
)

// Flow is a flow from one host to another, as the hosts see it. Of ICMP echo messages, the source
// port is the identifier and the destination port the type.
type Flow struct {
	Protocol            uint8
	Source, Destination netip.AddrPort
}

// flowLen is the length of a flow in a record, MaxFlows how many fit into one.
const flowLen, MaxFlows = 1 + 2*(16+2), 24

func (r NATSession) appendFlows(b []byte) []byte {
	for _, f := range r.Flows {
		b = appendAddress(appendAddress(append(b, f.Protocol), f.Source), f.Destination)
	}
	return b
}

// natSession reads a NATSession. Flows of two IP versions, and more of them than MaxFlows, are
// malformed.
func (f *fields) natSession() NATSession {
	r := NATSession{Command: Command(f.uint8())}
	f.short = f.short || len(f.b) > MaxFlows*flowLen
	for len(f.b) > 0 && !f.short {
		flow := Flow{f.uint8(), f.address(), f.address()}
		f.short = f.short || flow.Source.Addr().Is4() != flow.Destination.Addr().Is4()
		r.Flows = append(r.Flows, flow)
	}
	return r
}
