// Package join is the exchange by which a gateway accepts one new peer that has its invitation.
//
// The invitation is a line of text with the gateway's public key, its addresses, and a secret. The
// exchange is one message each way, the pattern IKpsk1 of the Noise protocol framework: the first
// message already proves the secret and the new peer's key. The package has no sockets, files or
// clock: package enroll sends the messages, and lets an invitation expire.
package join

import (
	"bytes"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flynn/noise"
	"golang.org/x/crypto/blake2s"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

const (
	// prefix begins an invitation's text: a name and the digit of its version.
	name, version = "tabane", '3'
	prefix        = name + string(version) + ":"
	// secretLen, checkLen and macLen are the lengths in bytes of the secret, of the checksum of an
	// invitation, and of the code that precedes a message. typeLen is that of the type before it.
	secretLen, checkLen, macLen, typeLen = 16, 4, 16, 1
	// maxAddresses bounds the addresses of an invitation.
	maxAddresses = 4
	// MaxMessage is the longest message in bytes: it fits the smallest MTU of IPv6 (RFC 8200
	// section 5).
	MaxMessage = 1280 - 40 - 8
	// maxNetworks bounds the networks of a request, so that it fits a message.
	maxNetworks = 16
	// maxName is the longest name in bytes.
	maxName = 32
)

// Lifetime is how long an invitation is valid.
const Lifetime = 10 * time.Minute

// Invitation lets one gateway join. It prints as a placeholder, so that it is in no log.
type Invitation struct {
	// Public is the key of the gateway that invites, Port its UDP port, for the exchange and for
	// the tunnel, on these addresses.
	Public    handshake.PublicKey
	Port      uint16
	Addresses []netip.Addr

	secret [secretLen]byte
}

func (Invitation) String() string   { return "(invitation)" }
func (Invitation) GoString() string { return "(invitation)" }

// Invite returns an invitation with a new secret.
func Invite(public handshake.PublicKey, port uint16, addresses []netip.Addr, random io.Reader) (Invitation, error) {
	i := Invitation{Public: public, Port: port, Addresses: addresses}
	if len(addresses) == 0 || len(addresses) > maxAddresses {
		return Invitation{}, fmt.Errorf("make invitation: want 1 to %d addresses, got %d", maxAddresses, len(addresses))
	}
	if _, err := io.ReadFull(random, i.secret[:]); err != nil {
		return Invitation{}, fmt.Errorf("make invitation: %w", err)
	}
	return i, nil
}

// Text returns the line to paste: it has the secret.
func (i Invitation) Text() string {
	b := slices.Concat(i.Public[:], i.secret[:])
	b = binary.BigEndian.AppendUint16(b, i.Port)
	for _, a := range i.Addresses {
		b = append(b, byte(a.BitLen()/8))
		b = append(b, a.AsSlice()...)
	}
	return prefix + base64.RawURLEncoding.EncodeToString(append(b, checksum(b)...))
}

// otherVersion returns what to do about the invitation of another version, nil if it is none.
func otherVersion(text string) error {
	text, ok := strings.CutPrefix(text, name)
	number, _, colon := strings.Cut(text, ":")
	switch n, err := strconv.ParseUint(number, 10, 16); {
	case !ok || !colon || err != nil:
		return nil
	case n < version-'0':
		return errors.New("parse invitation: the VPS has an older version of tabane: upgrade it, and have it print another line")
	case n > version-'0':
		return errors.New("parse invitation: the VPS has a newer version of tabane: upgrade this host")
	}
	return nil
}

func checksum(b []byte) []byte {
	sum := blake2s.Sum256(b)
	return sum[:checkLen]
}

// Parse parses the text of an invitation. No error repeats it.
func Parse(text string) (Invitation, error) {
	damaged := errors.New("parse invitation: it is not complete or damaged: paste the whole line that tabane gateway init --vps printed")
	text = strings.Trim(text, " \t\r\n'\"") // pasted with quotes, too
	if err := otherVersion(text); err != nil {
		return Invitation{}, err
	}
	text, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return Invitation{}, fmt.Errorf("parse invitation: it does not begin with %q: paste the whole line that tabane gateway init --vps printed", prefix)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	const fixed = handshake.KeyLen + secretLen + 2
	if err != nil || len(b) < fixed+checkLen {
		return Invitation{}, damaged
	}
	b, sum := b[:len(b)-checkLen], b[len(b)-checkLen:]
	if !bytes.Equal(sum, checksum(b)) {
		return Invitation{}, damaged
	}
	i := Invitation{
		Public: handshake.PublicKey(b[:handshake.KeyLen]),
		Port:   binary.BigEndian.Uint16(b[handshake.KeyLen+secretLen:]),
		secret: [secretLen]byte(b[handshake.KeyLen:][:secretLen]),
	}
	for b = b[fixed:]; len(b) > 0; {
		n := int(b[0])
		if len(b) <= n || len(i.Addresses) == maxAddresses {
			return Invitation{}, damaged
		}
		a, ok := netip.AddrFromSlice(b[1 : 1+n])
		if !ok || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
			return Invitation{}, damaged
		}
		i.Addresses, b = append(i.Addresses, a), b[1+n:]
	}
	if _, err := handshake.ParsePublicKey(i.Public.String()); err != nil || len(i.Addresses) == 0 || i.Port == 0 {
		return Invitation{}, damaged
	}
	return i, nil
}

