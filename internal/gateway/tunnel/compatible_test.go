package tunnel

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

var (
	someProbe = CompatibleProbe{Path: 2, Number: 0x1234, Sent: 0x89abcdef, Agent: netip.MustParseAddr("192.0.2.1"), Member: netip.MustParseAddr("192.0.2.2")}
	someReply = CompatibleReply{Path: 2, Number: 0x1234, Sent: 0x89abcdef, Member: netip.MustParseAddr("192.0.2.2"), Held: 7, Jitter: 133_000}
)

// TestCompatible: the bytes are those of Fig. 5 of paper D, in packets of 60 and 64 bytes.
func TestCompatible(t *testing.T) {
	const zeros = "00000000000000000000000000000000"
	if got := hex.EncodeToString(someProbe.Append(nil)); got != "0002123489abcdefc0000201c0000202"+zeros || len(got)/2+28 != 60 {
		t.Errorf("probe %s", got)
	}
	if got := hex.EncodeToString(someReply.Append(nil)); got != "0002123489abcdefc00002020000000700020788"+zeros || len(got)/2+28 != 64 {
		t.Errorf("reply %s", got)
	}
	if p, err := ParseCompatibleProbe(someProbe.Append(nil)); err != nil || p != someProbe {
		t.Errorf("%+v, %v", p, err)
	}
	if r, err := ParseCompatibleReply(someReply.Append(nil)); err != nil || r != someReply {
		t.Errorf("%+v, %v", r, err)
	}
	six := someProbe
	six.Agent, six.Member = netip.MustParseAddr("2001:db8::1"), netip.Addr{}
	if p, err := ParseCompatibleProbe(six.Append([]byte{9})[1:]); err != nil || !p.Agent.IsUnspecified() || !p.Member.IsUnspecified() {
		t.Errorf("over IPv6: %+v, %v", p, err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short":         func(b []byte) []byte { return b[:len(b)-1] },
		"long":          func(b []byte) []byte { return append(b, 0) },
		"path 16":       func(b []byte) []byte { b[1] = MaxPaths; return b },
		"another type":  func(b []byte) []byte { b[0] = byte(Data); return b },
		"padding":       func(b []byte) []byte { b[len(b)-1] = 1; return b },
		"first padding": func(b []byte) []byte { b[len(b)-16] = 1; return b },
	} {
		if p, err := ParseCompatibleProbe(change(someProbe.Append(nil))); err == nil {
			t.Errorf("%s: probe %+v is accepted", name, p)
		}
		if r, err := ParseCompatibleReply(change(someReply.Append(nil))); err == nil {
			t.Errorf("%s: reply %+v is accepted", name, r)
		}
	}
}

// FuzzParseCompatible: what is accepted has one encoding, and is no message of another type.
func FuzzParseCompatible(f *testing.F) {
	f.Add(someProbe.Append(nil))
	f.Add(someReply.Append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, probeErr := ParseCompatibleProbe(b)
		r, replyErr := ParseCompatibleReply(b)
		accessor.Call(t, p, r)
		switch {
		case probeErr != nil && replyErr != nil:
			return
		case probeErr == nil && replyErr == nil:
			t.Errorf("% x is a probe and a reply", b)
		case probeErr == nil && !bytes.Equal(p.Append(nil), b), replyErr == nil && !bytes.Equal(r.Append(nil), b):
			t.Errorf("% x is accepted as %+v, %+v", b, p, r)
		}
		if b[0] != byte(Compatible) {
			t.Errorf("% x is accepted, and begins as a message of type %v", b, Type(b[0]))
		}
	})
}
