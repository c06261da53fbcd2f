package handshake

import (
	"bytes"
	"crypto/hmac"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
)

// The last two fields of an initiation and a response are keyed hashes of what is before them. The
// first one's key is made of the receiver's public key, so that who does not know it gets no answer
// and costs one hash. The second one's key is, in an initiation, a cookie that the receiver sends
// while it is busy: who has it receives at the address that it sends from. In a response, it is
// made of the secret that both gateways' static keys share: who records the initiation has it not,
// so a forged response costs two hashes.

const (
	// cookieAge is how long a cookie is used, and the secret that cookies are made of.
	cookieAge = 2 * time.Minute
	nonceLen  = chacha20poly1305.NonceSizeX
	// CookieLen is the length of a cookie message in bytes.
	CookieLen = headLen + indexLen + nonceLen + macLen + tagLen

	// freeRate and freeBurst bound the initiations of all senders that have not proved their
	// addresses: their sources may be forged. More than that have to prove them.
	freeRate, freeBurst = 100, 32
	// provenRate and provenBurst bound those of a sender that has: several gateways may share an
	// address, and each begins again four times a second.
	provenRate, provenBurst = 40, 64
	// maxSenders is the number of senders that are counted.
	maxSenders = 4096
)

// Limit bounds how often something is done: a rate, and a burst. The zero Limit has done nothing.
type Limit struct{ until time.Duration }

// Take reports whether it may be done now, and counts it if so. It is done rate times in a second,
// burst times at once.
func (l *Limit) Take(now time.Duration, rate, burst int) bool {
	interval := time.Second / time.Duration(rate)
	from := max(l.until, now)
	if from-now > interval*time.Duration(burst-1) {
		return false
	}
	l.until = from + interval
	return true
}

// Sender returns whom the messages of an address are counted for: an IPv4 address, or the network
// of one link in IPv6 (RFC 4291 section 2.5.4), all of whose addresses one host may have.
func Sender(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 64
	if a.Is4() {
		bits = 32
	}
	sender, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // no address
	}
	return sender
}

type mac [macLen]byte

// derive returns the key for a purpose that is made of a public key.
func derive(purpose string, k PublicKey) [KeyLen]byte {
	return blake2s.Sum256(append([]byte(purpose), k[:]...))
}

func keyedHash(key, data []byte) (m mac) {
	h, err := blake2s.New128(key)
	if err != nil {
		panic("BUG: " + err.Error()) // keys are not longer than 32 bytes
	}
	h.Write(data)
	h.Sum(m[:0])
	return m
}

func equal(a, b []byte) bool { return hmac.Equal(a, b) }

// stamp appends both hashes to a message for the gateway with this key. second is the key of the
// second one, which is zero without.
func stamp(message []byte, receiver PublicKey, second []byte) []byte {
	key := derive("first hash", receiver)
	first := keyedHash(key[:], message)
	message = append(message, first[:]...)
	if second == nil {
		return append(message, make([]byte, macLen)...)
	}
	proof := keyedHash(second, message)
	return append(message, proof[:]...)
}

// proves reports whether the second hash of a message has this key.
func proves(message, key []byte) bool {
	second := len(message) - macLen
	proof := keyedHash(key, message[:second])
	return equal(proof[:], message[second:])
}

// Cookie proves the address of a sender. The zero Cookie proves nothing.
type Cookie struct {
	value mac
	at    time.Duration // when it arrived
	known bool
}

// Usable reports whether the cookie may still prove something.
func (c Cookie) Usable(now time.Duration) bool { return c.known && now-c.at < cookieAge }

// Stamp returns an initiation with the second hash that the cookie makes, or the same one without a
// usable cookie.
func (c Cookie) Stamp(initiation []byte, now time.Duration) []byte {
	if !c.Usable(now) || len(initiation) != InitiationLen {
		return initiation
	}
	message := bytes.Clone(initiation)
	second := len(message) - macLen
	proof := keyedHash(c.value[:], message[:second])
	copy(message[second:], proof[:])
	return message
}

// Same reports whether two initiations differ in the second hash alone.
func Same(a, b []byte) bool {
	return len(a) == InitiationLen && len(b) == InitiationLen && bytes.Equal(a[:InitiationLen-macLen], b[:InitiationLen-macLen])
}

// Verdict is the decision of a Guard about an initiation.
type Verdict uint8

