package handshake

import (
	"bytes"
	"io"
	"slices"
	"time"
)

const (
	// rekeyAfter is the age at which the initiator of a session makes the next one, in time or in
	// messages; the responder does it rekeyGrace later, if the initiator has not. rejectAfter ends
	// a session.
	rekeyAfter  = 120 * time.Second
	rekeyGrace  = 15 * time.Second
	rejectAfter = 180 * time.Second
	// Messages have up to 2^7 blocks, so 2^28 of them stay below the 2^36 blocks up to which an
	// attacker's advantage against AES-GCM is at most 2^-57 (draft-irtf-cfrg-aead-limits, 5.1.1).
	rekeyMessages  = 1 << 28
	rejectMessages = 1 << 32
	// confirmWithin is how long a session of a responder waits for its first message.
	confirmWithin = 10 * time.Second
	// firstRetry is the time before an initiation is repeated the first time, lastRetry the
	// longest: a peer that is started again, and has no endpoints to begin with, waits for it.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 750 * time.Millisecond
	// maxPending is the number of initiations whose responses are accepted, and of sessions that
	// wait for their first message. Several are on their way where a round trip takes longer than
	// firstRetry.
	maxPending = 4
	// maxPrevious is the number of earlier sessions that are still received with.
	maxPrevious = 3
	// answerRate and answerBurst bound the answers to initiations of the peer, which may have begun
	// several before the first answer arrives.
	answerRate, answerBurst = 10, 16
)

// Session is the keys that a handshake gave.
type Session struct {
	Keys
	// Initiator: this gateway began the handshake.
	Initiator bool
	// Born is when the handshake was completed here.
	Born time.Duration

	// collided: the peer began the handshake while this gateway's was under way.
	collided bool
	sent     uint64
}

// AssociationOptions configure an Association.
type AssociationOptions struct {
	Own  PrivateKey
	Peer Peer
	// Offers are the encryptions that this gateway can use; Choose selects one of those offered by
	// the peer, 0 if none.
	Offers Suites
	Choose func(Suites) uint8
	Random io.Reader
	// NewIndex returns an index that no other session of the gateway has.
	NewIndex func() uint32
}

// Association keeps sessions with one peer: it begins, repeats and answers handshakes, and replaces
// keys before they are old. The current session is sent with. Messages of previous ones may still
// arrive. The next ones, of a responder, become current with the first message that was sealed with
// them. It is not safe for concurrent use.
type Association struct {
	o     AssociationOptions
	proof ResponseProof
	// preferred: of two handshakes that collide, that of this gateway gives the session.
	preferred bool

	current        *Session
	previous, next []*Session // newest last

	pending   []*Initiation // newest last
	wanted    bool          // a handshake is to begin, or has begun
	wantedAt  time.Duration // since when the last one is
	retryAt   time.Duration
	retry     time.Duration
	lastSent  Timestamp
	lastHeard Timestamp
	answered  []byte // the last initiation that was answered
	answers   Limit
}

// NewAssociation returns an Association without sessions.
func NewAssociation(o AssociationOptions) *Association {
	own := o.Own.Public()
	return &Association{o: o, proof: NewResponseProof(o.Own, o.Peer), preferred: bytes.Compare(own[:], o.Peer.Public[:]) < 0}
}

// Current returns the session to send with, or nil.
func (a *Association) Current() *Session { return a.current }

// Find returns the live session with a local index, or nil.
func (a *Association) Find(index uint32) *Session {
	for s := range a.live {
		if s.Local == index {
			return s
		}
	}
	return nil
}

// live yields all sessions.
func (a *Association) live(yield func(*Session) bool) {
	if a.current != nil && !yield(a.current) {
		return
	}
	for _, list := range [...][]*Session{a.previous, a.next} {
		for _, s := range list {
			if !yield(s) {
				return
			}
		}
	}
}

// Want asks for a handshake: there is no session, or the peer is silent although it has one. While
// a handshake is under way it has no effect.
func (a *Association) Want(now time.Duration) {
	if !a.wanted {
		a.wanted, a.wantedAt, a.retryAt, a.retry = true, now, now, 0
	}
}

// Wanted reports whether a handshake is under way.
func (a *Association) Wanted() bool { return a.wanted }

// Deadline returns when Advance is to be called at the latest.
func (a *Association) Deadline() time.Duration {
	const never = 1<<63 - 1
	at := time.Duration(never)
	if a.wanted {
		at = a.retryAt
	}
	if s := a.current; s != nil {
		if !a.wanted {
			at = min(at, s.Born+a.lifetime(s))
		}
		at = min(at, s.Born+rejectAfter)
	}
	for _, s := range a.previous {
		at = min(at, s.Born+rejectAfter)
	}
	for _, s := range a.next {
		at = min(at, s.Born+confirmWithin)
	}
	return at
}

func (a *Association) lifetime(s *Session) time.Duration {
	switch {
	case s.sent >= rekeyMessages:
		return 0
	case s.Initiator:
		return rekeyAfter
	}
	return rekeyAfter + rekeyGrace
}

// Sent counts messages that were sealed with the current session.
func (a *Association) Sent(messages uint64) {
	if a.current != nil {
		a.current.sent += messages
	}
}

// Exhaust has the current session replaced as one with too many messages is: now.
func (a *Association) Exhaust() {
	if a.current != nil {
		a.current.sent = max(a.current.sent, rekeyMessages)
	}
}

