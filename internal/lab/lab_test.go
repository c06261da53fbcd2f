package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/role"
)

func TestNetwork(t *testing.T) {
	l := start(t, options(t, "net", labtest.Plain()))

	for script, want := range map[string]string{
		"cat /etc/hosts":                                     strings.TrimSpace(l.plan.hosts),
		"ls /sys/class/net | tr '\\n' ' '":                   "lan lo wire ",
		"cat /sys/class/net/wire/mtu":                        "1400",
		"cat /sys/class/net/lan/mtu":                         "1500",
		"cat /proc/sys/net/ipv6/conf/wire/hop_limit":         "77",
		"cat /proc/sys/net/ipv4/tcp_congestion_control":      "reno",
		"cat /proc/sys/net/ipv6/conf/lan/accept_dad":         "0",
		"cat /proc/sys/net/ipv6/conf/all/forwarding":         "0",
		"cat /proc/sys/net/ipv6/conf/wire/keep_addr_on_down": "1",
	} {
		if got := labtest.Run(t, l, "a", script); got != strings.TrimSpace(want) {
			t.Errorf("%s on a: got %q, want %q", script, got, want)
		}
	}
	if got := labtest.Run(t, l, "b", "cat /proc/sys/net/ipv4/tcp_congestion_control"); got != "cubic" {
		t.Errorf("b, of which the scenario says nothing, has the congestion control %s", got)
	}
	if got := labtest.Run(t, l, "b", "cat /proc/sys/net/ipv6/conf/wire/forwarding"); got != "1" {
		t.Errorf("b does not forward: %s", got)
	}

	// The kernel reports a lost carrier at once only if the ends have different indexes.
	for _, at := range []string{"a lan", "a wire", "b wire"} {
		node, iface, _ := strings.Cut(at, " ")
		if got := strings.Fields(labtest.Run(t, l, node, fmt.Sprintf("cat /sys/class/net/%[1]s/ifindex /sys/class/net/%[1]s/iflink", iface))); len(got) != 2 || got[0] == got[1] {
			t.Errorf("interface %s on %s: indexes of both ends: %v", iface, node, got)
		}
	}

	// Over the switch and via b: c's default route leads to the far end of the wire.
	for _, c := range []struct{ from, to, address string }{
		{"a", "b", "2001:db8:1::b"}, {"a", "c", "2001:db8:2::c"}, {"b", "c", "2001:db8:2::c"}, {"c", "a", "2001:db8:1::a"}, {"a", "b", "192.0.2.2"},
	} {
		if err := labtest.Reach(l.Name(), c.from, c.to, c.address); err != nil {
			t.Errorf("%s to %s at %s: %v", c.from, c.to, c.address, err)
		}
	}

	labs, err := List()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(labs, func(i Info) bool { return i.Name == l.Name() })
	if i < 0 || labs[i].Condition != Running || labs[i].Scenario != "plain" || !slices.Equal(labs[i].Nodes, []string{"a", "b", "c"}) || labs[i].Owner != os.Getpid() {
		t.Errorf("list: %+v", labs)
	}
	again, err := Open(l.Name())
	if err != nil {
		t.Fatal(err)
	}
	if got := labtest.Run(t, again, "c", "cat /etc/hosts"); got != strings.TrimSpace(l.plan.hosts) {
		t.Errorf("opened lab's hosts: %q", got)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	if err := again.Down(t.Context()); err != nil {
		t.Errorf("second down: %v", err)
	}
	if _, err := Open(l.Name()); !errors.Is(err, ErrNotFound) {
		t.Errorf("open after down: %v", err)
	}
}

func TestCommand(t *testing.T) {
	l := start(t, options(t, "command", labtest.Plain()))
	cmd, err := l.Command(t.Context(), "a", []string{"sh", "-c", "cat; exit 7"})
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader("through")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || string(out) != "through" {
		t.Errorf("got %q, %v", out, err)
	}
	// The started process is the program itself.
	cmd, err = l.Command(t.Context(), "a", []string{"sh", "-c", "echo $$"})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(cmd.Process.Pid) {
		t.Errorf("pid %q of %d, %v", out, cmd.Process.Pid, err)
	}
	if _, err := l.Command(t.Context(), "nobody", []string{"true"}); err == nil || !strings.Contains(err.Error(), `no node "nobody"; there are a, b, c`) {
		t.Error(err)
	}
	if _, err := l.Command(t.Context(), "a", nil); err == nil {
		t.Error("no command, no error")
	}
	cmd, err = l.Command(t.Context(), "a", []string{"no-such-program"})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), `run "no-such-program": executable file not found in $PATH`) {
		t.Errorf("got %q, %v", out, err)
	}
	// The host keeps its own hosts file and mounts.
	if hosts, err := os.ReadFile("/etc/hosts"); err != nil || strings.Contains(string(hosts), "2001:db8:2::c") {
		t.Errorf("hosts file of the host: %q, %v", hosts, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dirOf(l.Name())) {
		t.Errorf("mounts of the host: %s, %v", mounts, err)
	}
}

func TestEnterRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"need a namespace":            {"tabane-x", "/etc/hosts", "0"},
		"is not a pid":                {"tabane-x", "/etc/hosts", "me", "true"},
		"is not a lab's":              {"other", "/etc/hosts", "0", "true"},
		`"tabane-test-lab-no-such"`:   {"tabane-test-lab-no-such", "/etc/hosts", "0", "true"},
		`run "no-such-program": exec`: {"tabane-x", "/etc/hosts", "0", "no-such-program"},
	} {
		if err := Enter(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
}

func TestSetLink(t *testing.T) {
	l := start(t, options(t, "link", labtest.Plain()))
	rates := func(ports ...port) (got []string) {
		for _, p := range ports {
			err := netns.Do(p.netns, func() error {
				s, err := tc.Stats(p.iface)
				if errors.Is(err, tc.ErrNotShaped) {
					got = append(got, "none")
					return nil
				}
				got = append(got, s.Rate.Rate.String())
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
		return got
	}
	wire := l.plan.links[1].wires[0]
	lan := l.plan.links[0].wires[2]
	if got := rates(wire.a, wire.b, lan.a, lan.b); !slices.Equal(got, []string{"10Mbit/s", "10Mbit/s", "none", "none"}) {
		t.Errorf("at first %v", got)
	}
	for link, rate := range map[string]unit.Bandwidth{"wire": 0, "lan": 5e6} {
		if err := l.Links().Set(link, scenario.Shape{Rate: rate}); err != nil {
			t.Error(err)
		}
	}
	if got := rates(wire.a, wire.b, lan.a, lan.b); !slices.Equal(got, []string{"none", "none", "5Mbit/s", "5Mbit/s"}) {
		t.Errorf("then %v", got)
	}
	if err := l.Links().Set("nolink", scenario.Shape{}); err == nil || !strings.Contains(err.Error(), `no link "nolink"; there are lan, wire`) {
		t.Error(err)
	}
	if err := l.Links().Set("wire", scenario.Shape{Rate: -1}); err == nil {
		t.Error("a negative rate is accepted")
	}
}

func TestCapture(t *testing.T) {
	l := start(t, options(t, "capture", labtest.Plain()))
	for _, c := range []struct {
		iface string
		want  map[string]bool
	}{
		{"", map[string]bool{"wire": true, "lan": true}},
		{"wire", map[string]bool{"wire": true}},
	} {
		file := filepath.Join(t.TempDir(), "capture.pcapng")
		ctx, stop := context.WithCancel(t.Context())
		var (
			stats CaptureStats
			err   error
			done  = make(chan struct{})
		)
		go func() {
			defer close(done)
			stats, err = l.Capture(ctx, "a", c.iface, file)
		}()
		// The header is written once the socket is open.
		for st, err := os.Stat(file); err != nil || st.Size() == 0; st, err = os.Stat(file) {
			select {
			case <-done:
				t.Fatal(err)
			case <-time.After(time.Millisecond):
			}
		}
		before := time.Now()
		for _, to := range []string{"2001:db8:1::b", "2001:db8:2::b"} {
			if err := labtest.Reach(l.Name(), "a", "b", to); err != nil {
				t.Error(err)
			}
		}
		stop()
		<-done
		if err != nil {
			t.Fatal(err)
		}
		seen, packets := readCapture(t, file, before)
		if stats.Dropped != 0 || stats.Packets != packets {
			t.Errorf("stats %+v for %d packets", stats, packets)
		}
		for name := range map[string]bool{"wire": true, "lan": true} {
			if got, want := seen[name], c.want[name]; (got == 2) != want || got > 0 != want {
				t.Errorf("capture of %q has %d datagrams of interface %q", c.iface, got, name)
			}
		}
	}
	if _, err := l.Capture(t.Context(), "a", "eth9", "-"); err == nil || !strings.Contains(err.Error(), `no interface "eth9"; there are lo`) {
		t.Error(err)
	}
	if _, err := l.Capture(t.Context(), "z", "", "-"); err == nil || !strings.Contains(err.Error(), `no node "z"`) {
		t.Error(err)
	}
}

// readCapture counts the datagrams with payload "hello" by interface, and all packets.
func readCapture(t *testing.T, file string, since time.Time) (hello map[string]int, packets uint64) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	hello = map[string]int{}
	whole := true
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		packets++
		p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
		if app := p.ApplicationLayer(); app == nil || !bytes.Equal(app.Payload(), []byte("hello")) {
			continue
		}
		about, err := r.Interface(info.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		hello[about.Name]++
		if info.Timestamp.Before(since) || info.Timestamp.After(time.Now()) {
			t.Errorf("timestamp %s is not between %s and now", info.Timestamp, since)
		}
		whole = whole && info.Timestamp.Nanosecond()%1000 == 0
	}
	if whole && len(hello) > 0 {
		t.Error("timestamps are whole microseconds")
	}
	return hello, packets
}

func TestCaptureEndsWithLab(t *testing.T) {
	l := start(t, options(t, "captureend", labtest.Plain()))
	done := make(chan error)
	file := filepath.Join(t.TempDir(), "c")
	go func() {
		_, err := l.Capture(context.Background(), "a", "", file)
		done <- err
	}()
	for _, err := os.Stat(file); err != nil; _, err = os.Stat(file) {
		time.Sleep(time.Millisecond)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "the node is gone") {
		t.Errorf("got %v", err)
	}
}

func TestUpFailsHalfWay(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*scenario.Spec)
		want   string
	}{
		"sysctl":     {func(s *scenario.Spec) { s.Nodes["c"].Sysctls = map[string]string{"net.ipv6.no_such": "1"} }, "net.ipv6.no_such"},
		"late":       {func(s *scenario.Spec) { s.Nodes["c"].Sysctls = map[string]string{"net.ipv6.conf.lan.no_such": "1"} }, "no_such"},
		"congestion": {func(s *scenario.Spec) { s.Sysctls = map[string]string{"net.ipv4.tcp_congestion_control": "nosuch"} }, `congestion control "nosuch" is not available`},
		"rate":       {func(s *scenario.Spec) { s.Links["wire"].Rate = 1 }, `link "wire"`},
		"bad spec":   {func(s *scenario.Spec) { s.Links["wire"].MTU = 1 }, "mtu"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, "fails", labtest.Plain())
			c.change(o.Spec)
			l, err := Up(t.Context(), o)
			if err == nil {
				l.Down(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			labtest.NothingLeft(t, o.Name)
		})
	}
}

func TestDaemons(t *testing.T) {
	l := start(t, options(t, "daemons", labtest.Routed()))
	if b, err := l.Daemons().Status(t.Context(), scenario.Daemon{Node: "b", Role: role.Router}); err != nil || !strings.Contains(string(b), `"ready":true`) {
		t.Errorf("%s %v", b, err)
	}
	if _, err := l.Daemons().Status(t.Context(), scenario.Daemon{Node: "a", Role: role.Router}); err == nil || !strings.Contains(err.Error(), `node "a" runs no daemon "router"`) {
		t.Error(err)
	}
	c := l.daemons.children.all()[0]
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.PID)); err != nil || !strings.Contains(string(line), "router\x00-c\x00"+configFile(dirOf(l.Name()), "b")) {
		t.Errorf("command line %q, %v", line, err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-c.exited
}

// TestOriginate: a router loads a configuration with the prefixes, and then one without them.
func TestOriginate(t *testing.T) {
	l := start(t, options(t, "originate", labtest.Routed()))
	log := func(want string) {
		t.Helper()
		await(t, func() bool {
			return strings.Contains(lastLines(logFile(dirOf(l.Name()), l.plan.daemons()[0]), 1), want)
		})
	}
	e := scenario.Advertise{Node: "b", Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:cc::/48"), netip.MustParsePrefix("::/0")}}
	leak := scenario.Advertise{Node: "b", Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:dd::/48")}, ASPath: []uint32{65009}}
	for _, step := range []struct {
		event scenario.Advertise
		on    bool
		want  string
	}{
		{e, true, `"networks":["2001:db8:2::/64","2001:db8:cc::/48","::/0"]`},
		{leak, true, `"leaks":[{"as_path":[65009],"prefix":"2001:db8:dd::/48"}]`},
		{e, false, `"networks":["2001:db8:2::/64"]`},
		{leak, false, `"leaks":[],"neighbors"`},
	} {
		if err := l.Originate(step.event, step.on); err != nil {
			t.Fatal(err)
		}
		log(step.want)
	}
	if err := l.Originate(scenario.Advertise{Node: "a", Prefixes: e.Prefixes}, true); err == nil || !strings.Contains(err.Error(), `node "a" runs no router`) {
		t.Error(err)
	}
}

// TestPriority: daemons of a lab have priority over processes of the host; commands of users do
// not.
func TestPriority(t *testing.T) {
	// The 19th field of /proc/PID/stat (proc(5)). No process name here contains a space.
	nice := func(stat string) string {
		if f := strings.Fields(stat); len(f) > 18 {
			return f[18]
		}
		return stat
	}
	of := func(pid string) string {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		return nice(string(stat))
	}
	own := of("self")
	l := start(t, options(t, "nice", labtest.Routed()))
	if got := of(strconv.Itoa(l.daemons.children.all()[0].PID)); got != strconv.Itoa(niceness) {
		t.Errorf("daemon at %s, want %d", got, niceness)
	}
	if got := nice(labtest.Run(t, l, "a", "cat /proc/self/stat")); got != own {
		t.Errorf("command at %s, want %s", got, own)
	}
}

func TestNotReady(t *testing.T) {
	t.Setenv(labtest.FakeRouter, "never")
	o := options(t, "never", labtest.Routed())
	o.Timeout = 500 * time.Millisecond
	_, err := Up(t.Context(), o)
	if err == nil {
		t.Fatal("ready")
	}
	for _, want := range []string{"not ready after 500ms", "b (router): session with nobody is idle", "router starts with"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	labtest.NothingLeft(t, o.Name)
}

func TestDaemonEnds(t *testing.T) {
	t.Setenv(labtest.FakeRouter, "exit")
	o := options(t, "exit", labtest.Routed())
	_, err := Up(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "b (router) ended: exit status 2; its log ends:") || !strings.Contains(err.Error(), "router refuses to run") {
		t.Errorf("got %v", err)
	}
	labtest.NothingLeft(t, o.Name)
}

func TestNoBinary(t *testing.T) {
	o := options(t, "nobinary", labtest.Routed())
	o.Binary = "/no/such/program"
	if _, err := Up(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.Binary) {
		t.Errorf("got %v", err)
	}
	labtest.NothingLeft(t, o.Name)
}

func TestCancel(t *testing.T) {
	t.Setenv(labtest.FakeRouter, "never")
	o := options(t, "cancel", labtest.Routed())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for {
			if s, err := readState(o.Name); err == nil && len(s.Processes) > 0 {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := Up(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	labtest.NothingLeft(t, o.Name)

	if _, err := Up(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: got %v", err)
	}
	labtest.NothingLeft(t, o.Name)
}

func TestNameTaken(t *testing.T) {
	o := options(t, "taken", labtest.Plain())
	start(t, o)
	want := fmt.Sprintf("lab %q is running (pid %d): choose another with --name, or end it with tabane lab down %s", o.Name, os.Getpid(), o.Name)
	if _, err := Up(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	if _, err := Open(o.Name); err != nil {
		t.Errorf("the lab is gone: %v", err)
	}
}

func TestConcurrentUp(t *testing.T) {
	o := options(t, "race", labtest.Plain())
	var (
		wg   sync.WaitGroup
		labs [4]*Lab
	)
	for i := range labs {
		wg.Go(func() {
			var err error
			if labs[i], err = Up(t.Context(), o); err != nil && !strings.Contains(err.Error(), "is running") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	up := slices.DeleteFunc(labs[:], func(l *Lab) bool { return l == nil })
	if len(up) != 1 {
		t.Errorf("%d of 4 labs of one name are up", len(up))
	}
	for _, l := range up {
		if err := l.Down(t.Context()); err != nil {
			t.Error(err)
		}
	}
	labtest.NothingLeft(t, o.Name)
}

// Two labs with a namespace name in common must not remove each other's.
func TestNamespaceTaken(t *testing.T) {
	first := options(t, "one", labtest.Plain())
	first.Spec.Nodes["two-a"] = &scenario.Node{}
	first.Spec.Links["more"] = &scenario.Link{Ends: []scenario.End{labtest.End("two-a", "x", ""), labtest.End("a", "more", "")}}
	l := start(t, first)
	second := options(t, "one-two", labtest.Plain())
	if _, err := Up(t.Context(), second); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("belongs to lab %q", first.Name)) {
		t.Errorf("got %v", err)
	}
	labtest.Run(t, l, "two-a", "true")

	foreign := options(t, "foreign", labtest.Plain())
	name := namespaceOf(foreign.Name, "a")
	if err := netns.Create(name); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(t.Context(), foreign); err == nil || !strings.Contains(err.Error(), "belongs to no lab: remove it with `ip netns del "+name) {
		t.Errorf("got %v", err)
	}
	if err := netns.Delete(name); err != nil {
		t.Errorf("foreign namespace: %v", err)
	}
	labtest.NothingLeft(t, foreign.Name)
}

func TestUpReplacesStaleLab(t *testing.T) {
	o := options(t, "stale", labtest.Plain())
	old, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	s, err := readState(o.Name)
	if err != nil {
		t.Fatal(err)
	}
	s.Owner.Start++ // the same PID, but another process
	s.Namespaces = append(s.Namespaces, namespaceOf(o.Name, "never-made"))
	if err := s.write(o.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o.Name); err == nil || !strings.Contains(err.Error(), "it is stale") {
		t.Errorf("open: %v", err)
	}
	if err := netns.Do(namespaceOf(o.Name, "a"), func() error { return netns.Sysctl("net.ipv6.conf.wire.hop_limit", "5") }); err != nil {
		t.Fatal(err)
	}
	l := start(t, o)
	if got := labtest.Run(t, l, "a", "cat /proc/sys/net/ipv6/conf/wire/hop_limit"); got != "77" {
		t.Errorf("hop limit %s: the old namespace is still there", got)
	}
}

// TestOwned: a zombie, and another process with the PID of the owner, do not own a lab.
func TestOwned(t *testing.T) {
	labtest.NeedRoot(t)
	zombie := exec.Command("/proc/self/exe", "-test.run=^$")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer zombie.Wait()
	var ended process
	await(t, func() bool {
		st, err := procStat(zombie.Process.Pid)
		ended = process{PID: zombie.Process.Pid, Start: st.start}
		return err == nil && st.ended()
	})
	running, err := self()
	if err != nil {
		t.Fatal(err)
	}
	reused := running
	reused.Start--
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for how, c := range map[string]struct {
		owner process
		want  Info
	}{
		"running": {running, Info{Owned: true, Condition: NotReady}},
		"reused":  {reused, Info{Condition: Stale}},
		"zombie":  {ended, Info{Condition: Stale}},
	} {
		name := labtest.Prefix() + how
		if err := os.MkdirAll(dirOf(name), 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dirOf(name))
		s := state{Scenario: how, Boot: boot, Owner: c.owner, Built: true}
		if err := s.write(name); err != nil {
			t.Fatal(err)
		}
		if got := infoOf(t, name); got.Owned != c.want.Owned || got.Condition != c.want.Condition {
			t.Errorf("%s: owned %t, %s, want %t, %s", how, got.Owned, got.Condition, c.want.Owned, c.want.Condition)
		}
	}
}

// TestLostDaemon: a lab in which a daemon has exited is partial, and can still be opened.
func TestLostDaemon(t *testing.T) {
	s := labtest.Routed()
	s.Nodes["c"].Exec = "sleep 1000"
	o := options(t, "lost", s)
	o.Detach = true
	l := start(t, o)
	if got := infoOf(t, o.Name).Condition; got != Running {
		t.Errorf("condition %q", got)
	}
	c := l.daemons.children.all()[0]
	if err := c.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.exited
	if got := infoOf(t, o.Name).Condition; got != Partial {
		t.Errorf("condition %q when a daemon has exited", got)
	}
	if _, err := Open(o.Name); err != nil {
		t.Error(err)
	}
}

// infoOf returns the entry of a lab in List.
func infoOf(t *testing.T, name string) Info {
	t.Helper()
	all, err := List()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(i Info) bool { return i.Name == name })
	if i < 0 {
		t.Fatalf("lab %q is not listed", name)
	}
	return all[i]
}

// A caller that is killed leaves namespaces but no process. The next Down removes them.
func TestKilledCaller(t *testing.T) {
	labtest.NeedRoot(t)
	name := labtest.Prefix() + "killed"
	cmd := exec.Command(os.Args[0], "hold", name)
	cmd.Stderr = t.Output()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if line := readLine(t, r); line != "up" {
		t.Fatalf("got %q", line)
	}
	s, err := readState(name)
	if err != nil || len(s.Processes) != 1 {
		t.Fatalf("state %+v, %v", s, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for deadline := time.Now().Add(10 * time.Second); s.Processes[0].alive(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the daemon outlives the caller")
		}
	}
	if got := s.condition(); got != Stale {
		t.Errorf("condition %q", got)
	}
	if err := Down(t.Context(), name); err != nil {
		t.Error(err)
	}
	labtest.NothingLeft(t, name)
}

func TestDetached(t *testing.T) {
	o := options(t, "detached", labtest.Routed())
	o.Detach = true
	l := start(t, o)
	s, err := readState(o.Name)
	if err != nil {
		t.Fatal(err)
	}
	s.Owner.Start++ // as if the caller had exited
	if err := s.write(o.Name); err != nil {
		t.Fatal(err)
	}
	if got := s.condition(); got != Running {
		t.Errorf("condition %q", got)
	}
	other, err := Open(o.Name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Daemons().Status(t.Context(), scenario.Daemon{Node: "b", Role: role.Router}); err != nil {
		t.Error(err)
	}
	if err := s.Processes[0].signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-l.daemons.children.all()[0].exited
	if got := s.condition(); got != Stale {
		t.Errorf("condition %q when its only daemon has ended", got)
	}
}

// Down kills processes of users on a node that ignore SIGTERM.
func TestDownKillsProcesses(t *testing.T) {
	l := start(t, options(t, "exec", labtest.Plain()))
	cmd, err := l.Command(t.Context(), "a", []string{"sh", "-c", "trap '' TERM; echo here; while :; do sleep 1; done"})
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if line := readLine(t, r); line != "here" {
		t.Fatalf("got %q", line)
	}
	// No grace period, because the context has ended.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Down(ctx); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", err)
	}
}

// Down removes whatever a killed caller has left.
func TestDownOfLeftovers(t *testing.T) {
	labtest.NeedRoot(t)
	name := labtest.Prefix() + "remains"
	if err := Down(t.Context(), name); err != nil {
		t.Errorf("nothing at all: %v", err)
	}
	if err := os.MkdirAll(dirOf(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), name); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
	labtest.NothingLeft(t, name)
	if err := Down(t.Context(), "../x"); err == nil {
		t.Error("a bad name is accepted")
	}
}

func TestMPTCPLimits(t *testing.T) {
	s := labtest.Plain()
	for in, want := range map[[2]uint32][2]uint32{{0, 0}: {8, 8}, {2, 0}: {2, 8}, {3, 4}: {3, 4}} {
		n := node{mptcp: &scenario.MPTCP{MPTCP: edge.MPTCP{Subflows: in[0], AddAddrAccepted: in[1]}}}
		if got := n.limits(); got.Subflows != want[0] || got.AddAddrAccepted != want[1] {
			t.Errorf("%v: %+v, want %v", in, got, want)
		}
	}
	labtest.NeedMPTCP(t)
	s.Nodes["a"].MPTCP = &scenario.MPTCP{MPTCP: edge.MPTCP{Subflows: 3, AddAddrAccepted: 4}}
	l := start(t, options(t, "mptcp", s))
	err := netns.Do(namespaceOf(l.Name(), "a"), func() error {
		c, err := mptcp.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		got, err := c.Limits()
		if err == nil && (got.Subflows != 3 || got.AddAddrAccepted != 4) {
			t.Errorf("limits %+v", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSwitchSendsNothing(t *testing.T) {
	l := start(t, options(t, "switch", labtest.Plain()))
	err := netns.Do(l.plan.links[0].netns, func() error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		for _, a := range addrs {
			if !a.IP.IsLoopback() {
				t.Errorf("switch has address %s", a)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func BenchmarkUpDown(b *testing.B) {
	labtest.NeedRoot(b)
	for b.Loop() {
		l, err := Up(b.Context(), Options{Name: labtest.Prefix() + "bench", Spec: labtest.Routed()})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Down(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
