package route_test

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/route"
)

// Without VRF in the kernel, End.DT4 is reported as not supported. With it, the table needs a device.
func TestSupportsVRF(t *testing.T) {
	l := newLab(t)
	var made, missing, got error
	l.in(func() error {
		made = netlink.LinkAdd(&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "vrf101"}, Table: 101})
		missing, got = route.SupportsVRF(102), route.SupportsVRF(101)
		return nil
	})
	if made != nil {
		if !errors.Is(got, errors.ErrUnsupported) {
			t.Errorf("kernel without VRF (%v): %v", made, got)
		}
		t.Log("kernel without VRF (CONFIG_NET_VRF): End.DT4 itself is not tested")
		return
	}
	if errors.Is(got, errors.ErrUnsupported) || missing == nil || errors.Is(missing, errors.ErrUnsupported) {
		t.Errorf("with a VRF device %v, without %v", got, missing)
	}
}

func TestProbeChangesNothing(t *testing.T) {
	l := newLab(t)
	before := l.ip("-6 route show table all") + l.ip("nexthop show")
	l.in(route.SupportsSEG6)
	if after := l.ip("-6 route show table all") + l.ip("nexthop show"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	left, err := l.Dump(unix.RTPROT_STATIC)
	if err != nil || len(left) > 0 {
		t.Errorf("the probe left %v, %v", left, err)
	}
}
