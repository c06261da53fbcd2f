package openplane

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestKeepState: what is pinned stays after a clean stop if that was asked for, and goes otherwise.
func TestKeepState(t *testing.T) {
	netnstest.Need(t)
	s := newSite(t)
	pins := filepath.Join(bpftest.Mount(t), "gateway-1")
	for _, keep := range []bool{true, false} {
		netnstest.Do(t, s.gate, func() error {
			p, err := New(Options{
				Pins:   func() (string, error) { return pins, nil },
				Sealed: func(o dataplane.Open) (Sealed, error) { return &sealed{o}, nil },
			})
			if err != nil {
				return err
			}
			if err := p.Apply(daemonState()); err != nil {
				return err
			}
			if keep {
				p.KeepState()
			}
			ctx, stop := context.WithCancel(t.Context())
			stop()
			return p.Run(ctx)
		})
		left, err := os.ReadDir(pins)
		if (len(left) > 0) != keep {
			t.Errorf("keep %t: %d pins, %v", keep, len(left), err)
		}
	}
}
