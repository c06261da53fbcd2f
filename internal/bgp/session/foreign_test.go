package session

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// foreignLink connects the namespace of the tests with a new one, whose name it returns, by a pair
// of interfaces of this name: 2001:db8:1::/64 and 192.0.2.0/24, fe80::/64. Our side has the
// addresses from ::10 to ::1f, theirs ::2.
func foreignLink(t testing.TB, name string) (namespace string) {
	t.Helper()
	netnstest.NeedIsolation(t)
	namespace = netnstest.New(t)
	file, err := os.Open("/run/netns/" + namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Index: 100}, PeerName: name, PeerNamespace: netlink.NsFd(file.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(veth) }) // may be gone with the namespace
	up := func(addresses ...string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		for _, a := range addresses {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			if addr.IP.To4() == nil {
				addr.Flags = syscall.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(l, addr); err != nil {
				return fmt.Errorf("add %s: %w", a, err)
			}
		}
		return nil
	}
	ours := []string{"fe80::11/64"}
	for i := range 16 {
		ours = append(ours, fmt.Sprintf("2001:db8:1::%x/64", 0x10+i), fmt.Sprintf("192.0.2.%d/24", 0x10+i))
	}
	if err := up(ours...); err != nil {
		t.Fatal(err)
	}
	netnstest.Do(t, namespace, func() error { return up("fe80::12/64", "2001:db8:1::2/64", "192.0.2.2/24") })
	return namespace
}

// foreign is a session with a program of others.
type foreign struct {
	name          string
	local, remote string
	change        func(*Config)
	// bird and frr are their options for the neighbor.
	bird string
	frr  []string // nil: not run with FRR
}

func (f foreign) isFRR() bool { return f.frr != nil }

var foreigners = []foreign{
	{"they dial", "2001:db8:1::10", "2001:db8:1::2", func(c *Config) { c.Passive = true }, "", []string{}},
	{"we dial", "2001:db8:1::11", "2001:db8:1::2", nil, "passive on;", []string{"passive"}},
	{"both dial", "2001:db8:1::12", "2001:db8:1::2", nil, "", []string{}},
	{"ipv4", "192.0.2.19", "192.0.2.2", nil, "", []string{}},
	{"password, they dial", "2001:db8:1::14", "2001:db8:1::2", func(c *Config) { c.Password, c.Passive = "s3cret", true }, `password "s3cret";`, []string{"password s3cret"}},
	{"password, we dial", "192.0.2.21", "192.0.2.2", func(c *Config) { c.Password = "s3cret" }, `password "s3cret"; passive on;`, []string{"password s3cret", "passive"}},
	{"gtsm, they dial", "2001:db8:1::16", "2001:db8:1::2", func(c *Config) { c.GTSM, c.Passive = true, true }, "ttl security on;", []string{"ttl-security hops 1"}},
	{"gtsm, we dial", "2001:db8:1::17", "2001:db8:1::2", func(c *Config) { c.GTSM = true }, "ttl security on; passive on;", []string{"ttl-security hops 1", "passive"}},
	{"gtsm ipv4, they dial", "192.0.2.24", "192.0.2.2", func(c *Config) { c.GTSM, c.Passive = true, true }, "ttl security on;", []string{"ttl-security hops 1"}},
	{"gtsm and password", "2001:db8:1::19", "2001:db8:1::2", func(c *Config) { c.GTSM, c.Password = true, "s3cret" }, `ttl security on; password "s3cret";`, []string{"ttl-security hops 1", "password s3cret"}},
	{"multihop", "2001:db8:1::1a", "2001:db8:1::2", func(c *Config) { c.Multihop = 3 }, "multihop 3;", []string{"ebgp-multihop 3"}},
	{"all capabilities", "2001:db8:1::1b", "2001:db8:1::2", nil, "enable extended messages on; graceful restart on; long lived graceful restart on; advertise hostname on;",
		[]string{"capability extended-nexthop", "capability dynamic", "graceful-restart", "addpath-tx-all-paths"}},
	{"role", "2001:db8:1::1c", "2001:db8:1::2", func(c *Config) { c.Role = message.RoleCustomer }, "local role provider; require roles on;", []string{"local-role provider strict-mode"}},
	{"no keepalives", "2001:db8:1::1d", "2001:db8:1::2", nil, "hold time 0;", []string{"timers 0 0"}},
	{"shortest hold time", "2001:db8:1::1e", "2001:db8:1::2", nil, "hold time 3;", []string{"timers 1 3"}},
	{"link-local", "fe80::11", "fe80::12", nil, "interface;", nil},
}

// establishForeign establishes the selected sessions with a program, and waits for its end.
func establishForeign(t *testing.T, link string, with func(foreign) bool, end func()) {
	t.Helper()
	var sessions []*node
	for _, f := range foreigners {
		if !with(f) {
			continue
		}
		c := config(1, 2)
		local, remote := netip.MustParseAddr(f.local), netip.MustParseAddr(f.remote)
		c.Local, c.ConnectRetry = local, time.Second
		if local.IsLinkLocalUnicast() {
			local, remote = local.WithZone(link), remote.WithZone(link)
		}
		c.Remote = netip.AddrPortFrom(remote, 179)
		c.Families, c.ExtendedMessage, c.RouteRefresh = message.Families(message.IPv6Unicast), true, true
		if f.change != nil {
			f.change(&c)
		}
		c.Listener = listenOn(t, local)
		sessions = append(sessions, startNode(t, c))
	}
	began := time.Now()
	for _, n := range sessions {
		n.waitUp(t)
	}
	t.Logf("%d sessions up after %s", len(sessions), time.Since(began))
	end()
	for _, n := range sessions {
		eventually(t, "down: "+n.conf.Remote.String(), func() bool { return n.Status().Flaps > 0 })
		if s := n.Status(); s.Received.Code != message.CodeCease {
			t.Errorf("%s: last reset %q", n.conf.Local, s.LastReset)
		}
	}
}

