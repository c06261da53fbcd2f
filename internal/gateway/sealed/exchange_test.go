package sealed

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// TestExchangesTakeTurns: a flood of initiations of one sender, however many of its addresses,
// delays neither those of others nor responses, and one of responses no initiations.
func TestExchangesTakeTurns(t *testing.T) {
	x := newExchanges()
	attacker, others := new(peer), new(peer)
	for i := range 10 * maxHandshakes {
		x.push(handshakeMessage{from: netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:0:1::%x", i+1)), 1)})
		x.push(handshakeMessage{peer: attacker})
	}
	if len(x.initiations) != maxHandshakes || len(x.responses) != maxResponses {
		t.Fatalf("%d initiations and %d responses wait", len(x.initiations), len(x.responses))
	}
	for i := range 8 {
		from := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i+1)), 1)
		if queued, dropped := x.push(handshakeMessage{from: from}); !queued || dropped != 1 {
			t.Errorf("the initiation of another sender: queued %t, %d dropped", queued, dropped)
		}
	}
	if queued, dropped := x.push(handshakeMessage{peer: others}); !queued || dropped != 0 {
		t.Errorf("the response of another peer: queued %t, %d dropped", queued, dropped)
	}
	senders, peers := map[netip.Prefix]int{}, map[*peer]int{}
	for turn := 0; ; turn++ {
		h, any := x.pop()
		if !any {
			break
		}
		if h.peer != nil {
			if peers[h.peer]++; turn > 2*(maxResponses+1) {
				t.Errorf("a response is turn %d", turn)
			}
			continue
		}
		senders[handshake.Sender(h.from.Addr())]++
	}
	if len(senders) != 9 || peers[others] != 1 || peers[attacker] != maxResponses {
		t.Errorf("initiations of %d senders, responses of %v", len(senders), peers)
	}
	// Where all have as many, the one that comes last waits for its next initiation.
	for i := range maxHandshakes {
		x.push(handshakeMessage{from: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1)})
	}
	if queued, dropped := x.push(handshakeMessage{from: netip.MustParseAddrPort("10.0.1.0:1")}); queued || dropped != 1 {
		t.Errorf("queued %t, %d dropped", queued, dropped)
	}
}

// TestCookiesAreBounded: cookies have an initiation repeated a few times, where they came from, and
// those of unknown addresses a few times in all. The next initiation begins again.
func TestCookiesAreBounded(t *testing.T) {
	var x proofs
	l := new(line)
	at := func(i int) place {
		return place{l, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 1)}
	}
	for range 3 {
		x.next()
		sent, elsewhere := 0, 0
		for range 1000 {
			if x.take(at(0), handshake.Cookie{}, true) {
				sent++
			}
		}
		for i := range 1000 {
			if x.take(at(i+1), handshake.Cookie{}, false) {
				elsewhere++
			}
		}
		if sent != maxRepeats || elsewhere != maxOtherPlaces {
			t.Errorf("%d repeated to the peer, %d elsewhere", sent, elsewhere)
		}
		for i := range 1000 {
			x.take(at(i+2000), handshake.Cookie{}, true)
		}
		if len(x.cookies) > maxPlaces || len(x.repeats) > maxPlaces {
			t.Errorf("%d cookies, %d places", len(x.cookies), len(x.repeats))
		}
	}
}

// TestStaleInitiations: each recorded initiation has an effect once, and at most three initiations
// are sent where it came from; a peer whose clock was set back is answered although others replay
// recorded ones.
func TestStaleInitiations(t *testing.T) {
	var x stale
	l := new(line)
	time0 := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	recorded := func(i int) handshake.Timestamp {
		return handshake.TimestampOf(time0.Add(time.Duration(i) * 2 * time.Minute))
	}
	attacker, restarted := place{l, netip.MustParseAddrPort("198.51.100.1:1")}, place{l, netip.MustParseAddrPort("192.0.2.1:4790")}
	const records = 100
	sent := map[place]int{}
	answered := time.Duration(0)
	for now := time.Duration(0); now < 10*time.Minute; now += 50 * time.Millisecond {
		x.take(recorded(int(now/50/time.Millisecond)%records), attacker, now)
		if now%(750*time.Millisecond) == 0 {
			x.take(handshake.TimestampOf(time0.Add(-time.Hour+now)), restarted, now)
			if to := x.from; to.line != nil { // an initiation is due
				if sent[to]++; to == restarted && answered == 0 {
					answered = now
				}
				x.sent()
			}
		}
	}
	if n := sent[attacker]; n == 0 || n > staleTries*records {
		t.Errorf("%d initiations to the source of %d recorded ones", n, records)
	}
	if answered == 0 || answered > 5*time.Minute {
		t.Errorf("the peer is answered after %v", answered)
	}
	for i := range 3 * maxStale {
		x.take(recorded(records+i), attacker, time.Hour+time.Duration(i)*stalePause)
	}
	if len(x.used) > maxStale {
		t.Errorf("%d times are kept", len(x.used))
	}
	if x.end(); x.from.line != nil {
		t.Error("the source is kept after an answer")
	}
}

