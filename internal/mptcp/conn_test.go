package mptcp

import (
	"errors"
	"net/netip"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// dial enters a new namespace and connects to its path manager.
func dial(t *testing.T) *Conn {
	t.Helper()
	netnstest.Enter(t)
	if err := Supported(); err != nil {
		if errors.Is(err, errors.ErrUnsupported) && os.Getenv("TABANE_LAB") != "require" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	c, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestEndpoints(t *testing.T) {
	c := dial(t)
	for _, e := range []Endpoint{
		{Address: netip.MustParseAddr("2001:db8::1"), Signal: true},
		{ID: 7, Address: netip.MustParseAddr("2001:db8::2"), Link: "lo", Signal: true, Backup: true},
		{Address: netip.MustParseAddr("192.0.2.1"), Subflow: true},
	} {
		if err := c.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	want := []Endpoint{
		{ID: 1, Address: netip.MustParseAddr("2001:db8::1"), Signal: true},
		{ID: 7, Address: netip.MustParseAddr("2001:db8::2"), Link: "lo", Signal: true, Backup: true},
		{ID: 8, Address: netip.MustParseAddr("192.0.2.1"), Subflow: true},
	}
	expect := func() {
		t.Helper()
		got, err := c.Endpoints()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Fatalf("endpoints (-want +got):\n%s", diff)
		}
	}
	expect()

	want[1].Backup, want[2].Fullmesh = false, true
	for _, e := range want[1:] {
		if err := c.SetFlags(e); err != nil {
			t.Fatal(err)
		}
	}
	expect()

	if err := c.Delete(7); err != nil {
		t.Fatal(err)
	}
	want = []Endpoint{want[0], want[2]}
	expect()
}

func TestPlanAppliedTwice(t *testing.T) {
	c := dial(t)
	foreign := Endpoint{Address: netip.MustParseAddr("2001:db8:2::1"), Signal: true}
	if err := c.Add(foreign); err != nil {
		t.Fatal(err)
	}
	reconcile := func(want []Endpoint) Changes {
		t.Helper()
		have, err := c.Endpoints()
		if err != nil {
			t.Fatal(err)
		}
		changes := Plan(want, have, ownedPrefix.Contains)
		for _, id := range changes.Remove {
			if err := c.Delete(id); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range changes.Flags {
			if err := c.SetFlags(e); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range changes.Add {
			if err := c.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		return changes
	}
	one, two := netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:1::2")
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	// The kernel listens on the address of an endpoint with a port, so the address must exist.
	if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(two.AsSlice()), Flags: unix.IFA_F_NODAD}); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]Endpoint{
		{{Address: one, Signal: true}, {Address: two, Signal: true}},
		{{Address: two, Signal: true, Backup: true}},
		{{Address: two, Signal: true, Port: 8080}, {Address: one, Subflow: true, Link: "lo"}},
		nil,
	} {
		if reconcile(want).Empty() {
			t.Errorf("step %d changed nothing", i)
		}
		if again := reconcile(want); !again.Empty() {
			t.Errorf("step %d again did %+v", i, again)
		}
	}
	left, err := c.Endpoints()
	foreign.ID = 1
	if diff := cmp.Diff([]Endpoint{foreign}, left, compareAddrs); err != nil || diff != "" {
		t.Errorf("left: %v, (-want +got):\n%s", err, diff)
	}
}

func TestLimits(t *testing.T) {
	c := dial(t)
	want := Limits{Subflows: 5, AddAddrAccepted: 4}
	if err := c.SetLimits(want); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Limits(); err != nil || got != want {
		t.Errorf("limits = %+v, %v, want %+v", got, err, want)
	}
	if err := c.SetLimits(Limits{Subflows: 1000}); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "limit greater than maximum") {
		t.Errorf("limits of 1000: %v, want the kernel's reason", err)
	}
	if got, err := c.Limits(); err != nil || got != want {
		t.Errorf("limits = %+v, %v, want %+v", got, err, want)
	}
}

func TestKernelRefusals(t *testing.T) {
	c := dial(t)
	e := Endpoint{Address: netip.MustParseAddr("2001:db8::1"), Signal: true}
	if err := c.Add(e); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		err  error
		says string
	}{
		{"same address", c.Add(e), `add mptcp endpoint "2001:db8::1": `},
		{"port without signal", c.Add(Endpoint{Address: netip.MustParseAddr("2001:db8::2"), Port: 80, Subflow: true}), "flags must have signal"},
		{"missing link", c.Add(Endpoint{Address: netip.MustParseAddr("2001:db8::2"), Link: "absent"}), `find link "absent"`},
		{"long link", c.Add(Endpoint{Address: netip.MustParseAddr("2001:db8::2"), Link: "averyverylonglinkname"}), `find link "averyverylonglinkname"`},
		{"no address", c.Add(Endpoint{}), "no address"},
		{"delete of nothing", c.Delete(99), "address not found"},
		{"delete of 0", c.Delete(0), "no endpoint has ID 0"},
		{"flags of nothing", c.SetFlags(Endpoint{ID: 99}), "not found"},
		{"flags of 0", c.SetFlags(e), "no endpoint has ID 0"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.says) {
			t.Errorf("%s: %v, want it to say %q", tt.name, tt.err, tt.says)
		}
	}
}

// A Conn uses the namespace where it was dialed, for interface lookups too.
func TestConnStaysInItsNamespace(t *testing.T) {
	c := dial(t)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "here"}, PeerName: "there"}); err != nil {
		t.Fatal(err)
	}
	want := Endpoint{ID: 3, Address: netip.MustParseAddr("2001:db8::1"), Link: "here", Signal: true}
	elsewhere := make(chan error)
	go func() {
		elsewhere <- c.Add(want)
	}()
	if err := <-elsewhere; err != nil {
		t.Fatal(err)
	}
	got := make(chan []Endpoint)
	go func() {
		endpoints, err := c.Endpoints()
		if err != nil {
			t.Error(err)
		}
		got <- endpoints
	}()
	if diff := cmp.Diff([]Endpoint{want}, <-got, compareAddrs); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