// Request is what a new peer says of itself.
type Request struct {
	// Name is its name in the file of the other gateway.
	Name string `json:"name"`
	// LAN are the prefixes of its hosts, Connected other networks that it is connected to, in which
	// it cannot get its address of the tunnel.
	LAN       []netip.Prefix `json:"lan"`
	Connected []netip.Prefix `json:"connected"`
	// IPv6: its hosts are to reach the Internet by IPv6 through the other gateway, too.
	IPv6 bool `json:"ipv6,omitempty"`
}

func (r *Request) check() error {
	if !validName(r.Name) {
		return fmt.Errorf("read request: name must be a word of letters, digits, dots, underscores and hyphens, at most %d, got %q", maxName, r.Name)
	}
	if n := len(r.LAN) + len(r.Connected); n > maxNetworks {
		return fmt.Errorf("read request: want at most %d networks, got %d", maxNetworks, n)
	}
	for _, p := range slices.Concat(r.LAN, r.Connected) {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || p.Bits() == 0 {
			return fmt.Errorf("read request: want prefixes of networks, got %v", p)
		}
	}
	return nil
}

// validName reports whether a configuration may have the name, in which messages bound it further.
func validName(name string) bool { return len(name) <= maxName && tunnel.ValidName(name) }

// Answer is what the inviting gateway answers.
type Answer struct {
	// Refused is why the peer is not accepted. The rest is empty then.
	Refused string `json:"refused,omitempty"`
	// Name is the name of the inviting gateway. Own is the new peer's address in the tunnel, and
	// Gateway that of the inviting one.
	Name    string     `json:"name,omitempty"`
	Own     netip.Addr `json:"own"`
	Gateway netip.Addr `json:"gateway"`
	// Own6 and Gateway6 are the same in IPv6, if the inviting gateway carries it.
	Own6     netip.Addr `json:"own6,omitzero"`
	Gateway6 netip.Addr `json:"gateway6,omitzero"`
	// Prefix6 are public addresses for the new peer's hosts, if the inviting gateway has some.
	Prefix6 netip.Prefix `json:"prefix6,omitzero"`
}

func (a *Answer) check() error {
	if a.Refused != "" {
		return nil
	}
	usable := func(a netip.Addr) bool { return a.IsValid() && a.Is4() && a.IsPrivate() }
	if !validName(a.Name) || !usable(a.Own) || !usable(a.Gateway) || a.Own == a.Gateway {
		return fmt.Errorf("read answer: want a name and two private addresses, got %q, %v, %v", a.Name, a.Own, a.Gateway)
	}
	usable6 := func(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" && a.IsPrivate() }
	if (a.Own6.IsValid() || a.Gateway6.IsValid()) && (!usable6(a.Own6) || !usable6(a.Gateway6) || a.Own6 == a.Gateway6) {
		return fmt.Errorf("read answer: want two private addresses of IPv6, got %v, %v", a.Own6, a.Gateway6)
	}
	if p := a.Prefix6; p != (netip.Prefix{}) && (!a.Own6.IsValid() || !ValidPrefix(p) || p.Bits() < minSite) {
		return fmt.Errorf("read answer: want a public network of IPv6 with at least %d bits, got %v", minSite, p)
	}
	return nil
}

// minSite is the shortest prefix of a site: whole providers have shorter ones.
const minSite = 40

// internet are all public addresses of IPv6 (RFC 4291 section 2.4).
var internet = netip.MustParsePrefix("2000::/3")

// ValidPrefix reports whether hosts may get addresses of a prefix, which the Internet routes.
func ValidPrefix(p netip.Prefix) bool {
	return p.IsValid() && p == p.Masked() && p.Bits() >= 16 && p.Bits() <= 64 && internet.Contains(p.Addr())
}

var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashBLAKE2s)

// state begins an exchange.
func (i *Invitation) state(own handshake.PrivateKey, initiator bool, random io.Reader) (*noise.HandshakeState, error) {
	public, secret := own.Public(), i.derive("secret")
	c := noise.Config{
		CipherSuite: suite, Random: random, Pattern: noise.HandshakeIK, Initiator: initiator, Prologue: []byte(prefix),
		StaticKeypair: noise.DHKey{Private: bytes.Clone(own[:]), Public: public[:]},
		PresharedKey:  secret[:], PresharedKeyPlacement: 1,
	}
	if initiator {
		c.PeerStatic = i.Public[:]
	}
	return noise.NewHandshakeState(c)
}

