package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/gateway/openplane"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
)

func TestGatewayFindings(t *testing.T) {
	broken := errors.New("broken")
	limits := func(values ...string) func(string) (string, error) {
		return func(string) (string, error) {
			if len(values) == 0 {
				return "", broken
			}
			v := values[0]
			values = values[1:]
			return v, nil
		}
	}
	clockIs := func(synchronized bool, err error) Finding {
		return clock(func() (bool, error) { return synchronized, err })
	}
	mtus := func(err error, list ...net.Interface) Finding {
		return tunnelMTU(func() ([]net.Interface, error) { return list, err })
	}
	for name, tt := range map[string]struct {
		got             Finding
		state           State
		meaning, remedy string
	}{
		"privileged":                {socketBuffers(limits("1", "1"), nil), OK, "itself", ""},
		"large limits":              {socketBuffers(limits("8388608", "16777216"), broken), OK, "has buffers", ""},
		"a small limit":             {socketBuffers(limits("8388608", "212992"), broken), Limited, "net.core.wmem_max is 212992", "sysctl -w net.core.wmem_max=8388608"},
		"no limit":                  {socketBuffers(limits(), broken), Unknown, "broken", ""},
		"a limit is text":           {socketBuffers(limits("x"), broken), Unknown, "invalid syntax", ""},
		"synchronized":              {clockIs(true, nil), OK, "is synchronized", ""},
		"not synchronized":          {clockIs(false, nil), Limited, "is not synchronized", "timedatectl set-ntp true"},
		"no clock":                  {clockIs(false, broken), Unknown, "broken", ""},
		"MTU of Ethernet":           {mtus(nil, net.Interface{Name: "eth0", MTU: 1500, Flags: net.FlagUp}), OK, "whole", ""},
		"small MTU":                 {mtus(nil, net.Interface{Name: "wwan0", MTU: 1300, Flags: net.FlagUp}), Limited, "wwan0 has 1300, less than 1372", "ip link set wwan0 mtu 1372"},
		"an interface that is down": {mtus(nil, net.Interface{Name: "wwan0", MTU: 1300}), OK, "whole", ""},
		"no interfaces":             {mtus(broken), Unknown, "broken", ""},
	} {
		f := tt.got
		if f.State != tt.state || !strings.Contains(f.Meaning, tt.meaning) || !strings.Contains(f.Remedy, tt.remedy) || f.State == Limited && f.Remedy == "" || f.State == OK && f.Remedy != "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestReversePath: what the check reports is what the kernel does, for all values of both settings:
// a packet whose return route is another interface arrives or not. The remedy has it arrive.
func TestReversePath(t *testing.T) {
	needRoot(t)
	err := isolated(func() error {
		if err := errors.Join(pair(), netns.Sysctl("net.ipv4.conf.lo.rp_filter", "0"), netns.Sysctl("net.ipv4.conf.probe1.rp_filter", "0")); err != nil {
			return err
		}
		// A packet leaves by probe0 and arrives at probe1, from a source whose best route is lo.
		if _, err := netnstest.TryIP(t, "", "-4 addr add 192.0.2.1/24 dev probe0; -4 addr add 198.51.100.1/24 dev probe1; -4 route add 203.0.113.0/24 dev lo"); err != nil {
			return err
		}
		for _, setting := range []string{"0 0", "0 1", "0 2", "1 0", "1 1", "1 2", "2 0", "2 1", "2 2"} {
			var all, own string
			fmt.Sscan(setting, &all, &own)
			set := func(own string) (Finding, bool) {
				if err := errors.Join(netns.Sysctl("net.ipv4.conf.all.rp_filter", all), netns.Sysctl("net.ipv4.conf.probe1.rp_filter", own), netns.Sysctl("net.ipv4.conf.lo.rp_filter", "0"), netns.Sysctl("net.ipv4.conf.probe0.rp_filter", "0")); err != nil {
					t.Fatal(err)
				}
				return OfCondition(condition.ReversePath(probe, "probe1")), arrives(t)
			}
			f, arrived := set(own)
			strict := f.State == Limited && strings.Contains(f.Meaning, "probe1")
			if strict == arrived || arrived != (max(all, own) != "1") {
				t.Errorf("all %s, interface %s: %+v, and the packet arrives: %t", all, own, f, arrived)
			}
			if arrived {
				continue
			}
			if !strings.Contains(f.Remedy, "sysctl -w net.ipv4.conf.probe1.rp_filter=2") {
				t.Errorf("all %s, interface %s: %+v", all, own, f)
			}
			if f, arrived := set("2"); strings.Contains(f.Meaning, "probe1") || !arrived {
				t.Errorf("all %s, interface %s, after the remedy: %+v, and the packet arrives: %t", all, own, f, arrived)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// arrives reports whether a datagram from 203.0.113.9 that leaves by probe0 arrives at probe1,
// before one from a source whose return route is probe1.
func arrives(t *testing.T) bool {
	t.Helper()
	in, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("198.51.100.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	probed, always := netip.MustParseAddrPort("203.0.113.9:9"), netip.MustParseAddrPort("198.51.100.9:9")
	for _, from := range []netip.AddrPort{probed, always} {
		inject(t, from, in.LocalAddr().(*net.UDPAddr).AddrPort())
	}
	if err := in.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, from, err := in.ReadFromUDPAddrPort(make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	return from == probed
}

// TestMerges: an interface that merges packets is found, also as the port of a bridge with a
// MACVLAN on it, and one without offloads is not.
func TestMerges(t *testing.T) {
	needRoot(t)
	check := func(want State, remedy string, prepare func() error, lan ...string) {
		t.Helper()
		if err := isolated(func() error {
			err := prepare()
			if f := OfCondition(openplane.SuperPackets(lan, "dsl", unit.MbitPerSecond)); f.State != want || f.Remedy != remedy {
				t.Errorf("%+v, want %s, %q", f, want, remedy)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	check(Limited, "ethtool -K "+probe+" gro off", func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = probe
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP})
	}, probe)
	check(OK, "", func() error { return errors.Join(pair(), offload.Prepare(probe)) }, probe)
	for want, remedy := range map[State]string{OK: "", Limited: "ethtool -K port gro off"} {
		check(want, remedy, func() error {
			attrs, upper, port := netlink.NewLinkAttrs(), netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
			attrs.Name, upper.Name, port.Name = "bridge", probe, "port"
			err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
			bridge, e := netlink.LinkByName("bridge")
			if err = errors.Join(err, e); err != nil {
				return err
			}
			port.MasterIndex, upper.ParentIndex = bridge.Attrs().Index, bridge.Attrs().Index
			err = errors.Join(netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: port, Mode: netlink.TUNTAP_MODE_TAP}),
				netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: upper, Mode: netlink.MACVLAN_MODE_BRIDGE}))
			if want == OK {
				err = errors.Join(err, offload.Prepare("port"))
			}
			return err
		}, probe, "bridge")
	}
}

// TestMarks: rules of other programs that take packets of the gateway by a part of their mark are
// named.
func TestMarks(t *testing.T) {
	needRoot(t)
	const v4, v6 = unix.AF_INET, unix.AF_INET6
	rule := func(family, priority int, mark, mask uint32, invert bool) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Mark, r.Mask, r.Invert, r.Table = family, priority, mark, &mask, invert, 7
		return r
	}
	for name, tt := range map[string]struct {
		rules []*netlink.Rule
		want  string // the meaning; empty: none is named
	}{
		"none": {nil, ""},
		"a bit of both": {
			[]*netlink.Rule{rule(v4, 100, 2, 2, false)},
			"ip -4 rule priority 100 fwmark 0x2/0x2 also routes packets of the gateway with mark 4790 (0x12b6); " +
				"ip -4 rule priority 100 fwmark 0x2/0x2 also routes packets of the gateway with mark 4791 (0x12b7)",
		},
		"a bit of one": {[]*netlink.Rule{rule(v6, 101, 1, 0xf0001, false)}, "ip -6 rule priority 101 fwmark 0x1/0xf0001 also routes packets of the gateway with mark 4791 (0x12b7)"},
		"no bit":       {[]*netlink.Rule{rule(v4, 1, 0x10000, 0x10000, false), rule(v4, 2, 1, ^uint32(0), false), rule(v4, 3, 8, 8, false)}, ""},
		"meant":        {[]*netlink.Rule{rule(v4, 1, 4791, ^uint32(0), false), rule(v4, 2, 4790, 0xffff, false)}, ""},
		"all others":   {[]*netlink.Rule{rule(v4, 1, 1, 1, true)}, ""},
	} {
		if err := isolated(func() error {
			for _, r := range tt.rules {
				if err := netlink.RuleAdd(r); err != nil {
					return err
				}
			}
			f := OfCondition(openplane.Marks(4790, 4791))
			if (f.State == Limited) != (tt.want != "") || tt.want != "" && f.Meaning != tt.want || (f.State == OK) != (f.Remedy == "") {
				t.Errorf("%s: %+v", name, f)
			}
			return nil
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTrafficControl: programs and filters of others are named, and limit the gateway where they
// run on the wrong side of its own.
func TestTrafficControl(t *testing.T) {
	needRoot(t)
	spec := func() *ebpf.ProgramSpec {
		const next = -1 // TCX_NEXT
		return &ebpf.ProgramSpec{Name: "foreign", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()}}
	}
	foreign, err := ebpf.NewProgram(spec())
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	var own struct {
		Split *ebpf.Program `ebpf:"split"`
	}
	if err := bpf.Load(&ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"split": spec()}}, &own); err != nil {
		t.Fatal(err)
	}
	defer own.Split.Close()
	at := func(p *ebpf.Program, legacy, last bool) bpf.AttachOptions {
		o := bpf.AttachOptions{Link: probe, Name: "foreign", Ethernet: bpf.Programs{Ingress: p}, Legacy: legacy, Last: last}
		if p == own.Split {
			o.Name = "tabane_forward"
		}
		return o
	}
	gateway, filterOfGateway := at(own.Split, false, true), at(own.Split, true, true)
	before, after, filter := at(foreign, false, false), at(foreign, false, true), at(foreign, true, false)
	egress := bpf.AttachOptions{Link: probe, Ethernet: bpf.Programs{Egress: foreign}}
	lan, line, gone := [2][]string{{probe}}, [2][]string{nil, {probe}}, [2][]string{{"eth9"}, {"eth9"}}
	for name, tt := range map[string]struct {
		on              [2][]string // the interfaces of the LAN and of the lines
		attach          []bpf.AttachOptions
		state           State
		meaning, remedy string
	}{
		"no other":                      {lan, []bpf.AttachOptions{gateway}, OK, "no programs and filters of others are in the way of peers that are not sealed", ""},
		"before it on the LAN":          {lan, []bpf.AttachOptions{gateway, before}, Limited, `tcx program "foreign" at ingress of probe0 is before the gateway's program: packets that it accepts are sealed`, `have tcx program "foreign" return TCX_NEXT`},
		"after it on the LAN":           {lan, []bpf.AttachOptions{gateway, after}, Limited, `tcx program "foreign" at ingress of probe0 does not see packets to peers that are not sealed`, "attach a tcx program to probe0 before"},
		"a filter on the LAN":           {lan, []bpf.AttachOptions{filter, gateway}, Limited, `bpf filter "foreign" of pref 1 at ingress of probe0 does not see`, "attach a tcx program to probe0 before"},
		"a filter before a filter":      {lan, []bpf.AttachOptions{filterOfGateway, filter}, Limited, `bpf filter "foreign" of pref 1 at ingress of probe0 is before`, "TCX_NEXT"},
		"at egress":                     {lan, []bpf.AttachOptions{gateway, egress}, OK, `sealed`, ""},
		"before it on a line":           {line, []bpf.AttachOptions{gateway, before}, Limited, `tcx program "foreign" at ingress of probe0 is before the gateway's programs: packets of peers that it accepts do not arrive`, "restart the gateway"},
		"after it on a line":            {line, []bpf.AttachOptions{gateway, after, filter}, OK, `sealed`, ""},
		"without a program of gateways": {lan, []bpf.AttachOptions{before}, OK, `sealed`, ""},
		"no interface":                  {gone, nil, OK, "no programs", ""},
	} {
		if err := isolated(func() error {
			if err := pair(); err != nil {
				return err
			}
			for _, o := range tt.attach {
				a, err := bpf.Attach(o)
				if err != nil {
					return err
				}
				defer a.Detach()
			}
			f := OfCondition(openplane.TrafficControl(tt.on[0], tt.on[1]))
			if f.State != tt.state || !strings.Contains(f.Meaning, tt.meaning) || !strings.Contains(f.Remedy, tt.remedy) || (f.State == OK) != (f.Remedy == "") {
				t.Errorf("%s: %+v", name, f)
			}
			return nil
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// inject sends a datagram in a frame out of probe0.
func inject(t *testing.T, from, to netip.AddrPort) {
	t.Helper()
	near, err := net.InterfaceByName(probe)
	if err != nil {
		t.Fatal(err)
	}
	far, err := net.InterfaceByName("probe1")
	if err != nil {
		t.Fatal(err)
	}
	be := binary.BigEndian
	b := append(append(append([]byte(nil), far.HardwareAddr...), near.HardwareAddr...), 0x08, 0x00)
	head := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	head = append(append(head, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(head); i += 2 {
		sum += uint32(be.Uint16(head[i:]))
	}
	be.PutUint16(head[10:], ^uint16(sum>>16+sum&0xffff))
	b = append(b, head...)
	b = be.AppendUint16(be.AppendUint16(b, from.Port()), to.Port())
	b = append(b, 0, 8, 0, 0) // a checksum is optional
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: near.Index}); err != nil {
		t.Fatal(err)
	}
}

// TestOpenPlane: what is pinned is reported, and what nothing uses is a finding with its remedy.
func TestOpenPlane(t *testing.T) {
	used, orphaned, stale := bpf.Pinned{Dir: "/p/gateway-1", Alive: true, Used: true}, bpf.Pinned{Dir: "/p/gateway-2", Alive: true}, bpf.Pinned{Dir: "/p/gateway-3"}
	for _, tt := range []struct {
		list   []bpf.Pinned
		err    error
		state  State
		remedy string
	}{
		{nil, nil, OK, ""},
		{[]bpf.Pinned{used, {Dir: "/p/gateway-4", Used: true}}, nil, OK, ""},
		{[]bpf.Pinned{used, orphaned, stale}, nil, Limited, "start the gateway, which takes them over, or rm -r /p/gateway-2"},
		{[]bpf.Pinned{used, stale}, nil, Limited, "start a gateway, which removes them, or rm -r /p/gateway-3"},
		{nil, fs.ErrPermission, Unknown, "run as root to check"},
	} {
		if f := openPlane(func() ([]bpf.Pinned, error) { return tt.list, tt.err }); f.State != tt.state || f.Remedy != tt.remedy {
			t.Errorf("%v, %v: %+v", tt.list, tt.err, f)
		}
	}
}
