package capture

import (
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

func hex32(v uint32) string { return fmt.Sprintf("%08x", v) }

// missed describes the parts of the capture that could not be used.
func (a *Analysis) missed() []string {
	var list []string
	say := func(n uint64, format string, arguments ...any) {
		if n > 0 {
			list = append(list, fmt.Sprintf(format, arguments...))
		}
	}
	m := &a.m
	say(m.OptionsCut, "%s with truncated TCP options (use a larger snapshot length: tcpdump -s 200)", count(m.OptionsCut, "segment"))
	say(m.Broken, "%s with malformed options", count(m.Broken, "segment"))
	say(m.Stray, "%s with sequence numbers far outside the window, not used", count(m.Stray, "segment"))
	if m.MaxBack >= minBack {
		say(m.Disorder, "%s with a time before that of the previous one, by up to %v: the later time was used", count(m.Disorder, "segment"), m.MaxBack.Round(time.Microsecond))
	}
	say(m.Elsewhere, "%s also captured elsewhere: each direction is measured where it is nearest to its receiver", count(m.Elsewhere, "segment"))
	say(m.Copies, "%s that are copies of earlier ones at the same point (same addresses, sequence numbers, IP identification, TTL and VLAN, at most %v later), as of a mirror port: counted once", count(m.Copies, "segment"), m.MaxCopy.Round(time.Microsecond))
	if j := &a.joins; j.subflows > 0 {
		say(j.subflows, "%s with %s of connections that were not captured, from %s and without an answer: not listed", count(j.subflows, "join"), count(j.tokens, "token"), addresses(len(j.sources)))
	}
	say(m.Unfollowed, "%s of TCP connections beyond the limit of %d", count(m.Unfollowed, "segment"), maxSubflows)
	say(m.Unrecorded, "%s beyond the limit of those kept for figures and tables", count(m.Unrecorded, "piece"))
	return list
}

// minBack is the usual disorder between packets of several interfaces of one host, which does not
// affect the results.
const minBack = 100 * time.Microsecond

func addresses(n int) string {
	if n == 1 {
		return "1 address"
	}
	return fmt.Sprintf("%d addresses", n)
}

func count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// missed describes what could not be determined about a connection.
func (c *connection) missed(r *Connection) []string {
	var list []string
	say := func(format string, arguments ...any) { list = append(list, fmt.Sprintf(format, arguments...)) }
	if !r.FromStart {
		say("its start was not captured")
	}
	if c.mptcp && !c.dirs[0].keyKnown && !c.dirs[1].keyKnown {
		say("its keys were not captured: subflows are matched by their data sequence numbers")
	}
	list = append(list, c.unknownTokens()...)
	if c.contradictions > 0 {
		say("%s with its token on subflows that carry data of another connection, ignored", count(c.contradictions, "join"))
	}
	for _, x := range []struct {
		d    *Direction
		s    func(*Subflow) *SubflowDirection
		what string
	}{
		{&r.ToClient, func(s *Subflow) *SubflowDirection { return &s.ToClient }, "to the client"},
		{&r.ToServer, func(s *Subflow) *SubflowDirection { return &s.ToServer }, "to the server"},
	} {
		if n := x.d.Uncaptured; n > 0 {
			say("%s: %v of %v were acknowledged but not captured", x.what, unit.Size(n), unit.Size(n+x.d.Bytes))
		}
		if n := x.d.Unreleased; n > 0 {
			say("%s: %v still out of order when the capture ended", x.what, unit.Size(n))
		}
		sender := 0
		for i := range r.Subflows {
			s := x.s(&r.Subflows[i])
			if s.Unmapped > 0 {
				say("%s: %v of subflow %d have no data sequence signal", x.what, unit.Size(s.Unmapped), r.Subflows[i].Number)
			}
			if n := s.Checksums.Wrong; n > 0 {
				say("%s: subflow %d has %s whose checksum is wrong; a receiver resets the subflow or falls back to TCP and discards their data, which counts here as received", x.what, r.Subflows[i].Number, count(n, "mapping"))
			}
			if n := s.Checksums.Absent; n > 0 {
				say("%s: subflow %d has %s without a checksum, although checksums were negotiated", x.what, r.Subflows[i].Number, count(n, "mapping"))
			}
			if s.Vantage == "sender" && s.Bytes > 0 {
				sender++
			}
		}
		if sender > 0 && 2*x.d.Bytes > r.Bytes() {
			say("%s: captured at the sender, so no segment is late; capture at the receiver", x.what)
		}
	}
	largest := 0
	for _, s := range c.subflows {
		for _, h := range s.halves {
			largest = max(largest, h.largest)
			if h.conflicts > 0 {
				say("subflow %d: %s that contradict others", s.index+1, count(h.conflicts, "mapping"))
			}
		}
	}
	if largest > maxPayload {
		say("segments of up to %v: GRO or TSO was on, and segments and bursts are counted as captured (ethtool -K INTERFACE gro off tso off gso off)", unit.Size(largest))
	}
	return list
}

// unknownTokens has a line for each token of joins whose connection was not captured; the joins of
// a flood with one token are one line.
func (c *connection) unknownTokens() []string {
	type joined struct{ first, n int }
	var order []uint32
	all := map[uint32]*joined{}
	for _, s := range c.subflows {
		if !s.hasUnknownToken {
			continue
		}
		j := all[s.unknownToken]
		if j == nil {
			j = &joined{first: s.index + 1}
			all[s.unknownToken] = j
			order = append(order, s.unknownToken)
		}
		j.n++
	}
	var list []string
	for i, token := range order {
		if i == 3 && len(order) > 4 {
			list = append(list, fmt.Sprintf("subflows joined with %d more such tokens", len(order)-i))
			break
		}
		who := fmt.Sprintf("subflow %d", all[token].first)
		if n := all[token].n; n > 1 {
			who += fmt.Sprintf(" and %d more", n-1)
		}
		list = append(list, fmt.Sprintf("%s joined with token %s, whose connection was not captured", who, hex32(token)))
	}
	return list
}

// maxPayload is the payload of a jumbo frame.
const maxPayload = 9000
