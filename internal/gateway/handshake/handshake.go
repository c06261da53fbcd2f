package handshake

import (
	"bytes"
	"crypto/ecdh"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/flynn/noise"
	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
)

// Types and lengths of the messages, in bytes.
const (
	typeInitiation, typeResponse, typeCookie = 1, 2, 3

	headLen       = 4 // type and three zero bytes
	indexLen      = 4
	macLen        = 16
	tagLen        = 16
	timestampLen  = 12
	offerLen      = timestampLen + 2 // and version and suites
	answerLen     = 1                // suite
	InitiationLen = headLen + indexLen + KeyLen + (KeyLen + tagLen) + (offerLen + tagLen) + 2*macLen
	ResponseLen   = headLen + 2*indexLen + KeyLen + (answerLen + tagLen) + 2*macLen
)

// version is the version of the tunnel. A gateway answers only its own. Version 1 had shorter
// probes and answers, and responses without a ResponseProof; version 2 had lost messages sent again
// as they were.
const version = 3

// prologue binds a handshake to this protocol.
var prologue = []byte("tabane tunnel 1")

var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashBLAKE2s)

// Suites is a set of encryptions for data: bit i-1 is tunnel.Suite i.
type Suites uint8

// Has reports whether the set has suite i.
func (s Suites) Has(i uint8) bool { return i > 0 && i <= 8 && s>>(i-1)&1 != 0 }

// Keys are the result of a handshake.
type Keys struct {
	// Peer is the public key of the other gateway.
	Peer PublicKey
	// Send and Receive are the secrets of the two directions.
	Send, Receive [KeyLen]byte
	// Suite is the encryption that the responder chose.
	Suite uint8
	// Local and Remote are the indices by which each gateway finds the session.
	Local, Remote uint32
}

// Peer is another gateway.
type Peer struct {
	Public    PublicKey
	Preshared PresharedKey
}

// ErrRefused is the error of a message that is not part of a handshake with a known gateway.
var ErrRefused = errors.New("handshake message refused")

// ErrStale is the ErrRefused of an authentic initiation whose time is not later than that of the
// last one: it is a recorded one, or the clock of the peer was set back while its gateway did not
// run.
var ErrStale = refused("initiation is not later than the last one")

// ErrTooMany is the ErrRefused of an authentic initiation of a peer that has sent too many.
var ErrTooMany = refused("too many initiations of this peer")

// VersionError is the ErrRefused of an authentic initiation with another version of the tunnel.
type VersionError struct {
	// Peer is the public key of the gateway, which the caller need not know.
	Peer    PublicKey
	Version uint8
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%v: version %d, this gateway has %d", ErrRefused, e.Version, version)
}

// Unwrap returns ErrRefused.
func (e *VersionError) Unwrap() error { return ErrRefused }

func refused(why string) error { return fmt.Errorf("%w: %s", ErrRefused, why) }

// Timestamp is a time in an initiation (TAI64N, which orders as bytes do). Each initiation of a
// gateway has a later one, so that none is accepted twice.
type Timestamp [timestampLen]byte

// TimestampOf returns the Timestamp of a time.
func TimestampOf(t time.Time) (s Timestamp) {
	binary.BigEndian.PutUint64(s[:], uint64(t.Unix())+1<<62)
	binary.BigEndian.PutUint32(s[8:], uint32(t.Nanosecond()))
	return s
}

func config(own PrivateKey, random io.Reader, initiator bool) noise.Config {
	public := own.Public()
	return noise.Config{
		CipherSuite: suite, Random: random, Pattern: noise.HandshakeIK, Initiator: initiator, Prologue: prologue,
		StaticKeypair:         noise.DHKey{Private: bytes.Clone(own[:]), Public: public[:]},
		PresharedKeyPlacement: 2,
	}
}

// Initiation is a handshake that this gateway began.
type Initiation struct {
	peer   Peer
	state  *noise.HandshakeState
	local  uint32
	offers Suites
	// message is the first one, with a second hash of zero.
	message []byte
}

// Initiate returns the first message of a handshake with a peer. index is not used by another
// session of this gateway, and now is later than that of every initiation before.
func Initiate(own PrivateKey, peer Peer, index uint32, now Timestamp, offers Suites, random io.Reader) (*Initiation, []byte, error) {
	c := config(own, random, true)
	c.PeerStatic, c.PresharedKey = peer.Public[:], peer.Preshared[:]
	state, err := noise.NewHandshakeState(c)
	if err != nil {
		return nil, nil, fmt.Errorf("begin handshake: %w", err)
	}
	message := binary.BigEndian.AppendUint32([]byte{typeInitiation, 0, 0, 0}, index)
	message, _, _, err = state.WriteMessage(message, append(append(make([]byte, 0, offerLen), now[:]...), version, byte(offers)))
	if err != nil {
		return nil, nil, fmt.Errorf("begin handshake: %w", err)
	}
	message = stamp(message, peer.Public, nil)
	return &Initiation{peer: peer, state: state, local: index, offers: offers, message: message}, message, nil
}

