package fault_test

import (
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/base/fault"
)

func TestSeen(t *testing.T) {
	var faults fault.List
	seen := fault.Seen{}
	a, b := netip.MustParseAddr("fc00::1"), netip.MustParseAddr("fc00::2")
	seen.Check(&faults, "peers[0]", "address", a)
	seen.Check(&faults, "peers[1]", "address", b)
	seen.Check(&faults, "peers[2]", "address", a)
	seen.Check(&faults, "peers[0]", "table", uint32(0))
	seen.Check(&faults, "peers[1]", "table", uint32(0))
	seen.Check(&faults, "peers[0]", "name", "x")
	seen.Check(&faults, "peers[1]", "rt", "x")
	if got, want := faults.Error(), "peers[2].address: fc00::1 is already peers[0].address"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
