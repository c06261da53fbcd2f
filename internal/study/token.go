package study

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// signer signs what browsers carry, with the key in the database.
type signer []byte

const (
	macBytes   = 16
	nonceBytes = 16
	// maxToken is longer than any token, in characters.
	maxToken = 128
	// consentAge is how long a consent form can be posted, handoverAge how long a hand-over is good
	// for.
	consentAge  = 24 * time.Hour
	handoverAge = time.Minute
)

// The purposes of signatures: one is not good for another.
const (
	forSession  = "session"
	forConsent  = "consent"
	forForm     = "form"
	forHandover = "handover"
)

var (
	errToken   = errors.New("the token is not signed by this study")
	errExpired = errors.New("the token has expired")
)

var encoding = base64.RawURLEncoding.Strict()

func (k signer) mac(purpose string, value []byte) []byte {
	h := hmac.New(sha256.New, k)
	_ = binary.Write(h, binary.BigEndian, uint32(len(purpose))) // never fails
	h.Write([]byte(purpose))
	h.Write(value)
	return h.Sum(nil)[:macBytes]
}

// sign returns a value with its signature, as text.
func (k signer) sign(purpose string, value []byte) string {
	return encoding.EncodeToString(append(value[:len(value):len(value)], k.mac(purpose, value)...))
}

// verify returns a signed value, which must have a length.
func (k signer) verify(purpose, text string, length int) ([]byte, error) {
	if len(text) > maxToken {
		return nil, errToken
	}
	b, err := encoding.DecodeString(text)
	if err != nil || len(b) != length+macBytes || !hmac.Equal(b[length:], k.mac(purpose, b[:length])) {
		return nil, errToken
	}
	return b[:length], nil
}

// cookie returns the value of a session's cookie, and session its id.
func (k signer) cookie(id [idBytes]byte) string { return k.sign(forSession, id[:]) }

func (k signer) session(cookie string) (id [idBytes]byte, err error) {
	b, err := k.verify(forSession, cookie, idBytes)
	copy(id[:], b)
	return id, err
}

// consent returns the token of a consent form at a time since the epoch.
func (k signer) consent(now time.Duration) string {
	b := make([]byte, nonceBytes, nonceBytes+8)
	_, _ = rand.Read(b) // never fails
	return k.sign(forConsent, binary.BigEndian.AppendUint64(b, uint64(now)))
}

// consented returns the nonce of a consent form.
func (k signer) consented(token string, now time.Duration) ([]byte, error) {
	b, err := k.verify(forConsent, token, nonceBytes+8)
	if err != nil {
		return nil, err
	}
	return b[:nonceBytes], checkAge(b[nonceBytes:], now, consentAge)
}

// form returns the token of a form of a session, for an action at a position.
func (k signer) form(id [idBytes]byte, action string, position int) string {
	return encoding.EncodeToString(k.mac(forForm, fmt.Appendf(nil, "%s %d %s", id, position, action)))
}

func (k signer) isForm(token string, id [idBytes]byte, action string, position int) bool {
	return hmac.Equal([]byte(token), []byte(k.form(id, action, position)))
}

// handoverBytes is the length of a hand-over: the session, a nonce, the condition, the time.
const handoverBytes = idBytes + nonceBytes + 2 + 8

// handover returns the token by which the origin of a condition takes a session over.
func (k signer) handover(id [idBytes]byte, nonce []byte, condition int, now time.Duration) string {
	b := append(id[:], nonce...)
	b = binary.BigEndian.AppendUint16(b, uint16(condition))
	return k.sign(forHandover, binary.BigEndian.AppendUint64(b, uint64(now)))
}

// accept returns what a hand-over to the condition has. Whether its nonce is used up is for the
// caller.
func (k signer) accept(token string, condition int, now time.Duration) (id [idBytes]byte, nonce []byte, err error) {
	b, err := k.verify(forHandover, token, handoverBytes)
	if err != nil {
		return id, nil, err
	}
	copy(id[:], b)
	rest := b[idBytes:]
	nonce, rest = rest[:nonceBytes], rest[nonceBytes:]
	if int(binary.BigEndian.Uint16(rest)) != condition {
		return id, nil, errToken
	}
	return id, nonce, checkAge(rest[2:], now, handoverAge)
}

// checkAge returns errExpired unless the time at the start of b is in the past, and at most as long
// ago.
func checkAge(b []byte, now, most time.Duration) error {
	if age := now - time.Duration(binary.BigEndian.Uint64(b)); age < 0 || age > most {
		return errExpired
	}
	return nil
}
