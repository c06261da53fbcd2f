package belief

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestHistory: the last changes are kept, and no more.
func TestHistory(test *testing.T) {
	t := newTable()
	all := func(netip.Prefix) bool { return true }
	if len(t.Changes(all, 10)) != 0 {
		test.Error("changes of no network")
	}
	for i := range 2*mostChanges + 7 {
		t.history.add(Change{Prefix: prefix(i), Why: fmt.Sprint(i)})
	}
	list := t.Changes(all, 1<<20)
	if len(list) != mostChanges || t.Changed() != 2*mostChanges+7 {
		test.Fatalf("%d changes of %d", len(list), t.Changed())
	}
	for i, c := range list {
		if c.Why != fmt.Sprint(2*mostChanges+6-i) {
			test.Fatalf("change %d is %s", i, c.Why)
		}
	}
	if list := t.Changes(func(p netip.Prefix) bool { return p == prefix(mostChanges+7) }, 5); len(list) != 1 {
		test.Errorf("%d changes of the oldest network that is kept", len(list))
	}
	if list := t.Changes(func(p netip.Prefix) bool { return p == prefix(mostChanges+6) }, 5); len(list) != 0 {
		test.Errorf("%d changes of one that is not", len(list))
	}
}
