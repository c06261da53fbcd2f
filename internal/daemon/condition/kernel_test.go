package condition

import (
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestUnique: an address that another host on the link has is a problem until it is added again
// without the other.
func TestUnique(t *testing.T) {
	a, b := netnstest.New(t), netnstest.New(t)
	run := func(ns, commands string) {
		t.Helper()
		if _, err := netnstest.TryIP(t, ns, commands); err != nil {
			t.Fatalf("%s: %v", commands, err)
		}
	}
	run(a, "link add lan type veth peer name lan netns "+b)
	run(b, "link set lan up; -6 addr add 2001:db8::1/64 dev lan nodad")
	run(a, "link set lan up; -6 addr add 2001:db8::1/64 dev lan")
	const text = `another host on interface "lan" has the address 2001:db8::1/64, too: give one of them another address`
	reports := func(want bool) {
		t.Helper()
		var x Examination
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			netnstest.Do(t, a, func() error { x = Examine([]Condition{Unique("lan", "missing")}); return nil })
			got := len(x.Problems) == 1 && strings.HasPrefix(x.Problems[0].Error(), text)
			if got == want && len(x.Unknown) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("want %t: %+v", want, x)
			}
		}
	}
	reports(true)
	run(b, "-6 addr del 2001:db8::1/64 dev lan")
	run(a, "-6 addr del 2001:db8::1/64 dev lan; -6 addr add 2001:db8::1/64 dev lan")
	reports(false)
}
