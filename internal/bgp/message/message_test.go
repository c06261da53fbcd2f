package message

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
)

// split cuts a stream into bodies of messages and their types.
func split(t *testing.T, b []byte, limit int) (bodies [][]byte, types []Type) {
	t.Helper()
	for len(b) > 0 {
		kind, length, err := ParseHeader(b, limit)
		if err != nil {
			t.Fatal(err)
		}
		if length > len(b) {
			t.Fatalf("%s of %d bytes, %d are there", kind, length, len(b))
		}
		bodies, types, b = append(bodies, b[HeaderLen:length]), append(types, kind), b[length:]
	}
	return bodies, types
}

// wantError checks for an *Error with this code and subcode.
func wantError(t *testing.T, err error, code, subcode uint8) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Code != code || e.Subcode != subcode || e.Detail == "" {
		t.Errorf("error %v, want %s", err, ErrorName(code, subcode))
	}
}

func TestHeader(t *testing.T) {
	header := func(length int, kind Type) []byte {
		b := begin(nil, kind)
		b[16], b[17] = byte(length>>8), byte(length)
		return b
	}
	for _, tt := range []struct {
		name          string
		b             []byte
		limit         int
		code, subcode uint8
		data          string
	}{
		{"keepalive", header(19, TypeKeepalive), MaxLen, 0, 0, ""},
		{"longest update", header(4096, TypeUpdate), MaxLen, 0, 0, ""},
		{"extended update", header(65535, TypeUpdate), MaxExtended, 0, 0, ""},
		{"marker", make([]byte, 19), MaxLen, CodeHeader, SubcodeNotSynchronized, ""},
		{"unknown type", header(19, 6), MaxLen, CodeHeader, SubcodeBadType, "\x06"},
		{"type 0", header(19, 0), MaxLen, CodeHeader, SubcodeBadType, "\x00"},
		{"update longer than negotiated", header(4097, TypeUpdate), MaxLen, CodeHeader, SubcodeBadLength, "\x10\x01"},
		{"extended open", header(4097, TypeOpen), MaxExtended, CodeHeader, SubcodeBadLength, "\x10\x01"},
		{"short open", header(28, TypeOpen), MaxLen, CodeHeader, SubcodeBadLength, "\x00\x1c"},
		{"short update", header(22, TypeUpdate), MaxLen, CodeHeader, SubcodeBadLength, "\x00\x16"},
		{"short notification", header(20, TypeNotification), MaxLen, CodeHeader, SubcodeBadLength, "\x00\x14"},
		{"long keepalive", header(20, TypeKeepalive), MaxLen, CodeHeader, SubcodeBadLength, "\x00\x14"},
		{"short refresh", header(22, TypeRouteRefresh), MaxLen, CodeHeader, SubcodeBadLength, "\x00\x16"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := ParseHeader(tt.b, tt.limit)
			if tt.code == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantError(t, err, tt.code, tt.subcode)
			if e := (*Error)(nil); errors.As(err, &e) && string(e.Data) != tt.data {
				t.Errorf("data %x, want %x", e.Data, tt.data)
			}
		})
	}
}

func TestOpenRoundTrip(t *testing.T) {
	id := addr("10.0.0.1")
	for _, o := range []Open{
		{ASN: 65000, HoldTime: 90, RouterID: id},
		{ASN: 4200000000, HoldTime: 0, RouterID: id, Capabilities: Capabilities{FourOctetAS: true, Families: Families(IPv6Unicast)}},
		{ASN: 65000, HoldTime: 3, RouterID: id, Capabilities: Capabilities{
			Families: Families(IPv4Unicast, IPv6Unicast, VPNv4, VPNv6), ExtendedNextHop: Families(IPv4Unicast, VPNv4),
			FourOctetAS: true, RouteRefresh: true, EnhancedRefresh: true, ExtendedMessage: true, Role: RolePeer,
			Restart: Restart{Advertised: true, Restarting: true, Time: 120, Families: Families(IPv6Unicast, VPNv6), Forwarding: Families(VPNv6)},
		}},
	} {
		bodies, types := split(t, o.Append(nil), MaxLen)
		if len(bodies) != 1 || types[0] != TypeOpen {
			t.Fatalf("%d messages, %v", len(bodies), types)
		}
		got, err := ParseOpen(bodies[0])
		if err != nil || got != o {
			t.Errorf("decoded as %+v, %v; want %+v", got, err, o)
		}
	}
}

