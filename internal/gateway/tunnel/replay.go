package tunnel

// replayWindow is how far a counter may be behind the highest one of its path, in messages. Within
// a path, only reordering by the network must fit in it.
const replayWindow = 8192

// replayWords includes one word more than the window, which is cleared while the window moves (RFC
// 6479).
const replayWords = replayWindow/64 + 1

// Replay rejects counters that were accepted before (RFC 6479). The zero value has accepted none.
type Replay struct {
	next uint64 // the highest accepted counter plus 1
	seen [replayWords]uint64
}

// Fresh reports whether a counter was not accepted before and is within the window. The caller
// authenticates the message, and then calls Accept.
func (r *Replay) Fresh(counter uint64) bool {
	switch {
	case counter >= r.next:
		return counter < MaxCounter
	case r.next-counter > replayWindow:
		return false
	}
	return r.seen[counter/64%replayWords]>>(counter%64)&1 == 0
}

// Behind reports whether a later counter was accepted already.
func (r *Replay) Behind(counter uint64) bool { return counter < r.next }

// Accept records the counter of an authentic message that is Fresh. It returns how many counters
// before it, since the highest one, are missing: messages that were lost or are late.
func (r *Replay) Accept(counter uint64) (missing uint64) {
	if counter >= r.next {
		missing = counter - r.next
		first, last := uint64(0), counter/64
		if r.next > 0 {
			first = (r.next-1)/64 + 1
		}
		for w := first; w <= last && w < first+replayWords; w++ {
			r.seen[w%replayWords] = 0
		}
		r.next = counter + 1
	}
	r.seen[counter/64%replayWords] |= 1 << (counter % 64)
	return missing
}
