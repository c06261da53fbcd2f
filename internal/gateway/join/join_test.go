package join

import (
	"crypto/rand"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

var (
	addresses = []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")}
	request   = Request{Name: "office", LAN: []netip.Prefix{netip.MustParsePrefix("192.168.8.0/24")}, Connected: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/24")}, IPv6: true}
	accepts   = Answer{
		Name: "vps", Own: netip.MustParseAddr("10.79.0.2"), Gateway: netip.MustParseAddr("10.79.0.1"),
		Own6: netip.MustParseAddr("fd12::2"), Gateway6: netip.MustParseAddr("fd12::1"),
	}
	prefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
)

func key(t testing.TB) handshake.PrivateKey {
	t.Helper()
	k, err := handshake.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func invite(t testing.TB, own handshake.PrivateKey) Invitation {
	t.Helper()
	i, err := Invite(own.Public(), 4790, addresses, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func begin(t testing.TB, i Invitation, own handshake.PrivateKey) (*Exchange, []byte) {
	t.Helper()
	e, message, err := Begin(i, own, request, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return e, message
}

// TestJoin: the holder of the invitation joins once; the same message gets the same answer, another
// one none.
func TestJoin(t *testing.T) {
	vps, site := key(t), key(t)
	i, err := Parse(" '" + invite(t, vps).Text() + "'\n")
	if err != nil || i.Public != vps.Public() || i.Port != 4790 || !cmp.Equal(i.Addresses, addresses, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
		t.Fatalf("parsed %v at %v, %v", i.Public, i.Addresses, err)
	}
	refusing := true
	h := NewHost(vps, i, func(peer handshake.PublicKey, r Request) Answer {
		if peer != site.Public() || !cmp.Equal(r, request, prefixes) {
			t.Errorf("%v requests %+v", peer, r)
		}
		if refusing {
			return Answer{Refused: "not now"}
		}
		return accepts
	}, rand.Reader)
	e, first := begin(t, i, site)
	answer, err := h.Answer(first)
	if err != nil || h.Done() {
		t.Fatalf("done %t, %v", h.Done(), err)
	}
	if got, err := e.Finish(answer); got.Refused != "not now" || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	refusing = false
	e, first = begin(t, i, site)
	if answer, err = h.Answer(first); err != nil || !h.Done() {
		t.Fatalf("done %t, %v", h.Done(), err)
	}
	if _, err := e.Finish(append([]byte{1}, answer...)); !errors.Is(err, ErrRefused) {
		t.Errorf("a forged answer: %v", err)
	}
	again, err := h.Answer(first)
	if err != nil || string(again) != string(answer) {
		t.Errorf("the same message got another answer: %v", err)
	}
	if got, err := e.Finish(answer); got != accepts || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, other := begin(t, i, key(t)); true {
		if _, err := h.Answer(other); !errors.Is(err, ErrRefused) {
			t.Errorf("a second gateway joined: %v", err)
		}
	}
}

// TestNames: a peer may have the names that a configuration may have.
func TestNames(t *testing.T) {
	for name, want := range map[string]bool{"office": true, "gw.example": true, "-a": false, "gw-example-": false, "": false, "a b": false, strings.Repeat("a", 33): false} {
		if err := (&Request{Name: name}).check(); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestAnswers: the addresses of an answer are private, those of IPv6 both there or both absent.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		own6, gateway6 string
		want           bool
	}{{"", "", true}, {"fd12::2", "fd12::1", true}, {"fd12::2", "", false}, {"", "fd12::1", false}, {"fd12::1", "fd12::1", false},
		{"2001:db8::2", "fd12::1", false}, {"10.0.0.2", "10.0.0.1", false}, {"::ffff:10.0.0.2", "fd12::1", false}, {"fd12::2%a", "fd12::1", false}} {
		a := accepts
		if err := errors.Join(a.Own6.UnmarshalText([]byte(tt.own6)), a.Gateway6.UnmarshalText([]byte(tt.gateway6))); err != nil {
			t.Fatal(err)
		}
		if err := a.check(); (err == nil) != tt.want {
			t.Errorf("%q, %q: %v", tt.own6, tt.gateway6, err)
		}
	}
	if _, err := Parse("tabane1:AAAA"); err == nil || !strings.Contains(err.Error(), "older version") {
		t.Errorf("a line of before: %v", err)
	}
}

// TestOthersAreRefused: without the secret, or for another gateway, nobody joins, and nothing is
// decided.
func TestOthersAreRefused(t *testing.T) {
	vps := key(t)
	i := invite(t, vps)
	h := NewHost(vps, i, func(handshake.PublicKey, Request) Answer { t.Error("asked"); return accepts }, rand.Reader)
	_, otherSecret := begin(t, invite(t, vps), key(t))
	wrong := i
	wrong.Public = key(t).Public()
	_, otherGateway := begin(t, wrong, key(t))
	_, changed := begin(t, i, key(t))
	changed[len(changed)-1] ^= 1
	_, short := begin(t, i, key(t))
	for name, message := range map[string][]byte{"secret": otherSecret, "gateway": otherGateway, "changed": changed, "short": short[:40], "none": nil, "long": make([]byte, MaxMessage+1)} {
		if _, err := h.Answer(message); !errors.Is(err, ErrRefused) || h.Done() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestParse: every damaged line is refused, and no error repeats the secret.
func TestParse(t *testing.T) {
	text := invite(t, key(t)).Text()
	for n := range text {
		for _, bad := range []string{text[:n], text[:n] + "_" + text[n+1:], text[n:]} {
			i, err := Parse(bad)
			if bad == text {
				continue
			}
			if err == nil {
				t.Fatalf("%q of %q gives %v", bad, text, i.Addresses)
			}
			if len(bad) > 20 && strings.Contains(err.Error(), bad[10:]) {
				t.Fatalf("%v repeats the text", err)
			}
		}
	}
}

// TestOtherVersions: the invitation of another version says who is to be upgraded, that of none that
// it is none.
func TestOtherVersions(t *testing.T) {
	rest := strings.TrimPrefix(invite(t, key(t)).Text(), prefix)
	for begin, want := range map[string]string{
		"tabane2:": "upgrade it", "tabane1:": "upgrade it", "tabane4:": "upgrade this host", "tabane10:": "upgrade this host",
		"tabane:": "does not begin", "tabanex:": "does not begin", "wg2:": "does not begin", "": "does not begin", "tabane3:x": "not complete",
	} {
		_, err := Parse(begin + rest)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), rest[:10]) {
			t.Errorf("%q: %v, want %q", begin, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(invite(f, key(f)).Text())
	f.Fuzz(func(t *testing.T, text string) {
		i, err := Parse(text)
		if err != nil {
			return
		}
		accessor.Call(t, i)
		if back, err := Parse(i.Text()); err != nil || back.Text() != i.Text() {
			t.Errorf("%v does not survive: %v", i.Addresses, err)
		}
	})
}

// FuzzRequest has a holder of the secret send any text.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"name":"a","lan":["10.0.0.0/8"],"connected":[]}`))
	vps, site := key(f), key(f)
	i := invite(f, vps)
	f.Fuzz(func(t *testing.T, text []byte) {
		state, err := i.state(site, true, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		message, _, _, err := state.WriteMessage(nil, text)
		if err != nil {
			return // too long for Noise
		}
		h := NewHost(vps, i, func(_ handshake.PublicKey, r Request) Answer {
			if err := r.check(); err != nil {
				t.Error(err)
			}
			return accepts
		}, rand.Reader)
		answer, err := h.Answer(append(i.mac(message), message...))
		if err != nil {
			return
		}
		if got, err := (&Exchange{state}).Finish(answer); err != nil || (got.Refused == "") != h.Done() {
			t.Errorf("answered %+v, %v", got, err)
		}
	})
}

// FuzzAnswer reads any message.
func FuzzAnswer(f *testing.F) {
	vps, site := key(f), key(f)
	i := invite(f, vps)
	_, first := begin(f, i, site)
	f.Add(first)
	f.Fuzz(func(t *testing.T, message []byte) {
		h := NewHost(vps, i, func(handshake.PublicKey, Request) Answer { return accepts }, rand.Reader)
		if _, err := h.Answer(message); err == nil != h.Done() {
			t.Errorf("done %t, %v", h.Done(), err)
		}
		e, _ := begin(t, i, site)
		if a, err := e.Finish(message); err == nil {
			t.Errorf("a forged answer: %+v", a)
		}
	})
}