// openBody returns the body of an OPEN with the rest after the router ID.
func openBody(rest ...byte) []byte {
	return append([]byte{4, 0xfd, 0xe8, 0, 90, 10, 0, 0, 1}, rest...)
}

func TestParseOpen(t *testing.T) {
	mp := []byte{2, 6, 1, 4, 0, 2, 0, 1}
	for _, tt := range []struct {
		name          string
		body          []byte
		code, subcode uint8
	}{
		{"no parameters", openBody(0), 0, 0},
		{"one parameter", openBody(append([]byte{8}, mp...)...), 0, 0},
		{"two parameters", openBody(append(append([]byte{16}, mp...), mp...)...), 0, 0},
		{"extended parameters", openBody(255, 255, 0, 9, 2, 0, 6, 1, 4, 0, 2, 0, 1), 0, 0},
		{"extended parameters with another length", openBody(9, 255, 0, 9, 2, 0, 6, 1, 4, 0, 2, 0, 1), 0, 0},
		{"unknown capability", openBody(6, 2, 4, 99, 2, 0, 0), 0, 0},
		{"version", append([]byte{3}, openBody(0)[1:]...), CodeOpen, SubcodeUnsupportedVersion},
		{"hold time 2", []byte{4, 0xfd, 0xe8, 0, 2, 10, 0, 0, 1, 0}, CodeOpen, SubcodeHoldTime},
		{"router ID 0", []byte{4, 0xfd, 0xe8, 0, 90, 0, 0, 0, 0, 0}, CodeOpen, SubcodeBadIdentifier},
		{"AS 0", []byte{4, 0, 0, 0, 90, 10, 0, 0, 1, 0}, CodeOpen, SubcodeBadPeerAS},
		{"AS 0 of four octets", openBody(8, 2, 6, 65, 4, 0, 0, 0, 0), CodeOpen, SubcodeBadPeerAS},
		{"extended parameters of length 0", openBody(0, 255, 0, 0), CodeOpen, 0},
		{"parameters too short", openBody(9, 2, 6, 1, 4, 0, 2, 0, 1), CodeOpen, 0},
		{"parameter cut off", openBody(1, 2), CodeOpen, 0},
		{"parameter too long", openBody(3, 2, 6, 1), CodeOpen, 0},
		{"authentication", openBody(3, 1, 1, 0), CodeOpen, SubcodeUnsupportedParameter},
		{"capability too long", openBody(5, 2, 3, 99, 9, 0), CodeOpen, 0},
		{"capability cut off", openBody(3, 2, 1, 99), CodeOpen, 0},
		{"multiprotocol of 3 bytes", openBody(7, 2, 5, 1, 3, 0, 2, 0), CodeOpen, 0},
		{"four-octet AS of 2 bytes", openBody(6, 2, 4, 65, 2, 0, 1), CodeOpen, 0},
		{"restart of 3 bytes", openBody(7, 2, 5, 64, 3, 0, 0, 0), CodeOpen, 0},
		{"extended next hop of 5 bytes", openBody(9, 2, 7, 5, 5, 0, 1, 0, 1, 0), CodeOpen, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, err := ParseOpen(tt.body)
			if tt.code != 0 {
				wantError(t, err, tt.code, tt.subcode)
				return
			}
			if err != nil || o.ASN != 65000 || o.HoldTime != 90 || o.RouterID != addr("10.0.0.1") {
				t.Errorf("decoded as %+v, %v", o, err)
			}
			if strings.Contains(tt.name, "parameters") && len(tt.body) > 10 && o.Families != Families(IPv6Unicast) {
				t.Errorf("families %s", o.Families)
			}
		})
	}
}

