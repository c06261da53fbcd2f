package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/vishvananda/netlink"
)

// Pair is a pair of interfaces: what is sent on the first is received by the second.
type Pair struct {
	First, Second int // indices
	Address       net.HardwareAddr
}

// pairMTU lets packets of any interface pass.
const pairMTU = 65535

// MakePair makes a pair of interfaces with these names in the calling thread's network namespace,
// or takes over that of a previous instance. Both are up.
func MakePair(first, second string) (Pair, error) {
	a, b, err := findPair(first, second)
	if err != nil {
		made := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: first, MTU: pairMTU}, PeerName: second, PeerMTU: pairMTU}
		if err := netlink.LinkAdd(made); err != nil {
			return Pair{}, fmt.Errorf("make pair of interfaces %q and %q: %w", first, second, err)
		}
		if a, b, err = findPair(first, second); err != nil {
			return Pair{}, err
		}
	}
	// Another program may have changed the MTU of a pair that is taken over.
	if err := errors.Join(netlink.LinkSetMTU(a, pairMTU), netlink.LinkSetMTU(b, pairMTU), netlink.LinkSetUp(a), netlink.LinkSetUp(b)); err != nil {
		return Pair{}, fmt.Errorf("set up interfaces %q and %q: %w", first, second, err)
	}
	return Pair{First: a.Attrs().Index, Second: b.Attrs().Index, Address: b.Attrs().HardwareAddr}, nil
}

// IntactPair reports whether a pair is as MakePair has made it, its second interface with this
// index.
func IntactPair(first, second string, index int) (bool, error) {
	a, b, err := findPair(first, second)
	if none := (netlink.LinkNotFoundError{}); errors.As(err, &none) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, l := range []netlink.Link{a, b} {
		if l.Attrs().MTU != pairMTU || l.Attrs().Flags&net.FlagUp == 0 {
			return false, nil
		}
	}
	return b.Attrs().Index == index, nil
}

func findPair(first, second string) (a, b netlink.Link, err error) {
	if a, err = netlink.LinkByName(first); err == nil {
		b, err = netlink.LinkByName(second)
	}
	if err == nil && (a.Type() != "veth" || a.Attrs().ParentIndex != b.Attrs().Index) {
		err = fmt.Errorf("interfaces %q and %q are no pair", first, second)
	}
	return a, b, err
}

// RemovePair removes the pair with a first interface of that name, if there is one.
func RemovePair(first string) error {
	l, err := findLink(first)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = netlink.LinkDel(l)
	}
	if err != nil {
		return fmt.Errorf("remove interface %q: %w", first, err)
	}
	return nil
}
