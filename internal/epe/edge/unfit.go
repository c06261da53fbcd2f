package edge

import "time"

// A connection of QUIC that began before its handshake could be seen may have found that packets
// arrive which do not fit with the header that has a SID. If its network is moved to an egress peer,
// it carries nothing more. So auto compares no modes there until it has ended.

const (
	// unfitFor is for how long a network is left where it is after such a packet: for as long as
	// servers keep connections without any.
	unfitFor = 30 * time.Second
	// mostUnfit bounds that of a network: what lasts longer may be no QUIC. After as long without
	// such a packet, another one is of another connection.
	mostUnfit = 10 * time.Minute
)

// unfit is when such packets were first and last seen.
type unfit struct{ first, last time.Time }

// sawUnfit records that a network has such packets.
func (n *delivered) sawUnfit(now time.Time) {
	if n.unfit == nil || now.Sub(n.unfit.last).Abs() >= mostUnfit {
		n.unfit = &unfit{first: now}
	}
	n.unfit.last = now
}

// holds reports whether the network is left where it is.
func (u *unfit) holds(now time.Time) bool {
	return u != nil && now.Sub(u.last).Abs() < unfitFor && now.Sub(u.first).Abs() < mostUnfit
}
