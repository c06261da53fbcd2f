package tc

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestRedirect: what one end sends arrives behind its detour, and what is sent from there arrives
// at the end itself.
func TestRedirect(t *testing.T) {
	shaped := enter(t)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "detour", HardwareAddr: shaped.Attrs().HardwareAddr}, PeerName: "beyond"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"detour", "beyond"} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	count := func(name string) uint64 {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Statistics.RxPackets
	}
	if err := Redirect("shaped", "detour"); err != nil {
		if errors.Is(err, ErrNoRedirect) && os.Getenv("TABANE_LAB") != "require" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	far, beyond := count("far"), count("beyond")
	flood(t, shaped, 10)
	if got := count("beyond") - beyond; got != 10 {
		t.Errorf("%d of 10 packets took the detour", got)
	}
	if got := count("far") - far; got != 0 {
		t.Errorf("%d of 10 packets took the direct way", got)
	}
	for range 2 { // what is not redirected stays so
		if err := EndRedirect("shaped"); err != nil {
			t.Fatal(err)
		}
	}
	far, beyond = count("far"), count("beyond")
	flood(t, shaped, 10)
	if toFar, toBeyond := count("far")-far, count("beyond")-beyond; toFar != 10 || toBeyond != 0 {
		t.Errorf("afterwards %d packets took the direct way and %d the detour", toFar, toBeyond)
	}
	if err := Redirect("shaped", "nolink"); err == nil {
		t.Error("a detour that is not there is taken")
	}
	if err := Redirect("nolink", "detour"); err == nil {
		t.Error("a link that is not there is redirected")
	}
}
