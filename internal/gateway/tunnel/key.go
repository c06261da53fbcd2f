package tunnel

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"
)

// Suite is an authenticated encryption with a key of KeyLen bytes, a nonce of 12 and a tag of
// TagLen.
type Suite uint8

const (
	AES256GCM        Suite = iota + 1 // NIST SP 800-38D
	ChaCha20Poly1305                  // RFC 8439
)

func (s Suite) String() string {
	switch s {
	case AES256GCM:
		return "AES-256-GCM"
	case ChaCha20Poly1305:
		return "ChaCha20-Poly1305"
	}
	return fmt.Sprintf("suite %d", uint8(s))
}

// FastestSuite returns the suite that this CPU is fast at.
func FastestSuite() Suite {
	if cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ || cpu.ARM64.HasAES && cpu.ARM64.HasPMULL || cpu.S390X.HasAESGCM {
		return AES256GCM
	}
	return ChaCha20Poly1305
}

// KeyLen is the length of a key in bytes.
const KeyLen = 32

// Key seals or opens the messages of one direction and epoch. It is safe for concurrent use.
type Key struct{ aead cipher.AEAD }

// NewKey returns the key made of a secret, which only this direction and epoch use.
func NewKey(s Suite, secret [KeyLen]byte) (*Key, error) {
	switch s {
	case AES256GCM:
		block, err := aes.NewCipher(secret[:])
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		return &Key{aead}, err
	case ChaCha20Poly1305:
		aead, err := chacha20poly1305.New(secret[:])
		return &Key{aead}, err
	}
	return nil, fmt.Errorf("unknown %v", s)
}

// errForged is the error of a message that was not sealed with this key, or was changed.
var errForged = errors.New("message is not authentic")

// nonceAt is where the nonce begins in a message. It is unique under a key, because a counter is
// used once on a path.
const nonceAt = 4

// Seal completes a message in place and returns it. The packet is buf[Offset:]; its header and
// stamp are written before it, and the tag after it: buf has room for TagLen bytes more.
func (k *Key) Seal(buf []byte, h Header, s Stamp) []byte {
	if len(buf) < Offset || cap(buf)-len(buf) < TagLen {
		panic("BUG: no room to seal a packet in")
	}
	if h.Path >= MaxPaths || h.Counter >= MaxCounter {
		panic("BUG: path or counter out of range, a nonce would be used twice")
	}
	h.put(buf)
	s.put(buf[HeaderLen:], h.Type)
	return k.aead.Seal(buf[:HeaderLen], buf[nonceAt:HeaderLen], buf[HeaderLen:], buf[:HeaderLen])
}

// Open authenticates and decrypts a message in place. The packet is part of the message. The caller
// has parsed its header, found the key by it, and rejected a counter that is not Fresh.
func (k *Key) Open(message []byte) (Stamp, []byte, error) {
	if len(message) < Overhead {
		return Stamp{}, nil, errShort
	}
	plain, err := k.aead.Open(message[HeaderLen:HeaderLen], message[nonceAt:HeaderLen], message[HeaderLen:], message[:HeaderLen])
	if err != nil {
		return Stamp{}, nil, errForged
	}
	return parseStamp(plain, Type(message[0])), plain[StampLen:], nil
}
