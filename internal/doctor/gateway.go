package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/bpf"
	"github.com/tabane/tabane/internal/bpf/forward"
	"github.com/tabane/tabane/internal/bpf/relay"
	"github.com/tabane/tabane/internal/feature"
	"github.com/tabane/tabane/internal/link"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/nft"
	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/route"
	"github.com/tabane/tabane/internal/tun"
	"github.com/tabane/tabane/internal/udp"
	"github.com/tabane/tabane/internal/unit"
)

// tryTUN makes a TUN device in a namespace of its own, and returns whether it takes UDP
// super-packets.
func tryTUN() (udpOffload bool, err error) {
	err = isolated(func() (err error) {
		udpOffload, err = tun.Probe()
		return err
	})
	return udpOffload, err
}

// gatewayOffloads returns what the speed of a gateway depends on.
func gatewayOffloads() []Finding {
	device := Finding{Check: "TUN device", State: OK, Meaning: "a gateway takes and gives packets, TCP in super-packets"}
	super := Finding{Check: "TUN UDP offload", State: OK, Meaning: "a gateway takes and gives UDP in super-packets too (optional)"}
	switch offload, err := tryTUN(); {
	case err != nil:
		device.check(err)
		super.State, super.Meaning = Unknown, "needs the TUN device"
		if errors.Is(err, ErrNotChecked) {
			device.Remedy = "run as root to check"
		}
	case !offload:
		super.State, super.Meaning, super.Remedy = Limited, "a gateway takes UDP packets one by one, at several times the CPU time", "use Linux 6.2 or newer"
	}
	list := []Finding{device, super}
	segment, gro := udp.Probe()
	for _, f := range []struct {
		check, good string
		err         error
	}{
		{"UDP segmentation", "a gateway sends packets in batches (UDP_SEGMENT, optional)", segment},
		{"UDP receive offload", "a gateway receives packets in batches (UDP_GRO, optional)", gro},
	} {
		finding := Finding{Check: f.check, State: OK, Meaning: f.good}
		finding.check(f.err)
		list = append(list, finding)
	}
	return list
}

// wantBuffer is the size of a gateway's socket buffers in bytes.
const wantBuffer = 8 << 20

// socketBuffers checks whether the kernel gives sockets the buffers that bursts need. unprivileged is
// why this process is bounded by the limits for all.
func socketBuffers(sysctl func(string) (string, error), unprivileged error) Finding {
	f := Finding{Check: "socket buffers", State: OK, Meaning: "a gateway sets its buffers itself, whatever the limits are"}
	if unprivileged == nil {
		return f
	}
	f.Meaning = "a gateway without CAP_NET_ADMIN has buffers for bursts"
	var small, remedy []string
	for _, key := range []string{"net.core.rmem_max", "net.core.wmem_max"} {
		text, err := sysctl(key)
		n, bad := strconv.Atoi(text)
		if err = errors.Join(err, bad); err != nil {
			f.State, f.Meaning = Unknown, err.Error()
			return f
		}
		if n < wantBuffer {
			small = append(small, fmt.Sprintf("%s is %d", key, n))
			remedy = append(remedy, fmt.Sprintf("%s=%d", key, wantBuffer))
		}
	}
	if len(small) > 0 {
		f.State, f.Remedy = Limited, "sysctl -w "+strings.Join(remedy, " ")
		f.Meaning = strings.Join(small, ", ") + ": without CAP_NET_ADMIN a gateway loses bursts"
	}
	return f
}

// openRelay checks whether a member of an alliance relays open messages.
func openRelay() Finding {
	f := Finding{Check: "relay of open messages", State: OK, Meaning: "a member relays for leaders whose packets are not encrypted (eBPF, optional)"}
	p, err := relay.Load(relay.Options{})
	if err == nil {
		err = p.Close()
	}
	var missing *feature.Error
	switch {
	case errors.As(err, &missing):
		f.State, f.Meaning, f.Remedy = Limited, "a member relays only for leaders whose packets are encrypted: "+missing.Cause(), missing.Remedy
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	}
	return f
}

