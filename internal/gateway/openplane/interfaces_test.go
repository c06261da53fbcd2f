package openplane

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// rename gives an interface of the gateway another name.
func (s *site) rename(from, to string) {
	s.t.Helper()
	netnstest.Do(s.t, s.gate, func() error {
		l, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		// Kernels before 6.2 rename no interface that is up.
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
	})
}

// TestInterfacesChange: when interfaces swap their names, also one by one, or are deleted and
// recreated, each has its program again.
func TestInterfacesChange(t *testing.T) {
	netnstest.Need(t)
	s := newSite(t)
	root := bpftest.Mount(t)
	var p *Plane
	in := func(do func() error) {
		t.Helper()
		netnstest.Do(t, s.gate, do)
	}
	in(func() (err error) {
		p, err = New(Options{
			Pins:   func() (string, error) { return filepath.Join(root, "gateway-1"), nil },
			Sealed: func(o dataplane.Open) (Sealed, error) { return &sealed{o}, nil },
		})
		if err != nil {
			return err
		}
		return p.Apply(daemonState())
	})
	defer in(func() error {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		return p.Run(ctx)
	})
	check := func(after string) {
		t.Helper()
		in(func() error {
			for _, name := range append([]string{lanName}, lineNames[:]...) {
				ingress, _, err := bpf.AllAttached(name)
				if err != nil {
					return err
				}
				if n := len(ingress); n != 1 || !ingress[0].Own() {
					t.Errorf("%s: %s has the programs %v", after, name, ingress)
				}
			}
			return nil
		})
	}
	update := func() { in(func() error { return p.update(true) }) }
	check("the start")
	for _, each := range []func(){func() {}, update} {
		s.rename(lineNames[0], "other")
		each()
		s.rename(lineNames[1], lineNames[0])
		each()
		s.rename("other", lineNames[1])
		update()
		check("a swap of names")
	}
	s.ip(s.gate, "ip link del %s", lanName)
	s.lan()
	update()
	check("a recreated interface")
}
