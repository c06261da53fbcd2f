package request

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// TestRequests: requests are decoded with what follows left, and each beginning of one is short.
func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		protocol Protocol
		text     string
		want     Destination
	}{
		{SOCKS5, "\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50", Destination{Address: netip.MustParseAddr("192.0.2.1"), Port: 80}},
		{SOCKS5, "\x05\x01\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x01\xbb", Destination{Address: netip.MustParseAddr("2001:db8::1"), Port: 443}},
		{SOCKS5, "\x05\x01\x00\x03\x0ahq.example\x01\xbb", Destination{Name: "hq.example", Port: 443}},
		{SOCKS5, "\x05\x01\x00\x03\x09192.0.2.1\x01\xbb", Destination{Address: netip.MustParseAddr("192.0.2.1"), Port: 443}},
		{CONNECT, "CONNECT hq.example:443 HTTP/1.1\r\nHost: hq.example:443\r\n\r\n", Destination{Name: "hq.example", Port: 443}},
		{CONNECT, "CONNECT [2001:db8::1]:443 HTTP/1.0\r\n\r\n", Destination{Address: netip.MustParseAddr("2001:db8::1"), Port: 443}},
	} {
		decode := DecodeConnect
		if tt.protocol == SOCKS5 {
			decode = DecodeSOCKS
		}
		for i := range len(tt.text) {
			if _, _, err := decode([]byte(tt.text[:i])); !errors.Is(err, ErrShort) {
				t.Errorf("%q: %v", tt.text[:i], err)
			}
		}
		d, n, err := decode([]byte(tt.text + "data"))
		if err != nil || n != len(tt.text) || d != tt.want {
			t.Errorf("%q is decoded as %v, %d bytes of %d, %v", tt.text, d, n, len(tt.text), err)
		}
		if p, err := DetectProtocol(tt.text[0]); p != tt.protocol || err != nil {
			t.Errorf("%q is of %v, %v", tt.text, p, err)
		}
	}
}

func TestGreeting(t *testing.T) {
	for text, want := range map[string]string{"\x05\x01\x00": "\x05\x00", "\x05\x02\x02\x00rest": "\x05\x00"} {
		if answer, n, err := DecodeGreeting([]byte(text)); string(answer) != want || n != 2+int(text[1]) || err != nil {
			t.Errorf("%q: %q, %d, %v", text, answer, n, err)
		}
	}
	if answer, _, err := DecodeGreeting([]byte("\x05\x01\x02")); string(answer) != "\x05\xff" || err == nil {
		t.Errorf("a client with a password is answered %q, %v", answer, err)
	}
}

func TestFaults(t *testing.T) {
	for text, want := range map[string]Failure{
		"\x05\x02\x00\x01\xc0\x00\x02\x01\x00\x50":                         BadCommand,
		"\x05\x01\x00\x02\xc0\x00\x02\x01\x00\x50":                         BadAddress,
		"\x04\x01\x00\x01\xc0\x00\x02\x01\x00\x50":                         Malformed,
		"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x00":                         Malformed,
		"\x05\x01\x00\x03\x00\x00\x50":                                     Malformed,
		"\x05\x01\x00\x03\x03a\x00b\x00\x50":                               Malformed,
		"GET http://hq.example/ HTTP/1.1\r\n\r\n":                          BadCommand,
		"CONNECT hq.example HTTP/1.1\r\n\r\n":                              Malformed,
		"CONNECT hq.example:0 HTTP/1.1\r\n\r\n":                            Malformed,
		"CONNECT hq.example:65536 HTTP/1.1\r\n\r\n":                        Malformed,
		"CONNECT ::1:443 HTTP/1.1\r\n\r\n":                                 Malformed,
		"CONNECT [192.0.2.1]:443 HTTP/1.1\r\n\r\n":                         Malformed,
		"CONNECT [fe80::1%lo]:443 HTTP/1.1\r\n\r\n":                        Malformed,
		"CONNECT -..x:443 HTTP/1.1\r\n\r\n":                                Malformed,
		"CONNECT hq.example:443 HTTP/2\r\n\r\n":                            Malformed,
		"CONNECT " + strings.Repeat("a", MaxLength):                        Malformed,
		"CONNECT a:1 HTTP/1.1\r\n" + strings.Repeat("a: b\r\n", MaxLength): Malformed,
	} {
		decode := DecodeConnect
		if text[0] < 'A' {
			decode = DecodeSOCKS
		}
		_, _, err := decode([]byte(text))
		var fault *Error
		if !errors.As(err, &fault) || fault.Failure != want {
			t.Errorf("%.40q: %v, want failure %d", text, err, want)
		}
	}
	if _, err := DetectProtocol(0x16); err == nil {
		t.Error("TLS is a request")
	}
}

// TestAnswers: each failure has an answer in each protocol, which is not that of success.
func TestAnswers(t *testing.T) {
	for f := General; f <= Malformed; f++ {
		if b := SOCKS5.Failed(f); len(b) != 10 || b[1] == 0 {
			t.Errorf("SOCKS5 answer to failure %d is %x", f, b)
		}
		if b := string(CONNECT.Failed(f)); !strings.HasPrefix(b, "HTTP/1.1 4") && !strings.HasPrefix(b, "HTTP/1.1 5") || !strings.HasSuffix(b, "\r\n\r\n") {
			t.Errorf("CONNECT answer to failure %d is %q", f, b)
		}
	}
	if b := SOCKS5.Succeeded(netip.MustParseAddrPort("[2001:db8::1]:258")); len(b) != 22 || b[1] != 0 || b[3] != 4 || b[20] != 1 || b[21] != 2 {
		t.Errorf("SOCKS5 success is %x", b)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x0ahq.example\x01\xbbdata"))
	f.Add([]byte("CONNECT hq.example:443 HTTP/1.1\r\n\r\ndata"))
	f.Add([]byte("CONNECT [::1]:443 HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(d Destination, n int, err error) {
			if n < 0 || n > len(b) && !errors.Is(err, ErrShort) {
				t.Fatalf("%d bytes of %d, %v", n, len(b), err)
			}
			if err == nil && (d.Port == 0 || d.Address.IsValid() == (d.Name != "") || d.Name != "" && !ValidName(d.Name)) {
				t.Fatalf("destination is %+v", d)
			}
			accessor.Call(t, d)
		}
		check(DecodeSOCKS(b))
		check(DecodeConnect(b))
		if answer, n, err := DecodeGreeting(b); err == nil && (len(answer) != 2 || n > len(b)) {
			t.Fatalf("greeting of %d bytes is answered %x", n, answer)
		}
	})
}
