package handshake

import (
	"crypto/ecdh"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
)

// KeyLen is the length of a key in bytes.
const KeyLen = 32

// PublicKey is the static X25519 key by which a gateway is known (RFC 7748).
type PublicKey [KeyLen]byte

// PrivateKey belongs to a PublicKey. It prints as a placeholder, so that it is in no log.
type PrivateKey [KeyLen]byte

// PresharedKey is a secret that both gateways have besides their keys, against an attacker who
// records today and has a quantum computer later. The zero key is that of gateways without one.
type PresharedKey [KeyLen]byte

// GenerateKey returns a new key.
func GenerateKey(random io.Reader) (PrivateKey, error) {
	var k PrivateKey
	if _, err := io.ReadFull(random, k[:]); err != nil {
		return PrivateKey{}, fmt.Errorf("generate key: %w", err)
	}
	// The bits that X25519 ignores (RFC 7748 section 5), so that equal keys have equal text.
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k, nil
}

// Public returns the public key.
func (k PrivateKey) Public() PublicKey {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		panic("BUG: " + err.Error()) // any 32 bytes are a key
	}
	return PublicKey(private.PublicKey().Bytes())
}

func (PrivateKey) String() string   { return "(private key)" }
func (PrivateKey) GoString() string { return "(private key)" }

// Text returns the key in base64, for the file that holds it.
func (k PrivateKey) Text() string { return encode(k) }

func (PresharedKey) String() string   { return "(preshared key)" }
func (PresharedKey) GoString() string { return "(preshared key)" }

// String returns the key in base64.
func (k PublicKey) String() string { return encode(k) }

// ParsePrivateKey parses the text of a private key.
func ParsePrivateKey(text string) (PrivateKey, error) {
	k, err := decode[PrivateKey](text)
	if err == nil && k == (PrivateKey{}) {
		err = errors.New("key is zero")
	}
	return k, err
}

// ParsePresharedKey parses the text of a preshared key.
func ParsePresharedKey(text string) (PresharedKey, error) { return decode[PresharedKey](text) }

// ParsePublicKey parses the text of a public key. Keys with which any exchange gives zero are
// refused (RFC 7748 section 6.1).
func ParsePublicKey(text string) (PublicKey, error) {
	k, err := decode[PublicKey](text)
	if err != nil {
		return PublicKey{}, err
	}
	if !usable(k) {
		return PublicKey{}, errors.New("not a usable public key")
	}
	return k, nil
}

// usable reports whether an exchange with the key gives a secret.
func usable(k PublicKey) bool {
	public, err := ecdh.X25519().NewPublicKey(k[:])
	if err != nil {
		return false
	}
	one, err := ecdh.X25519().NewPrivateKey(append([]byte{64}, make([]byte, KeyLen-1)...))
	if err != nil {
		return false
	}
	_, err = one.ECDH(public)
	return err == nil
}

func encode[K ~[KeyLen]byte](k K) string {
	b := [KeyLen]byte(k)
	return base64.StdEncoding.EncodeToString(b[:])
}

func decode[K ~[KeyLen]byte](text string) (K, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != KeyLen {
		// The text is not repeated: it may be almost a private key.
		return K{}, fmt.Errorf("want a key: %d bytes in base64, 44 characters", KeyLen)
	}
	return K(b), nil
}