// TestBusyPeer: a busy peer's cookies have the initiation repeated between the addresses that they
// prove, also when forged ones arrive before, by who sees the initiation; what is sent for them is
// bounded.
func TestBusyPeer(t *testing.T) {
	a, b := pair(t, 2)
	var sockets [2]*udp.Socket
	for i := range sockets {
		if err := inNamespace(b, func() (err error) {
			sockets[i], err = udp.Listen(udp.Options{Local: netip.MustParseAddrPort(fmt.Sprintf("192.168.%d.2:4790", i))})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sockets[i].Close() })
	}
	a.run()
	guard, forger := handshake.NewGuard(b.key.Public(), rand.Reader), handshake.NewGuard(b.key.Public(), rand.Reader)
	for i, s := range sockets {
		got, buffers := make([]udp.Received, 1), [][]byte{make([]byte, udp.BufferLen)}
		admitted := false
		for range 200 {
			if _, err := s.Receive(buffers, got); err != nil {
				t.Fatal(err)
			}
			m := got[0].Data[:min(got[0].Size, len(got[0].Data))]
			verdict, reply, err := guard.Judge(m, got[0].From, true, 0)
			if err != nil {
				t.Fatal(err)
			}
			if admitted = verdict == handshake.Admitted; admitted {
				break
			}
			for range 2 {
				_, forged, _ := forger.Judge(m, got[0].From, true, 0)
				s.Send([]udp.Datagram{{Data: forged, To: got[0].From}})
			}
			s.Send([]udp.Datagram{{Data: reply, To: got[0].From}})
		}
		if !admitted {
			t.Errorf("path %d: no initiation proves its address", i)
		}
	}
}

// TestResponsesUnderFloods: who sees an initiation and answers it first, however often, does not
// keep the response of the peer from completing the handshake.
func TestResponsesUnderFloods(t *testing.T) {
	r, _ := ally(t, dataplane.Alliance{}, 1)
	p, l := r.plane, r.links[0].line
	peer, err := handshake.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own := handshake.PrivateKey{1}
	p.state.Key = own
	p.guard.Store(handshake.NewGuard(own.Public(), rand.Reader))
	known := newPeer(p, own, dataplane.Peer{Name: "known", Public: peer.Public()})
	known.conf = dataplane.Peer{Name: "known", Public: peer.Public()}
	p.peers[peer.Public()] = known
	known.session.assoc.Want(0)
	message, err := known.session.assoc.Advance(0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	known.initiating.send(message, 0)
	request, err := handshake.ReadInitiation(peer, message, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	suite := uint8(1)
	for !request.Offers.Has(suite) {
		suite++
	}
	_, response, err := request.Answer(handshake.PresharedKey{}, 7, suite, handshake.NewResponseProof(peer, handshake.Peer{Public: own.Public()}))
	if err != nil {
		t.Fatal(err)
	}
	from := netip.MustParseAddrPort("127.0.0.1:4790")
	for range 5000 {
		forged := make([]byte, handshake.ResponseLen-32)
		rand.Read(forged[16:])
		copy(forged, response[:12]) // type and both indices
		p.checkHandshake(l, addressed(own.Public(), forged), from, netip.Addr{})
		unknown := append([]byte(nil), forged...)
		binary.BigEndian.PutUint32(unknown[8:], binary.BigEndian.Uint32(forged[8:])+1)
		p.checkHandshake(l, addressed(own.Public(), unknown), from, netip.Addr{})
	}
	if n := len(p.exchanges.responses); n > maxResponses {
		t.Errorf("%d responses wait", n)
	}
	for h, any := p.exchanges.pop(); any; h, any = p.exchanges.pop() {
		p.exchange(h)
	}
	p.checkHandshake(l, response, from, netip.Addr{})
	h, any := p.exchanges.pop()
	if !any || p.complete(h) != nil || known.session.sending == nil {
		t.Errorf("no session: %v", p.Status().Dropped)
	}
}
