package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/proxy/header"
	"github.com/tabane/tabane/internal/proxy/relay"
	"github.com/tabane/tabane/internal/proxy/request"
)

// Kind is the kind of a listener, the scheme of its key listen.
type Kind string

// The kinds of listeners.
const (
	// TCP and MPTCP listeners send each connection to an upstream.
	TCP   Kind = "tcp"
	MPTCP Kind = "mptcp"
	// SOCKS serves SOCKS5 and HTTP CONNECT.
	SOCKS Kind = "socks5"
	// Transparent captures connections of others (TPROXY).
	Transparent Kind = "transparent"
)

// separator is between the scheme and the rest.
const separator = "://"

// Listen is where clients connect to: an address, or the interface of a transparent listener.
type Listen struct {
	Kind      Kind
	Address   netip.AddrPort
	Interface string
}

const listenForm = `want tcp://ADDRESS:PORT, mptcp://ADDRESS:PORT, socks5://ADDRESS:PORT or transparent://INTERFACE`

// maxInterface is the longest name of an interface (IFNAMSIZ without the NUL).
const maxInterface = 15

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Listen) UnmarshalText(text []byte) error {
	scheme, rest, ok := strings.Cut(string(text), separator)
	if !ok {
		return errors.New(listenForm)
	}
	switch kind := Kind(scheme); kind {
	case TCP, MPTCP, SOCKS:
		a, err := netip.ParseAddrPort(rest)
		if err != nil || a.Port() == 0 || a.Addr().Zone() != "" || a.Addr().Is4In6() {
			return fmt.Errorf("%q is not an IP address without zone and a port > 0, like [::1]:8080", rest)
		}
		*l = Listen{Kind: kind, Address: a}
	case Transparent:
		if rest == "" || len(rest) > maxInterface || strings.ContainsAny(rest, "/: \t") {
			return fmt.Errorf("%q is not the name of an interface", rest)
		}
		*l = Listen{Kind: kind, Interface: rest}
	default:
		return errors.New(listenForm)
	}
	return nil
}

func (l Listen) String() string {
	switch l.Kind {
	case "":
		return ""
	case Transparent:
		return string(l.Kind) + separator + l.Interface
	default:
		return string(l.Kind) + separator + l.Address.String()
	}
}

// MarshalText implements encoding.TextMarshaler.
func (l Listen) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Upstream is where connections go to. Without a host it is the protocol alone.
type Upstream struct {
	Multipath bool
	// Host is a name or an address.
	Host string
	Port uint16

	given bool // it is not the zero value
}

const upstreamForm = `want mptcp://HOST:PORT or tcp://HOST:PORT, or mptcp or tcp alone`

// UnmarshalText implements encoding.TextUnmarshaler.
func (u *Upstream) UnmarshalText(text []byte) error {
	scheme, rest, place := strings.Cut(string(text), separator)
	if scheme != string(TCP) && scheme != string(MPTCP) {
		return errors.New(upstreamForm)
	}
	v := Upstream{Multipath: scheme == string(MPTCP), given: true}
	if place {
		i := strings.LastIndexByte(rest, ':')
		if i < 0 {
			return errors.New(upstreamForm)
		}
		host := rest[:i]
		port, err := strconv.ParseUint(rest[i+1:], 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("%q is not a port from 1 to 65535", rest[i+1:])
		}
		if inner, ok := strings.CutPrefix(host, "["); ok {
			inner, ok = strings.CutSuffix(inner, "]")
			if a, err := netip.ParseAddr(inner); !ok || err != nil || !a.Is6() || a.Zone() != "" {
				return fmt.Errorf("%q is not an IPv6 address in brackets", host)
			}
			host = inner
		} else if _, err := netip.ParseAddr(host); strings.Contains(host, ":") || err != nil && !request.ValidName(host) {
			return fmt.Errorf("%q is neither the name of a host, an IPv4 address, nor an IPv6 address in brackets", host)
		}
		v.Host, v.Port = host, uint16(port)
	}
	*u = v
	return nil
}

// Scheme returns mptcp or tcp.
func (u Upstream) Scheme() string {
	if u.Multipath {
		return string(MPTCP)
	}
	return string(TCP)
}

func (u Upstream) String() string {
	switch {
	case !u.given:
		return ""
	case u.Host == "":
		return u.Scheme()
	case strings.Contains(u.Host, ":"):
		return fmt.Sprintf("%s://[%s]:%d", u.Scheme(), u.Host, u.Port)
	default:
		return fmt.Sprintf("%s://%s:%d", u.Scheme(), u.Host, u.Port)
	}
}

// MarshalText implements encoding.TextMarshaler.
func (u Upstream) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// HeaderVersion is a version of the PROXY protocol; 0 is none.
type HeaderVersion header.Version

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *HeaderVersion) UnmarshalText(text []byte) error {
	switch string(text) {
	case "v1":
		*v = HeaderVersion(header.V1)
	case "v2":
		*v = HeaderVersion(header.V2)
	default:
		return errors.New("want v1 or v2")
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (v HeaderVersion) MarshalText() ([]byte, error) {
	if v == 0 {
		return nil, nil
	}
	return fmt.Appendf(nil, "v%d", v), nil
}

// Pace is how what is sent to clients is spread over time, in bytes per second; 0 is not at all.
type Pace uint64

// paceAuto is the text of relay.Smooth.
const paceAuto = "auto"

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Pace) UnmarshalText(text []byte) error {
	if string(text) == paceAuto {
		*p = Pace(relay.Smooth)
		return nil
	}
	var b unit.Bandwidth
	if err := b.UnmarshalText(text); err != nil || b < 8 {
		return errors.New(`want auto, or a bandwidth like "30Mbit/s"`)
	}
	*p = Pace(b / 8)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (p Pace) MarshalText() ([]byte, error) {
	switch {
	case p == 0:
		return nil, nil
	case uint64(p) == relay.Smooth:
		return []byte(paceAuto), nil
	}
	return unit.Bandwidth(p * 8).MarshalText()
}
