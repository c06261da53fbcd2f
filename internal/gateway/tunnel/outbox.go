package tunnel

import "time"

// Outbox keeps the reliable records of a session until they are acknowledged. The zero value is
// empty. It is not safe for concurrent use.
type Outbox struct {
	first uint32 // number of the first record that is kept
	kept  []Record
	sent  time.Duration
	wait  time.Duration // until the records are repeated, 0: they have not been sent
}

// maxOutbox bounds the records that wait: more are not sent by a gateway that works.
const maxOutbox = 256

// Put adds a record. It reports false when there is no room.
func (o *Outbox) Put(r Record) bool {
	if len(o.kept) == maxOutbox {
		return false
	}
	o.kept = append(o.kept, r)
	o.wait = 0
	return true
}

// AppendHello appends the Hello, the first record of the session, until it is acknowledged. It goes
// without regard to when the others are due.
func (o *Outbox) AppendHello(b []byte) []byte {
	if o.first > 0 || len(o.kept) == 0 || o.kept[0].Type() != recordHello {
		return b
	}
	return AppendNumbered(b, 0, o.kept[0])
}

// Greeted reports whether the Hello, the first record, is acknowledged.
func (o *Outbox) Greeted() bool { return o.first > 0 }

// Acked removes the records up to a number.
func (o *Outbox) Acked(number uint32) {
	if n := int(int32(number - o.first)); n >= 0 && n < len(o.kept) {
		o.kept = o.kept[n+1:]
		o.first = number + 1
		o.wait = 0
	}
}

// Due returns when records are to be sent, and false if there are none.
func (o *Outbox) Due() (time.Duration, bool) { return o.sent + o.wait, len(o.kept) > 0 }

// Append appends the records that fit into a message of most bytes, if they are due: rto after they
// were sent, then after twice that, at most 5 s.
func (o *Outbox) Append(b []byte, most int, now, rto time.Duration) []byte {
	if at, any := o.Due(); !any || o.wait > 0 && now < at {
		return b
	}
	for i, r := range o.kept {
		n := len(b)
		if b = AppendNumbered(b, o.first+uint32(i), r); len(b) > most {
			b = b[:n]
			break
		}
	}
	o.sent, o.wait = now, min(max(2*o.wait, rto), maxRepeat)
	return b
}

const maxRepeat = 5 * time.Second

// Inbox puts the reliable records of a session in order: each is processed once. The zero value has
// received none.
type Inbox struct {
	next uint32
}

// Take reports whether the record with this number is to be processed now. Later ones are repeated
// by the sender.
func (i *Inbox) Take(number uint32) bool {
	if number != i.next {
		return false
	}
	i.next++
	return true
}

// Ack returns what has been received, and false before the first record.
func (i *Inbox) Ack() (Ack, bool) { return Ack{i.next - 1}, i.next > 0 }