// startForeign starts a program in a namespace, with these files in its directory, and returns a
// function that terminates it.
func startForeign(t *testing.T, namespace string, files map[string]string, command ...string) (terminate func()) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("sh", append([]string{"-c", `exec "$@"`}, command...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	netnstest.Start(t, namespace, cmd)
	t.Cleanup(func() {
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("its log:\n%s", text)
		}
	})
	return func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

func TestBIRD(t *testing.T) {
	bird := programs.Need(t, "bird")
	const link = "bird0"
	namespace := foreignLink(t, link)
	var conf strings.Builder
	conf.WriteString("log stderr all;\nrouter id 10.0.0.2;\nprotocol device {}\n")
	for i, f := range foreigners {
		local, options := f.remote, f.bird
		if f.bird == "interface;" {
			options = fmt.Sprintf("interface %q;", link)
		}
		fmt.Fprintf(&conf, "protocol bgp p%d { local %s as 65002; neighbor %s as 65001; connect delay time 1; connect retry time 1; error wait time 1, 1; %s ipv6 { import all; export none; }; }\n",
			i, local, f.local, options)
	}
	end := startForeign(t, namespace, map[string]string{"bird.conf": conf.String()}, "bird", bird, "-f", "-c", "bird.conf", "-s", "bird.ctl")
	establishForeign(t, link, func(foreign) bool { return true }, end)
}

func TestFRR(t *testing.T) {
	programs.Need(t, "vtysh")
	const link = "frr0"
	namespace := foreignLink(t, link)
	var conf strings.Builder
	conf.WriteString("router bgp 65002\n bgp router-id 10.0.0.2\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n bgp long-lived-graceful-restart stale-time 3600\n")
	var family strings.Builder
	for _, f := range foreigners {
		if !f.isFRR() {
			continue
		}
		fmt.Fprintf(&conf, " neighbor %s remote-as 65001\n neighbor %[1]s timers connect 1\n neighbor %[1]s update-source %s\n", f.local, f.remote)
		for _, o := range f.frr {
			fmt.Fprintf(&conf, " neighbor %s %s\n", f.local, o)
		}
		fmt.Fprintf(&family, "  neighbor %s activate\n  neighbor %[1]s capability orf prefix-list both\n", f.local)
	}
	fmt.Fprintf(&conf, " address-family ipv6 unicast\n%s exit-address-family\n", &family)
	end := startForeign(t, namespace, map[string]string{"bgpd.conf": conf.String(), "zebra.conf": "", "frr.sh": `
for dir in /usr/lib/frr /usr/libexec/frr /usr/sbin; do [ -x $dir/bgpd ] && break; done
options="--socket $PWD/zserv.api --vty_socket $PWD --vty_port 0 --log stdout"
$dir/zebra --config_file $PWD/zebra.conf --pid_file $PWD/zebra.pid $options --user root --group frrvty &
until [ -S zserv.api ]; do sleep 0.05; done
exec $dir/bgpd --config_file $PWD/bgpd.conf --pid_file $PWD/bgpd.pid $options --skip_runas
`}, "sh", "sh", "frr.sh")
	establishForeign(t, link, foreign.isFRR, end)
}

// TestGoBGP establishes sessions with GoBGP's server, which runs in this process.
func TestGoBGP(t *testing.T) {
	netnstest.NeedIsolation(t)
	theirs := address(0x60)
	s := server.NewBgpServer(server.LoggerOption(testLog(), nil))
	go s.Serve()
	t.Cleanup(s.Stop)
	err := s.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{
		Asn: 65002, RouterId: "10.0.0.2", ListenPort: 179, ListenAddresses: []string{theirs.String()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var sessions []*node
	for i, k := range []struct {
		weArePassive, theyArePassive bool
		password                     string
	}{{true, false, ""}, {false, true, ""}, {false, false, ""}, {true, false, "s3cret"}, {false, true, "s3cret"}} {
		ours := address(0x61 + i)
		peer := &api.Peer{
			Conf:      &api.PeerConf{NeighborAddress: ours.String(), PeerAsn: 65001, AuthPassword: k.password},
			Timers:    &api.Timers{Config: &api.TimersConfig{HoldTime: 9, KeepaliveInterval: 3, ConnectRetry: 1}},
			Transport: &api.Transport{LocalAddress: theirs.String(), PassiveMode: k.theyArePassive, RemotePort: 179},
			AfiSafis: []*api.AfiSafi{{Config: &api.AfiSafiConfig{
				Family: &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}, Enabled: true,
			}}},
		}
		if err := s.AddPeer(context.Background(), &api.AddPeerRequest{Peer: peer}); err != nil {
			t.Fatal(err)
		}
		c := config(1, 2)
		c.Local, c.Remote, c.ConnectRetry = ours, netip.AddrPortFrom(theirs, 179), time.Second
		c.Passive, c.Password, c.Listener = k.weArePassive, k.password, listenOn(t, ours)
		sessions = append(sessions, startNode(t, c))
	}
	for _, n := range sessions {
		n.waitUp(t)
		if f := n.Status().Established.Families; f != message.Families(message.IPv6Unicast) {
			t.Errorf("families %s", f)
		}
	}
	if err := s.DeletePeer(t.Context(), &api.DeletePeerRequest{Address: address(0x61).String()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the session", func() bool { return !sessions[0].Status().Up() })
	if got := sessions[0].Status(); got.Received.Code != message.CodeCease {
		t.Errorf("last reset %q", got.LastReset)
	}
}
