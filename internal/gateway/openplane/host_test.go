package openplane

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/nft"
)

// TestConditions: what each condition says of made-up hosts.
func TestConditions(t *testing.T) {
	broken := errors.New("broken")
	no, yes := func() bool { return false }, func() bool { return true }
	merging := func(err error, names ...string) func([]string) ([]string, error) {
		return func([]string) ([]string, error) { return names, err }
	}
	chains := func(err error, list ...nft.Chain) func(nft.Packets) ([]nft.Chain, error) {
		return func(nft.Packets) ([]nft.Chain, error) { return list, err }
	}
	filters := func(values map[string]string) func(string) (string, error) {
		return func(key string) (string, error) {
			if v, ok := values[strings.Split(key, "/")[3]]; ok {
				return v, nil
			}
			return "", fs.ErrNotExist
		}
	}
	unreadable := func(string) (string, error) { return "", broken }
	bridge := func() ([]netlink.Link, error) {
		return []netlink.Link{
			&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", Index: 1}},
			&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 2, MasterIndex: 1}},
			&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth1", Index: 3, MasterIndex: 1}},
			&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "eth0.100", Index: 4, ParentIndex: 2}},
		}, nil
	}
	lan, slow := []string{"eth0", "eth1"}, 8*unit.MbitPerSecond
	filtering := map[string]string{"all": "2", "eth1": "2", "eth2": "0"}
	for name, tt := range map[string]struct {
		c    condition.Condition
		want string // the problem, unknown with the error, or nothing
	}{
		"whole LAN":              {ofLAN(lan, nil, bridge), ""},
		"VLAN of the LAN":        {ofLAN(lan, []string{"eth0.100"}, bridge), "eth0.100 has addresses of the LAN and is not in lan.interfaces: packets of its hosts may all be sealed: add to lan.interfaces, in place of its trunk or port: eth0.100"},
		"bridge of listed ports": {ofLAN(lan, []string{"br0"}, bridge), ""},
		"bridge of another port": {ofLAN(lan[:1], []string{"br0"}, bridge), "br0 has addresses"},
		"no firewall":            {firewall(nil, chains(nil)), ""},
		"firewall":               {firewall(nil, chains(nil, nft.Chain{Family: "inet", Table: "filter", Name: "forward"})), "inet filter forward may drop packets of peers that are not sealed, or replace their mark: they arrive from the lines, and packets to the peers bypass connection tracking: nft insert rule inet filter forward meta mark and 0xffff == 4791 accept"},
		"unknown firewall":       {firewall(nil, chains(fs.ErrPermission)), "unknown: examine firewall of open peers: permission denied"},
		"firewall, in part":      {firewall(nil, chains(fs.ErrPermission, nft.Chain{Family: "inet", Table: "filter", Name: "forward"})), "inet filter forward may drop packets of peers that are not sealed, or replace their mark: they arrive from the lines, and packets to the peers bypass connection tracking: nft insert rule inet filter forward meta mark and 0xffff == 4791 accept; unknown: examine firewall of open peers: permission denied"},
		"unknown tc programs":    {trafficControl(lan, nil, func(string) ([]bpf.Attached, []bpf.Attached, error) { return nil, nil, fs.ErrPermission }), "unknown: examine tc programs: permission denied"},
		"no filter while killed": {killedReversePath([]string{"eth1"}, filters(map[string]string{"all": "0", "eth1": "0"})), ""},
		"filter while killed":    {killedReversePath([]string{"eth1", "eth2", "wwan0"}, filters(map[string]string{"all": "0", "eth1": "0", "eth2": "2"})), "on eth2 IPv4 packets of peers that are not sealed are dropped while the gateway is killed: sysctl -w net/ipv4/conf/eth2/rp_filter=0"},
		"filter of all":          {killedReversePath([]string{"eth1", "eth2"}, filters(filtering)), "on eth1, eth2 IPv4 packets of peers that are not sealed are dropped while the gateway is killed: sysctl -w net/ipv4/conf/all/rp_filter=0 net/ipv4/conf/eth1/rp_filter=0"},
		"no filter to read":      {killedReversePath([]string{"eth1"}, unreadable), "unknown: examine rp_filter while killed: broken"},
		"super-packets":          {superPackets(lan, "dsl", slow, no, merging(nil, "eth0", "eth1")), "eth0, eth1 merges packets (GRO): to peers that are not sealed they are sent as a whole, and path dsl of 8Mbit/s is busy with 64 kB for 66ms: ethtool -K eth0 gro off; ethtool -K eth1 gro off"},
		"segmented":              {superPackets(lan, "dsl", slow, yes, merging(nil, "eth1")), ""},
		"single packets":         {superPackets(lan, "dsl", slow, no, merging(nil)), ""},
		"fast lines":             {superPackets(lan, "fiber", 100*unit.MbitPerSecond, no, merging(nil, "eth0")), ""},
		"no offloads to read":    {superPackets(lan, "dsl", slow, no, merging(broken)), "unknown: examine super-packets: broken"},
	} {
		x := condition.Examine([]condition.Condition{tt.c})
		var parts []string
		for _, p := range x.Problems {
			parts = append(parts, p.Error())
		}
		for _, err := range x.Unknown {
			parts = append(parts, "unknown: "+err.Error())
		}
		got := strings.Join(parts, "; ")
		if got != tt.want && (tt.want == "" || !strings.HasPrefix(got, tt.want)) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// accepting returns a program of another one that accepts every packet.
func accepting(t *testing.T) *ebpf.Program {
	t.Helper()
	const pass = 0 // TCX_PASS
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestHostIsRestored: a running plane restores its programs and its pair of interfaces, and reports
// what it cannot.
func TestHostIsRestored(t *testing.T) {
	netnstest.Need(t)
	foreign := accepting(t)
	for _, legacy := range []bool{false, true} {
		s := newSite(t)
		root := bpftest.Mount(t)
		var p *Plane
		in := func(do func() error) {
			t.Helper()
			netnstest.Do(t, s.gate, do)
		}
		carried := &carrying{}
		in(func() (err error) {
			p, err = New(Options{
				Legacy: legacy, Pins: func() (string, error) { return filepath.Join(root, "gateway-1"), nil },
				Sealed: func(o dataplane.Open) (Sealed, error) { carried.sealed.open = o; return carried, nil },
			})
			if err != nil {
				return err
			}
			return p.Apply(daemonState())
		})
		examine := func() (x condition.Examination) {
			t.Helper()
			in(func() error { x = condition.Examine(p.Conditions()); return nil })
			return x
		}
		if x := examine(); len(x.Problems)+len(x.Unknown)+len(x.Restored) > 0 {
			t.Errorf("at the start: %+v", x)
		}
		restored := func(what, name string, change func() error) {
			t.Helper()
			in(change)
			x := examine()
			if len(x.Problems)+len(x.Unknown) > 0 || len(x.Restored) != 1 || x.Restored[0] != name {
				t.Errorf("legacy %t, %s: %+v", legacy, what, x)
			}
			if x := examine(); len(x.Restored)+len(x.Problems) > 0 {
				t.Errorf("legacy %t, %s, after that: %+v", legacy, what, x)
			}
		}
		ip := func(command string) func() error {
			return func() error { _, err := netnstest.TryIP(t, "", command); return err }
		}
		for _, command := range []string{"link set tabane-seg0 down", "link set tabane-seg1 down", "link set tabane-seg1 mtu 1500"} {
			restored(command, "segmentation of super-packets", ip(command))
		}
		restored("rp_filter", "segmentation of super-packets", func() error { return netns.Sysctl("net.ipv4.conf.tabane-seg1.rp_filter", "1") })
		restored("rp_filter of all", "segmentation of super-packets", func() error { return netns.Sysctl("net.ipv4.conf.all.rp_filter", "1") })
		// The pair had a program, too.
		restored("no pair", "programs of open peers", ip("link del tabane-seg0"))
		restored("another pair", "programs of open peers", ip("link del tabane-seg0; link add tabane-seg0 type veth peer name tabane-seg1"))
		detach := func(name string) func() error {
			return func() error {
				at, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				if legacy {
					return detachFilters(at)
				}
				return bpftest.DetachIngress(at.Attrs().Index)
			}
		}
		restored("LAN", "programs of open peers", detach(lanName))
		restored("line", "programs of open peers", detach(lineNames[1]))
		rule := netlink.NewRule()
		mask := uint32(1)
		rule.Family, rule.Priority, rule.Mark, rule.Mask, rule.Table = netlink.FAMILY_V4, 100, 1, &mask, 7
		in(func() error { return netlink.RuleAdd(rule) })
		if x := examine(); len(x.Problems) != 1 || !strings.Contains(x.Problems[0].Text, "also routes packets of the gateway with mark 4791") {
			t.Errorf("a rule with a part of the mark: %+v", x)
		}
		in(func() error { return netlink.RuleDel(rule) })
		if !legacy {
			before := func(name string) (detach func()) {
				var l link.Link
				in(func() error {
					at, err := netlink.LinkByName(name)
					if err == nil {
						l, err = link.AttachTCX(link.TCXOptions{Interface: at.Attrs().Index, Program: foreign, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
					}
					return err
				})
				return func() { l.Detach(); l.Close() }
			}
			done := before(lineNames[0])
			restored("a program before that of a line", "programs of open peers", func() error { return nil })
			done()
			done = before(lanName)
			if x := examine(); len(x.Problems)+len(x.Restored) > 0 {
				t.Errorf("a program before that of the LAN, which accepts nothing: %+v", x)
			}
			carried.packets = 5
			for range 2 {
				if x := examine(); len(x.Problems) != 1 || !strings.Contains(x.Problems[0].Text, "accepts packets to peers that are not sealed") {
					t.Errorf("a program before that of the LAN, which accepts packets: %+v", x)
				}
			}
			done()
			if x := examine(); len(x.Problems) > 0 {
				t.Errorf("without a program before that of the LAN: %+v", x)
			}
		}
		in(func() error {
			ctx, stop := context.WithCancel(t.Context())
			stop()
			return p.Run(ctx)
		})
	}
}

// carrying is a sealed plane that has carried packets to the open peer.
type carrying struct {
	sealed
	packets uint64
}

func (c *carrying) Status() dataplane.Status {
	return dataplane.Status{Peers: []dataplane.PeerStatus{{Name: "far", Policies: []dataplane.RuleStatus{{Sent: dataplane.Count{Packets: c.packets}}}}}}
}

// detachFilters removes all filters at ingress of an interface.
func detachFilters(at netlink.Link) error {
	list, err := netlink.FilterList(at, netlink.HANDLE_MIN_INGRESS)
	for _, f := range list {
		err = errors.Join(err, netlink.FilterDel(f))
	}
	return err
}