// gatewayPins returns the pins of gateways in all network namespaces.
func gatewayPins() ([]bpf.Pinned, error) { return bpf.AllPinned(role.Gateway) }

// openPlane checks what the programs of a gateway with open peers go on by when the daemon is killed. list returns those pins.
func openPlane(list func() ([]bpf.Pinned, error)) Finding {
	f := Finding{Check: "pins", State: OK, Meaning: "no program of a gateway is pinned"}
	all, err := list()
	if err != nil {
		f.unknown(err)
		return f
	}
	var used, orphaned, stale []string
	for _, p := range all {
		switch {
		case p.Stale():
			stale = append(stale, p.Dir)
		case !p.Used:
			orphaned = append(orphaned, p.Dir)
		default:
			used = append(used, p.Dir)
		}
	}
	if len(used) > 0 {
		f.Meaning = "programs of a running gateway are pinned in " + strings.Join(used, ", ") + ": they go on if it is killed"
	}
	switch {
	case len(orphaned) > 0:
		f.State, f.Meaning = Limited, "programs go on without a gateway, by the pins in "+strings.Join(orphaned, ", ")
		f.Remedy = "start the gateway, which takes them over, or rm -r " + strings.Join(orphaned, " ")
	case len(stale) > 0:
		f.State, f.Meaning = Limited, "pins of network namespaces that are gone hold memory: "+strings.Join(stale, ", ")
		f.Remedy = "start a gateway, which removes them, or rm -r " + strings.Join(stale, " ")
	}
	return f
}

// SuperPackets checks for a running gateway with open peers whether the LAN's interfaces merge packets: the
// program in the kernel sends each on one path as a whole, which keeps a slow line busy for long. rate is that
// of the slowest line, named path.
func SuperPackets(lan []string, path string, rate unit.Bandwidth) Finding {
	if _, err := net.InterfaceByName(forward.Segmenter); err == nil {
		return Finding{Check: "super-packets", State: OK, Meaning: "the kernel segments those that would keep a slow path of peers with mode plain busy"}
	}
	return superPackets(lan, path, rate, link.Merging)
}

func superPackets(lan []string, path string, rate unit.Bandwidth, merging func([]string) ([]string, error)) Finding {
	f := Finding{Check: "super-packets", State: OK, Meaning: "peers with mode plain: no interface of the LAN merges packets"}
	busy := rate.TimeFor(plane.SuperPacket)
	if busy <= plane.SuperPacketMost {
		f.Meaning = fmt.Sprintf("peers with mode plain: path %s is busy with 64 kB for %v", path, busy.Round(time.Millisecond/10))
		return f
	}
	found, err := merging(lan)
	if err != nil {
		f.unknown(err)
		return f
	}
	if len(found) > 0 {
		f.State, f.Remedy = Limited, "ethtool -K "+strings.Join(found, " gro off; ethtool -K ")+" gro off"
		f.Meaning = fmt.Sprintf("%s merges packets (GRO): to peers with mode plain they are sent as a whole, and path %s of %v is busy with 64 kB for %v",
			strings.Join(found, ", "), path, rate, busy.Round(time.Millisecond))
	}
	return f
}

// LAN checks for a running gateway with open peers whether it takes packets from all interfaces that lead to hosts: unlisted are those
// with addresses of the LAN that are none of its interfaces.
func LAN(unlisted []string) Finding {
	f := Finding{Check: "LAN", State: OK, Meaning: "packets to peers that are not sealed are taken from all interfaces with addresses of the LAN"}
	if len(unlisted) > 0 {
		f.State, f.Remedy = Limited, "add to lan.interfaces, in place of its trunk or port: "+strings.Join(unlisted, ", ")
		f.Meaning = strings.Join(unlisted, ", ") + " has addresses of the LAN and is not in lan.interfaces: packets of its hosts may all be sealed"
	}
	return f
}