const (
	// Stranger: the sender does not know the public key. It gets no answer.
	Stranger Verdict = iota
	// Admitted: the message is worth an exchange of keys.
	Admitted
	// Unproven: the sender first has to prove its address by a cookie.
	Unproven
	// Excessive: the sender has proved its address, which has sent too many.
	Excessive
)

// Guard judges handshake messages by their hashes, before any exchange of keys. It is not safe for
// concurrent use, but for Addressed.
type Guard struct {
	first, cookieKey [KeyLen]byte
	random           io.Reader
	secret           [KeyLen]byte
	at               time.Duration // when the secret was made
	made             bool
	free             Limit
	proven           map[netip.Prefix]Limit // of at most maxSenders
}

// NewGuard returns the Guard of the gateway with this key.
func NewGuard(own PublicKey, random io.Reader) *Guard {
	return &Guard{first: derive("first hash", own), cookieKey: derive("cookie", own), random: random, proven: map[netip.Prefix]Limit{}}
}

// Addressed reports whether a message is an initiation or response of a sender that knows the
// public key, which costs one hash. It is safe for concurrent use.
func (g *Guard) Addressed(message []byte) bool {
	want := 0
	if len(message) > headLen+indexLen {
		switch [headLen]byte(message) {
		case [headLen]byte{typeInitiation}:
			want = InitiationLen
		case [headLen]byte{typeResponse}:
			want = ResponseLen
		}
	}
	if want == 0 || len(message) != want {
		return false
	}
	first, second := len(message)-2*macLen, len(message)-macLen
	sent := keyedHash(g.first[:], message[:first])
	return equal(sent[:], message[first:second])
}

// Judge judges an initiation. While the gateway is busy, or many have come from senders that have
// not proved their addresses, senders have to: for Unproven, the reply is to be sent to them. It is
// not longer than the message.
func (g *Guard) Judge(message []byte, from netip.AddrPort, busy bool, now time.Duration) (Verdict, []byte, error) {
	if !g.Addressed(message) || message[0] != typeInitiation {
		return Stranger, nil, nil
	}
	cookie, err := g.cookie(from, now)
	if err != nil {
		return Stranger, nil, err
	}
	if proves(message, cookie[:]) {
		if !g.takeProven(Sender(from.Addr()), now) {
			return Excessive, nil, nil
		}
		return Admitted, nil, nil
	}
	if !busy && g.free.Take(now, freeRate, freeBurst) {
		return Admitted, nil, nil
	}
	reply, err := g.reply(message, cookie)
	return Unproven, reply, err
}

// takeProven counts an initiation of a sender that has proved its address, and reports whether it
// has not sent too many.
func (g *Guard) takeProven(sender netip.Prefix, now time.Duration) bool {
	limit, known := g.proven[sender]
	if !known && len(g.proven) >= maxSenders {
		for any := range g.proven {
			delete(g.proven, any)
			break
		}
	}
	ok := limit.Take(now, provenRate, provenBurst)
	g.proven[sender] = limit
	return ok
}

// cookie returns the cookie of an address: a hash of it under a secret that changes.
func (g *Guard) cookie(from netip.AddrPort, now time.Duration) (mac, error) {
	if !g.made || now-g.at >= cookieAge {
		if _, err := io.ReadFull(g.random, g.secret[:]); err != nil {
			return mac{}, fmt.Errorf("make cookie: %w", err)
		}
		g.made, g.at = true, now
	}
	address := from.Addr().Unmap().As16()
	return keyedHash(g.secret[:], binary.BigEndian.AppendUint16(address[:], from.Port())), nil
}

func (g *Guard) reply(message []byte, cookie mac) ([]byte, error) {
	aead, err := chacha20poly1305.NewX(g.cookieKey[:])
	if err != nil {
		return nil, fmt.Errorf("make cookie: %w", err)
	}
	reply := append([]byte{typeCookie, 0, 0, 0}, message[headLen:headLen+indexLen]...)
	nonce := make([]byte, nonceLen)
	if _, err := io.ReadFull(g.random, nonce); err != nil {
		return nil, fmt.Errorf("make cookie: %w", err)
	}
	return aead.Seal(append(reply, nonce...), nonce, cookie[:], firstHash(message)), nil
}

// firstHash returns the first hash of a message.
func firstHash(message []byte) []byte {
	return message[len(message)-2*macLen : len(message)-macLen]
}