// Advance ends sessions that have expired, and returns the initiation that is due, or nil. It is to
// be sent to all addresses of the peer that may work. wall is the time of day; if it goes back,
// initiations continue from the latest time.
func (a *Association) Advance(now time.Duration, wall time.Time) ([]byte, error) {
	if s := a.current; s != nil && now-s.Born >= a.lifetime(s) {
		a.Want(now)
		if now-s.Born >= rejectAfter || s.sent >= rejectMessages {
			a.current = nil
		}
	}
	a.previous = slices.DeleteFunc(a.previous, func(s *Session) bool { return now-s.Born >= rejectAfter })
	a.next = slices.DeleteFunc(a.next, func(s *Session) bool { return now-s.Born >= confirmWithin })
	if !a.wanted || now < a.retryAt {
		return nil, nil
	}
	a.retry = min(max(2*a.retry, firstRetry), lastRetry)
	a.retryAt = now + a.retry
	at := TimestampOf(wall)
	if bytes.Compare(at[:], a.lastSent[:]) <= 0 {
		at = a.lastSent.next()
	}
	initiation, message, err := Initiate(a.o.Own, a.o.Peer, a.o.NewIndex(), at, a.o.Offers, a.o.Random)
	if err != nil {
		return nil, err
	}
	a.lastSent = at
	a.pending = push(a.pending, initiation, maxPending)
	return message, nil
}

// next returns the following time.
func (t Timestamp) next() Timestamp {
	for i := len(t) - 1; i >= 0; i-- {
		if t[i]++; t[i] != 0 {
			break
		}
	}
	return t
}

// Known reports whether the message is the initiation that was answered last, which arrives over
// several paths. It costs no exchange of keys.
func (a *Association) Known(message []byte) bool { return Same(message, a.answered) }

// push appends to a list of at most that many, of which the oldest are removed.
func push[T any](list []T, v T, most int) []T {
	if len(list) == most {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, v)
}

// Stale reports whether an initiation is no later than one that was answered, as one that is
// replayed.
func (a *Association) Stale(r *Request) bool { return bytes.Compare(r.Time[:], a.lastHeard[:]) <= 0 }

// Answer answers an initiation of the peer. The session becomes one of the next ones.
func (a *Association) Answer(r *Request, message []byte, now time.Duration) (*Session, []byte, error) {
	if a.Stale(r) {
		return nil, nil, ErrStale
	}
	if !a.answers.Take(now, answerRate, answerBurst) {
		return nil, nil, ErrTooMany
	}
	keys, response, err := r.Answer(a.o.Peer.Preshared, a.o.NewIndex(), a.o.Choose(r.Offers), a.proof)
	if err != nil {
		return nil, nil, err
	}
	a.lastHeard = r.Time
	a.answered = bytes.Clone(message)
	s := &Session{Keys: keys, Born: now, collided: a.wanted}
	a.next = push(a.next, s, maxPending)
	return s, response, nil
}

// Complete reads the response to an initiation. The session becomes the current one, unless it
// collided with the peer's, which is preferred. A wrong response changes nothing.
func (a *Association) Complete(response []byte, now time.Duration) (*Session, error) {
	for i, p := range a.pending {
		keys, err := p.Finish(response)
		if err != nil {
			continue
		}
		s := &Session{Keys: keys, Initiator: true, Born: now}
		a.install(s)
		// Later initiations may be answered too, and then the peer sends with their keys.
		a.pending = slices.Delete(a.pending, 0, i+1)
		return s, nil
	}
	return nil, refused("response to no initiation of this gateway")
}

// install makes a session current, and reports whether it did. Where handshakes of both gateways
// collided, both take that of the gateway with the lower key: each would else send with the
// other's. A session from before is replaced, whichever end began it: the peer may have been
// started again.
func (a *Association) install(s *Session) bool {
	a.wanted = false
	other := a.current
	stays := other != nil && other.Born >= a.wantedAt && (a.preferred && other.Initiator && s.collided || !a.preferred && other.collided && s.Initiator)
	if stays {
		other = s
	} else {
		a.current = s
	}
	if other != nil {
		a.previous = push(a.previous, other, maxPrevious)
	}
	return !stays
}

// Pending reports whether an initiation with this index waits for its response.
func (a *Association) Pending(index uint32) bool {
	return slices.ContainsFunc(a.pending, func(i *Initiation) bool { return i.Local() == index })
}

// Proves reports whether a response is one of the peer, by one hash. It is safe for concurrent use.
func (a *Association) Proves(response []byte) bool { return a.proof.Proves(response) }

// Cookie reads a cookie that the peer sent because it is busy, and returns the initiation that it
// answers. That is to be sent again, stamped with the cookie, between the addresses of the cookie,
// which are those that it proves.
func (a *Association) Cookie(message []byte, now time.Duration) (Cookie, []byte, error) {
	if !a.wanted {
		return Cookie{}, nil, refused("cookie without a handshake")
	}
	for _, i := range a.pending {
		if c, err := i.Cookie(message, now); err == nil {
			return c, i.message, nil
		}
	}
	return Cookie{}, nil, refused("cookie to no initiation of this gateway")
}

// Repeat has the initiation of a handshake that is under way repeated at once.
func (a *Association) Repeat(now time.Duration) {
	if a.wanted {
		a.retryAt = now
	}
}

// Received records an authentic message of a session. It reports whether that session has become
// the current one by it.
func (a *Association) Received(s *Session) bool {
	i := slices.Index(a.next, s)
	if i < 0 {
		return false
	}
	// Later ones may become current too: the response to each initiation may arrive.
	a.next = slices.Delete(a.next, 0, i+1)
	return a.install(s)
}

// Forget ends all sessions: the peer has announced that it ends.
func (a *Association) Forget() {
	a.current, a.previous, a.next, a.pending, a.wanted = nil, nil, nil, nil, false
}
