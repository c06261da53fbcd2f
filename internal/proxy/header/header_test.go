package header

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// TestHeader: what is appended is decoded again, in each version, also byte by byte.
func TestHeader(t *testing.T) {
	for _, tt := range []struct {
		h    Header
		line string // of version 1
	}{
		{Header{at("192.0.2.1:1000"), at("198.51.100.1:443")}, "PROXY TCP4 192.0.2.1 198.51.100.1 1000 443\r\n"},
		{Header{at("[2001:db8::1]:1000"), at("[2001:db8::2]:443")}, "PROXY TCP6 2001:db8::1 2001:db8::2 1000 443\r\n"},
		{Header{}, "PROXY UNKNOWN\r\n"},
	} {
		if got := string(tt.h.Append(nil, V1)); got != tt.line {
			t.Errorf("version 1 of %v is %q, want %q", tt.h, got, tt.line)
		}
		for _, v := range []Version{V1, V2} {
			b := tt.h.Append(nil, v)
			for i := range b {
				if _, _, err := Decode(b[:i]); !errors.Is(err, ErrShort) {
					t.Errorf("version %d, %d bytes of %d: %v", v, i, len(b), err)
				}
			}
			got, n, err := Decode(append(b[:len(b):len(b)], "data"...))
			if err != nil || n != len(b) || got != tt.h {
				t.Errorf("version %d of %v is decoded as %v, %d bytes of %d, %v", v, tt.h, got, n, len(b), err)
			}
		}
	}
}

// TestMixedFamilies: a client of one family and a destination of the other are both IPv6.
func TestMixedFamilies(t *testing.T) {
	for _, v := range []Version{V1, V2} {
		h, _, err := Decode(Header{at("192.0.2.1:1"), at("[2001:db8::2]:2")}.Append(nil, v))
		if want := at("[::ffff:192.0.2.1]:1"); err != nil || h.Source != want {
			t.Errorf("version %d: source is %v, want %v (%v)", v, h.Source, want, err)
		}
	}
}

// TestTLVs: what follows the addresses of version 2 is skipped.
func TestTLVs(t *testing.T) {
	h := Header{at("192.0.2.1:1"), at("192.0.2.2:2")}
	b := append(h.Append(nil, V2), 0x20, 0, 1, 7)
	b[15] += 4
	if got, n, err := Decode(b); err != nil || n != len(b) || got != h {
		t.Errorf("got %v, %d bytes of %d, %v", got, n, len(b), err)
	}
}

func TestMalformed(t *testing.T) {
	v2 := Header{at("192.0.2.1:1"), at("192.0.2.2:2")}.Append(nil, V2)
	with := func(i int, x byte) string {
		b := bytes.Clone(v2)
		b[i] = x
		return string(b)
	}
	for _, text := range []string{
		"GET / HTTP/1.1\r\n", "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n", "PROXY TCP4 ::1 ::2 1 2\r\n", "PROXY TCP6 ::1%lo ::2 1 2\r\n",
		"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n", "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n", "PROXY TCP4 192.0.2.1 192.0.2.2 -1 2\r\n",
		"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n", "PROXY " + strings.Repeat("x", 200), "PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
		with(12, 0x11), with(12, 0x2f), with(14, 0xff), with(15, 4), with(0, 'x'),
	} {
		if h, n, err := Decode([]byte(text)); err == nil || errors.Is(err, ErrShort) {
			t.Errorf("%q is decoded as %v, %d bytes, %v", text, h, n, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, v := range []Version{V1, V2} {
		f.Add(Header{at("192.0.2.1:1"), at("192.0.2.2:2")}.Append(nil, v))
		f.Add(Header{at("[2001:db8::1]:1"), at("[2001:db8::2]:2")}.Append(nil, v))
		f.Add(Header{}.Append(nil, v))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := Decode(b)
		if err != nil {
			return
		}
		if n <= 0 || n > len(b) || n > MaxLength {
			t.Fatalf("%d bytes of %d", n, len(b))
		}
		accessor.Call(t, h)
		for _, v := range []Version{V1, V2} {
			again, _, err := Decode(h.Append(nil, v))
			if err != nil {
				t.Fatalf("version %d of %v: %v", v, h, err)
			}
			if h.Source.IsValid() && again.Source.Port() != h.Source.Port() {
				t.Fatalf("version %d of %v is %v", v, h, again)
			}
		}
	})
}