func TestSupportedNamesMissingFeature(t *testing.T) {
	dial(t)
	for _, tt := range []struct{ sysctl, bad, good, says string }{
		{"enabled", "0", "1", "sysctl -w net.mptcp.enabled=1"},
	} {
		file := path.Join(sysctlDir, tt.sysctl)
		if err := os.WriteFile(file, []byte(tt.bad), 0); err != nil {
			t.Fatal(err)
		}
		if err := Supported(); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s is %s: %v, want it to say %q", tt.sysctl, tt.bad, err, tt.says)
		}
		if err := os.WriteFile(file, []byte(tt.good), 0); err != nil {
			t.Fatal(err)
		}
		if err := Supported(); err != nil {
			t.Errorf("%s is %s: %v", tt.sysctl, tt.good, err)
		}
	}
}

func TestRefusal(t *testing.T) {
	for _, err := range []error{unix.ENOPROTOOPT, unix.EPROTONOSUPPORT, unix.EINVAL} {
		if got := refusal(err); !errors.Is(got, errors.ErrUnsupported) {
			t.Errorf("refusal(%v) = %v, want errors.ErrUnsupported", err, got)
		}
	}
	if got := refusal(unix.EMFILE); !errors.Is(got, unix.EMFILE) || errors.Is(got, errors.ErrUnsupported) {
		t.Errorf("refusal(EMFILE) = %v, want EMFILE as it is", got)
	}
	if got := refusal(nil); got != nil {
		t.Errorf("refusal(nil) = %v", got)
	}
}

func TestCurrentManager(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Manager
	}{
		{"before 5.19", nil, KernelManager},
		{"5.19, kernel", map[string]string{"pm_type": "0\n"}, KernelManager},
		{"5.19, user space", map[string]string{"pm_type": "1\n"}, UserManager},
		{"5.19, a third", map[string]string{"pm_type": "2\n"}, "type 2"},
		{"6.15, kernel", map[string]string{"path_manager": "kernel\n", "pm_type": "0\n"}, KernelManager},
		{"6.15, user space", map[string]string{"path_manager": "userspace\n", "pm_type": "1\n"}, UserManager},
		{"6.15, a third", map[string]string{"path_manager": "bpf\n", "pm_type": "2\n"}, "bpf"},
	} {
		got, err := currentManager(func(file string) ([]byte, error) {
			if s, ok := tt.files[path.Base(file)]; ok {
				return []byte(s), nil
			}
			return nil, os.ErrNotExist
		})
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
	if m, err := currentManager(func(string) ([]byte, error) { return nil, os.ErrPermission }); !errors.Is(err, os.ErrPermission) {
		t.Errorf("unreadable: %q, %v, want the error as it is", m, err)
	}
}

func TestSetManager(t *testing.T) {
	dial(t)
	for _, want := range []Manager{UserManager, KernelManager, UserManager} {
		if err := SetManager(want); err != nil {
			t.Fatal(err)
		}
		if got, err := CurrentManager(); err != nil || got != want {
			t.Errorf("path manager %q, %v, want %q", got, err, want)
		}
		if err := CheckKernelManager(); (err == nil) != (want == KernelManager) || err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("with %q: %v", want, err)
		}
		if err := Supported(); err != nil {
			t.Errorf("with %q: %v", want, err)
		}
	}
	if err := SetManager("absent"); err == nil {
		t.Error("a path manager that is not there is accepted")
	}
}
