package lab

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
)

// TestLabDownAll: a process with the owner's PID may be another one and does not own the lab.
func TestLabDownAll(t *testing.T) {
	removed, owned := unowned([]lab.Info{
		{Name: "detached", Owner: 0, User: 1000},
		{Name: "reused", Owner: os.Getpid(), User: 1000},
		{Name: "running", Owner: os.Getpid(), Owned: true, User: 1000},
		{Name: "other-user", User: 1001},
		{Name: "running-of-other-user", Owned: true, User: 0},
	}, 1000)
	if want := []string{"detached", "reused"}; !slices.Equal(removed, want) {
		t.Errorf("removes %q, want %q", removed, want)
	}
	if want := []string{"running"}; !slices.Equal(owned, want) {
		t.Errorf("leaves %q, want %q", owned, want)
	}
}

func TestUsableLabs(t *testing.T) {
	got := usable([]lab.Info{
		{Name: "up", User: 1000, Condition: lab.Running},
		{Name: "starting", User: 1000, Condition: lab.NotReady},
		{Name: "lost-daemon", User: 1000, Condition: lab.Partial},
		{Name: "stale", User: 1000, Condition: lab.Stale},
		{Name: "other-user", User: 1001, Condition: lab.Running},
	}, 1000)
	if want := []string{"up", "starting", "lost-daemon"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestShowFitsTerminal: addresses and ends that do not fit into a line are in further ones.
func TestShowFitsTerminal(t *testing.T) {
	v := lab.View{Name: "a", Scenario: "epe-steady", Condition: lab.Running}
	list := []netip.Prefix{netip.MustParsePrefix("2001:db8:1::b/128"), netip.MustParsePrefix("2001:db8:1::a/128"), netip.MustParsePrefix("2001:db8:1::10/64")}
	v.Nodes = []lab.NodeView{{Name: "client-isp", Interfaces: []lab.InterfaceView{{Name: "link-a", Up: true, Addresses: list}, {Name: "link-b"}}, Daemons: []lab.DaemonView{{Role: "edge"}, {Role: "serve"}}}}
	link := &lab.LinkView{Name: "peering-a", Kind: "switch", MTU: 1500, Text: "rate=unlimited"}
	for _, node := range []string{"server", "reflector", "asbr1", "asbr2", "asbr3"} {
		link.Ends = append(link.Ends, scenario.Port{Node: node, Interface: "lan"})
	}
	v.Links = []*lab.LinkView{link}
	var b strings.Builder
	if err := showLab(&b, v); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if len(strings.TrimRight(line, " \n")) > 80 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	for _, want := range []string{"2001:db8:1::10/64", "link-b", "asbr3:lan", "edge, serve"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}