// Cookie reads a cookie that answers the initiation. Who sees the initiation and knows the
// receiver's public key can make one, so another one may be the right one.
func (i *Initiation) Cookie(message []byte, now time.Duration) (Cookie, error) {
	if len(message) != CookieLen || [headLen]byte(message) != [headLen]byte{typeCookie} {
		return Cookie{}, refused("not a cookie")
	}
	if binary.BigEndian.Uint32(message[headLen:]) != i.local {
		return Cookie{}, refused("cookie for another initiation")
	}
	key := derive("cookie", i.peer.Public)
	aead, err := chacha20poly1305.NewX(key[:])
	if err != nil {
		return Cookie{}, fmt.Errorf("read cookie: %w", err)
	}
	rest := message[headLen+indexLen:]
	value, err := aead.Open(nil, rest[:nonceLen], rest[nonceLen:], firstHash(i.message))
	if err != nil {
		return Cookie{}, refused("cookie is not authentic")
	}
	return Cookie{value: mac(value), at: now, known: true}, nil
}

// Local returns the index of the session.
func (i *Initiation) Local() uint32 { return i.local }

// Finish reads the response. After an error the Initiation still waits for the right one: anybody
// can send a wrong one.
func (i *Initiation) Finish(response []byte) (Keys, error) {
	switch {
	case len(response) != ResponseLen || [headLen]byte(response) != [headLen]byte{typeResponse}:
		return Keys{}, refused("not a response")
	case binary.BigEndian.Uint32(response[headLen+indexLen:]) != i.local:
		return Keys{}, refused("response to another initiation")
	}
	answer, first, second, err := i.state.ReadMessage(nil, response[headLen+2*indexLen:ResponseLen-2*macLen])
	if err != nil {
		return Keys{}, refused("response is not authentic")
	}
	if len(answer) != answerLen || !i.offers.Has(answer[0]) {
		return Keys{}, refused("response with an encryption that was not offered")
	}
	return Keys{
		Peer: i.peer.Public, Send: first.UnsafeKey(), Receive: second.UnsafeKey(), Suite: answer[0],
		Local: i.local, Remote: binary.BigEndian.Uint32(response[headLen:]),
	}, nil
}

// Request is an authentic initiation of another gateway.
type Request struct {
	// Peer is the public key of the gateway, Time its Timestamp. The caller knows the gateway, and
	// refuses a Time that is not later than that of its last Request.
	Peer PublicKey
	Time Timestamp
	// Offers are the encryptions that it can use.
	Offers Suites

	state  *noise.HandshakeState
	remote uint32
}

// ReadInitiation reads an initiation that a Guard has admitted. It does not determine whether the
// gateway is known.
func ReadInitiation(own PrivateKey, message []byte, random io.Reader) (*Request, error) {
	if len(message) != InitiationLen || [headLen]byte(message) != [headLen]byte{typeInitiation} {
		return nil, refused("not an initiation")
	}
	c := config(own, random, false)
	state, err := noise.NewHandshakeState(c)
	if err != nil {
		return nil, fmt.Errorf("read initiation: %w", err)
	}
	offer, _, _, err := state.ReadMessage(nil, message[headLen+indexLen:InitiationLen-2*macLen])
	if err != nil || len(offer) != offerLen {
		return nil, refused("initiation is not authentic")
	}
	if offer[timestampLen] != version {
		return nil, &VersionError{Peer: PublicKey(state.PeerStatic()), Version: offer[timestampLen]}
	}
	return &Request{
		Peer: PublicKey(state.PeerStatic()), Time: Timestamp(offer[:timestampLen]), Offers: Suites(offer[timestampLen+1]),
		state: state, remote: binary.BigEndian.Uint32(message[headLen:]),
	}, nil
}

// Answer returns the response to a request, which is shorter than the initiation, and the keys. The
// keys must not be used to send before a message that was sealed with them has arrived: an
// initiation may have been replayed to a gateway that lost its memory.
// proof is the ResponseProof of the two gateways.
func (r *Request) Answer(preshared PresharedKey, index uint32, chosen uint8, proof ResponseProof) (Keys, []byte, error) {
	if !r.Offers.Has(chosen) {
		return Keys{}, nil, refused(fmt.Sprintf("encryption %d is not offered", chosen))
	}
	if err := r.state.SetPresharedKey(preshared[:]); err != nil {
		return Keys{}, nil, fmt.Errorf("answer initiation: %w", err)
	}
	message := binary.BigEndian.AppendUint32([]byte{typeResponse, 0, 0, 0}, index)
	message = binary.BigEndian.AppendUint32(message, r.remote)
	message, first, second, err := r.state.WriteMessage(message, []byte{chosen})
	if err != nil {
		return Keys{}, nil, fmt.Errorf("answer initiation: %w", err)
	}
	return Keys{
		Peer: r.Peer, Send: second.UnsafeKey(), Receive: first.UnsafeKey(), Suite: chosen, Local: index, Remote: r.remote,
	}, stamp(message, r.Peer, proof[:]), nil
}

// ResponseProof is the key of the second hash of responses between two gateways.
type ResponseProof [KeyLen]byte

// NewResponseProof returns the key that a gateway shares with a peer.
func NewResponseProof(own PrivateKey, peer Peer) ResponseProof {
	var shared []byte
	private, err := ecdh.X25519().NewPrivateKey(own[:])
	if err != nil {
		panic("BUG: " + err.Error()) // any 32 bytes are a key
	}
	public, err := ecdh.X25519().NewPublicKey(peer.Public[:])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	// A key that gives no secret is refused where it is parsed; no handshake with it is completed.
	shared, _ = private.ECDH(public)
	return blake2s.Sum256(slices.Concat([]byte("response"), shared, peer.Preshared[:]))
}

// Proves reports whether a response is one of the peer, by one hash.
func (k ResponseProof) Proves(response []byte) bool {
	return len(response) == ResponseLen && proves(response, k[:])
}
