package handshake

import (
	"crypto/rand"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// endpoint is a gateway of a simulated pair.
type endpoint struct {
	own   PrivateKey
	a     *Association
	index uint32
	got   []*Session // sessions that came up
}

func newEndpoint(t *testing.T, own, other PrivateKey, first uint32) *endpoint {
	t.Helper()
	s := &endpoint{own: own, index: first}
	s.a = NewAssociation(AssociationOptions{
		Own: own, Peer: Peer{Public: other.Public()}, Offers: 1, Choose: func(o Suites) uint8 { return uint8(o & 1) },
		Random: rand.Reader, NewIndex: func() uint32 { s.index++; return s.index },
	})
	return s
}

// take processes a handshake message and returns the answer.
func (s *endpoint) take(t *testing.T, message []byte, now time.Duration) []byte {
	t.Helper()
	switch message[0] {
	case typeInitiation:
		if s.a.Known(message) {
			return nil
		}
		r, err := ReadInitiation(s.own, message, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		_, response, err := s.a.Answer(r, message, now)
		if err != nil {
			return nil
		}
		return response
	case typeResponse:
		if session, err := s.a.Complete(message, now); err == nil {
			s.got = append(s.got, session)
		}
	}
	return nil
}

// data has b receive a message sealed with the current session of a. It reports whether b has the
// key.
func data(a, b *endpoint) bool {
	s := a.a.Current()
	if s == nil {
		return false
	}
	there := b.a.Find(s.Remote)
	if there == nil || there.Receive != s.Send {
		return false
	}
	b.a.Received(there)
	return true
}

var wall = time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)

// advance returns the initiation that is due, which may be nil.
func (s *endpoint) advance(t *testing.T, now time.Duration) []byte {
	t.Helper()
	m, err := s.a.Advance(now, wall.Add(now))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAssociationIsUpAfterOneRoundTrip(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	a, b := newEndpoint(t, ka, kb, 100), newEndpoint(t, kb, ka, 200)
	a.a.Want(0)
	if at := a.a.Deadline(); at != 0 {
		t.Fatalf("due at %v", at)
	}
	response := b.take(t, a.advance(t, 0), 0)
	a.take(t, response, 0)
	if b.a.Current() != nil {
		t.Error("the responder sends before a message of the initiator has arrived")
	}
	if !data(a, b) || !data(b, a) {
		t.Error("no session")
	}
	if a.a.Wanted() || a.a.Deadline() != rekeyAfter {
		t.Errorf("next at %v, want %v", a.a.Deadline(), rekeyAfter)
	}
}

// Where a third of all messages is lost and a round trip takes longer than the first retries, the
// handshake is completed, and keys are replaced for hours without a gap.
func TestAssociationOverBadNetwork(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	sides := [2]*endpoint{newEndpoint(t, ka, kb, 1000), newEndpoint(t, kb, ka, 1<<20)}
	type flight struct {
		at      time.Duration
		to      int
		message []byte
	}
	var flights []flight
	seed := uint32(3)
	lost := func() bool {
		seed = seed*1664525 + 1013904223
		return seed>>16%3 == 0
	}
	const oneWay = 300 * time.Millisecond
	send := func(to int, m []byte, now time.Duration) {
		if m != nil && !lost() {
			flights = append(flights, flight{now + oneWay, to, m})
		}
	}
	sides[0].a.Want(0)
	up, gaps := time.Duration(0), 0
	for now := time.Duration(0); now < 20*time.Minute; now += 50 * time.Millisecond {
		for len(flights) > 0 && flights[0].at <= now {
			f := flights[0]
			flights = slices.Delete(flights, 0, 1)
			send(1-f.to, sides[f.to].take(t, f.message, now), now)
		}
		for i, s := range sides {
			send(1-i, s.advance(t, now), now)
		}
		ok := data(sides[0], sides[1]) && data(sides[1], sides[0])
		switch {
		case ok && up == 0:
			up = now
		case !ok && up > 0:
			gaps++
		}
	}
	if up == 0 || up > 10*time.Second {
		t.Errorf("up after %v", up)
	}
	if gaps > 0 {
		t.Errorf("%d moments without a common key", gaps)
	}
	if n := len(sides[0].got); n < 10 || n > 40 {
		t.Errorf("%d handshakes in 20 minutes", n)
	}
	if len(sides[1].got) > 0 {
		t.Error("the responder began handshakes, although the initiator did")
	}
}

// Both begin at once: whatever arrives first, they end with one session, and after a restart of
// either they do so again.
func TestBothBegin(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	for order := range 12 {
		a, b := newEndpoint(t, ka, kb, 100), newEndpoint(t, kb, ka, 200)
		begin := func(now time.Duration) {
			a.a.Want(now)
			b.a.Want(now)
			toB, toA := a.advance(t, now), b.advance(t, now)
			backA, backB := b.take(t, toB, now), a.take(t, toA, now)
			switch order % 3 {
			case 0:
				a.take(t, backA, now)
				b.take(t, backB, now)
				fromA, fromB := a.a.Current(), b.a.Current() // the messages cross, too
				b.a.Received(b.a.Find(fromA.Remote))
				a.a.Received(a.a.Find(fromB.Remote))
			case 1:
				a.take(t, backA, now)
				data(a, b)
				b.take(t, backB, now)
			case 2:
				b.take(t, backB, now)
				data(b, a)
				a.take(t, backA, now)
			}
			for range 4 {
				if !data(a, b) || !data(b, a) {
					t.Fatalf("order %d: no common key", order)
				}
			}
			if sa, sb := a.a.Current(), b.a.Current(); sa.Local != sb.Remote || sa.Remote != sb.Local {
				t.Errorf("order %d: one sends with session %d, the other with %d", order, sa.Local, sb.Remote)
			}
		}
		begin(0)
		if order/3&1 != 0 {
			a = newEndpoint(t, ka, kb, 300)
		}
		if order/3&2 != 0 {
			b = newEndpoint(t, kb, ka, 400)
		}
		begin(time.Second)
	}
}

// A gateway that was restarted has no sessions: the other one's are replaced at once.
func TestPeerRestarts(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	a, b := newEndpoint(t, ka, kb, 100), newEndpoint(t, kb, ka, 200)
	a.a.Want(0)
	a.take(t, b.take(t, a.advance(t, 0), 0), 0)
	data(a, b)
	old := a.a.Current()

	b = newEndpoint(t, kb, ka, 300)
	if data(a, b) {
		t.Fatal("the new process has the old key")
	}
	b.a.Want(0)
	b.take(t, a.take(t, b.advance(t, time.Second), time.Second), time.Second)
	if !data(b, a) || !data(a, b) || a.a.Current() == old {
		t.Error("no new session")
	}
	// And the one that begins again, silent peer or not, is answered.
	a.a.Want(2 * time.Second)
	a.take(t, b.take(t, a.advance(t, 2*time.Second), 2*time.Second), 2*time.Second)
	if !data(a, b) || !data(b, a) {
		t.Error("no session after another handshake")
	}
}

// The gateway that goes on begins handshakes while the other one is away, and takes that of the
// other one when it is started again: whichever key is the lower one, and whichever end began the
// session before.
func TestPeerRestartsDuringAHandshake(t *testing.T) {
	for order := range 4 {
		ka, kb := newKey(t, 1), newKey(t, 2)
		a, b := newEndpoint(t, ka, kb, 100), newEndpoint(t, kb, ka, 200)
		if order&1 != 0 {
			a, b, ka, kb = b, a, kb, ka
		}
		begins, answers := a, b
		if order&2 != 0 {
			begins, answers = b, a
		}
		begins.a.Want(0)
		begins.take(t, answers.take(t, begins.advance(t, 0), 0), 0)
		data(begins, answers)

		now := time.Minute
		a.a.Want(now)
		tries := 0
		for end := now + 10*time.Second; now < end; now = a.a.Deadline() {
			if a.advance(t, now) != nil {
				tries++
			}
		}
		if tries < 13 {
			t.Errorf("order %d: %d initiations in 10 s: more than a second apart", order, tries)
		}
		b = newEndpoint(t, kb, ka, 300)
		b.a.Want(now)
		b.take(t, a.take(t, b.advance(t, now), now), now)
		if !data(b, a) || !data(a, b) {
			t.Errorf("order %d: no common key after the first handshake", order)
		}
	}
}

func TestReplayedInitiationIsRefused(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	a, b := newEndpoint(t, ka, kb, 100), newEndpoint(t, kb, ka, 200)
	a.a.Want(0)
	first := a.advance(t, 0)
	second := a.advance(t, firstRetry)
	if b.take(t, second, 0) == nil {
		t.Fatal("no answer")
	}
	for name, m := range map[string][]byte{"same": second, "older": first} {
		if b.take(t, m, 0) != nil {
			t.Errorf("%s initiation was answered", name)
		}
	}
	// The time of day goes back by a day: later initiations are nevertheless later.
	m, err := a.a.Advance(time.Minute, wall.Add(-24*time.Hour))
	if err != nil || b.take(t, m, 0) == nil {
		t.Errorf("no answer after the clock went back: %v", err)
	}
}

func TestSessionsEnd(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	a, b := newEndpoint(t, ka, kb, 100), newEndpoint(t, kb, ka, 200)
	a.a.Want(0)
	response := b.take(t, a.advance(t, 0), 0)
	b.advance(t, confirmWithin)
	if b.a.Find(201) != nil {
		t.Error("a session that nobody used is still there")
	}
	a.take(t, response, 0)
	a.advance(t, rejectAfter)
	if a.a.Current() != nil || !a.a.Wanted() {
		t.Error("an old session is still used")
	}
}

func TestMessagesEndASession(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	a, b := newEndpoint(t, ka, kb, 100), newEndpoint(t, kb, ka, 200)
	a.a.Want(0)
	a.take(t, b.take(t, a.advance(t, 0), 0), 0)
	a.a.Sent(rekeyMessages)
	if a.advance(t, time.Second) == nil {
		t.Error("no handshake after so many messages")
	}
}

// A busy peer answers each copy of an initiation, over each path, by another cookie. Each proves
// the addresses that it came from, also of an initiation that was repeated since, because the round
// trip takes longer; and a forged one does not replace the right one.
func TestCookies(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	a := newEndpoint(t, ka, kb, 100)
	guard := NewGuard(kb.Public(), rand.Reader)
	a.a.Want(0)
	now := time.Duration(0)
	var sent [][]byte
	for range maxPending {
		sent = append(sent, a.advance(t, now))
		now = a.a.Deadline()
	}
	forger := NewGuard(kb.Public(), rand.Reader) // who knows the public key, and has seen the initiation
	for n, message := range sent {
		for _, from := range []string{"192.0.2.1:4790", "[2001:db8::1]:4790"} {
			source := netip.MustParseAddrPort(from)
			for _, g := range []*Guard{forger, guard} {
				verdict, reply, err := g.Judge(message, source, true, now)
				if verdict != Unproven || err != nil {
					t.Fatalf("verdict %d, %v", verdict, err)
				}
				c, again, err := a.a.Cookie(reply, now)
				if err != nil || !Same(again, message) {
					t.Fatalf("cookie for initiation %d: %v", n, err)
				}
				want := Admitted
				if g == forger {
					want = Unproven
				}
				if verdict, _, _ := guard.Judge(c.Stamp(again, now), source, true, now); verdict != want {
					t.Errorf("verdict %d with the cookie, want %d", verdict, want)
				}
			}
		}
	}
	reply := func(m []byte) []byte {
		_, reply, _ := guard.Judge(m, netip.MustParseAddrPort("192.0.2.9:1"), true, now)
		return reply
	}
	old := reply(sent[0])
	last := a.advance(t, now)
	if _, _, err := a.a.Cookie(old, now); err == nil {
		t.Error("a cookie for an initiation that no response is accepted to")
	}
	cookie := reply(last)
	if a.a.Forget(); cookie == nil {
		t.Fatal("no cookie")
	}
	if _, _, err := a.a.Cookie(cookie, now); err == nil {
		t.Error("a cookie without a handshake is taken")
	}
}

// One peer has so many initiations answered, whatever it sends; an hour later it is answered again.
func TestAnswersAreBounded(t *testing.T) {
	ka, kb := newKey(t, 1), newKey(t, 2)
	a, b := newEndpoint(t, ka, kb, 100), newEndpoint(t, kb, ka, 200)
	answered, refused := 0, 0
	for i := range 600 { // in a second
		now := time.Duration(i) * time.Second / 600
		_, m, err := Initiate(ka, Peer{Public: kb.Public()}, uint32(i), TimestampOf(wall.Add(now)), 1, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ReadInitiation(kb, m, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		switch _, _, err := b.a.Answer(r, m, now); {
		case err == nil:
			answered++
		case errors.Is(err, ErrTooMany):
			refused++
		default:
			t.Fatal(err)
		}
	}
	if answered > answerBurst+answerRate || answered < answerBurst || answered+refused != 600 {
		t.Errorf("%d of 600 were answered, %d refused", answered, refused)
	}
	a.a.Want(time.Hour)
	a.take(t, b.take(t, a.advance(t, time.Hour), time.Hour), time.Hour)
	if !data(a, b) {
		t.Error("no session an hour later")
	}
}