func TestNegotiate(t *testing.T) {
	all := Families(IPv4Unicast, IPv6Unicast, VPNv6)
	sent := Open{Capabilities: Capabilities{Families: all, FourOctetAS: true, ExtendedMessage: true, EnhancedRefresh: true, ExtendedNextHop: Families(VPNv4)}}
	n := Negotiate(sent, Open{})
	if n != (Negotiated{Families: Families(IPv4Unicast), ExtendedNextHopIn: Families(VPNv4)}) || n.MaxLen() != MaxLen {
		t.Errorf("with a neighbor without capabilities: %+v", n)
	}
	received := Capabilities{Families: Families(IPv6Unicast, VPNv4), FourOctetAS: true, RouteRefresh: true, ExtendedMessage: true,
		Restart: Restart{Advertised: true}}
	n = Negotiate(sent, Open{Capabilities: received})
	want := Negotiated{Families: Families(IPv6Unicast), ExtendedNextHopIn: Families(VPNv4), FourOctetAS: true, RouteRefresh: true,
		ExtendedMessage: true, EndOfRIB: true}
	if n != want || n.MaxLen() != MaxExtended {
		t.Errorf("negotiated %+v, want %+v", n, want)
	}
}

func TestNotification(t *testing.T) {
	long := strings.Repeat("ü", 200)
	for _, tt := range []struct {
		name, text string
		n          Notification
		printed    string
	}{
		{"shutdown", "maintenance", Shutdown(SubcodeShutdown, "maintenance"), `Cease/Administrative Shutdown (6/2): "maintenance"`},
		{"reset without text", "", Shutdown(SubcodeReset, ""), "Cease/Administrative Reset (6/4)"},
		{"long text", long[:254], Shutdown(SubcodeShutdown, long), ""},
		{"invalid text", "a\uFFFD", Shutdown(SubcodeShutdown, "a\xff"), ""},
		{"text longer than the data", "", Notification{CodeCease, SubcodeShutdown, []byte{9, 'a'}}, ""},
		{"text of another error", "", Notification{CodeCease, SubcodeCollision, []byte{1, 'a'}}, ""},
		{"unknown", "", Notification{9, 1, []byte{1, 2}}, "unknown error/unknown subcode (9/1)"},
		{"unknown subcode", "", Notification{CodeHoldTimer, 7, nil}, "Hold Timer Expired/unknown subcode (4/7)"},
		{"data longer than a message", "", Notification{CodeUpdate, 1, make([]byte, 5000)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bodies, _ := split(t, tt.n.Append([]byte{}), MaxLen)
			got := ParseNotification(bodies[0])
			if got.Code != tt.n.Code || got.Subcode != tt.n.Subcode || !bytes.HasPrefix(tt.n.Data, got.Data) || got.Communication() != tt.text {
				t.Errorf("decoded as %+v: %q, want %q", got, got.Communication(), tt.text)
			}
			if tt.printed != "" && got.String() != tt.printed {
				t.Errorf("printed as %s, want %s", got, tt.printed)
			}
		})
	}
}

func TestRefresh(t *testing.T) {
	for _, r := range []Refresh{{IPv4Unicast, RefreshRequest}, {VPNv6, RefreshBegin}, {IPv6Unicast, RefreshEnd}} {
		bodies, types := split(t, r.Append(nil), MaxLen)
		if got, known, err := ParseRefresh(bodies[0]); types[0] != TypeRouteRefresh || got != r || !known || err != nil {
			t.Errorf("%+v decoded as %+v, %t, %v", r, got, known, err)
		}
	}
	for _, body := range [][]byte{{0, 1, 0, 2}, {0, 2, 3, 1}} {
		if r, known, err := ParseRefresh(body); known || err != nil {
			t.Errorf("%x decoded as %+v, %v", body, r, err)
		}
	}
	_, _, err := ParseRefresh([]byte{0, 2, 1, 1, 0})
	wantError(t, err, CodeRouteRefresh, 1)
	if _, known, err := ParseRefresh([]byte{0, 2, 0, 1, 9, 9}); !known || err != nil {
		t.Errorf("request with route filters: %t, %v", known, err)
	}
}

func TestKeepalive(t *testing.T) {
	if _, types := split(t, AppendKeepalive(AppendKeepalive(nil)), MaxLen); !reflect.DeepEqual(types, []Type{TypeKeepalive, TypeKeepalive}) {
		t.Errorf("decoded as %v", types)
	}
}
