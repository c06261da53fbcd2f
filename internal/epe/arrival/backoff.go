package arrival

// A sender of datagrams that gets no acknowledgments, which cannot be read, sends one or two
// packets, and again after twice as long each time (RFC 9002, section 6.2.1). Packets of the client
// say nothing there: it probes likewise while only the way to it is interrupted.
const (
	// backoffLeast is the least time between two probes in us, backoffProbes how many packets are
	// sent at once then, at most.
	backoffLeast, backoffProbes = 20_000, 4
	// backoffTimes is how many times in a row a pause was twice the one before when a sender gets no
	// acknowledgments.
	backoffTimes = 2
	// backoffPacket is the size of a packet: several may be sent as one.
	backoffPacket = 1500
)

// backoff recognizes such a sender, as bpf/lib/backoff.h does.
type backoff struct {
	Last, Gap, Times, Packets uint32
}

// sent counts what is sent, and returns how many times in a row a pause was twice the one before.
func (b *backoff) sent(now, size uint32) uint32 {
	gap, packets := now-b.Last, 1+size/backoffPacket
	if b.Last == 0 || gap < backoffLeast || gap < b.Gap/8 {
		if b.Packets += packets; b.Packets > backoffProbes {
			b.Gap, b.Times = 0, 0
		}
	} else {
		more := gap - b.Gap
		if b.Gap != 0 && gap > b.Gap && more > b.Gap/8*7 && more < b.Gap/8*9 {
			b.Times++
		} else {
			b.Times = 0
		}
		b.Gap, b.Packets = gap, packets
	}
	b.Last = max(now, 1)
	return b.Times
}
