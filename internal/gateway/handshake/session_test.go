package handshake

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// random is a source of reproducible keys.
func random(seed byte) *rand.ChaCha8 { return rand.NewChaCha8([32]byte{seed}) }

func newKey(t testing.TB, seed byte) PrivateKey {
	t.Helper()
	k, err := GenerateKey(random(seed))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var at = TimestampOf(time.Date(2026, 11, 22, 12, 0, 0, 5, time.UTC))

const both = Suites(3)

// side is a gateway in a test.
type side struct {
	key   PrivateKey
	guard *Guard
}

func pair(t testing.TB) (a, b *side) {
	one, two := newKey(t, 1), newKey(t, 2)
	return &side{one, NewGuard(one.Public(), random(11))}, &side{two, NewGuard(two.Public(), random(12))}
}

var from = netip.MustParseAddrPort("192.0.2.1:4790")

func begin(t testing.TB, a *side, peer Peer) (*Initiation, []byte) {
	t.Helper()
	i, message, err := Initiate(a.key, peer, 0x01020304, at, both, random(21))
	if err != nil {
		t.Fatal(err)
	}
	return i, message
}

func read(t testing.TB, b *side, message []byte) *Request {
	t.Helper()
	if v, _, err := b.guard.Judge(message, from, false, 0); v != Admitted || err != nil {
		t.Fatalf("verdict %d, %v", v, err)
	}
	r, err := ReadInitiation(b.key, message, random(22))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func answer(t testing.TB, b *side, r *Request, psk PresharedKey) (Keys, []byte) {
	t.Helper()
	keys, message, err := r.Answer(psk, 0x0a0b0c0d, 2, NewResponseProof(b.key, Peer{r.Peer, psk}))
	if err != nil {
		t.Fatal(err)
	}
	return keys, message
}

func TestHandshake(t *testing.T) {
	for _, psk := range []PresharedKey{{}, {1, 2, 3}} {
		a, b := pair(t)
		i, message := begin(t, a, Peer{b.key.Public(), psk})
		if len(message) != InitiationLen {
			t.Errorf("initiation of %d bytes, want %d", len(message), InitiationLen)
		}
		r := read(t, b, message)
		if r.Peer != a.key.Public() || r.Time != at || r.Offers != both {
			t.Errorf("request %+v", r)
		}
		theirs, response := answer(t, b, r, psk)
		if len(response) != ResponseLen || len(response) > len(message) {
			t.Errorf("response of %d bytes to an initiation of %d", len(response), len(message))
		}
		proof := NewResponseProof(a.key, Peer{b.key.Public(), psk})
		if !a.guard.Addressed(response) || b.guard.Addressed(response) || !proof.Proves(response) || proof.Proves(response[1:]) {
			t.Error("the response is not for the initiator, or not proved to be the peer's")
		}
		if v, _, _ := a.guard.Judge(response, from, false, 0); v != Stranger {
			t.Errorf("response as initiation: verdict %d", v)
		}
		for name, k := range map[string]ResponseProof{
			"without the preshared key": NewResponseProof(a.key, Peer{b.key.Public(), PresharedKey{9}}),
			"of another gateway":        NewResponseProof(newKey(t, 9), Peer{b.key.Public(), psk}), "of nobody": {},
		} {
			if k.Proves(response) {
				t.Errorf("a response is proved by the key %s", name)
			}
		}
		ours, err := i.Finish(response)
		if err != nil {
			t.Fatal(err)
		}
		if ours.Send != theirs.Receive || ours.Receive != theirs.Send || ours.Send == ours.Receive || ours.Send == [KeyLen]byte{} {
			t.Errorf("keys %+v and %+v", ours, theirs)
		}
		if ours.Local != 0x01020304 || ours.Remote != 0x0a0b0c0d || theirs.Local != ours.Remote || theirs.Remote != ours.Local {
			t.Errorf("indices %+v and %+v", ours, theirs)
		}
		if ours.Suite != 2 || theirs.Suite != 2 || ours.Peer != b.key.Public() || theirs.Peer != a.key.Public() {
			t.Errorf("sessions %+v and %+v", ours, theirs)
		}
	}
}

// Each bit of both messages matters, and a refused response does not end the handshake.
func TestChangedMessages(t *testing.T) {
	a, b := pair(t)
	i, message := begin(t, a, Peer{Public: b.key.Public()})
	for n := range message {
		changed := bytes.Clone(message)
		changed[n] ^= 0x10
		v, _, err := NewGuard(b.key.Public(), random(12)).Judge(changed, from, false, 0)
		if err != nil {
			t.Fatal(err)
		}
		if hashed := n < InitiationLen-macLen; (v == Stranger) != hashed {
			t.Errorf("byte %d: verdict %d", n, v)
		}
		// What is behind the guard refuses it too.
		if n >= headLen && n < headLen+indexLen || n >= InitiationLen-2*macLen {
			continue
		}
		if _, err := ReadInitiation(b.key, changed, random(22)); !errors.Is(err, ErrRefused) {
			t.Errorf("byte %d of an initiation: %v", n, err)
		}
	}
	_, response := answer(t, b, read(t, b, message), PresharedKey{})
	for n := range response[:ResponseLen-2*macLen] {
		changed := bytes.Clone(response)
		changed[n] ^= 0x10
		if n >= headLen && n < headLen+indexLen {
			continue // the index of the other side, which the hashes protect
		}
		if _, err := i.Finish(changed); !errors.Is(err, ErrRefused) {
			t.Errorf("byte %d of a response: %v", n, err)
		}
	}
	for n := range 2 * InitiationLen {
		short := make([]byte, n)
		copy(short, message)
		if n == InitiationLen {
			continue
		}
		if _, err := ReadInitiation(b.key, short, nil); !errors.Is(err, ErrRefused) {
			t.Errorf("initiation of %d bytes: %v", n, err)
		}
		if v, reply, _ := b.guard.Judge(short, from, true, 0); v != Stranger || reply != nil {
			t.Errorf("initiation of %d bytes: verdict %d", n, v)
		}
		if _, err := i.Finish(short); !errors.Is(err, ErrRefused) {
			t.Errorf("response of %d bytes: %v", n, err)
		}
	}
	if _, err := i.Finish(response); err != nil {
		t.Errorf("the right response after wrong ones: %v", err)
	}
}

func TestWrongKeys(t *testing.T) {
	a, b := pair(t)
	other := newKey(t, 9).Public()
	_, message := begin(t, a, Peer{Public: other})
	if v, _, _ := b.guard.Judge(message, from, true, 0); v != Stranger {
		t.Errorf("initiation for another gateway: verdict %d", v)
	}
	if _, err := ReadInitiation(b.key, message, nil); !errors.Is(err, ErrRefused) {
		t.Errorf("initiation for another gateway: %v", err)
	}
	// Without the preshared key the initiator does not accept the response.
	i, message := begin(t, a, Peer{b.key.Public(), PresharedKey{1}})
	_, response := answer(t, b, read(t, b, message), PresharedKey{2})
	if _, err := i.Finish(response); !errors.Is(err, ErrRefused) {
		t.Errorf("other preshared key: %v", err)
	}
	if _, _, err := read(t, b, message).Answer(PresharedKey{}, 1, 3, ResponseProof{}); !errors.Is(err, ErrRefused) {
		t.Errorf("encryption that is not offered: %v", err)
	}
}

// While a gateway is busy, an initiation gets a cookie, and is admitted with it from the same
// address only and for a time.
func TestCookie(t *testing.T) {
	a, b := pair(t)
	peer := Peer{Public: b.key.Public()}
	i, message := begin(t, a, peer)
	v, reply, err := b.guard.Judge(message, from, true, 0)
	if v != Unproven || err != nil || len(reply) != CookieLen || len(reply) > len(message) {
		t.Fatalf("verdict %d, %d bytes, %v", v, len(reply), err)
	}
	if index := reply[headLen : headLen+indexLen]; !bytes.Equal(index, message[headLen:headLen+indexLen]) {
		t.Errorf("cookie for session %x", index)
	}
	for n := headLen; n < CookieLen; n++ {
		changed := bytes.Clone(reply)
		changed[n] ^= 1
		if c, err := i.Cookie(changed, 0); !errors.Is(err, ErrRefused) || c.Usable(0) {
			t.Errorf("cookie with byte %d changed: %v", n, err)
		}
	}
	// stranger did not send the message that the cookie answers.
	stranger, _ := begin(t, &side{newKey(t, 7), nil}, peer)
	if _, err := stranger.Cookie(reply, 0); !errors.Is(err, ErrRefused) {
		t.Errorf("cookie for another message: %v", err)
	}
	if _, err := i.Cookie(reply[:CookieLen-1], 0); !errors.Is(err, ErrRefused) {
		t.Errorf("short cookie: %v", err)
	}
	c, err := i.Cookie(reply, 0)
	if err != nil {
		t.Fatal(err)
	}
	unstamped := message
	if message = c.Stamp(message, 0); !Same(message, unstamped) || bytes.Equal(message, unstamped) {
		t.Error("a stamped initiation differs in more, or nothing")
	}
	for name, tt := range map[string]struct {
		from netip.AddrPort
		at   time.Duration
		want Verdict
	}{
		"same address":    {from, time.Minute, Admitted},
		"mapped address":  {netip.MustParseAddrPort("[::ffff:192.0.2.1]:4790"), time.Minute, Admitted},
		"another port":    {netip.MustParseAddrPort("192.0.2.1:4791"), time.Minute, Unproven},
		"another address": {netip.MustParseAddrPort("192.0.2.2:4790"), time.Minute, Unproven},
	} {
		if v, _, _ := b.guard.Judge(message, tt.from, true, tt.at); v != tt.want {
			t.Errorf("%s: verdict %d, want %d", name, v, tt.want)
		}
	}
	if v, _, _ := b.guard.Judge(message, from, true, cookieAge); v != Unproven {
		t.Errorf("cookie of an old secret: verdict %d", v)
	}
	if old := c.Stamp(unstamped, cookieAge); !bytes.Equal(old, unstamped) || c.Usable(cookieAge) {
		t.Error("an old cookie is used")
	}
	if none := (Cookie{}).Stamp(unstamped, 0); !bytes.Equal(none, unstamped) {
		t.Error("no cookie is used")
	}
	if _, err := i.Finish(reply); !errors.Is(err, ErrRefused) {
		t.Errorf("cookie as response: %v", err)
	}
}

func TestTimestampsOrder(t *testing.T) {
	base := time.Date(2026, 11, 22, 12, 0, 0, 999_999_999, time.UTC)
	early, late := TimestampOf(base), TimestampOf(base.Add(1))
	if bytes.Compare(early[:], late[:]) >= 0 {
		t.Errorf("%x is not before %x", early, late)
	}
}

func TestKeyText(t *testing.T) {
	k := newKey(t, 1)
	if got, err := ParsePrivateKey(k.Text()); err != nil || got != k {
		t.Errorf("parsed %v", err)
	}
	if got, err := ParsePublicKey(k.Public().String()); err != nil || got != k.Public() {
		t.Errorf("parsed %v, %v", got, err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", k, k, k, PresharedKey(k)); strings.Contains(text, k.Text()) || strings.Contains(text, fmt.Sprint(k[3])) {
		t.Errorf("a private key prints as %q", text)
	}
	for _, text := range []string{"", "x", k.Text()[:43], k.Text() + "A", strings.Repeat("A", 43) + "="} {
		if _, err := ParsePrivateKey(text); err == nil || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q is a key or in the error: %v", text, err)
		}
	}
	// Points of low order (RFC 7748 section 6.1).
	for _, low := range []PublicKey{{}, {1}, {0xec, 0xff}} {
		if low[0] == 0xec {
			for n := 1; n < KeyLen-1; n++ {
				low[n] = 0xff
			}
			low[KeyLen-1] = 0x7f
		}
		if _, err := ParsePublicKey(low.String()); err == nil {
			t.Errorf("%s is accepted", low)
		}
	}
	if _, err := GenerateKey(bytes.NewReader(make([]byte, 31))); err == nil {
		t.Error("a key without randomness")
	}
}

func FuzzMessages(f *testing.F) {
	a, b := pair(f)
	i, message := begin(f, a, Peer{Public: b.key.Public()})
	r := read(f, b, message)
	_, response := answer(f, b, r, PresharedKey{})
	_, cookie, _ := b.guard.Judge(message, from, true, 0)
	for _, m := range [][]byte{message, response, cookie, {}} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		v, reply, err := b.guard.Judge(m, from, true, 0)
		if err != nil || len(reply) > len(m) {
			t.Fatalf("verdict %d, reply of %d bytes to %d, %v", v, len(reply), len(m), err)
		}
		if proof := NewResponseProof(a.key, Peer{Public: b.key.Public()}); proof.Proves(m) && !bytes.Equal(m, response) {
			t.Errorf("% x is proved to be a response", m)
		}
		Same(m, message)
		if v != Stranger && !bytes.Equal(m[:len(message)-macLen], message[:len(message)-macLen]) {
			t.Errorf("% x gets an answer", m)
		}
		read, err := ReadInitiation(b.key, m, random(1))
		accessor.Call(t, v, read, err)
		if keys, err := i.Finish(m); err == nil && (!bytes.Equal(m[headLen+indexLen:ResponseLen-2*macLen], response[headLen+indexLen:ResponseLen-2*macLen]) || keys.Local != i.Local()) {
			t.Errorf("% x is accepted as response", m)
		}
		if _, err := i.Cookie(m, 0); err == nil && !bytes.Equal(m, cookie) {
			t.Errorf("% x is accepted as cookie", m)
		}
	})
}

