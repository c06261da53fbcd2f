package pathmanager

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/mptcp"
)

// TestRules: the first rule whose conditions all apply counts.
func TestRules(t *testing.T) {
	m := newMachine(testPeers(), nil)
	m.inCgroup = func(cgroup uint64, path string) bool { return cgroup == 7 && path == "/web" }
	m.rules = newRules([]Rule{
		{Port: 443, Mark: 5, Policy: selection.Steady},
		{Port: 443, Policy: selection.Latency},
		{Cgroup: "/web", Policy: selection.Cost},
		{Mark: 5, Policy: selection.Ratio},
	})
	for _, tt := range []struct {
		socket socket
		want   string
	}{
		{socket{443, 5, 0, true}, "steady"},
		{socket{443, 5, 7, false}, "latency"}, // nothing but the port is known
		{socket{443, 4, 0, true}, "latency"},
		{socket{80, 5, 7, true}, "cost"},
		{socket{80, 5, 8, true}, "ratio"},
		{socket{80, 0, 8, true}, ""},
		{socket{80, 5, 7, false}, ""},
	} {
		got := ""
		if r := m.ruleFor(tt.socket); r != nil {
			got = r.Policy.String()
		}
		if got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.socket, got, tt.want)
		}
	}
}

func policies(m *managed) string {
	seen := map[uint32]string{}
	for _, s := range m.machine.list(100) {
		seen[s.Token] = s.Policy
	}
	var all []string
	for token := uint32(1); int(token) <= len(seen); token++ {
		all = append(all, seen[token])
	}
	return strings.Join(all, " ")
}

// TestPolicies gives connections policies by their port, and others when the rules or the marks of
// their sockets change. Connections without one use all paths.
func TestPolicies(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	b := onB.Addr()
	cost := Rule{Port: defaultAt.Port(), Policy: selection.Cost, Paths: []RulePath{{Peer: b, Commit: 1e9}, {Peer: onA.Addr()}}}
	m.machine.setUse(m.now, false, []Rule{cost})
	m.open(1, defaultAt, clientAt)
	m.carry(3*selection.Interval, light)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a*", "2001:db8:1::b")
	if got := policies(m); got != "cost" {
		t.Errorf("policies %q", got)
	}
	uses := map[string]int{}
	for _, s := range m.list(1) {
		uses[s.Use]++
	}
	if uses["first"] != 1 || uses["unused"] != 2 {
		t.Errorf("uses %v", uses)
	}

	ratio := Rule{Mark: 16, Policy: selection.Ratio, Paths: []RulePath{{Peer: b, Share: 1}, {Peer: onA.Addr(), Share: 1}}}
	m.machine.setUse(m.now, false, []Rule{ratio})
	m.work()
	m.carry(2*time.Second, light)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	if got := policies(m); got != "" {
		t.Errorf("policies %q", got)
	}
	for _, mark := range []uint32{16, 17} {
		for _, s := range m.all() {
			s.Mark = mark
			m.machine.sample(m.now, s)
		}
		m.work()
		if got, want := policies(m), map[uint32]string{16: "ratio", 17: ""}[mark]; got != want {
			t.Errorf("mark %d: policies %q, want %q", mark, got, want)
		}
	}
	m.machine.withdrawAll(m.now)
	m.work()
	check(t, m.on(1), "2001:db8:1::10")
}

// TestPoliciesEnd: a connection of each policy leaves no backup behind.
func TestPoliciesEnd(t *testing.T) {
	for _, name := range selection.PolicyNames() {
		policy, _ := selection.PolicyNamed(name)
		m := newManaged(false)
		m.setRoute(0, "::/0", RoutePresent)
		m.setRoute(1, "::/0", RoutePresent)
		m.machine.setUse(m.now, false, []Rule{{Policy: policy, Paths: []RulePath{{Peer: onA.Addr(), Commit: 1e3, Share: 1}, {Peer: onB.Addr(), Share: 9}}}})
		m.open(1, defaultAt, clientAt)
		m.carry(5*time.Second, saturated)
		m.carry(600*time.Millisecond, silent)
		m.machine.withdrawAll(m.now)
		m.work()
		for _, s := range m.all() {
			if s.BackupHere {
				t.Errorf("%s: %v is a backup", name, s.Local)
			}
		}
	}
}

