package asbr

import (
	"testing"

	"github.com/tabane/tabane/internal/bgp/rtr"
)

func TestRPKIProblems(t *testing.T) {
	works := rtr.CacheStatus{Name: "[::1]:323", Connected: true, Used: true}
	spare := rtr.CacheStatus{Name: "[::2]:323", Connected: true}
	gone := rtr.CacheStatus{Name: "[::3]:323", Reason: "refused"}
	stale := rtr.CacheStatus{Name: "[::4]:323", Used: true, Age: 77, Reason: "no answer in 1m0s"}
	check(t, rpkiProblems([]rtr.CacheStatus{works, spare}))
	check(t, rpkiProblems([]rtr.CacheStatus{gone, works}), "rpki cache [::3]:323 is not connected (refused)")
	check(t, rpkiProblems([]rtr.CacheStatus{stale}), "rpki cache [::4]:323 is not connected (no answer in 1m0s), and its data is 77s old")
	check(t, rpkiProblems([]rtr.CacheStatus{{Name: "[::5]:323"}}),
		"rpki cache [::5]:323 is not connected (not yet)", "no rpki cache has data, so that routes are not validated")
}
