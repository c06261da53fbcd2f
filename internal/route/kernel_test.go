package route_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/route"
)

func namespacePrefix() string { return fmt.Sprintf("tabane-test-route%d-", os.Getpid()) }

func TestMain(m *testing.M) {
	before := openFiles()
	code := m.Run()
	if left, err := netns.List(namespacePrefix()); err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "namespaces left behind: %v %v\n", left, err)
		code = 1
	}
	// The runtime's poller opens files of its own at first use.
	if after := openFiles(); after > before+4 {
		fmt.Fprintf(os.Stderr, "files left open: %d before, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// A lab is a namespace with two pairs of links, a0-b0 and a1-b1, all up.
type lab struct {
	*route.Conn
	t    testing.TB
	name string
}

func newLab(t testing.TB) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("TABANE_LAB") == "require" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	name := namespacePrefix() + strings.ToLower(t.Name())
	name = strings.NewReplacer("/", "-").Replace(name)
	if err := netns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(name); err != nil {
			t.Error(err)
		}
	})
	l := &lab{t: t, name: name}
	l.in(func() error {
		for i := range 2 {
			err := netlink.LinkAdd(&netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("a%d", i)},
				PeerName:  fmt.Sprintf("b%d", i),
			})
			if err != nil {
				return err
			}
		}
		var err error
		l.Conn, err = route.Dial()
		return err
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, link := range []string{"lo", "a0", "b0", "a1", "b1"} {
		if err := l.SetLinkUp(link, true); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *lab) in(f func() error) {
	l.t.Helper()
	if err := netns.Do(l.name, f); err != nil {
		l.t.Fatal(err)
	}
}

// ip runs `ip -6 ARGS` in the namespace.
func (l *lab) ip(args ...string) string {
	l.t.Helper()
	path, err := exec.LookPath("ip")
	if err != nil {
		l.t.Skip("needs ip")
	}
	cmd := exec.Command(path, append([]string{"-6"}, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err = netns.Start(l.name, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		l.t.Fatalf("ip -6 %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

func (l *lab) apply(ops ...route.Op) []error { return l.Apply(ops) }

func (l *lab) add(objects ...route.Object) {
	l.t.Helper()
	var ops []route.Op
	for _, o := range objects {
		ops = append(ops, route.Op{Protocol: route.Edge, Object: o})
	}
	l.must(ops...)
}

func (l *lab) must(ops ...route.Op) {
	l.t.Helper()
	for i, err := range l.apply(ops...) {
		if err != nil {
			l.t.Errorf("%v: %v", ops[i], err)
		}
	}
}

func (l *lab) want(objects ...route.Object) {
	l.t.Helper()
	got, err := l.Dump(route.Edge)
	if err != nil {
		l.t.Fatal(err)
	}
	a, b := lines(got), lines(objects)
	if !slices.Equal(a, b) {
		l.t.Errorf("kernel has\n\t%s\nwant\n\t%s", strings.Join(a, "\n\t"), strings.Join(b, "\n\t"))
	}
}

func lines(objects []route.Object) []string {
	var s []string
	for _, o := range objects {
		s = append(s, fmt.Sprintf("%s %s", o.Key().Class(), o))
	}
	slices.Sort(s)
	return s
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

// everything uses all that the objects can express.
func everything() []route.Object {
	return []route.Object{
		route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")},
		route.Nexthop{ID: 8, Link: "a0", SID: ip("fd00:1::2"), Encap: route.EncapFull},
		route.Nexthop{ID: 9, Link: "a1", Gateway: ip("fe80::9")},
		route.Nexthop{ID: 10, Link: "a1"},
		route.Route{Table: 101, Dst: pfx("::/0"), Kind: route.Unreachable, Metric: 4294967295},
		route.Route{Table: 101, Dst: pfx("2001:db8:c::/64"), NexthopID: 7},
		route.Route{Table: 102, Dst: pfx("2001:db8:c::/64"), NexthopID: 8, MTU: 1400},
		route.Route{Dst: pfx("2001:db8:d::/64"), Gateway: ip("fe80::2"), Link: "a0", Metric: 20},
		route.Route{Dst: pfx("2001:db8:d::/64"), Link: "a1", Metric: 30, PrefSrc: ip("2001:db8::1")},
		route.Route{Dst: pfx("2001:db8:e::/64"), Kind: route.Blackhole},
		route.Route{Dst: pfx("2001:db8:f::/64"), Gateway: ip("2001:db8:1::2"), Link: "a0"},
		route.Route{Dst: pfx("fd00:2::1/128"), Link: "a0", Local: route.LocalAction{Behavior: route.EndDT6, Table: 101}},
		route.Route{Dst: pfx("fd00:2::2/128"), Link: "a0",
			Local: route.LocalAction{Behavior: route.EndDX6, Nexthop: ip("2001:db8:1::2")}},
		route.Rule{Priority: 1000, From: pfx("2001:db8::1/128"), Table: 101},
		route.Rule{Priority: 1001, Table: 102},
		route.Address{Link: "lo", Prefix: pfx("2001:db8::1/128")},
		route.Address{Link: "a0", Prefix: pfx("2001:db8:1::1/64"), Deprecated: true},
	}
}

func TestKernelEverything(t *testing.T) {
	l := newLab(t)
	objects := everything()
	// The addresses first: gateways and preferred sources need them.
	slices.SortStableFunc(objects, func(a, b route.Object) int {
		first := func(o route.Object) int {
			return map[bool]int{true: 0, false: 1}[o.Key().Class() == route.ClassAddress]
		}
		return first(a) - first(b)
	})
	l.add(objects...)
	l.want(objects...)
	l.add(objects...)
	l.want(objects...)
	for _, o := range objects {
		op := route.Op{Protocol: route.Edge, Delete: true, Object: o}
		l.must(op)
		l.must(op)
	}
	l.want()
}
