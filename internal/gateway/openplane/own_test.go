package openplane

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestOwnAddress: the source of open data is that of the session's messages, where it is known.
func TestOwnAddress(t *testing.T) {
	netnstest.Need(t)
	s := newSite(t)
	root := bpftest.Mount(t)
	own := netip.MustParseAddr("192.168.0.9")
	s.ip(s.gate, "ip -4 addr add %v/24 dev %s", own, lineNames[0])
	netnstest.Do(t, s.gate, func() error {
		p, err := New(Options{
			Pins:   func() (string, error) { return filepath.Join(root, "gateway-1"), nil },
			Sealed: func(o dataplane.Open) (Sealed, error) { return &sealed{o}, nil },
		})
		if err != nil {
			return err
		}
		state := daemonState()
		state.Peers[0].Mode = dataplane.Unsealed
		if err := p.Apply(state); err != nil {
			return err
		}
		for local, want := range map[netip.Addr]string{{}: "192.168.0.1:4790", own: "192.168.0.9:4790"} {
			p.Measured("far", []dataplane.Measured{{
				Name: lineNames[0], Interface: lineNames[0], Remote: netip.MustParseAddrPort("192.168.0.2:4790"), Local: local, Port: 4790, MTU: 1500,
			}}, 1)
			if err := p.update(true); err != nil {
				return err
			}
			if got := p.peers["far"].ways[0].Local.String(); got != want {
				t.Errorf("with %v, the program sends from %s, want %s (%v)", local, got, want, p.peers["far"].reasons)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		return p.Run(ctx)
	})
}
