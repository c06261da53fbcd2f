package cli

import (
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/epe/flows"
)

func TestParseUses(t *testing.T) {
	body := `{"connections":1,"subflows":[
		{"connection":"0000cafe","client":"[2001:db8:c::10]:5000","address":"2001:db8:1::a","egress":"transit-a","policy":"steady","use":"first"},
		{"connection":"0000cafe","client":"[2001:db8:c::10]:5001","address":"2001:db8:1::b","egress":"transit-b"}]}`
	known, err := parseUses([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	u := uses{all: known}
	a := netip.MustParseAddr("2001:db8:1::a")
	if got, want := u.of(a, netip.MustParseAddrPort("[2001:db8:c::10]:5000")), (flows.Use{Policy: "steady", Reason: "first"}); got != want || len(known) != 1 {
		t.Errorf("%+v", known)
	}
	if got := u.of(a, netip.MustParseAddrPort("[2001:db8:c::10]:5001")); got != (flows.Use{}) {
		t.Errorf("another subflow: %+v", got)
	}
	if _, err := parseUses([]byte(`{"subflows":3}`)); err == nil {
		t.Error("no list of subflows is accepted")
	}
}

// FuzzParseUses: what is decoded has a policy.
func FuzzParseUses(f *testing.F) {
	f.Add([]byte(`{"subflows":[{"client":"[2001:db8:c::10]:5000","address":"2001:db8:1::a","policy":"steady","use":"first"}]}`))
	f.Add([]byte(`{"subflows":[{"client":"x"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		known, err := parseUses(body)
		if err != nil && known != nil {
			t.Error("subflows beside an error")
		}
		for ends, u := range known {
			if u.Policy == "" {
				t.Errorf("%v has no policy", ends)
			}
		}
	})
}