// BenchmarkStranger is what a message of somebody without the public key costs.
func BenchmarkStranger(b *testing.B) {
	_, other := pair(b)
	message := make([]byte, InitiationLen)
	message[0] = typeInitiation
	b.ReportAllocs()
	for b.Loop() {
		if v, _, _ := other.guard.Judge(message, from, true, 0); v != Stranger {
			b.Fatal(v)
		}
	}
}

func BenchmarkHandshake(b *testing.B) {
	one, two := pair(b)
	for b.Loop() {
		two.guard = NewGuard(two.key.Public(), random(12)) // one sender has a limit
		i, message := begin(b, one, Peer{Public: two.key.Public()})
		_, response := answer(b, two, read(b, two, message), PresharedKey{})
		if _, err := i.Finish(response); err != nil {
			b.Fatal(err)
		}
	}
}

// TestOtherVersion: an initiation that a gateway of version 1 has sent, with the keys of pair, is
// refused by the reason that docs/wire.md has, and names the gateway.
func TestOtherVersion(t *testing.T) {
	a, b := pair(t)
	text, err := os.ReadFile("testdata/initiation-version1.hex")
	if err != nil {
		t.Fatal(err)
	}
	message, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = ReadInitiation(b.key, message, random(22))
	var other *VersionError
	if !errors.As(err, &other) || !errors.Is(err, ErrRefused) || other.Peer != a.key.Public() || other.Version != 1 {
		t.Fatalf("an initiation of version 1: %v", err)
	}
	document, err := os.ReadFile("../../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"`" + other.Error() + "`", fmt.Sprintf("the version %d, and the encryptions", version)} {
		if !strings.Contains(string(document), want) {
			t.Errorf("docs/wire.md does not have %q", want)
		}
	}
}
