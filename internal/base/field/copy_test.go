package field

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCopy(t *testing.T) {
	type inner struct{ A int }
	type from struct {
		Same, Only, Kind int
		Nil, Set         *int
		Zero, Value      inner
	}
	type to struct {
		Same, Nil, Set, Other int
		Kind                  string
		Zero, Value           *inner
	}
	two := 2
	got := to{Same: 9, Nil: 9, Set: 9, Other: 9, Kind: "9", Zero: &inner{9}}
	source := from{Same: 1, Only: 1, Kind: 1, Set: &two, Value: inner{3}}
	Copy(&got, source)
	if diff := cmp.Diff(to{Same: 1, Nil: 9, Set: 2, Other: 9, Kind: "9", Value: &inner{3}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
