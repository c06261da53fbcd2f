package repair

import "time"

// Kept has the messages that were sent last on a path, by the counter that numbers them. It grows
// until messages are older than Limit when they are displaced, up to MostKept. It is not safe for
// concurrent use. The zero value is empty.
type Kept[M any] struct {
	slots []kept[M] // the length is a power of two
}

type kept[M any] struct {
	counter  uint64
	at       time.Duration
	message  M
	attempts uint8
	full     bool
}

// minKept and MostKept bound the number of messages.
const minKept, MostKept = 64, 8192

// Put keeps a message. It returns the one that is displaced, if there is one.
func (k *Kept[M]) Put(now time.Duration, counter uint64, m M) (displaced M, full bool) {
	if k.slots == nil {
		k.slots = make([]kept[M], minKept)
	}
	s := k.slot(counter)
	if s.full && now-s.at < Limit && len(k.slots) < MostKept {
		old := k.slots
		k.slots = make([]kept[M], 2*len(old))
		for i := range old {
			if old[i].full {
				*k.slot(old[i].counter) = old[i]
			}
		}
		s = k.slot(counter)
	}
	displaced, full = s.message, s.full
	*s = kept[M]{counter: counter, at: now, message: m, full: true}
	return displaced, full
}

func (k *Kept[M]) slot(counter uint64) *kept[M] { return &k.slots[counter&uint64(len(k.slots)-1)] }

// Take returns a message that is requested. It returns false if the message is not kept, or was
// taken for this attempt already. The message remains kept.
func (k *Kept[M]) Take(now time.Duration, counter uint64, attempt uint8) (m M, ok bool) {
	if k.slots == nil {
		return m, false
	}
	s := k.slot(counter)
	if !s.full || s.counter != counter || now-s.at > 2*Limit || attempt <= s.attempts {
		return m, false
	}
	s.attempts = attempt
	return s.message, true
}

// Clear removes all messages and passes each to use.
func (k *Kept[M]) Clear(use func(M)) {
	for i := range k.slots {
		if k.slots[i].full {
			use(k.slots[i].message)
		}
	}
	k.slots = nil
}