// Firewall checks for a running gateway with open peers whether chains of nftables or iptables may drop packets of their hosts: those
// are of half a connection, since packets to peers bypass nftables, and arrive from the lines. So may chains that replace the mark
// that they are accepted by.
func Firewall(lines []string) Finding { return firewall(lines, nft.Untracked) }

func firewall(lines []string, untracked func(nft.Packets) ([]nft.Chain, error)) Finding {
	f := Finding{Check: "firewall", State: OK, Meaning: "no chain of nftables or iptables drops packets of peers that are not sealed by the state of their connection"}
	list, err := untracked(nft.Packets{Mark: forward.Mark, Bits: forward.MarkBits, Lines: lines})
	if err != nil {
		f.unknown(err)
		return f
	}
	var names, remedy []string
	for _, c := range list {
		names = append(names, c.String())
		remedy = append(remedy, c.AcceptMark(forward.Mark, forward.MarkBits))
	}
	if len(names) > 0 {
		f.State, f.Remedy = Limited, strings.Join(remedy, "; ")
		f.Meaning = strings.Join(names, ", ") + " may drop packets of peers that are not sealed, or replace their mark: they arrive from the lines, and packets to the peers bypass connection tracking"
	}
	return f
}

// Marks checks for a running gateway whether rules of other programs route its packets, because a part of their marks is that of
// others.
func Marks(marks ...uint32) Finding { return checkMarks(markRules, marks) }

func markRules() ([]route.MarkRule, error) {
	conn, err := route.Dial()
	if err != nil {
		return nil, err
	}
	rules, err := conn.MarkRules()
	return rules, errors.Join(err, conn.Close())
}

func checkMarks(rules func() ([]route.MarkRule, error), marks []uint32) Finding {
	f := Finding{Check: "marks", State: OK, Meaning: "no rule of another program routes packets of the gateway by a part of their mark"}
	all, err := rules()
	if err != nil {
		f.unknown(err)
		return f
	}
	var found []string
	for _, m := range marks {
		for _, r := range all {
			// Who compares all bits means these packets.
			if r.Matches(m) && r.Mask&forward.MarkBits != forward.MarkBits {
				found = append(found, fmt.Sprintf("%v also routes packets of the gateway with mark %d (%#x)", r, m, m))
			}
		}
	}
	if len(found) > 0 {
		f.State, f.Meaning = Limited, strings.Join(found, "; ")
		f.Remedy = "use marks above the lower 16 bits, such as 0x10000/0x10000"
	}
	return f
}

// TrafficControl checks for a running gateway with open peers the programs and filters of others at its interfaces: on those of the
// LAN, packets to these peers leave at ingress, and on the lines those from them have to pass the gateway's programs.
func TrafficControl(lan, lines []string) Finding { return trafficControl(lan, lines, bpf.AllAttached) }

func trafficControl(lan, lines []string, attached func(link string) (ingress, egress []bpf.Attached, err error)) Finding {
	f := Finding{Check: "tc programs", State: OK, Meaning: "no programs and filters of others are in the way of peers that are not sealed"}
	var limits, remedies, others []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(lan, lines)))) {
		ingress, egress, err := attached(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the daemon reports it
		}
		if err != nil {
			f.unknown(err)
			return f
		}
		own := -1 // the last one of the gateway
		for i, a := range ingress {
			if a.Own() {
				own = i
			}
		}
		for i, a := range ingress {
			what := fmt.Sprintf("%v at ingress of %s", a, name)
			switch isLAN := slices.Contains(lan, name); {
			case a.Own():
			case own < 0, i > own && !isLAN:
				others = append(others, what)
			case i > own:
				limits = append(limits, what+" does not see packets to peers that are not sealed")
				remedies = append(remedies, fmt.Sprintf("to drop or police these, attach a tcx program to %s before the gateway's", name))
			case isLAN:
				limits = append(limits, what+" is before the gateway's program: packets that it accepts are sealed")
				remedies = append(remedies, fmt.Sprintf("have %v return TCX_NEXT instead of TCX_PASS", a))
			default:
				limits = append(limits, what+" is before the gateway's programs: packets of peers that it accepts do not arrive, or without the mark")
				remedies = append(remedies, fmt.Sprintf("restart the gateway, or have %v return TCX_NEXT instead of TCX_PASS", a))
			}
		}
		for _, a := range egress {
			if !a.Own() {
				others = append(others, fmt.Sprintf("%v at egress of %s", a, name))
			}
		}
	}
	if len(others) > 0 {
		f.Meaning += "; others are " + strings.Join(others, ", ")
	}
	if len(limits) > 0 {
		f.State, f.Meaning, f.Remedy = Limited, strings.Join(limits, "; "), strings.Join(remedies, "; ")
	}
	return f
}

