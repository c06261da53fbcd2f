package bgp

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestCompare(t *testing.T) {
	neighbor := func(name string, change func(*Neighbor)) Neighbor {
		n := Neighbor{Name: name, Address: netip.MustParseAddr("2001:db8::1"), ASN: 65001, Families: []Family{IPv6Unicast}}
		if change != nil {
			change(&n)
		}
		return n
	}
	a, b := neighbor("a", nil), neighbor("b", nil)
	held := neighbor("a", func(n *Neighbor) { n.HoldTime = 3 * time.Second })
	filtered := neighbor("a", func(n *Neighbor) { n.Import.MaxLength = 48 })
	both := neighbor("a", func(n *Neighbor) { n.Import.MaxLength, n.Password = 48, "secret" })
	for name, tt := range map[string]struct {
		old, now []Neighbor
		want     Changes
		lines    []string
	}{
		"nothing":            {old: []Neighbor{a, b}, now: []Neighbor{b, a}},
		"added":              {old: []Neighbor{a}, now: []Neighbor{a, b}, want: Changes{Add: []Neighbor{b}}, lines: []string{`session "b" added`}},
		"removed":            {old: []Neighbor{a, b}, now: []Neighbor{b}, want: Changes{Remove: []string{"a"}}, lines: []string{`session "a" removed`}},
		"policy":             {old: []Neighbor{a}, now: []Neighbor{filtered}, want: Changes{Policy: []Neighbor{filtered}}, lines: []string{`policy of session "a" changed`}},
		"timers":             {old: []Neighbor{a}, now: []Neighbor{held}, want: Changes{Remove: []string{"a"}, Reset: []Neighbor{held}}, lines: []string{`session "a" reset`}},
		"policy and session": {old: []Neighbor{a}, now: []Neighbor{both}, want: Changes{Remove: []string{"a"}, Reset: []Neighbor{both}}, lines: []string{`session "a" reset`}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Compare(tt.old, tt.now)
			if !reflect.DeepEqual(got, tt.want) || !slices.Equal(got.Lines(), tt.lines) {
				t.Errorf("got %+v, %q\nwant %+v, %q", got, got.Lines(), tt.want, tt.lines)
			}
		})
	}
}
