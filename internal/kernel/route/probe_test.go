package route_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/route"
)

func TestProbeChangesNothing(t *testing.T) {
	l := newLab(t)
	before := l.ip("-6 route show table all") + l.ip("-4 route show table all") + l.ip("nexthop show")
	l.in(route.SupportsSEG6)
	l.in(route.SupportsMark)
	l.in(route.SupportsSentMark)
	if after := l.ip("-6 route show table all") + l.ip("-4 route show table all") + l.ip("nexthop show"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	left, err := l.Dump(unix.RTPROT_STATIC)
	if err != nil || len(left) > 0 {
		t.Errorf("the probe left %v, %v", left, err)
	}
}