func (i *Invitation) derive(use string) [32]byte {
	return blake2s.Sum256(slices.Concat([]byte("tabane join "+use), i.secret[:]))
}

// mac is the code that precedes a first message. It lets the receiver drop messages without the
// secret at the cost of a hash.
func (i *Invitation) mac(message []byte) []byte {
	key := i.derive("mac")
	h, err := blake2s.New128(key[:])
	if err != nil {
		panic("BUG: " + err.Error()) // the key has a valid length
	}
	h.Write(message)
	return h.Sum(nil)
}

// ErrRefused is the error of a message that is not part of the exchange. Anybody can send one.
var ErrRefused = errors.New("message of a join refused")

// Exchange is the side of the new peer.
type Exchange struct{ state *noise.HandshakeState }

// Begin returns the first message, which may be sent repeatedly. Its type is tunnel.Join, which
// no message of a gateway on the same port has.
func Begin(i Invitation, own handshake.PrivateKey, r Request, random io.Reader) (*Exchange, []byte, error) {
	if err := r.check(); err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, nil, fmt.Errorf("encode request: %w", err)
	}
	state, err := i.state(own, true, random)
	if err != nil {
		return nil, nil, fmt.Errorf("begin join: %w", err)
	}
	message, _, _, err := state.WriteMessage(nil, text)
	if err != nil {
		return nil, nil, fmt.Errorf("begin join: %w", err)
	}
	message = slices.Concat([]byte{byte(tunnel.Join)}, i.mac(message), message)
	if len(message) > MaxMessage {
		return nil, nil, fmt.Errorf("begin join: the request has %d bytes, more than %d", len(message), MaxMessage)
	}
	return &Exchange{state}, message, nil
}

// Finish reads the answer. After ErrRefused the right one may still come.
func (e *Exchange) Finish(message []byte) (Answer, error) {
	text, _, _, err := e.state.ReadMessage(nil, message)
	if err != nil {
		return Answer{}, fmt.Errorf("%w: answer is not authentic", ErrRefused)
	}
	var a Answer
	if err := decode(text, &a); err != nil {
		return Answer{}, fmt.Errorf("read answer: %w", err)
	}
	return a, a.check()
}

func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Host is the side of the gateway that invites. It accepts one new peer. It is not safe for
// concurrent use.
type Host struct {
	own        handshake.PrivateKey
	invitation Invitation
	decide     func(handshake.PublicKey, Request) Answer
	random     io.Reader

	accepted, answered []byte
}

// NewHost returns a Host with the key of the inviting gateway. decide answers an authentic request;
// after one that it has not refused, the invitation is void.
func NewHost(own handshake.PrivateKey, i Invitation, decide func(handshake.PublicKey, Request) Answer, random io.Reader) *Host {
	return &Host{own: own, invitation: i, decide: decide, random: random}
}

// Done reports whether a peer was accepted.
func (h *Host) Done() bool { return h.accepted != nil }

// Answer returns the answer to a message. The one that was accepted gets the same answer again, in
// case that was lost; all others get ErrRefused then.
func (h *Host) Answer(message []byte) ([]byte, error) {
	switch {
	case h.Done() && bytes.Equal(message, h.accepted):
		return h.answered, nil
	case h.Done():
		return nil, fmt.Errorf("%w: the invitation was used", ErrRefused)
	case len(message) <= typeLen+macLen || len(message) > MaxMessage || message[0] != byte(tunnel.Join):
		return nil, fmt.Errorf("%w: it has %d bytes, or another type", ErrRefused, len(message))
	case subtle.ConstantTimeCompare(h.invitation.mac(message[typeLen+macLen:]), message[typeLen:typeLen+macLen]) != 1:
		return nil, fmt.Errorf("%w: it does not prove the secret", ErrRefused)
	}
	state, err := h.invitation.state(h.own, false, h.random)
	if err != nil {
		return nil, fmt.Errorf("answer join: %w", err)
	}
	text, _, _, err := state.ReadMessage(nil, message[typeLen+macLen:])
	if err != nil {
		return nil, fmt.Errorf("%w: it is not authentic", ErrRefused)
	}
	peer, err := handshake.ParsePublicKey(handshake.PublicKey(state.PeerStatic()).String())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	var r Request
	err = decode(text, &r)
	if err == nil {
		err = r.check()
	}
	a := Answer{}
	if err != nil {
		a.Refused = err.Error()
	} else {
		a = h.decide(peer, r)
	}
	if text, err = json.Marshal(a); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	answer, _, _, err := state.WriteMessage(nil, text)
	if err != nil {
		return nil, fmt.Errorf("answer join: %w", err)
	}
	if a.Refused == "" {
		h.accepted, h.answered = bytes.Clone(message), answer
	}
	return answer, nil
}