// KilledReversePath checks for a running gateway with open peers whether its lines drop their packets while it is killed:
// then the kernel has no route to their sources, which a loose filter wants, too.
func KilledReversePath(lines []string) Finding { return killedReversePath(lines, netns.ReadSysctl) }

func killedReversePath(lines []string, sysctl func(string) (string, error)) Finding {
	f := Finding{Check: "rp_filter while killed", State: OK, Meaning: "packets of peers that are not sealed arrive also while the gateway is killed"}
	const all = "all"
	remedy := map[string]bool{}
	var filtering []string
	for _, line := range lines {
		filters := false
		for _, name := range []string{all, line} {
			v, err := sysctl("net/ipv4/conf/" + name + "/rp_filter")
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				f.State, f.Meaning = Unknown, err.Error()
				return f
			case v != "0":
				filters, remedy[name] = true, true
			}
		}
		if filters {
			filtering = append(filtering, line)
		}
	}
	if len(filtering) > 0 {
		f.State, f.Remedy = Limited, "sysctl -w"
		for _, name := range slices.Sorted(maps.Keys(remedy)) {
			f.Remedy += " net/ipv4/conf/" + name + "/rp_filter=0"
		}
		f.Meaning = "on " + strings.Join(filtering, ", ") + " IPv4 packets of peers that are not sealed are dropped while the gateway is killed"
	}
	return f
}

// kernelClock returns the state of the kernel's clock (adjtimex(2)).
func kernelClock() (synchronized bool, err error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, err
}

// clock checks whether the clock is kept right: a gateway that is started again with a clock that was
// set back is refused by its peers at first.
func clock(read func() (synchronized bool, err error)) Finding {
	f := Finding{Check: "clock", State: OK, Meaning: "is synchronized: sessions of gateways begin at once after a restart"}
	switch synchronized, err := read(); {
	case err != nil:
		f.State, f.Meaning = Unknown, fmt.Sprintf("read state of clock: %v", err)
	case !synchronized:
		f.State, f.Remedy = Limited, "timedatectl set-ntp true, or run chrony"
		f.Meaning = "is not synchronized: a gateway whose clock was set back waits some seconds for its sessions after a restart (optional)"
	}
	return f
}

// leastMTU is what carries IPv6's smallest MTU in the tunnel over IPv6, in bytes.
const leastMTU = 1280 + 92

// tunnelMTU checks whether whole packets fit into the tunnel on all interfaces that are up.
func tunnelMTU(interfaces func() ([]net.Interface, error)) Finding {
	f := Finding{Check: "MTU", State: OK, Meaning: "a gateway's tunnel carries packets of 1280 bytes whole over every interface"}
	list, err := interfaces()
	var small, remedy []string
	for _, i := range list {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 && i.MTU < leastMTU {
			small = append(small, fmt.Sprintf("%s has %d", i.Name, i.MTU))
			remedy = append(remedy, fmt.Sprintf("ip link set %s mtu %d", i.Name, leastMTU))
		}
	}
	switch {
	case err != nil:
		f.State, f.Meaning = Unknown, fmt.Sprintf("list interfaces: %v", err)
	case len(small) > 0:
		f.State, f.Remedy = Limited, strings.Join(remedy, "; ")+"; or do not use it as a path"
		f.Meaning = strings.Join(small, ", ") + fmt.Sprintf(", less than %d: as a path of a gateway it carries packets of 1280 bytes in fragments", leastMTU)
	}
	return f
}
