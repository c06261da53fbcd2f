package sealed

import (
	"bytes"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
)

// seeded returns the key of a seed, as tests of handshakes make it.
func seeded(t *testing.T, seed byte) handshake.PrivateKey {
	t.Helper()
	k, err := handshake.GenerateKey(rand.NewChaCha8([32]byte{seed}))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestPeerOfVersion1: initiations of a peer with version 1 are warned of, once a minute; those of
// an unknown gateway are not. Its responses, without proof, wait for no exchange of keys.
func TestPeerOfVersion1(t *testing.T) {
	text, err := os.ReadFile("../handshake/testdata/initiation-version1.hex")
	if err != nil {
		t.Fatal(err)
	}
	message, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	r, _ := ally(t, dataplane.Alliance{}, 1)
	p, l := r.plane, r.links[0].line
	own, peer := seeded(t, 2), seeded(t, 1)
	var log bytes.Buffer
	p.log = slog.New(slog.NewTextHandler(&log, nil))
	p.state.Key = own
	p.guard.Store(handshake.NewGuard(own.Public(), random{}))
	h := handshakeMessage{line: l, message: message, from: netip.MustParseAddrPort("127.0.0.1:4790")}
	p.exchange(h)
	if log.Len() > 0 {
		t.Errorf("of an unknown gateway: %s", &log)
	}
	known := newPeer(p, own, dataplane.Peer{Name: "known", Public: peer.Public()})
	known.conf = dataplane.Peer{Name: "known", Public: peer.Public()}
	p.peers[peer.Public()] = known
	for range 3 {
		p.exchange(h)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "peer=known") || !strings.Contains(got, "version 1, this gateway has 3") {
		t.Errorf("the log has %q", got)
	}

	known.session.assoc.Want(0)
	initiation, err := known.session.assoc.Advance(0, p.wall())
	if err != nil {
		t.Fatal(err)
	}
	known.initiating.send(initiation, 0)
	request, err := handshake.ReadInitiation(peer, initiation, random{})
	if err != nil {
		t.Fatal(err)
	}
	_, response, err := request.Answer(handshake.PresharedKey{}, 7, p.choose(request.Offers), handshake.ResponseProof{})
	if err != nil {
		t.Fatal(err)
	}
	clear(response[len(response)-16:])
	p.checkHandshake(l, response, h.from, netip.Addr{})
	if _, waits := p.exchanges.pop(); waits {
		t.Error("a response without proof waits for an exchange of keys")
	}
}
