// Package measure measures what a client gets over each path and mode of delivery of a server, one
// trial at a time: bulk, objects or a steady stream, with the latency beside it.
//
// A Server offers what it can deliver, and gives the clients turns, so that they do not disturb
// each other. A Client makes a trial in a Mode. The package decides no order, keeps no results and
// computes no statistics.
//
// All of it is HTTP/1.1 on one port, opened by the client. Without a session, which a shared key
// may guard, the server answers with a few hundred bytes at most, and it keeps nothing of who
// asked.
package measure

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Protocol is the version of the protocol.
const Protocol = 1

// Path is the path below which a server measures.
const Path = "/measure"

// Hello is the answer to anybody.
type Hello struct {
	Protocol int `json:"tabane_measure"`
	// Key is whether a session needs the shared key, which then proves itself by the challenge.
	Key       bool   `json:"key"`
	Challenge string `json:"challenge"`
}

// Opening is the request for a session.
type Opening struct {
	Challenge string `json:"challenge"`
	Proof     string `json:"proof"`
}

// Offer is the answer to a request for a session: what the server can deliver.
type Offer struct {
	Protocol int    `json:"tabane_measure"`
	Session  string `json:"session"`
	// Version is that of the server's program, Kernel that of its kernel, and Congestion the
	// congestion control of its connections.
	Version    string `json:"version"`
	Kernel     string `json:"kernel"`
	Congestion string `json:"congestion"`
	// Peers are the egress paths that can be used alone.
	Peers []Peer `json:"peers"`
	// Deliveries are the names of the modes that the server can switch a connection to.
	Deliveries []string `json:"deliveries"`
	Limits     Limits   `json:"limits"`
}

// Peer is an egress peer and the server's address of it: what is sent from there leaves over this
// peer.
type Peer struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
}

// Limits are those of one trial.
type Limits struct {
	Bytes unit.Size     `json:"bytes"`
	Time  time.Duration `json:"time_ns"`
}

// Turn is the answer to a request for a turn.
type Turn struct {
	// Granted is whether it is the client's turn. If not, Ahead clients are before it, for Wait at
	// most.
	Granted bool          `json:"granted"`
	Ahead   int           `json:"ahead"`
	Wait    time.Duration `json:"wait_ns"`
}

const (
	// maxAnswer bounds what a client reads of an answer, and a server of a request.
	maxAnswer = 64 << 10
	// maxNames bounds the lists of an offer, and maxName a name in them.
	maxNames, maxName = 256, 64
)

// ErrProtocol means that the answer is not that of a server of tabane.
var ErrProtocol = errors.New("the answer is not that of a tabane server")

// decodeOffer decodes and checks what a server offers.
func decodeOffer(b []byte) (Offer, error) {
	var o Offer
	if err := json.Unmarshal(b, &o); err != nil {
		return Offer{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	names := o.Deliveries
	for _, p := range o.Peers {
		if !p.Address.IsValid() || p.Address.IsUnspecified() || p.Address.IsMulticast() || p.Address.Zone() != "" {
			return Offer{}, fmt.Errorf("%w: peer %q has the address %q", ErrProtocol, p.Name, p.Address)
		}
		names = append(names[:len(names):len(names)], p.Name)
	}
	switch {
	case o.Protocol != Protocol:
		return Offer{}, versionError(o.Protocol)
	case !isToken(o.Session):
		return Offer{}, fmt.Errorf("%w: session %q", ErrProtocol, o.Session)
	case len(names) > maxNames:
		return Offer{}, fmt.Errorf("%w: %d names", ErrProtocol, len(names))
	case o.Limits.Bytes < 0 || o.Limits.Time < 0:
		return Offer{}, fmt.Errorf("%w: negative limits", ErrProtocol)
	}
	for _, n := range names {
		if !isName(n) {
			return Offer{}, fmt.Errorf("%w: name %q", ErrProtocol, n)
		}
	}
	for _, text := range []*string{&o.Version, &o.Kernel, &o.Congestion} {
		*text = printable(*text)
	}
	return o, nil
}

func versionError(got int) error {
	if got <= 0 {
		return ErrProtocol
	}
	return fmt.Errorf("the server's protocol is version %d, and this program has %d; use the same version of tabane", got, Protocol)
}

// decodeHello decodes the answer to anybody.
func decodeHello(b []byte) (Hello, error) {
	var h Hello
	if err := json.Unmarshal(b, &h); err != nil {
		return Hello{}, ErrProtocol
	}
	if h.Protocol != Protocol {
		return Hello{}, versionError(h.Protocol)
	}
	if len(h.Challenge) > 4*challengeLen {
		return Hello{}, fmt.Errorf("%w: challenge of %d characters", ErrProtocol, len(h.Challenge))
	}
	return h, nil
}

// printable removes what is not printable ASCII, and bounds the length.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
	return s[:min(len(s), 2*maxName)]
}

// isName reports whether a name can be part of a mode.
func isName(s string) bool {
	return s != "" && len(s) <= maxName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

// isToken reports whether a text can be the name of a session.
func isToken(s string) bool { return len(s) == 2*tokenLen && strings.Trim(s, "0123456789abcdef") == "" }

const (
	tokenLen = 16
	macLen   = 16
	// challengeLen is the length of a challenge in bytes: the time and the server's signature of it
	// and of the client's address.
	challengeLen = 8 + macLen
	// challengeLife is how long a challenge is accepted.
	challengeLife = time.Minute
	// MinKey is the least length of a key in characters.
	MinKey = 16
)

// prove returns the proof that one has the key.
func prove(key []byte, challenge string) string {
	return base64.RawURLEncoding.EncodeToString(sign(key, "tabane measure 1", challenge))
}

func sign(key []byte, parts ...string) []byte {
	m := hmac.New(sha256.New, key)
	for _, p := range parts {
		fmt.Fprintf(m, "%d:%s", len(p), p)
	}
	return m.Sum(nil)
}