// TestCgroups finds what is beneath a path, also when it was made after it was asked for first.
func TestCgroups(t *testing.T) {
	root := t.TempDir()
	now := time.Time{}.Add(time.Hour)
	c := &cgroups{root: root, now: func() time.Time { return now }, byPath: map[string]*cgroupTree{}}
	if c.contains(1, "/web") || c.contains(0, "/") {
		t.Error("a cgroup is within one that is not there")
	}
	id := func(name string) uint64 {
		t.Helper()
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	if err := os.MkdirAll(filepath.Join(root, "web/worker"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	if now = now.Add(cgroupsEvery); !c.contains(id("web"), "/web") || !c.contains(id("web/worker"), "/web") || c.contains(id("other"), "/web") {
		t.Error("what is within is not found")
	}
	mounts := filepath.Join(root, "mounts")
	text := "30 23 0:26 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw\n39 30 0:35 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n"
	if err := os.WriteFile(mounts, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := cgroupRoot(mounts); got != "/sys/fs/cgroup/unified" {
		t.Errorf("cgroups are mounted at %q", got)
	}
	if got := cgroupRoot(root); got != "" {
		t.Errorf("a directory says that cgroups are mounted at %q", got)
	}
}

// TestPoliciesInTheKernel gives connections policies by the marks of their sockets and by the
// cgroup of this process, and takes them back.
func TestPoliciesInTheKernel(t *testing.T) {
	s := newSite(t, addressingIPv6())
	l, stop := s.manage()
	defer stop()
	groups := newCgroups()
	l.post(func(now time.Time) error {
		l.machine.inCgroup = groups.contains
		l.machine.setUse(now, false, []Rule{{Mark: 16, Policy: selection.Steady}, {Cgroup: "/", Policy: selection.Latency}})
		return nil
	})
	s.offerAll(l, 0, RoutePresent)
	s.offerAll(l, 1, RoutePresent)
	client, server := s.connect()
	policy := func(want string) func() bool {
		return func() bool {
			list, _, err := l.List(t.Context(), 10)
			return err == nil && len(list) == 3 && list[0].Policy == want
		}
	}
	if groups.root != "" {
		eventually(t, "latency by cgroup", policy("latency"))
	}
	setMark := func(mark int) {
		t.Helper()
		raw, err := server.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var failed error
		if err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark)
		}); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
	}
	setMark(16)
	eventually(t, "steady by mark", policy("steady"))
	backups := func() (n int) {
		for _, family := range families {
			if err := netns.Do(s.server, func() error {
				return s.kernel.Subflows(family, func(sub mptcp.Subflow) { n += map[bool]int{true: 1}[sub.BackupHere] })
			}); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	eventually(t, "two subflows rest", func() bool { return backups() == 2 })
	exchange(t, client, server)
	l.post(func(now time.Time) error { l.machine.setUse(now, false, nil); return nil })
	eventually(t, "no policy", policy(""))
	// That on the default address is a backup of the two others.
	eventually(t, "the two others carry data", func() bool { return backups() == 1 })
	exchange(t, client, server)
}

// TestRulePeers: the terms are those of the peers, whatever their order.
func TestRulePeers(t *testing.T) {
	m := newMachine(testPeers(), nil)
	m.setUse(time.Time{}, false, []Rule{{Policy: selection.Ratio, Paths: []RulePath{{Peer: onB.Addr(), Share: 3}}}})
	c := m.connection(1, defaultAt, clientAt)
	for peer, want := range map[int]selection.Terms{-1: {}, 0: {}, 1: {Listed: true, Share: 3}} {
		if got := c.choice.Terms(pathKey{peer, netip.Addr{}}); got != want {
			t.Errorf("peer %s: %+v", strconv.Itoa(peer), got)
		}
	}
}

// TestOlderKernel: where the kernel does not report what choosing paths needs, all subflows carry
// data, and the status says so.
func TestOlderKernel(t *testing.T) {
	for _, tt := range []struct {
		signals mptcp.Signals
		off     string
		rest    bool
	}{
		{mptcp.Signals{TCP: 248, MPTCP: 96}, "", true},
		{mptcp.Signals{TCP: 248, MPTCP: 48}, "stand still", true},
		{mptcp.Signals{TCP: 196, MPTCP: 48}, "use: overflow, policies|stand still", false},
	} {
		m := newManaged(false)
		m.setRoute(0, "::/0", RoutePresent)
		m.setRoute(1, "::/0", RoutePresent)
		l := newManager(Options{Overflow: true, Log: slog.New(slog.DiscardHandler)}, nil)
		m.machine.overflow, l.machine = true, m.machine
		if got, want := l.disableUnsupported(tt.signals), !strings.Contains(tt.off, "stand still"); got != want {
			t.Errorf("%+v: standstills %v", tt.signals, got)
		}
		m.open(1, defaultAt, clientAt)
		m.carry(2*time.Second, light)
		rests := 0
		for _, s := range m.machine.list(1) {
			if s.Backup && s.Peer >= 0 {
				rests++
			}
		}
		if (rests > 0) != tt.rest {
			t.Errorf("%+v: %d subflows rest", tt.signals, rests)
		}
		l.updateStatus(m.now)
		off := l.Status().Off
		var want []string
		if tt.off != "" {
			want = strings.Split(tt.off, "|")
		}
		if len(off) != len(want) {
			t.Fatalf("%+v: off %q", tt.signals, off)
		}
		for i := range want {
			if !strings.Contains(off[i], want[i]) {
				t.Errorf("%+v: off %q, want %q", tt.signals, off[i], want[i])
			}
		}
	}
}
