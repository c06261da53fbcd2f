package session

import (
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
// and costs one hash. The second one's key is a cookie that the receiver sends while it is busy: who
// has it receives at the address that it sends from.

const (
	// cookieAge is how long a cookie is used, and the secret that cookies are made of.
	cookieAge = 2 * time.Minute
	nonceLen  = chacha20poly1305.NonceSizeX
	// CookieLen is the length of a cookie message in bytes.
	CookieLen = headLen + indexLen + nonceLen + macLen + tagLen
)

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

// Stamper adds the hashes to messages for one receiver. It is not safe for concurrent use.
type Stamper struct {
	first, cookieKey [KeyLen]byte
	sent             mac // first hash of the last message
	cookie           mac
	known            bool
	at               time.Duration // when the cookie arrived
}

// NewStamper returns a Stamper for messages to the gateway with this key.
func NewStamper(receiver PublicKey) *Stamper {
	return &Stamper{first: derive("first hash", receiver), cookieKey: derive("cookie", receiver)}
}

func (s *Stamper) stamp(message []byte, now time.Duration) []byte {
	s.sent = keyedHash(s.first[:], message)
	message = append(message, s.sent[:]...)
	var second mac
	if s.known && now-s.at < cookieAge {
		second = keyedHash(s.cookie[:], message)
	}
	return append(message, second[:]...)
}

// TakeCookie reads a cookie that answers the last message. The caller sends that message again, as
// a new one.
func (s *Stamper) TakeCookie(message []byte, now time.Duration) error {
	if len(message) != CookieLen || [headLen]byte(message) != [headLen]byte{typeCookie} {
		return refused("not a cookie")
	}
	aead, err := chacha20poly1305.NewX(s.cookieKey[:])
	if err != nil {
		return fmt.Errorf("read cookie: %w", err)
	}
	rest := message[headLen+indexLen:]
	cookie, err := aead.Open(nil, rest[:nonceLen], rest[nonceLen:], s.sent[:])
	if err != nil {
		return refused("cookie is not authentic")
	}
	s.cookie, s.known, s.at = mac(cookie), true, now
	return nil
}

// Verdict is the decision of a Guard about a handshake message.
type Verdict uint8

const (
	// Stranger: the sender does not know the public key. It gets no answer.
	Stranger Verdict = iota
	// Admitted: the message is worth an exchange of keys.
	Admitted
	// Unproven: the sender first has to prove its address by a cookie.
	Unproven
)

// Guard judges handshake messages by their hashes, before any exchange of keys. It is not safe for
// concurrent use.
type Guard struct {
	first, cookieKey [KeyLen]byte
	random           io.Reader
	secret           [KeyLen]byte
	at               time.Duration // when the secret was made
	made             bool
}

// NewGuard returns the Guard of the gateway with this key.
func NewGuard(own PublicKey, random io.Reader) *Guard {
	return &Guard{first: derive("first hash", own), cookieKey: derive("cookie", own), random: random}
}

// Judge judges a message of a sender. While the gateway is busy, senders have to prove their
// addresses: for Unproven, the reply is to be sent to them. It is not longer than the message.
func (g *Guard) Judge(message []byte, from netip.AddrPort, busy bool, now time.Duration) (Verdict, []byte, error) {
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
		return Stranger, nil, nil
	}
	first, second := len(message)-2*macLen, len(message)-macLen
	sent := keyedHash(g.first[:], message[:first])
	if !equal(sent[:], message[first:second]) {
		return Stranger, nil, nil
	}
	if !busy {
		return Admitted, nil, nil
	}
	cookie, err := g.cookie(from, now)
	if err != nil {
		return Stranger, nil, err
	}
	if proof := keyedHash(cookie[:], message[:second]); equal(proof[:], message[second:]) {
		return Admitted, nil, nil
	}
	reply, err := g.reply(message, cookie, sent)
	return Unproven, reply, err
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

func (g *Guard) reply(message []byte, cookie, sent mac) ([]byte, error) {
	aead, err := chacha20poly1305.NewX(g.cookieKey[:])
	if err != nil {
		return nil, fmt.Errorf("make cookie: %w", err)
	}
	reply := append([]byte{typeCookie, 0, 0, 0}, message[headLen:headLen+indexLen]...)
	nonce := make([]byte, nonceLen)
	if _, err := io.ReadFull(g.random, nonce); err != nil {
		return nil, fmt.Errorf("make cookie: %w", err)
	}
	return aead.Seal(append(reply, nonce...), nonce, cookie[:], sent[:]), nil
}
